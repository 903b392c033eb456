"""Normalisations: batch, instance, group, layer, root mean square."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like, wide
from hcomp.capture.onnx_ops.shape import expand_to
from hcomp.dims import DimLike, floordiv


def _per_channel(c: NodeContext, value: int | str, rank: int) -> str:
    """Return a 1-D value, one number a channel, shaped to broadcast over [N, C, ...]."""
    return c.reshape(value, c.shape(value) + (1,) * max(rank - 2, 0))


def _batch_normalization(c: NodeContext) -> Sequence[str]:
    """BatchNormalization: with given statistics one multiplication and one addition."""
    epsilon, momentum = c.attr("epsilon", 1e-5), c.attr("momentum", 0.9)
    # Before opset 7 `is_test` chose, and opset 7 has neither; every such model is for inference.
    c.ignore("is_test")
    c.ignore("consumed_inputs")  # a hint about memory in opset 1
    if c.attr("training_mode", 0):
        return _batch_training(c, epsilon, momentum)
    spatial = c.attr("spatial", 1)
    scale, bias, mean, variance = (wide(c, i) for i in range(1, 5))
    computing = c.dtype(mean) if c.dtype(0) in ("float16", "bfloat16") else c.dtype(0)
    scale, bias, mean, variance = (c.cast(v, computing) for v in (scale, bias, mean, variance))
    deviation = c.emit("sqrt", c.emit("add", variance, like(c, epsilon, variance)))
    factor = c.emit("divide", scale, deviation)
    shift = c.emit("subtract", bias, c.emit("multiply", mean, factor))
    if spatial:
        factor, shift = (_per_channel(c, v, c.rank()) for v in (factor, shift))
    y = c.emit("add", c.emit("multiply", c.cast(0, computing), factor), shift)
    if any(c.wants(i) for i in range(1, 5)):
        raise c.refuse("it has the outputs of training without training_mode")
    return [c.cast(y, c.dtype(0))]


def _batch_training(c: NodeContext, epsilon: float, momentum: float) -> Sequence[str]:
    """Return y, running mean and running variance, from the statistics of this batch."""
    rank = c.rank()
    axes = tuple(i for i in range(rank) if i != 1)
    x = wide(c, 0)
    mean = c.emit("mean", x, axis=axes, keepdims=True)
    centred = c.emit("subtract", x, mean)
    variance = c.emit("mean", c.emit("square", centred), axis=axes, keepdims=True)
    deviation = c.emit("sqrt", c.emit("add", variance, like(c, epsilon, x)))
    scale, bias = (_per_channel(c, c.cast(i, c.dtype(x)), rank) for i in (1, 2))
    scaled = c.emit("multiply", c.emit("divide", centred, deviation), scale)
    y = c.cast(c.emit("add", scaled, bias), c.dtype(0))
    running = []
    for index, found in ((3, mean), (4, variance)):
        dtype = c.dtype(index)
        old = c.emit("multiply", wide(c, index), like(c, momentum, wide(c, index)))
        flat = c.cast(c.reshape(found, c.shape(index)), c.dtype(old))
        new = c.emit("multiply", flat, like(c, 1 - momentum, flat))
        running.append(c.cast(c.emit("add", old, new), dtype))
    return [y, *running]


def _instance_normalization(c: NodeContext) -> str:
    """InstanceNormalization: over the spatial axes of each channel of each sample."""
    epsilon = c.attr("epsilon", 1e-5)
    c.ignore("consumed_inputs")
    rank = c.rank()
    x = wide(c, 0)
    # Without spatial axes each number is a plane of its own.
    normal = c.b.emit("layer_norm", x, axis=2, epsilon=epsilon) if rank > 2 else _normalised(c, x, (), epsilon)[0]
    scale, bias = (_per_channel(c, wide(c, i), rank) for i in (1, 2))
    return c.cast(c.emit("add", c.emit("multiply", normal, scale), bias), c.dtype(0))


def _normalised(c: NodeContext, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, str, str]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean, and 1 / that root."""
    mean = c.emit("mean", x, axis=axes, keepdims=True)
    centred = c.emit("subtract", x, mean)
    variance = c.emit("mean", c.emit("square", centred), axis=axes, keepdims=True)
    deviation = c.emit("sqrt", c.emit("add", variance, like(c, epsilon, x)))
    inverse = c.emit("divide", like(c, 1, x), deviation)
    return c.emit("multiply", centred, inverse), mean, inverse


def _group_normalization(c: NodeContext) -> str:
    """GroupNormalization: scale and bias are one a group in opset 18, one a channel from 21 on."""
    epsilon, groups = c.attr("epsilon", 1e-5), c.required("num_groups")
    c.ignore("stash_type")  # half floats are computed in float32 here whatever it says
    shape = c.shape()
    n, channels = shape[:2]
    each = floordiv(channels, groups)
    x = c.reshape(wide(c, 0), (n, groups, each, *shape[2:]))
    normal = c.b.emit("layer_norm", x, axis=2, epsilon=epsilon)
    rest = (1,) * (len(shape) - 2)
    if c.opset >= 21:
        aligned: tuple[DimLike, ...] = (groups, each, *rest)
    else:
        aligned = (groups, 1, *rest)
    scale, bias = (c.reshape(c.cast(wide(c, i), c.dtype(x)), aligned) for i in (1, 2))
    y = c.emit("add", c.emit("multiply", normal, scale), bias)
    return c.cast(c.reshape(y, shape), c.dtype(0))


def _layer_normalization(c: NodeContext) -> Sequence[str]:
    """LayerNormalization over the axes from `axis` on; Mean and InvStdDev keep those as 1."""
    axis, epsilon = c.axis(c.attr("axis", -1)), c.attr("epsilon", 1e-5)
    stash = c.attr("stash_type", 1)
    if stash not in (1, 11):
        raise c.refuse(f"its stash_type {stash} is neither float nor double")
    x, tail = wide(c, 0), c.shape()[axis:]
    scale = expand_to(c, c.cast(1, c.dtype(x)), tail)
    bias = expand_to(c, c.cast(2, c.dtype(x)), tail) if c.has(2) else ""
    if not (c.wants(1) or c.wants(2)):
        y = c.b.emit("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)
        return [c.cast(y, c.dtype(0))]
    axes = tuple(range(axis, c.rank()))
    normal, mean, inverse = _normalised(c, x, axes, epsilon)
    y = c.emit("multiply", normal, scale)
    y = c.emit("add", y, bias) if bias else y
    stashed = "float32" if stash == 1 else "float64"
    return [c.cast(y, c.dtype(0)), c.cast(mean, stashed), c.cast(inverse, stashed)]


def _rms_normalization(c: NodeContext) -> str:
    axis, epsilon = c.axis(c.attr("axis", -1)), c.attr("epsilon", 1e-5)
    c.ignore("stash_type")  # half floats are computed in float32 here whatever it says
    x = wide(c, 0)
    scale = expand_to(c, c.cast(1, c.dtype(x)), c.shape()[axis:])
    return c.cast(c.emit("rms_norm", x, scale, axis=axis, epsilon=epsilon), c.dtype(0))


NORM: dict[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
}
