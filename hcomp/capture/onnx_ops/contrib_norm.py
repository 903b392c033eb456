"""com.microsoft: normalisations fused with the sums before them, and BERT's embedding layer."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like, wide


def _norm(c: NodeContext, x: str, gamma: str, beta: str, epsilon: float, *, centred: bool) -> str:
    """Return layer normalisation, or root-mean-square normalisation, over the last axis."""
    if centred:
        return c.b.emit("layer_norm", x, gamma, beta, axis=-1, epsilon=epsilon)
    y = c.emit("rms_norm", x, gamma, axis=-1, epsilon=epsilon)
    return c.emit("add", y, beta) if beta else y


def _optional_wide(c: NodeContext, index: int) -> str:
    return wide(c, index) if c.has(index) else ""


def _skip(*, centred: bool) -> Converter:
    """Inputs: x, skip, gamma, then beta (only where centred), then the bias of the sum."""

    def convert(c: NodeContext) -> Sequence[str]:
        epsilon = float(c.attr("epsilon", 1e-12 if centred else 1e-6))
        if c.wants(1) or c.wants(2):
            raise c.refuse("it has the outputs of training")
        total = c.emit("add", wide(c, 0), wide(c, 1))
        beta, bias = (_optional_wide(c, 3), 4) if centred else ("", 3)
        if c.has(bias):
            total = c.emit("add", total, wide(c, bias))
        dtype = c.dtype(0)
        kept = c.cast(total, dtype)
        y = c.cast(_norm(c, total, wide(c, 2), beta, epsilon, centred=centred), dtype)
        return y, "", "", kept

    return convert


def _simplified(c: NodeContext) -> Sequence[str]:
    """SimplifiedLayerNormalization: x / rms(x) * scale over the axes from `axis` on."""
    axis, epsilon = c.axis(c.attr("axis", -1)), float(c.attr("epsilon", 1e-5))
    c.ignore("stash_type")  # half floats are computed in float32 whatever it says
    x = wide(c, 0)
    y = c.cast(c.emit("rms_norm", x, c.cast(1, c.dtype(x)), axis=axis, epsilon=epsilon), c.dtype(1))
    if not c.wants(1):
        return (y,)
    axes = tuple(range(axis, c.rank(0)))
    mean = c.emit("mean", c.emit("square", x), axis=axes, keepdims=True)
    return y, c.emit("rsqrt", c.emit("add", mean, like(c, epsilon, mean)))


def _embed(c: NodeContext) -> Sequence[str]:
    """The sum of word, position and segment embeddings, normalised; and how long each row is."""
    epsilon = float(c.attr("epsilon", 1e-12))
    c.ignore("mask_index_type")  # both kinds come out the same on the CPU
    batch, length = c.shape(0)
    total = c.emit("take", 2, c.cast(0, "int64"), axis=0)
    if c.has(8):
        positions = c.emit("take", 3, c.cast(8, "int64"), axis=0)
    else:
        positions = c.emit("strided_slice", 3, axes=(0,), begin=(0,), size=(length,), strides=(1,))
    total = c.emit("add", total, positions)
    if c.has(1):
        total = c.emit("add", total, c.emit("take", 4, c.cast(1, "int64"), axis=0))
    y = _norm(c, wide(c, total), wide(c, 5), wide(c, 6), epsilon, centred=True)
    if c.has(7):
        one = c.emit("equal", 7, like(c, 1, 7))
        count = c.emit("sum", c.cast(one, "int32"), axis=(1,), keepdims=False)
    else:
        count = c.b.emit("full", shape=(batch,), value=0, dtype="int32")
    return c.cast(y, c.dtype(2)), count, total


CONTRIB_NORM: dict[str, Converter] = {
    "SkipLayerNormalization": _skip(centred=True),
    "SkipSimplifiedLayerNormalization": _skip(centred=False),
    "SimplifiedLayerNormalization": _simplified,
    "EmbedLayerNormalization": _embed,
}

STANDARD_NORM: dict[str, Converter] = {"SimplifiedLayerNormalization": _simplified}
"""ONNX Runtime's optimizer writes it in the domain ai.onnx too, where the standard has none."""
