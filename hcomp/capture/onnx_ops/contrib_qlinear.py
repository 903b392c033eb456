"""com.microsoft QLinear*: quantised in, quantised out; float32 in between, as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.contrib_fused import channels_first, channels_last, one, with_inputs
from hcomp.capture.onnx_ops.pool import POOL
from hcomp.capture.onnx_ops.quantize import (
    dequantized,
    is_zero,
    per_tensor,
    quantized,
    rounded_sum,
    saturate,
)
from hcomp.capture.onnx_ops.quantized_linear import (
    column_zero,
    integer_matmul,
    multiplier_of,
    requantize,
)
from hcomp.dims import DimLike


def _centred(c: NodeContext, x: int, zero: int) -> str:
    """Return x - zero point as int32."""
    wide, point = c.cast(x, "int32"), c.optional(zero)
    if is_zero(c, point):
        return wide
    return c.emit("subtract", wide, c.cast(per_tensor(c, point), "int32"))


def _float(c: NodeContext, x: int, scale: int, zero: int) -> str:
    """Return a quantised input as float32."""
    return dequantized(c, c.input(x), per_tensor(c, c.input(scale)), per_tensor(c, c.optional(zero)))


def _back(c: NodeContext, y: str, scale: int, zero: int, dtype: str) -> str:
    """Return a float32 value quantised with an output scale and zero point."""
    return quantized(c, y, per_tensor(c, c.input(scale)), per_tensor(c, c.optional(zero)), dtype)


def _add(c: NodeContext) -> str:
    """A * ra + (b * rb + (zc - (ra * za + rb * zb))), ra = sa / sc: in ONNX Runtime's order.

    Sums of two scaled bytes meet a half often enough that the order of rounding shows.
    """
    c_scale, products, zeros = per_tensor(c, c.input(6)), [], []
    for x in (0, 3):
        ratio = c.emit("divide", per_tensor(c, c.input(x + 1)), c_scale)
        products.append(c.emit("multiply", c.cast(x, "float32"), ratio))
        zeros.append(c.emit("multiply", _zero(c, x + 2), ratio))
    shift = c.emit("subtract", _zero(c, 7), c.emit("add", *zeros))
    total = c.emit("add", products[0], c.emit("add", products[1], shift))
    return saturate(c, c.emit("round", total), c.dtype(0))


def _zero(c: NodeContext, index: int) -> str:
    """Return a zero point as float32 []; 0 where it is absent."""
    if not c.has(index):
        return c.scalar(0, "float32")
    return c.cast(per_tensor(c, c.input(index)), "float32")


def _multiply(c: NodeContext) -> str:
    product = c.emit("multiply", _centred(c, 0, 2), _centred(c, 3, 5))
    factor = multiplier_of(c, *(per_tensor(c, c.input(i)) for i in (1, 4, 6)))
    scaled = c.emit("multiply", c.cast(product, "float32"), factor)
    return rounded_sum(c, scaled, per_tensor(c, c.optional(7)), c.dtype(0))


def _unary(function: Callable[[NodeContext, str], str]) -> Converter:
    """Inputs: x, its scale and zero point, the output's scale and zero point."""
    return lambda c: _back(c, function(c, _float(c, 0, 1, 2)), 3, 4, c.dtype(0))


def _leaky_relu(c: NodeContext, x: str) -> str:
    return c.emit("leaky_relu", x, alpha=float(c.attr("alpha", 0.01)))


def _concat(c: NodeContext) -> str:
    """Inputs: the output's scale and zero point, then x, scale, zero point of each part."""
    dtype = c.dtype(1)
    parts = [_back(c, _float(c, i, i + 1, i + 2), 0, 1, dtype) for i in range(2, len(c.inputs), 3)]
    return c.emit("concat", *parts, axis=c.axis(c.required("axis"), parts[0]))


def _where(c: NodeContext) -> str:
    """Inputs: condition, x with scale and zero point, y likewise, the output's."""
    x = _back(c, _float(c, 1, 2, 3), 7, 8, c.dtype(1))
    y = _back(c, _float(c, 4, 5, 6), 7, 8, c.dtype(1))
    return c.emit("where", 0, x, y)


def _global_average(c: NodeContext) -> str:
    last, rank = bool(c.attr("channels_last", 0)), c.rank(0)
    axes = tuple(range(1, rank - 1)) if last else tuple(range(2, rank))
    total = c.emit("sum", _centred(c, 0, 2), axis=axes, keepdims=True)
    count = _size(c, axes[0], axes[-1] + 1)
    size = c.cast(c.b.shape_value([count], scalar=True), "float32")
    divisor = c.emit("multiply", per_tensor(c, c.input(3)), size)
    factor = c.emit("divide", per_tensor(c, c.input(1)), divisor)
    return requantize(c, total, factor, per_tensor(c, c.optional(4)), c.dtype(0))


def _average_pool(c: NodeContext) -> str:
    x = _float(c, 0, 1, 2)
    if c.attr("channels_last", 0):
        pooled = one(POOL["AveragePool"](with_inputs(c, channels_first(c, x))))
        pooled = channels_last(c, pooled)
    else:
        pooled = one(POOL["AveragePool"](with_inputs(c, x)))
    scaled = c.emit("divide", pooled, per_tensor(c, c.input(3)))
    return rounded_sum(c, scaled, per_tensor(c, c.optional(4)), c.dtype(0))


def _gemm(c: NodeContext) -> str:
    """Alpha * A' B' with the int32 addend C, which has the scale a_scale * b_scale."""
    alpha = float(c.attr("alpha", 1.0))
    a, b = c.input(0), c.input(3)
    if c.attr("transA", 0):
        a = c.emit("permute_dims", a, axes=(1, 0))
    if c.attr("transB", 0):
        b = c.emit("permute_dims", b, axes=(1, 0))
    total = integer_matmul(c, a, b, per_tensor(c, c.input(2)), column_zero(c, c.input(5)))
    if c.has(6):
        total = c.emit("add", total, 6)
    scale = c.emit("multiply", per_tensor(c, c.input(1)), column_zero(c, c.input(4)))
    if alpha != 1:
        scale = c.emit("multiply", scale, c.scalar(alpha, "float32"))
    if not c.has(7):
        return c.emit("multiply", c.cast(total, "float32"), scale)
    scale = c.emit("divide", scale, per_tensor(c, c.input(7)))
    return requantize(c, total, scale, per_tensor(c, c.optional(8)), c.dtype(0))


def _softmax(c: NodeContext) -> str:
    """Softmax in integers, by ONNX Runtime's table of exp(-step * scale) for the 256 steps below the peak."""
    axis, dtype = c.axis(c.attr("axis", -1)), c.dtype(0)
    x = c.input(0)
    if c.attr("opset", 13) < 13 and axis != c.rank(0) - 1:
        x = c.reshape(x, (_size(c, 0, axis), _size(c, axis, c.rank(0))))
        axis = 1
    count, x_scale, y_scale = c.shape(x)[axis], c.const(1), c.const(3)
    if not isinstance(count, int) or x_scale is None or y_scale is None:
        raise c.refuse("its scales or the length of its axis are known only at run time")
    # The sum of a row fits 32 bits.
    largest = min(float(0xFFFFFFFF) / max(count, 1), float(0x7FFFFF))
    steps = (np.arange(256) - 255) * np.float64(x_scale.reshape(-1)[0])
    table = c.tensor(np.floor(largest * np.exp(steps)), "int64")
    wide = c.cast(x, "int64")
    below = c.emit("subtract", wide, c.emit("max", wide, axis=(axis,), keepdims=True))
    power = c.emit("take", table, c.emit("add", below, c.scalar(255, "int64")), axis=0)
    total = c.emit("sum", power, axis=(axis,), keepdims=True)
    inverse = c.scalar(int(np.float32(1) / np.float32(y_scale.reshape(-1)[0])), "int64")
    half = c.emit("floor_divide", total, c.scalar(2, "int64"))
    y = c.emit("floor_divide", c.emit("add", c.emit("multiply", power, inverse), half), total)
    y = c.emit("add", c.cast(y, "int32"), c.cast(per_tensor(c, c.input(4)), "int32"))
    return c.reshape(saturate(c, y, dtype), c.shape(0))


def _size(c: NodeContext, begin: int, end: int) -> DimLike:
    total: DimLike = 1
    for dim in c.shape(0)[begin:end]:
        total = total * dim
    return total


QLINEAR: dict[str, Converter] = {
    "QLinearAdd": _add,
    "QLinearMul": _multiply,
    "QLinearSigmoid": _unary(lambda c, x: c.emit("sigmoid", x)),
    "QLinearLeakyRelu": _unary(_leaky_relu),
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QLinearGlobalAveragePool": _global_average,
    "QLinearAveragePool": _average_pool,
    "QLinearSoftmax": _softmax,
    "QGemm": _gemm,
}
