"""The vector unit's functions of float32 numbers, each a fixed sequence of IEEE operations.

Every step (add, subtract, multiply, divide, square root, round to integer, scale by a power of two) is
rounded to float32 once and nothing is fused, so that all machines that follow README.md agree to the
last bit. The polynomials were fitted at Chebyshev points; README.md has their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hcomp.targets.npu.device.formats import Floats

Function: TypeAlias = Callable[..., Floats]

F = np.float32
LOG2_E = F(1.4426950408889634)
LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.1219444e-4)
EXP_LOW, EXP_HIGH = F(-104.0), F(89.0)

# Highest power first.
EXP = (0.00019890981, 0.0013933642, 0.0083333105, 0.041666467, 0.16666667, 0.5)
LOG = (
    0.06971612, -0.11479734, 0.1168542, -0.12425687, 0.14249058, -0.16667803, 0.20000716, -0.24999997, 0.33333331,
)  # fmt: skip
TANH = (-0.0060967142, 0.02099718, -0.053850908, 0.1333277, -0.33333328)
ERF = (-9.667044e-06, 0.00011265959, -0.00084840803, 0.0052210316, -0.02686543, 0.11283782, -0.37612638, 0.12837917)
ERFC = (
    -1.6371514e-06, 4.6058045e-05, -0.00059680565, 0.0047595962, -0.026421135, 0.11008009, 0.63182604, 1.1302334,
    -0.00032013806,
)  # fmt: skip


def _polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    """Return the polynomial by Horner's rule: a multiplication and an addition for each power."""
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= x
        result += F(coefficient)
    return result


def exp(x: Floats) -> Floats:
    """Return e^x: 2^n (1 + r + r^2 p(r)) with n = round(x log2 e)."""
    bounded = np.clip(x, EXP_LOW, EXP_HIGH)
    n = np.rint(bounded * LOG2_E)
    r = (bounded - n * LN2_HIGH) - n * LN2_LOW
    mantissa = (_polynomial(EXP, r) * (r * r) + r) + F(1)
    power = np.nan_to_num(n, nan=0.0).astype(np.int32)
    result: Floats = np.ldexp(mantissa, power)
    return result


def log(x: Floats) -> Floats:
    """Return the natural logarithm: x = 2^e (1 + f) with 1 + f in [1/sqrt 2, sqrt 2)."""
    usable = np.where((x > 0) & (x < np.inf), x, F(1))
    mantissa, exponent = np.frexp(usable)
    low = mantissa < F(0.70710677)
    f = np.where(low, mantissa + mantissa, mantissa) - F(1)
    e = (exponent - low).astype(np.float32)
    square = f * f
    tail = ((_polynomial(LOG, f) * f) * square + e * LN2_LOW) - F(0.5) * square
    result = (f + tail) + e * LN2_HIGH
    special = np.where(x == 0, F(-np.inf), np.where(x > 0, x, F(np.nan)))
    return np.where((x > 0) & (x < np.inf), result, special)


def tanh(x: Floats) -> Floats:
    """Return the hyperbolic tangent: a polynomial below 0.625, 1 - 2 / (e^2x + 1) above."""
    size = np.abs(x)
    square = x * x
    small = (_polynomial(TANH, square) * square) * x + x
    large = F(1) - F(2) / (exp(np.minimum(size + size, F(40))) + F(1))
    return np.where(size < F(0.625), small, np.copysign(large, x))


def erf(x: Floats) -> Floats:
    """Return the error function: a polynomial below 1, 1 - e^-q(x) up to 4."""
    size = np.minimum(np.abs(x), F(4))
    square = np.minimum(x * x, F(1))
    small = _polynomial(ERF, square) * x + x
    large = F(1) - exp(-_polynomial(ERFC, size))
    return np.where(np.abs(x) < F(1), small, np.copysign(large, x))


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + e^-x), by e^-|x|."""
    e = exp(-np.abs(x))
    return np.where(x >= 0, F(1) / (F(1) + e), e / (F(1) + e))


def rsqrt(x: Floats) -> Floats:
    """Return 1 / sqrt(x), two roundings."""
    root: Floats = np.sqrt(x)
    return F(1) / root


def _gelu(x: Floats) -> Floats:
    return (F(0.5) * x) * (F(1) + erf(x * F(0.70710678)))


def _gelu_tanh(x: Floats) -> Floats:
    inner = F(0.7978846) * (x + F(0.044715) * ((x * x) * x))
    return (F(0.5) * x) * (F(1) + tanh(inner))


def _hard_sigmoid(x: Floats, slope: Floats, offset: Floats) -> Floats:
    result: Floats = np.minimum(np.maximum(slope * x + offset, F(0)), F(1))
    return result


def _comparison(test: Callable[[Any, Any], Any]) -> Function:
    return lambda a, b: test(a, b).astype(np.float32)


FUNCTIONS: dict[str, Function] = {
    "cast": lambda x: x,
    "neg": lambda x: -x,
    "abs": np.abs,
    "square": lambda x: x * x,
    "sqrt": np.sqrt,
    "rsqrt": rsqrt,
    "reciprocal": lambda x: F(1) / x,
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, F(0)),
    "leaky_relu": lambda x, slope: np.where(x >= 0, x, x * slope),
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": np.sign,
    "hard_sigmoid": _hard_sigmoid,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "min": np.minimum,
    "max": np.maximum,
    "eq": _comparison(np.equal),
    "ne": _comparison(np.not_equal),
    "lt": _comparison(np.less),
    "le": _comparison(np.less_equal),
    "gt": _comparison(np.greater),
    "ge": _comparison(np.greater_equal),
    "mul_add": lambda a, b, c: a * b + c,
}
"""Name -> function of its sources and then its immediate numbers, all float32."""

INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "icast": lambda a: a,
    "iadd": lambda a, b: a + b,
    "isub": lambda a, b: a - b,
    "imul": lambda a, b: a * b,
    "imin": np.minimum,
    "imax": np.maximum,
    "iand": lambda a, b: a & b,
    "ior": lambda a, b: a | b,
    "ixor": lambda a, b: a ^ b,
    "ieq": np.equal,
    "ilt": np.less,
    "ile": np.less_equal,
}
"""Name -> function of int32 sources, modulo 2^32."""


def tree_sum(x: Floats) -> Floats:
    """Return the sums along the last axis: the upper half is added to the lower until one is left.

    With n numbers left and h the largest power of two below n, number i + h is added to number i.
    """
    while x.shape[-1] > 1:
        n = x.shape[-1]
        half = 1 << ((n - 1).bit_length() - 1)
        lower = x[..., :half].copy()
        lower[..., : n - half] += x[..., half:]
        x = lower
    return x[..., 0]
