"""Elementary functions of float32 as expressions: polynomials, bit operations, no branches.

Each function takes a `Names` to bind values that it uses more than once. The polynomials were fitted by
iterated least squares in Chebyshev form (relative error below 3e-8, half a unit in the last place);
tanh is the rational approximation that Eigen uses. The inverse functions are in `inverse.py`. Error
bounds stand in `vector_math.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import EQ, NE

from hcomp.targets.cpu.schedule.bounds import LOWER, UPPER
from hcomp.targets.cpu.schedule.formula import (
    Expr,
    Names,
    at_least,
    at_most,
    f32,
    fused,
    horner,
    i32,
    is_nan,
    select,
    signed,
)

_EXP = (0.4999999345, 0.1666652063, 0.04166838805, 0.008368716905, 0.001381459855)
_LOG = (
    0.333333126,
    -0.2500000979,
    0.2000211961,
    -0.1666798558,
    0.1421952012,
    -0.1240575572,
    0.1188860089,
    -0.1167480901,
    0.06744550171,
)
_ERF_NEAR = (1.128379154, -0.3761252328, 0.1128214081, -0.02677890894, 0.005011962862, -0.0006090360202)
_ERF_FAR = (0.001822254465, 1.120397846, 0.6504537213, 0.0913228349, -0.01565258163, 0.001261386232)
_ERF_BETWEEN = 0.9
_TANH_P = (
    4.89352455891786e-03,
    6.37261928875436e-04,
    1.48572235717979e-05,
    5.12229709037114e-08,
    -8.60467152213735e-11,
    2.00018790482477e-13,
    -2.76076847742355e-16,
)
_TANH_Q = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
_SIN = (-0.1666666664, 0.008333329325, -0.0001983931512, 2.718121755e-06)
_COS = (0.04166666662, -0.001388888367, 2.47994989e-05, -2.720847405e-07)

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
_ROUNDS = 12582912.0
"""1.5 * 2**23: float32 numbers from here on have no fraction, and the low bits of this one are 0."""


def _power_of_two(n: Expr) -> Expr:
    """Return 2**n as float32 for an int32 in -126..127."""
    return tirx.reinterpret("float32", (n + i32(127)) << i32(23))


def _scaled(value: Expr, n: Expr, names: Names) -> Expr:
    """Return value * 2**n for n in -252..254, by two factors so that neither overflows."""
    half = names(n >> i32(1))
    return value * _power_of_two(half) * _power_of_two(n - half)


def _exp(names: Names, x: Expr) -> Expr:
    x = names(x)
    return exp_within(names(at_most(names(at_least(x, -87.3)), 89.4)), names)


def exp_within(x: Any, names: Names, halvings: int = 0) -> Expr:
    """Return exp(x) / 2**halvings of a name in -87.3..89.4; at the ends it gives 0 and infinity, of NaN NaN.

    x * log2(e) is rounded by adding a number so large that its last bit counts ones: n stands in its low
    bits then, and moved to the place of the exponent they are 2**(n - 1), 0 for n = -126 and infinity
    for 129. The other factor of 2 is in the polynomial. Halvings move both ends up by log(2) each.
    """
    large = f32(_ROUNDS + 126.0 - halvings)
    moved = names(fused(x, _LOG2E, large, "float32"))
    n = names(moved - large)
    r = names(fused(n, -_LN2_LOW, fused(n, -_LN2_HIGH, x, "float32"), "float32"))
    scale = tirx.reinterpret("float32", tirx.reinterpret("int32", moved) << i32(23))
    return horner(r, [2.0, 2.0, *(2.0 * c for c in _EXP)]) * scale


def _exp2(names: Names, x: Expr) -> Expr:
    x = names(x)
    number = select(x > f32(-151.0), x, f32(-151.0))
    number = names(select(number < f32(129.0), number, f32(129.0)))
    n = names(tirx.floor(number + f32(0.5)))
    r = names((number - n) * f32(_LN2))
    y = horner(r, _EXP) * (r * r) + r + f32(1.0)
    scaled = _scaled(y, names(tirx.Cast("int32", n)), names)
    return select(is_nan(x), x, scaled)


def _exp10(names: Names, x: Expr) -> Expr:
    x = names(x)
    number = select(x > f32(-46.0), x, f32(-46.0))
    number = names(select(number < f32(39.0), number, f32(39.0)))
    n = names(tirx.floor(number * f32(3.321928094887362) + f32(0.5)))
    high, low = _split(0.30102999566398120)
    r = names((number - n * f32(high) - n * f32(low)) * f32(2.302585092994046))
    y = horner(r, _EXP) * (r * r) + r + f32(1.0)
    scaled = _scaled(y, names(tirx.Cast("int32", n)), names)
    return select(is_nan(x), x, scaled)


def _expm1(names: Names, x: Expr) -> Expr:
    """Return exp(x) - 1 without loss near zero: the parts of exp are kept apart until the end."""
    x = names(x)
    number = select(x > f32(-25.0), x, f32(-25.0))
    number = names(select(number < f32(89.0), number, f32(89.0)))
    n = names(tirx.floor(number * f32(_LOG2E) + f32(0.5)))
    r = names(number - n * f32(_LN2_HIGH) - n * f32(_LN2_LOW))
    grown = horner(r, _EXP) * (r * r) + r
    half = names(_power_of_two(tirx.Cast("int32", n) - i32(1)))
    value = (grown * half + (half - f32(0.5))) * f32(2.0)
    value = select(EQ(x, f32(0.0)), x, value)
    return select(is_nan(x), x, value)


def _log_parts(x: Any, names: Names) -> tuple[Any, Any]:
    """Return (log of the mantissa in sqrt(1/2)..sqrt(2), exponent) of a positive finite name."""
    tiny = x < f32(1.1754943508222875e-38)
    wide = names(select(tiny, x * f32(8388608.0), x))
    bits = names(tirx.reinterpret("int32", wide))
    # Exponent relative to sqrt(1/2): the mantissa then lies around 1.
    above = names((bits - i32(0x3F3504F3)) >> i32(23))
    mantissa = tirx.reinterpret("float32", bits - (above << i32(23)))
    f = names(mantissa - f32(1.0))
    exponent = names(tirx.Cast("float32", above) - select(tiny, f32(23.0), f32(0.0)))
    square = names(f * f)
    return names(horner(f, _LOG) * (f * square) - square * f32(0.5)), (f, exponent)


def _log_ends(x: Any, value: Expr) -> Expr:
    value = select(EQ(x, f32(float("inf"))), x, value)
    value = select(EQ(x, f32(0.0)), f32(float("-inf")), value)
    return select(x < f32(0.0), f32(float("nan")), select(is_nan(x), x, value))


def _log(names: Names, x: Expr) -> Expr:
    x = names(x)
    return _log_ends(x, log_of(x, names))


def log_of(x: Any, names: Names) -> Expr:
    """Return log of a name that is positive and finite."""
    tail, (f, exponent) = _log_parts(x, names)
    return (tail + exponent * f32(_LN2_LOW)) + f + exponent * f32(_LN2_HIGH)


def _log_base(factor_high: float, factor_low: float, base2: float) -> Callable[..., Expr]:
    """Return log in another base: the mantissa's log times a split factor, plus the exponent."""

    def make(names: Names, x: Expr) -> Expr:
        x = names(x)
        tail, (f, exponent) = _log_parts(x, names)
        small = (f + tail) * f32(factor_low) + tail * f32(factor_high)
        high, low = _split(base2)
        value = small + exponent * f32(low) + f * f32(factor_high) + exponent * f32(high)
        return _log_ends(x, value)

    return make


def _split(value: float) -> tuple[float, float]:
    """Return value as high + low with a high part of 8 bits, exact times any exponent."""
    import math

    mantissa, exponent = math.frexp(value)
    high = math.ldexp(round(mantissa * 256), exponent - 8)
    return high, value - high


def _log1p(names: Names, x: Expr) -> Expr:
    x = names(x)
    u = names(x + f32(1.0))
    value = log_of(u, names) - ((u - f32(1.0)) - x) / u
    value = select(EQ(x, f32(float("inf"))), x, value)
    value = select(EQ(x, f32(-1.0)), f32(float("-inf")), value)
    value = select(x < f32(-1.0), f32(float("nan")), value)
    tiny = tirx.abs(x) < f32(1e-7)
    return select(tiny, x, select(is_nan(x), x, value))


def _tanh(names: Names, x: Expr) -> Expr:
    x = names(x)
    limit = 7.90531110763549805
    c = names(at_most(names(at_least(x, -limit)), limit))
    z = names(c * c)
    value = c * horner(z, _TANH_P) / horner(z, _TANH_Q)
    return select(tirx.abs(x) < f32(0.0004), x, value)


def _sigmoid(names: Names, x: Expr) -> Expr:
    x = names(x)
    return f32(1.0) / (f32(1.0) + _exp(names, f32(0.0) - x))


def _erf(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    far = names(at_most(size, 4.0))
    z = names(x * x)
    near_value = x * horner(z, _ERF_NEAR)
    # Between exp(-18) and 1, so within.
    tail = names(f32(1.0) - exp_within(names(f32(0.0) - horner(far, _ERF_FAR)), names))
    return select(size < f32(_ERF_BETWEEN), near_value, signed(tail, x))


def _circular(names: Names, x: Expr, shift: int) -> Expr:
    """Return sin (shift 0) or cos (shift 1): reduced by quarter turns in float64."""
    wide = names(tirx.Cast("float64", x))
    turns = names(tirx.floor(wide * f32(0.6366197723675814, "float64") + f32(0.5, "float64")))
    r = fused(turns, -1.5707963267948966, wide)
    r = names(tirx.Cast("float32", fused(turns, -6.123233995736766e-17, r)))
    moved = names(turns + f32(float(shift), "float64"))
    quarter = names(
        tirx.Cast(
            "int32",
            moved - f32(4.0, "float64") * tirx.floor(moved * f32(0.25, "float64")),
        )
    )
    z = names(r * r)
    sine = names(r + r * z * horner(z, _SIN))
    cosine = names(f32(1.0) - f32(0.5) * z + z * z * horner(z, _COS))
    value = names(select(EQ(quarter & i32(1), i32(0)), sine, cosine))
    return select(EQ(quarter & i32(2), i32(0)), value, f32(0.0) - value)


def _sin(names: Names, x: Expr) -> Expr:
    x = names(x)
    return select(EQ(x, f32(0.0)), x, _circular(names, x, 0))


def _cos(names: Names, x: Expr) -> Expr:
    return _circular(names, x, 1)


def _tan(names: Names, x: Expr) -> Expr:
    x = names(x)
    return _sin(names, x) / _cos(names, x)


def _pow(names: Names, x: Expr, y: Expr) -> Expr:
    """Return x ** y; the logarithm is kept in float64 so that a large power stays exact."""
    x, y = names(x), names(y)
    size = names(tirx.abs(x))
    product = names(_log_wide(size, names) * tirx.Cast("float64", y))
    value = names(_exp_wide(product, names))
    whole = EQ(tirx.floor(y), y)
    half = names(y * f32(0.5))
    odd = tirx.all(whole, NE(tirx.floor(half), half))
    negative = tirx.reinterpret("int32", x) < i32(0)
    signed = select(tirx.all(negative, odd), f32(0.0) - value, value)
    infinite = EQ(tirx.abs(y), f32(float("inf")))
    bad = tirx.all(x < f32(0.0), tirx.Not(whole), NE(size, f32(float("inf"))), tirx.Not(infinite))
    result = select(bad, f32(float("nan")), signed)
    result = select(tirx.any(is_nan(x), is_nan(y)), x + y, result)
    at_one = tirx.any(EQ(y, f32(0.0)), EQ(x, f32(1.0)), tirx.all(EQ(x, f32(-1.0)), infinite))
    return select(at_one, f32(1.0), result)


def _log_wide(x: Any, names: Names) -> Expr:
    """Return log of a non-negative float32 name in float64; 0 and infinity give infinities."""
    tiny = x < f32(1.1754943508222875e-38)
    wide = names(select(tiny, x * f32(8388608.0), x))
    bits = names(tirx.reinterpret("int32", wide))
    above = names((bits - i32(0x3F3504F3)) >> i32(23))
    mantissa = names(tirx.Cast("float64", tirx.reinterpret("float32", bits - (above << i32(23)))))
    s = names((mantissa - f32(1.0, "float64")) / (mantissa + f32(1.0, "float64")))
    z = names(s * s)
    series = horner(z, [2.0 / (2 * k + 1) for k in range(9)], "float64")
    exponent = tirx.Cast("float64", above - select(tiny, i32(23), i32(0)))
    value = s * series + exponent * f32(_LN2, "float64")
    value = select(EQ(x, f32(0.0)), f32(float("-inf"), "float64"), value)
    return select(EQ(x, f32(float("inf"))), f32(float("inf"), "float64"), value)


def _exp_wide(x: Any, names: Names) -> Expr:
    """Return exp of a float64 name as float32."""
    low, high = f32(-104.0, "float64"), f32(89.0, "float64")
    number = select(x > low, x, low)
    number = names(select(number < high, number, high))
    n = names(tirx.floor(number * f32(_LOG2E, "float64") + f32(0.5, "float64")))
    r = names(number - n * f32(_LN2, "float64"))
    terms = [1.0]
    for k in range(1, 10):
        terms.append(terms[-1] / k)
    y = tirx.Cast("float32", horner(r, terms, "float64"))
    return _scaled(y, names(tirx.Cast("int32", n)), names)


def _bfloat16_round(names: Names, x: Expr) -> Expr:
    """Return x rounded to the nearest bfloat16, ties to even, still as float32."""
    x = names(x)
    bits = names(tirx.reinterpret("int32", x))
    rounded = (bits + i32(0x7FFF) + ((bits >> i32(16)) & i32(1))) & i32(-0x10000)
    return select(NE(x, x), x, tirx.reinterpret("float32", rounded))


def _lower_bound(names: Names, x: Expr, bound: Expr) -> Expr:
    """Return x, or `bound` where x is below; NaN stays."""
    x = names(x)
    return select(x < bound, bound, x)


def _upper_bound(names: Names, x: Expr, bound: Expr) -> Expr:
    """Return x, or `bound` where x is above; NaN stays."""
    x = names(x)
    return select(x > bound, bound, x)


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": _exp,
    "exp2": _exp2,
    "exp10": _exp10,
    "expm1": _expm1,
    "log": _log,
    "log2": _log_base(1.44140625, 0.0012886658, 1.0),
    "log10": _log_base(0.43359375, 0.00070073190, 0.30102999566398120),
    "log1p": _log1p,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "pow": _pow,
    "bfloat16_round": _bfloat16_round,
    LOWER: _lower_bound,
    UPPER: _upper_bound,
}
