"""Inverse circular and hyperbolic functions of float32, and sinh and cosh, like `elementary.py`.

Ranges and polynomials are those of the single precision Cephes library (S. Moshier): asinf.c, atanf.c,
sinhf.c, asinhf.c, acoshf.c and atanhf.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.schedule.elementary import exp_within, log_of
from hcomp.targets.cpu.schedule.formula import Expr, Names, at_most, f32, horner, select, signed

_ASIN = (1.6666752422e-1, 7.4953002686e-2, 4.5470025998e-2, 2.4181311049e-2, 4.2163199048e-2)
_ATAN = (-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2)
_SINH = (1.66667160211e-1, 8.33028376239e-3, 2.03721912945e-4)
_ASINH = (-1.6666288134e-1, 7.4847586088e-2, -4.2699340972e-2, 2.0122003309e-2)
_ACOSH = (1.4142135263, -1.1784741703e-1, 2.6454905019e-2, -7.5272886713e-3, 1.7596881071e-3)
_ATANH = (3.33337300303e-1, 1.99782164500e-1, 1.46691431730e-1, 8.24370301058e-2, 1.81740078349e-1)

_PI = 3.14159265358979323846
_LN2 = 0.6931471805599453
_TAN_PI_8, _TAN_3PI_8 = 0.4142135623730950, 2.414213562373095
_SQUARE_OVERFLOWS = 1e19
"""Beyond it, x * x + 1 is infinite, and below it asinh and acosh need the 1 no more."""


def _odd(x: Any, coefficients: tuple[float, ...], names: Names) -> Expr:
    """Return x + x**3 * polynomial of x**2."""
    z = names(x * x)
    return horner(z, coefficients) * (z * x) + x


def _asin_parts(size: Any, names: Names) -> tuple[Any, Any]:
    """Return (whether |x| is above 1/2, asin of sqrt((1 - |x|) / 2) or of |x|)."""
    above = size > f32(0.5)
    x = names(select(above, tirx.sqrt((f32(1.0) - size) * f32(0.5)), size))
    return above, names(_odd(x, _ASIN, names))


def _asin(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    above, value = _asin_parts(size, names)
    return signed(select(above, f32(_PI / 2) - (value + value), value), x)


def _acos(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    above, value = _asin_parts(size, names)
    far = names(value + value)
    outer = select(x < f32(0.0), f32(_PI) - far, far)
    return select(above, outer, f32(_PI / 2) - signed(value, x))


def _atan(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    far, middle = size > f32(_TAN_3PI_8), size > f32(_TAN_PI_8)
    over = select(far, f32(-1.0), select(middle, size - f32(1.0), size))
    under = select(far, size, select(middle, size + f32(1.0), f32(1.0)))
    start = select(far, f32(_PI / 2), select(middle, f32(_PI / 4), f32(0.0)))
    return signed(start + _odd(names(over / under), _ATAN, names), x)


def _halved_exp(size: Any, names: Names) -> Expr:
    """Return exp(size) / 2, which is finite for sizes whose exp is not."""
    return exp_within(names(at_most(size, 90.0)), names, halvings=1)


def _sinh(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    half = names(_halved_exp(size, names))
    return select(size > f32(1.0), signed(half - f32(0.25) / half, x), _odd(x, _SINH, names))


def _cosh(names: Names, x: Expr) -> Expr:
    half = names(_halved_exp(names(tirx.abs(x)), names))
    return half + f32(0.25) / half


def _asinh(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    large = size > f32(_SQUARE_OVERFLOWS)
    root = tirx.sqrt(size * size + f32(1.0))
    value = log_of(names(select(large, size, size + root)), names) + select(large, f32(_LN2), f32(0.0))
    finite = select(size < f32(float("inf")), value, size)
    return select(size > f32(0.5), signed(finite, x), _odd(x, _ASINH, names))


def _acosh(names: Names, x: Expr) -> Expr:
    x = names(x)
    large = x > f32(_SQUARE_OVERFLOWS)
    root = tirx.sqrt(x * x - f32(1.0))
    value = log_of(names(select(large, x, x + root)), names) + select(large, f32(_LN2), f32(0.0))
    finite = select(x < f32(float("inf")), value, x)
    z = names(x - f32(1.0))
    near = tirx.sqrt(z) * horner(z, _ACOSH)  # the root of a negative number is the NaN of arguments below 1
    return select(z > f32(0.5), finite, near)


def _atanh(names: Names, x: Expr) -> Expr:
    x = names(x)
    size = names(tirx.abs(x))
    ratio = names((f32(1.0) + size) / (f32(1.0) - size))
    value = log_of(ratio, names) * f32(0.5)
    ended = select(size > f32(1.0), f32(float("nan")), select(size < f32(1.0), value, f32(float("inf"))))
    return select(size > f32(0.5), signed(ended, x), _odd(x, _ATANH, names))


INVERSE: dict[str, Callable[..., Expr]] = {
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": _asinh,
    "atan": _atan,
    "atanh": _atanh,
    "cosh": _cosh,
    "sinh": _sinh,
}
