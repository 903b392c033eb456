"""Elementwise arithmetic: sums, products, powers, remainders, functions of one number, bits."""

from __future__ import annotations

from functools import reduce

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import (
    as_float,
    binary,
    like,
    operands,
    rounded_once,
    unary,
    wide,
)
from hcomp.dtypes import is_float, is_integer


def _variadic(op: str) -> Converter:
    """Max, Min: any number of inputs, broadcast; one input is itself."""
    return lambda c: reduce(lambda a, b: c.emit(op, a, b), c.inputs)


def _sum(c: NodeContext) -> str:
    """Sum: adds any number of inputs; half floats are rounded once."""
    if len(c.inputs) <= 2:
        return reduce(lambda a, b: c.emit("add", a, b), c.inputs)
    total = reduce(lambda a, b: c.emit("add", a, b), [wide(c, i) for i in c.inputs])
    return c.cast(total, c.dtype(0))


def _mean(c: NodeContext) -> str:
    """Mean: the sum divided by the number of inputs."""
    total = reduce(lambda a, b: c.emit("add", a, b), [wide(c, i) for i in c.inputs])
    return c.cast(c.emit("divide", total, like(c, len(c.inputs), total)), c.dtype(0))


def _pow(c: NodeContext) -> str:
    """Pow: the result has the base's type; base and exponent may differ in type."""
    base, exponent = operands(c)
    dtype = c.dtype(base)
    number = c.const(exponent)
    if number is not None and number.size == 1 and (number.ndim == 0 or number.ndim <= (c.type(base).rank or 0)):
        power = float(number.ravel()[0])
        if power == 2:
            return c.emit("square", base)
        if power == 3 and is_float(dtype):
            x = wide(c, base)
            return c.cast(c.emit("multiply", c.emit("square", x), x), dtype)
    if is_float(dtype) and c.dtype(exponent) == dtype:
        return c.emit("power", base, exponent)
    if is_integer(dtype) and is_integer(c.dtype(exponent)):
        # Exact, where ONNX Runtime goes through double precision; what overflows wraps.
        return c.cast(c.emit("power", c.cast(base, "int64"), c.cast(exponent, "int64")), dtype)
    # As ONNX Runtime: in double precision, then back to the base's type.
    computing = "float64" if "float64" in (dtype, c.dtype(exponent)) or not is_float(dtype) else ""
    computing = computing or ("float32" if is_float(c.dtype(exponent)) else "float64")
    return c.cast(c.emit("power", c.cast(base, computing), c.cast(exponent, computing)), dtype)


def _mod(c: NodeContext) -> str:
    """Mod: the sign of the divisor, or with fmod=1 that of the dividend."""
    return c.emit("truncated_mod" if c.attr("fmod", 0) else "floor_mod", 0, 1)


def _reciprocal(c: NodeContext) -> str:
    return c.emit("divide", like(c, 1, 0), 0)


def _bit_shift(c: NodeContext) -> str:
    """BitShift; the graph's shifts give 0 (or the sign) from the width on, as the standard says."""
    direction = c.required("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise c.refuse(f"its direction {direction!r} is neither LEFT nor RIGHT")
    return c.emit("left_shift" if direction == "LEFT" else "right_shift", 0, 1)


def _clip(c: NodeContext) -> str:
    """Clip: bounds are attributes before opset 11, then inputs; the upper bound wins."""
    if c.opset < 11:
        # The defaults of that opset are the finite extremes of float, not infinities.
        extreme = 3.4028234663852886e38
        return c.emit("clip", 0, min=c.attr("min", -extreme), max=c.attr("max", extreme))
    low, high = _bound(c, 1), _bound(c, 2)
    if not isinstance(low, str) and not isinstance(high, str):
        return c.input(0) if low is None and high is None else c.emit("clip", 0, min=low, max=high)
    x = c.input(0)
    for bound, op, attribute in ((low, "maximum", "min"), (high, "minimum", "max")):
        if isinstance(bound, str):
            x = c.emit(op, x, bound)
        elif bound is not None:
            x = c.emit("clip", x, **{attribute: bound})
    return x


def _bound(c: NodeContext, index: int) -> float | int | str | None:
    """Return a bound of Clip: a number, a 0-D value known at run time, or None."""
    if not c.has(index):
        return None
    value = c.const(index)
    if value is None or value.size != 1:
        return c.reshape(index, ()) if c.ranked(index) else c.input(index)
    number: float | int = value.ravel()[0].item()
    return number


def _softsign(c: NodeContext, x: str) -> str:
    return c.emit("divide", x, c.emit("add", c.emit("abs", x), like(c, 1, x)))


def _affine(c: NodeContext, x: str) -> str:
    scaled = c.emit("multiply", x, like(c, c.attr("alpha", 1.0), x))
    return c.emit("add", scaled, like(c, c.attr("beta", 0.0), x))


def _shrink(c: NodeContext) -> str:
    """Shrink: towards zero by `bias` outside [-lambd, lambd], 0 inside."""
    x = as_float(c, 0)
    limit, bias = c.attr("lambd", 0.5), like(c, c.attr("bias", 0.0), x)
    above = c.emit("greater", x, like(c, limit, x))
    below = c.emit("less", x, like(c, -limit, x))
    inner = c.emit("where", above, c.emit("subtract", x, bias), like(c, 0, x))
    return c.cast(c.emit("where", below, c.emit("add", x, bias), inner), c.dtype(0))


def _identity(c: NodeContext) -> str:
    """Identity: the value itself, of whatever type."""
    return c.input(0)


_NAMES = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "Log": "log", "Neg": "negative", "Round": "round",
    "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan",
    "BitwiseNot": "bitwise_not",
}  # fmt: skip

MATH: dict[str, Converter] = {
    **{name: unary(op) for name, op in _NAMES.items()},
    "Add": binary("add"),
    "Sub": binary("subtract"),
    "Mul": binary("multiply"),
    "Div": binary("divide"),
    "BitwiseAnd": binary("bitwise_and"),
    "BitwiseOr": binary("bitwise_or"),
    "BitwiseXor": binary("bitwise_xor"),
    "Max": _variadic("maximum"),
    "Min": _variadic("minimum"),
    "Sum": _sum,
    "Mean": _mean,
    "Pow": _pow,
    "Mod": _mod,
    "Reciprocal": _reciprocal,
    "BitShift": _bit_shift,
    "Clip": _clip,
    "Softsign": rounded_once(_softsign),
    "Affine": rounded_once(_affine),
    "Shrink": _shrink,
    "Identity": _identity,
}
