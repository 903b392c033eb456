"""The meaning of the elementwise operators on one element, as TIR expressions.

Every function here gives what numpy gives, for NaN, signed zero, halves and wrapping integers too,
and none can trap: an integer division by zero gives 0, as numpy's does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import HALVES, Expr, constant


def dtype_of(x: Expr) -> str:
    """Return the type of an expression."""
    return str(x.ty.dtype)


def is_float(x: Expr) -> bool:
    """Say whether an expression is of a floating type."""
    return dtype_of(x).startswith(("float", "bfloat"))


def is_unsigned(x: Expr) -> bool:
    """Say whether an expression is of an unsigned integer type."""
    return dtype_of(x).startswith("uint")


def is_bool(x: Expr) -> bool:
    """Say whether an expression is a bool."""
    return dtype_of(x) == "bool"


def bits(x: Expr) -> int:
    """Return the width of an integer or floating type."""
    return int("".join(c for c in dtype_of(x) if c.isdigit()))


def same(x: Expr, value: float | int) -> Expr:
    """Return `value` in the type of `x`."""
    return constant(value, dtype_of(x))


def truth(x: Expr) -> Expr:
    """Return whether `x` is not zero; NaN is not."""
    return x if is_bool(x) else not_equal(x, same(x, 0))


def libm(name: str) -> Callable[[Expr], Expr]:
    """Return the C library's function of that name, for float32 and float64.

    TVM's own forms of tanh, log1p and the like lose all digits near zero.
    """

    def call(x: Expr) -> Expr:
        dtype = dtype_of(x)
        return tirx.call_pure_extern(dtype, name if dtype == "float64" else f"{name}f", x)

    return call


def libm2(name: str, x: Expr, y: Expr) -> Expr:
    """Return the C library's function of two arguments applied to `x` and `y`."""
    dtype = dtype_of(x)
    return tirx.call_pure_extern(dtype, name if dtype == "float64" else f"{name}f", x, y)


def on_floats(function: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """Return a rounding function that leaves integers alone."""
    return lambda x: function(x) if is_float(x) else x


def is_nan(x: Expr) -> Expr:
    """Return whether `x` is NaN."""
    return tirx.isnan(x) if is_float(x) else tirx.const(False, "bool")


def is_finite(x: Expr) -> Expr:
    """Return whether `x` is neither NaN nor infinite."""
    if not is_float(x):
        return tirx.const(True, "bool")
    return tirx.LT(tirx.abs(x), same(x, math.inf))


def absolute(x: Expr) -> Expr:
    """Return |x|; the lowest integer stays as it is."""
    if is_bool(x) or is_unsigned(x):
        return x
    if is_float(x):
        return tirx.abs(x)
    return tirx.Select(tirx.GE(x, same(x, 0)), x, same(x, 0) - x)


def negative(x: Expr) -> Expr:
    """Return -x, with the sign of a zero changed too."""
    return x * same(x, -1.0) if is_float(x) else same(x, 0) - x


def relu(x: Expr) -> Expr:
    """Return x where it is not below zero; NaN stays."""
    return x if is_unsigned(x) else tirx.Select(tirx.LT(x, same(x, 0)), same(x, 0), x)


def leaky_relu(attrs: Any, x: Expr) -> Expr:
    """Return x, times alpha where it is below zero."""
    return tirx.Select(tirx.LT(x, same(x, 0)), x * same(x, attrs["alpha"]), x)


def clip(attrs: Any, x: Expr) -> Expr:
    """Return x held between the bounds that are given; NaN stays."""
    if attrs["min"] is not None:
        low = _bound(x, attrs["min"])
        x = tirx.Select(tirx.LT(x, low), low, x)
    if attrs["max"] is not None:
        high = _bound(x, attrs["max"])
        x = tirx.Select(tirx.GT(x, high), high, x)
    return x


def _bound(x: Expr, value: float) -> Expr:
    """Return a bound in the type of `x`; for integers truncated and held inside their range."""
    if is_float(x):
        return same(x, value)
    low, high = (0, 1) if is_bool(x) else integer_range(dtype_of(x))
    if value != value or abs(value) == math.inf:
        return same(x, low if value == -math.inf else high)
    return same(x, sorted((low, int(value), high))[1])


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    width = int("".join(c for c in dtype if c.isdigit()))
    if dtype.startswith("uint"):
        return 0, 2**width - 1
    return -(2 ** (width - 1)), 2 ** (width - 1) - 1


def sign(x: Expr) -> Expr:
    """Return -1, 0, 1 or NaN."""
    zero, one = same(x, 0), same(x, 1)
    if is_unsigned(x):
        return tirx.Select(tirx.GT(x, zero), one, zero)
    below = tirx.Select(tirx.LT(x, zero), zero - one, x if is_float(x) else zero)
    return tirx.Select(tirx.GT(x, zero), one, below)


def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + exp(-x))."""
    one = same(x, 1.0)
    return one / (one + tirx.exp(same(x, 0.0) - x))


def gelu(x: Expr) -> Expr:
    """Return x times the normal distribution's probability below x."""
    half, one, root = same(x, 0.5), same(x, 1.0), same(x, math.sqrt(0.5))
    return half * x * (one + tirx.erf(x * root))


def gelu_tanh(x: Expr) -> Expr:
    """Return GELU by its tanh approximation; 1 + tanh(y) is twice the sigmoid of 2 y."""
    inner = same(x, 2 * math.sqrt(2 / math.pi)) * (x + same(x, 0.044715) * x * x * x)
    return x * sigmoid(inner)


def softplus(x: Expr) -> Expr:
    """Return log(1 + exp(x)) without overflow."""
    zero = same(x, 0.0)
    return maximum(x, zero) + libm("log1p")(tirx.exp(zero - tirx.abs(x)))


def cast(x: Expr, dtype: str) -> Expr:
    """Return `x` converted; float to integer truncates, and narrow integers wrap as numpy's do."""
    target = "float32" if dtype in HALVES else dtype
    if dtype == "bool":
        return truth(x)
    if is_float(x) and target.startswith(("int", "uint")):
        # A negative float to an unsigned type is undefined in LLVM: go through a signed one.
        return _float_to_integer(x, target)
    return x if dtype_of(x) == target else x.astype(target)


def _float_to_integer(x: Expr, target: str) -> Expr:
    width = int("".join(c for c in target if c.isdigit()))
    if target == "uint64":
        top = same(x, float(2**63))
        high = (x - top).astype("int64").astype("uint64") + tirx.const(2**63, "uint64")
        return tirx.Select(tirx.GE(x, top), high, x.astype("int64").astype("uint64"))
    through = "int64" if width == 64 or target == "uint32" else "int32"
    return x.astype(through) if through == target else x.astype(through).astype(target)


def add(a: Expr, b: Expr) -> Expr:
    """Return a + b; for bools, a or b."""
    return tirx.Or(a, b) if is_bool(a) else a + b


def multiply(a: Expr, b: Expr) -> Expr:
    """Return a * b; for bools, a and b."""
    return tirx.And(a, b) if is_bool(a) else a * b


def divide(a: Expr, b: Expr) -> Expr:
    """Return a / b, truncated for integers; division by zero gives 0 there, and nothing traps."""
    if is_float(a):
        return a / b
    return _safe(a, b, tirx.truncdiv)


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Return a / b rounded down."""
    if is_float(a):
        return _float_floor_divide(a, b)
    if is_unsigned(a):
        return _safe(a, b, tirx.truncdiv)
    quotient, rest = _safe(a, b, tirx.truncdiv), _truncated_integer_mod(a, b)
    down = tirx.And(tirx.NE(rest, same(a, 0)), _signs_differ(rest, b))
    return tirx.Select(down, quotient - same(a, 1), quotient)


def _float_floor_divide(a: Expr, b: Expr) -> Expr:
    """Return what numpy's floor_divide gives: from the exact rest, so that 1 // 0.1 is 9."""
    zero, one = same(a, 0.0), same(a, 1.0)
    rest = libm2("fmod", a, b)
    whole = (a - rest) / b
    down = tirx.And(tirx.NE(rest, zero), _signs_differ(rest, b))
    whole = tirx.Select(down, whole - one, whole)
    floored = tirx.floor(whole)
    near = tirx.Select(tirx.GT(whole - floored, same(a, 0.5)), floored + one, floored)
    return tirx.Select(tirx.EQ(b, zero), a / b, near)


def _safe(a: Expr, b: Expr, function: Callable[[Expr, Expr], Expr]) -> Expr:
    """Return the quotient: 0 for a divisor of 0, -a (wrapping) for -1, which hardware traps on."""
    zero, one = same(a, 0), same(a, 1)
    if isinstance(b, tirx.IntImm) and int(b) not in (0, -1):
        return function(a, b)
    is_zero = tirx.EQ(b, zero)
    if is_unsigned(a):
        return tirx.Select(is_zero, zero, function(a, tirx.Select(is_zero, one, b)))
    minus = tirx.EQ(b, zero - one)
    plain = function(a, tirx.Select(tirx.Or(is_zero, minus), one, b))
    return tirx.Select(is_zero, zero, tirx.Select(minus, zero - a, plain))


def _signs_differ(a: Expr, b: Expr) -> Expr:
    return differ(tirx.LT(a, same(a, 0)), tirx.LT(b, same(b, 0)))


def differ(a: Expr, b: Expr) -> Expr:
    """Return whether two bools differ."""
    return tirx.NE(a.astype("int8"), b.astype("int8"))


def _truncated_integer_mod(a: Expr, b: Expr) -> Expr:
    zero, one = same(a, 0), same(a, 1)
    if isinstance(b, tirx.IntImm) and int(b) not in (0, -1):
        return tirx.truncmod(a, b)
    unsafe = tirx.EQ(b, zero)
    if not is_unsigned(a):
        unsafe = tirx.Or(unsafe, tirx.EQ(b, zero - one))
    return tirx.Select(unsafe, zero, tirx.truncmod(a, tirx.Select(unsafe, one, b)))


def truncated_mod(a: Expr, b: Expr) -> Expr:
    """Return the rest with the sign of the dividend."""
    return libm2("fmod", a, b) if is_float(a) else _truncated_integer_mod(a, b)


def floor_mod(a: Expr, b: Expr) -> Expr:
    """Return the rest with the sign of the divisor."""
    rest = truncated_mod(a, b)
    if is_unsigned(a):
        return rest
    zero = same(a, 0)
    moved = tirx.And(tirx.NE(rest, zero), _signs_differ(rest, b))
    still = rest
    if is_float(a):  # a rest of zero takes the divisor's sign
        still = tirx.Select(tirx.EQ(rest, zero), libm2("copysign", zero, b), rest)
    return tirx.Select(moved, rest + b, still)


def power(a: Expr, b: Expr) -> Expr:
    """Return a to the power b; integers by constant exponents below 9 only."""
    if isinstance(b, tirx.IntImm):
        result = same(a, 1)
        for _ in range(int(b)):
            result = result * a
        return result
    if isinstance(b, tirx.FloatImm) and float(b.value) in (1.0, 2.0):
        return a if float(b.value) == 1.0 else a * a  # exact to the last bit
    return libm2("pow", a, b) if is_float(a) else tirx.pow(a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    """Return the larger; NaN where either is NaN."""
    if is_bool(a):
        return tirx.Or(a, b)
    first = tirx.GT(a, b)
    return tirx.Select(tirx.Or(first, is_nan(a)) if is_float(a) else first, a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """Return the smaller; NaN where either is NaN."""
    if is_bool(a):
        return tirx.And(a, b)
    first = tirx.LT(a, b)
    return tirx.Select(tirx.Or(first, is_nan(a)) if is_float(a) else first, a, b)


def bitwise_not(x: Expr) -> Expr:
    """Return the complement; for bools, not x."""
    return tirx.Not(x) if is_bool(x) else tirx.bitwise_not(x)


def bitwise_and(a: Expr, b: Expr) -> Expr:
    """Return a & b."""
    return tirx.And(a, b) if is_bool(a) else tirx.bitwise_and(a, b)


def bitwise_or(a: Expr, b: Expr) -> Expr:
    """Return a | b."""
    return tirx.Or(a, b) if is_bool(a) else tirx.bitwise_or(a, b)


def bitwise_xor(a: Expr, b: Expr) -> Expr:
    """Return a ^ b."""
    return differ(a, b) if is_bool(a) else tirx.bitwise_xor(a, b)


def left_shift(a: Expr, b: Expr) -> Expr:
    """Return a << b, 0 where b is not below the width."""
    inside, amount = _shift_amount(a, b)
    return tirx.Select(inside, tirx.shift_left(a, amount), same(a, 0))


def right_shift(a: Expr, b: Expr) -> Expr:
    """Return a >> b; where b is not below the width, 0 or the sign spread over all bits."""
    inside, amount = _shift_amount(a, b)
    full = same(a, 0) if is_unsigned(a) else tirx.shift_right(a, same(a, bits(a) - 1))
    return tirx.Select(inside, tirx.shift_right(a, amount), full)


def _shift_amount(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return whether `b` is a legal amount, and its low bits, which always are.

    A comparison with the width would do, but TVM moves it over in unsigned numbers and fails.
    """
    amount = tirx.bitwise_and(b, same(b, bits(a) - 1))
    return tirx.EQ(amount, b), amount


def not_equal(a: Expr, b: Expr) -> Expr:
    """Return a != b; LLVM's test is false for NaN, ours is true."""
    different = tirx.NE(a, b)
    if not is_float(a):
        return different
    return tirx.Or(different, tirx.Or(is_nan(a), is_nan(b)))


def compare(test: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """Return a comparison; bools compare as 0 and 1."""
    if is_bool(a):
        return test(a.astype("int8"), b.astype("int8"))
    return test(a, b)
