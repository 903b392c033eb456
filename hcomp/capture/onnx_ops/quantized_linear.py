"""Matrix products and convolutions of quantised tensors, in integers.

An 8-bit operand goes into `matmul` or `conv` as it is, with 32-bit sums, so that a target can use
its byte-product instructions; zero points come out as correction terms:
    sum (x - zx)(w - zw) = sum x w  -  zx sum w  -  zw sum x  +  K zx zw
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.conv import Window, window_of
from hcomp.capture.onnx_ops.quantize import is_zero, per_tensor, rounded
from hcomp.dims import DimLike


def centred(c: NodeContext, value: str, zero_point: str) -> tuple[str, str]:
    """Return an 8-bit operand and its zero point; a constant one moves into int8 with zero point 0.

    That is possible where all of (value - zero_point) fits int8, as for symmetric weights.
    """
    if is_zero(c, zero_point):
        return value, ""
    data, zero = c.const(value), c.const(zero_point)
    if data is None or zero is None:
        return value, zero_point
    shifted = data.astype(np.int32) - zero.astype(np.int32)
    if shifted.size and (shifted.min() < -128 or shifted.max() > 127):
        return value, zero_point
    return c.tensor(shifted, "int8"), ""


def integer_matmul(c: NodeContext, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """Return (a - a_zero) @ (b - b_zero) in int32.

    `a_zero` broadcasts with [..., M, 1], `b_zero` with [..., 1, N]; "" is zero.
    """
    a, a_zero = centred(c, a, a_zero)
    b, b_zero = centred(c, b, b_zero)
    result = c.emit("matmul", a, b, out_dtype="int32")
    if a_zero:
        columns = _column_sums(c, b)
        a_zero = c.cast(a_zero, "int32")
        result = c.emit("subtract", result, c.emit("multiply", a_zero, columns))
    if b_zero:
        rows = c.emit("sum", c.cast(a, "int32"), axis=(-1,), keepdims=True)
        b_zero = c.cast(b_zero, "int32")
        result = c.emit("subtract", result, c.emit("multiply", rows, b_zero))
    if a_zero and b_zero:
        depth = c.cast(c.b.shape_value([c.shape(a)[-1]], scalar=True), "int32")
        both = c.emit("multiply", c.emit("multiply", a_zero, b_zero), depth)
        result = c.emit("add", result, both)
    return result


def _column_sums(c: NodeContext, b: str) -> str:
    """Return the sums over axis -2 in int32, as numbers where `b` is constant."""
    data = c.const(b)
    if data is None:
        return c.emit("sum", c.cast(b, "int32"), axis=(-2,), keepdims=True)
    return c.tensor(data.astype(np.int32).sum(axis=-2, keepdims=True), "int32")


def row_zero(c: NodeContext, zero: str) -> str:
    """Return the left operand's zero point so that it broadcasts: one number, or one a row."""
    return _along(c, zero, lambda n: (n, 1))


def column_zero(c: NodeContext, zero: str) -> str:
    """Return the right operand's scale or zero point so that it broadcasts: one, or one a column."""
    return _along(c, zero, lambda n: (1, n))


def _along(c: NodeContext, zero: str, place: Callable[[DimLike], tuple[DimLike, DimLike]]) -> str:
    if not zero:
        return ""
    shape = c.shape(zero)
    if shape in ((), (1,)):
        return per_tensor(c, zero)
    return c.reshape(zero, place(shape[0])) if len(shape) == 1 else zero


def _matrices(c: NodeContext, a: int, b: int) -> tuple[str, str]:
    """Return the operands with vectors made matrices, as the correction terms need them."""
    if c.rank(a) < 1 or c.rank(b) < 1:
        raise c.refuse("an operand of its product has no dimension")
    left = c.emit("expand_dims", a, axis=(0,)) if c.rank(a) == 1 else c.input(a)
    right = c.emit("expand_dims", b, axis=(1,)) if c.rank(b) == 1 else c.input(b)
    return left, right


def _drop_vector_axes(c: NodeContext, value: str, a: int, b: int) -> str:
    axes = ((-2,) if c.rank(a) == 1 else ()) + ((-1,) if c.rank(b) == 1 else ())
    return c.emit("squeeze", value, axis=axes) if axes else value


def _matmul_integer(c: NodeContext) -> str:
    a, b = _matrices(c, 0, 1)
    result = integer_matmul(c, a, b, row_zero(c, c.optional(2)), column_zero(c, c.optional(3)))
    return _drop_vector_axes(c, result, 0, 1)


def requantize(c: NodeContext, total: str, multiplier: str, zero_point: str, dtype: str) -> str:
    """Return round(total * multiplier) + zero_point saturated to `dtype`, total in int32."""
    return rounded(c, c.emit("multiply", c.cast(total, "float32"), multiplier), zero_point, dtype)


def multiplier_of(c: NodeContext, a_scale: str, b_scale: str, y_scale: str) -> str:
    """Return a_scale * b_scale / y_scale in float32, in ONNX Runtime's order of operations."""
    a_scale, b_scale, y_scale = (c.cast(s, "float32") for s in (a_scale, b_scale, y_scale))
    return c.emit("divide", c.emit("multiply", a_scale, b_scale), y_scale)


def _qlinear_matmul(c: NodeContext) -> str:
    if not c.dtype(0).endswith("int8") or not c.dtype(3).endswith("int8"):
        raise c.refuse(f"its operands have the type {c.dtype(0)}, not 8-bit integers")
    a, b = _matrices(c, 0, 3)
    total = integer_matmul(c, a, b, row_zero(c, c.input(2)), column_zero(c, c.input(5)))
    multiplier = multiplier_of(c, row_zero(c, c.input(1)), column_zero(c, c.input(4)), row_zero(c, c.input(6)))
    y = requantize(c, total, multiplier, row_zero(c, c.input(7)), c.dtype(7))
    return _drop_vector_axes(c, y, 0, 3)


# -- convolution ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Convolution:
    """The operands and window of an integer convolution; zero points of "" are zero."""

    x: str
    w: str
    x_zero: str
    w_zero: str
    window: Window
    groups: int

    def emit(self, c: NodeContext, w: str) -> str:
        """Return the products of x with the weights `w`, summed in int32."""
        attrs = self.window.attrs()
        return c.emit("conv", self.x, w, out_dtype="int32", groups=self.groups, **attrs)


def integer_conv(c: NodeContext, x: str, w: str, x_zero: str, w_zero: str) -> str:
    """Return the convolution of (x - x_zero) with (w - w_zero) in int32; padding is x_zero.

    `x_zero` is 0-D, `w_zero` 0-D or [O]; "" is zero. Reads the node's window attributes.
    """
    rank = c.rank(w)
    window = window_of(c, c.shape(x)[2:], c.attr("kernel_shape", c.shape(w)[2:]))
    w, w_zero = centred(c, w, _channels(c, w_zero, rank, 0) if w_zero else "")
    x_zero = "" if is_zero(c, x_zero) else x_zero
    conv = _padded(c, Convolution(x, w, x_zero, w_zero, window, c.attr("group", 1)))
    result = conv.emit(c, conv.w)
    if conv.x_zero:
        total = _weight_sums(c, conv.w)
        result = c.emit("subtract", result, c.emit("multiply", c.cast(x_zero, "int32"), total))
    return _weight_correction(c, result, conv) if w_zero else result


def _weight_sums(c: NodeContext, w: str) -> str:
    """Return the sum of each output channel's weights as int32 [O, 1, ...]."""
    axes, rank = tuple(range(1, c.rank(w))), c.rank(w)
    data = c.const(w)
    if data is not None:
        total = c.tensor(data.astype(np.int32).sum(axis=axes), "int32")
    else:
        total = c.emit("sum", c.cast(w, "int32"), axis=axes, keepdims=False)
    return _channels(c, total, rank, 1)


def _padded(c: NodeContext, conv: Convolution) -> Convolution:
    """Return the convolution with its padding, which is the zero point of x, made part of x."""
    padding = conv.window.padding
    if not conv.x_zero or all(p == 0 for p in padding):
        return conv
    zero = c.const(conv.x_zero)
    if zero is None:
        # Only the run knows the zero point: move it to 0, which is what a convolution pads with.
        x = c.emit("subtract", c.cast(conv.x, "int32"), c.cast(conv.x_zero, "int32"))
        return replace(conv, x=x, w=c.cast(conv.w, "int32"), x_zero="")
    n = len(padding) // 2
    around = (0, 0, *padding[:n], 0, 0, *padding[n:])
    value = int(zero.reshape(-1)[0])
    x = c.emit("pad", conv.x, padding=around, mode="constant", value=value)
    return replace(conv, x=x, window=replace(conv.window, padding=(0,) * (2 * n)))


def _channels(c: NodeContext, value: str, rank: int, axis: int) -> str:
    """Return a 0-D value, or a vector [O] along `axis` of `rank` dimensions."""
    shape = c.shape(value)
    if shape in ((), (1,)):
        return per_tensor(c, value)
    return c.reshape(value, [shape[0] if i == axis else 1 for i in range(rank)])


def _weight_correction(c: NodeContext, result: str, conv: Convolution) -> str:
    """Return `result` - w_zero * (sum of each window of x) + K * x_zero * w_zero."""
    sizes = [d for d in c.shape(conv.w) if isinstance(d, int)]
    if len(sizes) != c.rank(conv.w):
        raise c.refuse("its weight's sizes are known only at run time")
    sums = conv.emit(c, c.tensor(np.ones([conv.groups, *sizes[1:]]), c.dtype(conv.w)))
    if conv.groups > 1:
        # Channel o of the result belongs to group o // (O / groups).
        owner = np.arange(sizes[0]) // (sizes[0] // conv.groups)
        sums = c.emit("take", sums, c.tensor(owner, "int64"), axis=1)
    w_zero = c.cast(conv.w_zero, "int32")
    if c.shape(w_zero):
        w_zero = c.reshape(w_zero, [1, sizes[0], *(1,) * (len(sizes) - 2)])
    result = c.emit("subtract", result, c.emit("multiply", sums, w_zero))
    if not conv.x_zero:
        return result
    depth = c.scalar(int(np.prod(sizes[1:])), "int32")
    both = c.emit("multiply", c.cast(conv.x_zero, "int32"), w_zero)
    return c.emit("add", result, c.emit("multiply", both, depth))


def _conv_integer(c: NodeContext) -> str:
    return integer_conv(c, c.input(0), c.input(1), per_tensor(c, c.optional(2)), c.optional(3))


def _qlinear_conv(c: NodeContext) -> str:
    """QLinearConv; ONNX Runtime's own form of it may have the channels of its data last."""
    x, w, rank = c.input(0), c.input(3), c.rank(0)
    last = bool(c.attr("channels_last", 0))
    if last:
        x = c.emit("permute_dims", x, axes=(0, rank - 1, *range(1, rank - 1)))
    total = integer_conv(c, x, w, per_tensor(c, c.input(2)), c.input(5))
    if c.has(8):
        total = c.emit("add", total, _channels(c, c.input(8), rank, 1))
    w_scale = _channels(c, c.input(4), rank, 1)
    multiplier = multiplier_of(c, per_tensor(c, c.input(1)), w_scale, per_tensor(c, c.input(6)))
    y = requantize(c, total, multiplier, per_tensor(c, c.input(7)), c.dtype(7))
    return c.emit("permute_dims", y, axes=(0, *range(2, rank), 1)) if last else y


QUANTIZED_LINEAR: dict[str, Converter] = {
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
}
