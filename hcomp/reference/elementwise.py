"""Reference functions that compute each element by itself; broadcasting is numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcomp.dtypes import dtype_name, numpy_dtype
from hcomp.reference.cast import cast
from hcomp.reference.erf import erf
from hcomp.reference.numeric import (
    Array,
    Function,
    integer_range,
    is_float_array,
    is_integer_array,
    narrow,
    quiet_table,
    widen,
)

_SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654


def _unary(function: Function) -> Function:
    """Return the reference of a function of one array: computed wide, rounded once."""

    def reference(x: Array) -> Array:
        return narrow(function(widen(x)), x.dtype)

    return reference


def _exact(function: Function) -> Function:
    """Return the reference of a rounding function, which leaves integers alone."""

    def reference(x: Array) -> Array:
        return narrow(function(widen(x)), x.dtype) if is_float_array(x) else x

    return reference


def _sigmoid(x: Array) -> Array:
    # exp of a negative number only, so that nothing overflows.
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def _relu(x: Array) -> Array:
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def _gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    return narrow(wide * 0.5 * (1 + erf(wide * _SQRT_HALF)), x.dtype)


def _gelu_tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    inner = _SQRT_2_OVER_PI * (wide + 0.044715 * wide**3)
    return narrow(wide * 0.5 * (1 + np.tanh(inner)), x.dtype)


_UNARY: dict[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "bitwise_not": np.invert,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "exp": np.exp,
    "expm1": np.expm1,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "log": np.log,
    "log1p": np.log1p,
    "logical_not": np.logical_not,
    "negative": np.negative,
    "relu": _relu,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
    "sign": np.sign,
    "silu": lambda x: x * _sigmoid(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}

_ROUNDING: dict[str, Function] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round": np.rint,
    "trunc": np.trunc,
}


def _binary(function: Function) -> Function:
    """Return the reference of a function of two arrays of one dtype, which the result has too."""

    def reference(a: Array, b: Array) -> Array:
        return narrow(function(widen(a), widen(b)), a.dtype)

    return reference


def _divide(a: Array, b: Array) -> Array:
    """Divide; integers truncate towards zero, and a division by zero gives 0."""
    if not is_integer_array(a):
        return np.asarray(np.true_divide(a, b))
    return np.asarray(np.floor_divide(a - np.fmod(a, b), b))


def _power(a: Array, b: Array) -> Array:
    if not is_integer_array(a):
        return np.asarray(np.power(a, b))
    # numpy refuses negative exponents of integers: only 1 and -1 have a result other than 0.
    result = np.power(a, np.maximum(b, 0))
    sign = np.where(b % 2 == 0, np.abs(a), a)
    inverse = np.where(np.abs(a) == 1, sign, 0)
    return np.where(b < 0, inverse, result)


_BINARY: dict[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "floor_divide": np.floor_divide,
    "power": _power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floor_mod": np.mod,
    "truncated_mod": np.fmod,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    # numpy shifts by the width or more (or by a negative number) to 0, or to the sign.
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


def _test(function: Function) -> Function:
    """Return the reference of a function whose result is bool."""

    def reference(*inputs: Array) -> Array:
        return narrow(function(*(widen(x) for x in inputs)), np.dtype(np.bool_))

    return reference


def isinf(x: Array, *, negative: bool = True, positive: bool = True) -> Array:
    """Return where `x` is an infinity of the signs asked for; bool."""
    wide = widen(x)
    found = np.isinf(wide)
    if not negative:
        found = found & (wide > 0)
    if not positive:
        found = found & (wide < 0)
    return found


def leaky_relu(x: Array, *, alpha: float) -> Array:
    """Return x, multiplied by `alpha` where it is negative."""
    wide = widen(x)
    return narrow(np.where(wide < 0, wide * wide.dtype.type(alpha), wide), x.dtype)


def clip(x: Array, *, min: float | None = None, max: float | None = None) -> Array:
    """Return x between `min` and `max`; where they cross, `max` wins; NaN stays NaN."""
    result = widen(x)
    if min is not None:
        result = np.maximum(result, _bound(min, x))
    if max is not None:
        result = np.minimum(result, _bound(max, x))
    return narrow(result, x.dtype)


def _bound(value: float, x: Array) -> Any:
    """Return a bound in the dtype that x is computed in, held inside an integer type's range."""
    wide = widen(x).dtype.type
    if is_integer_array(x):
        low, high = integer_range(dtype_name(x.dtype))
        if value != value or abs(value) == np.inf:
            return wide(low if value == -np.inf else high)
        return wide(sorted((low, int(value), high))[1])
    if not is_float_array(x):
        return wide(value)
    return widen(np.asarray(value, np.float64).astype(x.dtype))


def where(condition: Array, a: Array, b: Array) -> Array:
    """Return `a` where the condition holds, else `b`."""
    return np.where(condition, a, b)


def bitcast(x: Array, *, dtype: str) -> Array:
    """Return the same bits read as a dtype of the same width."""
    target = numpy_dtype(dtype)
    if x.dtype.itemsize != target.itemsize:
        raise ValueError(f"{dtype_name(x.dtype)} and {dtype} have not the same width")
    return x.view(target)


TABLE: dict[str, Function] = quiet_table(
    {
        **{name: _unary(function) for name, function in _UNARY.items()},
        **{name: _exact(function) for name, function in _ROUNDING.items()},
        **{name: _binary(function) for name, function in _BINARY.items()},
        "equal": _test(np.equal),
        "not_equal": _test(np.not_equal),
        "less": _test(np.less),
        "less_equal": _test(np.less_equal),
        "greater": _test(np.greater),
        "greater_equal": _test(np.greater_equal),
        "isnan": _test(np.isnan),
        "isfinite": _test(np.isfinite),
        "isinf": isinf,
        "leaky_relu": leaky_relu,
        "clip": clip,
        "where": where,
        "cast": cast,
        "bitcast": bitcast,
    }
)
