"""com.microsoft: products of a float tensor with quantised weights, quantised on the fly."""

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.quantize import dynamic_parameters, quantized
from hcomp.capture.onnx_ops.quantized_linear import column_zero, integer_matmul, row_zero


def scaled(c: NodeContext, total: str, a_scale: str, b_scale: str) -> str:
    """Return int32 sums as float32: total * (a_scale * b_scale)."""
    return c.emit("multiply", c.cast(total, "float32"), c.emit("multiply", a_scale, b_scale))


def dynamic_product(c: NodeContext, x: str, w: str, w_scale: str, w_zero: str) -> str:
    """Return x @ (w - w_zero) * w_scale, where x is quantised to uint8 over all of its elements.

    `w_scale` and `w_zero` ("" is zero) broadcast with [..., 1, N].
    """
    x_scale, x_zero = dynamic_parameters(c, x)
    integers = quantized(c, x, x_scale, x_zero, "uint8")
    total = integer_matmul(c, integers, w, c.cast(x_zero, "uint8"), w_zero)
    return scaled(c, total, x_scale, w_scale)


def _dynamic_quantize_matmul(c: NodeContext) -> str:
    """Inputs A float, B, b_scale, b_zero_point, bias."""
    w_scale, w_zero = column_zero(c, c.input(2)), column_zero(c, c.optional(3))
    result = dynamic_product(c, c.input(0), c.input(1), w_scale, w_zero)
    return c.emit("add", result, c.input(4)) if c.has(4) else result


def _matmul_integer_to_float(c: NodeContext) -> str:
    """Inputs A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias."""
    a_zero, b_zero = row_zero(c, c.optional(4)), column_zero(c, c.optional(5))
    total = integer_matmul(c, c.input(0), c.input(1), a_zero, b_zero)
    given = c.dtype(2)
    a_scale, b_scale = row_zero(c, c.cast(2, "float32")), column_zero(c, c.cast(3, "float32"))
    result = scaled(c, total, a_scale, b_scale)
    if c.has(6):
        result = c.emit("add", result, c.cast(6, "float32"))
    return c.cast(result, given)


QUANTIZED_MATMUL: dict[str, Converter] = {
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
}
