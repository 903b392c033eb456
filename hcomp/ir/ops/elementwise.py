"""Operators that compute each element by itself, with numpy's broadcasting."""

from hcomp.ir.ops.core import (
    REQUIRED,
    Infer,
    Op,
    broadcast,
    common,
    first_shape,
    fixed,
    from_attr,
    same,
)

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh",
    "erf", "exp", "expm1", "floor", "gelu", "gelu_tanh", "log", "log1p", "logical_not", "negative",
    "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt",
    "square", "tan", "tanh", "trunc",
)  # fmt: skip
"""One input, same type out. `round` goes to even at halves; `sign` of NaN is NaN."""

BINARY = (
    "add", "subtract", "multiply", "divide", "floor_divide", "power", "maximum", "minimum",
    "floor_mod", "truncated_mod", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and",
    "logical_or", "logical_xor", "left_shift", "right_shift",
)  # fmt: skip
"""Two inputs of one dtype. `divide` of integers truncates towards zero, as C does;
`truncated_mod` has the sign of the dividend, `floor_mod` that of the divisor; `maximum` and
`minimum` give NaN where an input is NaN; integer arithmetic wraps."""

COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
TESTS = ("isnan", "isfinite")


def _where_dtype(context: Infer) -> str:
    a, b = context.dtype(1), context.dtype(2)
    if a != b:
        raise context.error(f"both choices must have one dtype, found {a} and {b}")
    return a


ELEMENTWISE: tuple[Op, ...] = (
    *(Op(name, same, first_shape) for name in UNARY),
    *(Op(name, common, broadcast) for name in BINARY),
    *(Op(name, fixed("bool"), broadcast) for name in COMPARE),
    *(Op(name, fixed("bool"), first_shape) for name in TESTS),
    Op("isinf", fixed("bool"), first_shape, {"negative": True, "positive": True}),
    Op("leaky_relu", same, first_shape, {"alpha": REQUIRED}),
    # A bound of None is none; NaN stays NaN.
    Op("clip", same, first_shape, {"min": None, "max": None}),
    Op("where", _where_dtype, broadcast),
    # Float to integer truncates; `saturate` is ONNX's rule for the 8-bit floats.
    Op("cast", from_attr, first_shape, {"dtype": REQUIRED, "saturate": True}),
    Op("bitcast", from_attr, first_shape, {"dtype": REQUIRED}),
)
