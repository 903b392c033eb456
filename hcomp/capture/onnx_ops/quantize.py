"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear: rounding and saturation as in ONNX Runtime."""

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_types import element_type
from hcomp.dims import DimLike, ceildiv
from hcomp.dtypes import FLOATS, SIGNED, is_integer
from hcomp.ir.types import Shape


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    bits = int(dtype.lstrip("uint"))
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype in SIGNED else (0, (1 << bits) - 1)


def is_zero(c: NodeContext, value: str) -> bool:
    """Say whether a value is absent, or known to hold only zeros."""
    if not value:
        return True
    found = c.const(value)
    return found is not None and not found.astype("float32").any()


def saturate(c: NodeContext, value: str, dtype: str) -> str:
    """Return a float32 or int32 value clipped to the range of the integer type `dtype`, as it."""
    low, high = integer_range(dtype)
    return c.cast(c.emit("clip", value, min=low, max=high), dtype)


def quantized(c: NodeContext, x: str, scale: str, zero_point: str, dtype: str) -> str:
    """Return round(x / scale) + zero_point, saturated; x and scale float32, of shapes that broadcast.

    The division is one: multiplying by the reciprocal rounds differently. Halves go to even.
    Integers of up to 16 bits are exact in float32, so the sum is too.
    """
    return rounded(c, c.emit("divide", x, scale), zero_point, dtype)


def rounded(c: NodeContext, x: str, zero_point: str, dtype: str) -> str:
    """Return round(x) + zero_point saturated to `dtype`, for float32 `x`."""
    result = c.emit("round", x)
    if not is_zero(c, zero_point):
        result = c.emit("add", result, c.cast(zero_point, "float32"))
    return saturate(c, result, dtype)


def rounded_sum(c: NodeContext, x: str, zero_point: str, dtype: str) -> str:
    """Return round(x + zero_point) saturated: halves then go the other way where that is odd."""
    if not is_zero(c, zero_point):
        x = c.emit("add", x, c.cast(zero_point, "float32"))
    return saturate(c, c.emit("round", x), dtype)


def per_tensor(c: NodeContext, value: str) -> str:
    """Return a 0-D or one-element parameter as a 0-D value."""
    return c.reshape(value, ()) if value else ""


def along_axis(c: NodeContext, parameter: str, x: str, axis: int, block: int) -> str:
    """Return a scale or zero point in a shape that broadcasts with `x`; "" stays "".

    One number is for all of `x`; a vector runs along `axis`; with `block` each entry covers
    `block` elements of `axis`.
    """
    if not parameter:
        return ""
    shape = c.shape(parameter)
    if not block and (not shape or shape == (1,)):
        return per_tensor(c, parameter)
    axis = c.axis(axis, x)
    rank = c.rank(x)
    if block:
        return _unblocked(c, parameter, c.shape(x), axis, block)
    if len(shape) != 1:
        raise c.refuse(f"its scale has rank {len(shape)} without a block size")
    return c.reshape(parameter, [shape[0] if i == axis else 1 for i in range(rank)])


def _unblocked(c: NodeContext, parameter: str, shape: Shape, axis: int, block: int) -> str:
    """Return a blocked parameter with each entry repeated `block` times, cut to `shape`."""
    given = list(c.shape(parameter))
    count = ceildiv(shape[axis], block)
    wide: list[DimLike] = [*given[: axis + 1], block, *given[axis + 1 :]]
    value = c.emit("expand_dims", parameter, axis=(axis + 1,))
    value = c.emit("broadcast_to", value, shape=tuple(wide))
    full = [*given[:axis], count * block, *given[axis + 1 :]]
    value = c.reshape(value, full)
    if full[axis] == shape[axis]:
        return value
    return c.emit("strided_slice", value, axes=(axis,), begin=(0,), size=(shape[axis],), strides=(1,))


def _quantize(c: NodeContext) -> str:
    axis, block = c.attr("axis", 1), c.attr("block_size", 0)
    saturates, wanted = bool(c.attr("saturate", 1)), c.attr("output_dtype", 0)
    precision = c.attr("precision", 0)
    given = element_type(wanted) if wanted else "uint8"
    dtype = c.dtype(2) if c.has(2) else given
    scale = along_axis(c, c.input(1), c.input(0), axis, block)
    zero_point = along_axis(c, c.optional(2), c.input(0), axis, block)
    working = element_type(precision) if precision else "float32"
    if working == "float32" or working not in FLOATS:
        working = "float64" if c.dtype(0) == "float64" else "float32"
    ratio = c.emit("divide", c.cast(0, working), c.cast(scale, working))
    if is_integer(dtype):
        return rounded(c, c.cast(ratio, "float32"), zero_point, dtype)
    if not is_zero(c, zero_point):
        ratio = c.emit("add", ratio, c.cast(zero_point, working))
    return c.emit("cast", ratio, dtype=dtype, saturate=saturates)


def dequantized(c: NodeContext, x: str, scale: str, zero_point: str) -> str:
    """Return (x - zero_point) * scale as float32, for parameters that broadcast with `x`."""
    if is_integer(c.dtype(x)):
        wide = c.cast(x, "int32")
        if not is_zero(c, zero_point):
            wide = c.emit("subtract", wide, c.cast(zero_point, "int32"))
    else:
        wide = c.cast(x, "float32")
        if not is_zero(c, zero_point):
            wide = c.emit("subtract", wide, c.cast(zero_point, "float32"))
    return c.emit("multiply", c.cast(wide, "float32"), c.cast(scale, "float32"))


def _dequantize(c: NodeContext) -> str:
    axis, block = c.attr("axis", 1), c.attr("block_size", 0)
    wanted = c.attr("output_dtype", 0)
    scale = along_axis(c, c.input(1), c.input(0), axis, block)
    zero_point = along_axis(c, c.optional(2), c.input(0), axis, block)
    result = dequantized(c, c.input(0), scale, zero_point)
    return c.cast(result, element_type(wanted) if wanted else c.dtype(1))


def dynamic_parameters(c: NodeContext, x: str, dtype: str = "uint8") -> tuple[str, str]:
    """Return the scale (float32) and zero point (float32, whole) that ONNX gives all of `x`.

    The range of `x` is widened to hold 0; where it is empty the scale is 1.
    """
    low, high = integer_range(dtype)
    zero, one = c.scalar(0, "float32"), c.scalar(1, "float32")
    least = c.emit("minimum", c.emit("min", x, axis=None), zero)
    most = c.emit("maximum", c.emit("max", x, axis=None), zero)
    scale = c.emit("divide", c.emit("subtract", most, least), c.scalar(high - low, "float32"))
    scale = c.emit("where", c.emit("equal", most, least), one, scale)
    start = c.emit("subtract", c.scalar(low, "float32"), c.emit("divide", least, scale))
    start = c.emit("round", c.emit("clip", start, min=low, max=high))
    return scale, start


def _dynamic_quantize(c: NodeContext) -> Sequence[str]:
    scale, zero_point = dynamic_parameters(c, c.input(0))
    y = quantized(c, c.input(0), scale, zero_point, "uint8")
    return y, scale, c.cast(zero_point, "uint8")


QUANTIZE: dict[str, Converter] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
}
