"""Elementary functions of float32 as expressions: polynomials, bit operations, no branches.

Each function takes a `Names` to bind values that it uses more than once. The polynomials were fitted by
iterated least squares in Chebyshev form (relative error below 1e-8); tanh is the rational approximation
that Eigen uses. Error bounds stand in `vector_math.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import EQ, NE

Expr = Any
Names = Callable[[Expr], Any]
"""Gives a value a name that can be used many times."""

_EXP = (0.5000000068, 0.1666666586, 0.04166629329, 0.008333497822, 0.001394478449, 0.0001979022356)
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
_ERF_NEAR = (
    1.128379166,
    -0.3761262582,
    0.1128358515,
    -0.02685381187,
    0.005188327561,
    -0.0008010192527,
    7.853857725e-05,
)
_ERF_FAR = (
    0.0003537089112,
    1.12704008,
    0.6382256022,
    0.1030374356,
    -0.02180535121,
    0.00293961575,
    -0.0001855748947,
)
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


def _f(value: float, dtype: str = "float32") -> Expr:
    return tirx.const(value, dtype)


def _i(value: int, dtype: str = "int32") -> Expr:
    return tirx.const(value, dtype)


def _horner(x: Expr, coefficients: Sequence[float], dtype: str = "float32") -> Expr:
    """Return the polynomial with `coefficients` from the constant term up."""
    total = _f(coefficients[-1], dtype)
    for c in reversed(coefficients[:-1]):
        total = total * x + _f(c, dtype)
    return total


def _select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return tirx.Select(condition, yes, no)


def _is_nan(x: Expr) -> Expr:
    """Return whether a float32 is NaN, by its bits (TVM folds `x != x` to false)."""
    bits = tirx.reinterpret("int32", x) & _i(0x7FFFFFFF)
    return bits > _i(0x7F800000)


def _power_of_two(n: Expr) -> Expr:
    """Return 2**n as float32 for an int32 in -126..127."""
    return tirx.reinterpret("float32", (n + _i(127)) << _i(23))


def _scaled(value: Expr, n: Expr, names: Names) -> Expr:
    """Return value * 2**n for n in -252..254, by two factors so that neither overflows."""
    half = names(n >> _i(1))
    return value * _power_of_two(half) * _power_of_two(n - half)


def _exp(names: Names, x: Expr) -> Expr:
    x = names(x)
    return _exp_of(x, names, low=-104.0, high=89.0)


def _exp_of(x: Any, names: Names, low: float, high: float) -> Expr:
    """Return exp of a name; NaN stays NaN, the ends give 0 and infinity."""
    number = _select(x > _f(low), x, _f(low))
    number = names(_select(number < _f(high), number, _f(high)))
    n = names(tirx.floor(number * _f(_LOG2E) + _f(0.5)))
    r = names(number - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW))
    y = _horner(r, _EXP) * (r * r) + r + _f(1.0)
    scaled = _scaled(y, names(tirx.Cast("int32", n)), names)
    return _select(_is_nan(x), x, scaled)


def _exp2(names: Names, x: Expr) -> Expr:
    x = names(x)
    number = _select(x > _f(-151.0), x, _f(-151.0))
    number = names(_select(number < _f(129.0), number, _f(129.0)))
    n = names(tirx.floor(number + _f(0.5)))
    r = names((number - n) * _f(_LN2))
    y = _horner(r, _EXP) * (r * r) + r + _f(1.0)
    scaled = _scaled(y, names(tirx.Cast("int32", n)), names)
    return _select(_is_nan(x), x, scaled)


def _exp10(names: Names, x: Expr) -> Expr:
    x = names(x)
    number = _select(x > _f(-46.0), x, _f(-46.0))
    number = names(_select(number < _f(39.0), number, _f(39.0)))
    n = names(tirx.floor(number * _f(3.321928094887362) + _f(0.5)))
    high, low = _split(0.30102999566398120)
    r = names((number - n * _f(high) - n * _f(low)) * _f(2.302585092994046))
    y = _horner(r, _EXP) * (r * r) + r + _f(1.0)
    scaled = _scaled(y, names(tirx.Cast("int32", n)), names)
    return _select(_is_nan(x), x, scaled)


def _expm1(names: Names, x: Expr) -> Expr:
    """Return exp(x) - 1 without loss near zero: the parts of exp are kept apart until the end."""
    x = names(x)
    number = _select(x > _f(-25.0), x, _f(-25.0))
    number = names(_select(number < _f(89.0), number, _f(89.0)))
    n = names(tirx.floor(number * _f(_LOG2E) + _f(0.5)))
    r = names(number - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW))
    grown = _horner(r, _EXP) * (r * r) + r
    half = names(_power_of_two(tirx.Cast("int32", n) - _i(1)))
    value = (grown * half + (half - _f(0.5))) * _f(2.0)
    value = _select(EQ(x, _f(0.0)), x, value)
    return _select(_is_nan(x), x, value)


def _log_parts(x: Any, names: Names) -> tuple[Any, Any]:
    """Return (log of the mantissa in sqrt(1/2)..sqrt(2), exponent) of a positive finite name."""
    tiny = x < _f(1.1754943508222875e-38)
    wide = names(_select(tiny, x * _f(8388608.0), x))
    bits = names(tirx.reinterpret("int32", wide))
    # Exponent relative to sqrt(1/2): the mantissa then lies around 1.
    above = names((bits - _i(0x3F3504F3)) >> _i(23))
    mantissa = tirx.reinterpret("float32", bits - (above << _i(23)))
    f = names(mantissa - _f(1.0))
    exponent = names(tirx.Cast("float32", above) - _select(tiny, _f(23.0), _f(0.0)))
    square = names(f * f)
    return names(_horner(f, _LOG) * (f * square) - square * _f(0.5)), (f, exponent)


def _log_ends(x: Any, value: Expr) -> Expr:
    value = _select(EQ(x, _f(float("inf"))), x, value)
    value = _select(EQ(x, _f(0.0)), _f(float("-inf")), value)
    return _select(x < _f(0.0), _f(float("nan")), _select(_is_nan(x), x, value))


def _log(names: Names, x: Expr) -> Expr:
    x = names(x)
    return _log_ends(x, _log_of(x, names))


def _log_of(x: Any, names: Names) -> Expr:
    tail, (f, exponent) = _log_parts(x, names)
    return (tail + exponent * _f(_LN2_LOW)) + f + exponent * _f(_LN2_HIGH)


def _log_base(factor_high: float, factor_low: float, base2: float) -> Callable[..., Expr]:
    """Return log in another base: the mantissa's log times a split factor, plus the exponent."""

    def make(names: Names, x: Expr) -> Expr:
        x = names(x)
        tail, (f, exponent) = _log_parts(x, names)
        small = (f + tail) * _f(factor_low) + tail * _f(factor_high)
        high, low = _split(base2)
        value = small + exponent * _f(low) + f * _f(factor_high) + exponent * _f(high)
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
    u = names(x + _f(1.0))
    value = _log_of(u, names) - ((u - _f(1.0)) - x) / u
    value = _select(EQ(x, _f(float("inf"))), x, value)
    value = _select(EQ(x, _f(-1.0)), _f(float("-inf")), value)
    value = _select(x < _f(-1.0), _f(float("nan")), value)
    tiny = tirx.abs(x) < _f(1e-7)
    return _select(tiny, x, _select(_is_nan(x), x, value))


def _tanh(names: Names, x: Expr) -> Expr:
    x = names(x)
    limit = _f(7.90531110763549805)
    c = _select(x > -limit, x, -limit)
    c = names(_select(c < limit, c, limit))
    z = names(c * c)
    value = c * _horner(z, _TANH_P) / _horner(z, _TANH_Q)
    value = _select(tirx.abs(x) < _f(0.0004), x, value)
    return _select(_is_nan(x), x, value)


def _sigmoid(names: Names, x: Expr) -> Expr:
    x = names(x)
    negative = names(_f(0.0) - x)
    grown = _exp_of(negative, names, low=-104.0, high=89.0)
    return _f(1.0) / (_f(1.0) + grown)


def _erf(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    far = names(_select(size < _f(4.0), size, _f(4.0)))
    z = names(x * x)
    near_value = x * _horner(z, _ERF_NEAR)
    drop = names(_f(0.0) - _horner(far, _ERF_FAR))
    tail = names(_f(1.0) - _exp_of(drop, names, low=-104.0, high=89.0))
    signed = _select(x < _f(0.0), _f(0.0) - tail, tail)
    value = _select(size < _f(1.0), near_value, signed)
    return _select(_is_nan(x), x, value)


def _circular(names: Names, x: Expr, shift: int) -> Expr:
    """Return sin (shift 0) or cos (shift 1): reduced by quarter turns in float64."""
    wide = names(tirx.Cast("float64", x))
    turns = names(tirx.floor(wide * _f(0.6366197723675814, "float64") + _f(0.5, "float64")))
    r = _fused(turns, -1.5707963267948966, wide)
    r = names(tirx.Cast("float32", _fused(turns, -6.123233995736766e-17, r)))
    moved = names(turns + _f(float(shift), "float64"))
    quarter = names(
        tirx.Cast(
            "int32",
            moved - _f(4.0, "float64") * tirx.floor(moved * _f(0.25, "float64")),
        )
    )
    z = names(r * r)
    sine = names(r + r * z * _horner(z, _SIN))
    cosine = names(_f(1.0) - _f(0.5) * z + z * z * _horner(z, _COS))
    value = names(_select(EQ(quarter & _i(1), _i(0)), sine, cosine))
    return _select(EQ(quarter & _i(2), _i(0)), value, _f(0.0) - value)


def _fused(a: Expr, factor: float, c: Expr) -> Expr:
    """Return a * factor + c with one rounding: the reduction relies on it."""
    return tirx.call_llvm_pure_intrin("float64", "llvm.fma", a, _f(factor, "float64"), c)


def _sin(names: Names, x: Expr) -> Expr:
    x = names(x)
    return _select(EQ(x, _f(0.0)), x, _circular(names, x, 0))


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
    half = names(y * _f(0.5))
    odd = tirx.all(whole, NE(tirx.floor(half), half))
    negative = tirx.reinterpret("int32", x) < _i(0)
    signed = _select(tirx.all(negative, odd), _f(0.0) - value, value)
    infinite = EQ(tirx.abs(y), _f(float("inf")))
    bad = tirx.all(x < _f(0.0), tirx.Not(whole), NE(size, _f(float("inf"))), tirx.Not(infinite))
    result = _select(bad, _f(float("nan")), signed)
    result = _select(tirx.any(_is_nan(x), _is_nan(y)), x + y, result)
    at_one = tirx.any(EQ(y, _f(0.0)), EQ(x, _f(1.0)), tirx.all(EQ(x, _f(-1.0)), infinite))
    return _select(at_one, _f(1.0), result)


def _log_wide(x: Any, names: Names) -> Expr:
    """Return log of a non-negative float32 name in float64; 0 and infinity give infinities."""
    tiny = x < _f(1.1754943508222875e-38)
    wide = names(_select(tiny, x * _f(8388608.0), x))
    bits = names(tirx.reinterpret("int32", wide))
    above = names((bits - _i(0x3F3504F3)) >> _i(23))
    mantissa = names(tirx.Cast("float64", tirx.reinterpret("float32", bits - (above << _i(23)))))
    s = names((mantissa - _f(1.0, "float64")) / (mantissa + _f(1.0, "float64")))
    z = names(s * s)
    series = _horner(z, [2.0 / (2 * k + 1) for k in range(9)], "float64")
    exponent = tirx.Cast("float64", above - _select(tiny, _i(23), _i(0)))
    value = s * series + exponent * _f(_LN2, "float64")
    value = _select(EQ(x, _f(0.0)), _f(float("-inf"), "float64"), value)
    return _select(EQ(x, _f(float("inf"))), _f(float("inf"), "float64"), value)


def _exp_wide(x: Any, names: Names) -> Expr:
    """Return exp of a float64 name as float32."""
    low, high = _f(-104.0, "float64"), _f(89.0, "float64")
    number = _select(x > low, x, low)
    number = names(_select(number < high, number, high))
    n = names(tirx.floor(number * _f(_LOG2E, "float64") + _f(0.5, "float64")))
    r = names(number - n * _f(_LN2, "float64"))
    terms = [1.0]
    for k in range(1, 10):
        terms.append(terms[-1] / k)
    y = tirx.Cast("float32", _horner(r, terms, "float64"))
    return _scaled(y, names(tirx.Cast("int32", n)), names)


def _bfloat16_round(names: Names, x: Expr) -> Expr:
    """Return x rounded to the nearest bfloat16, ties to even, still as float32."""
    x = names(x)
    bits = names(tirx.reinterpret("int32", x))
    rounded = (bits + _i(0x7FFF) + ((bits >> _i(16)) & _i(1))) & _i(-0x10000)
    return _select(NE(x, x), x, tirx.reinterpret("float32", rounded))


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
}
