"""What elementary functions of float32 are built from: constants, polynomials, choices that keep NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

Expr = Any
Names = Callable[[Expr], Any]
"""Gives a value a name that can be used many times."""


def f32(value: float, dtype: str = "float32") -> Expr:
    """Return a number, of float32 unless said otherwise."""
    return tirx.const(value, dtype)


def i32(value: int, dtype: str = "int32") -> Expr:
    """Return an integer."""
    return tirx.const(value, dtype)


def horner(x: Expr, coefficients: Sequence[float], dtype: str = "float32") -> Expr:
    """Return the polynomial with `coefficients` from the constant term up."""
    total = f32(coefficients[-1], dtype)
    for c in reversed(coefficients[:-1]):
        total = total * x + f32(c, dtype)
    return total


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Return one of two values, both of which are computed."""
    return tirx.Select(condition, yes, no)


def is_nan(x: Expr) -> Expr:
    """Return whether a float32 is NaN, by its bits (TVM folds `x != x` to false)."""
    bits = tirx.reinterpret("int32", x) & i32(0x7FFFFFFF)
    return bits > i32(0x7F800000)


def at_least(x: Any, low: float) -> Expr:
    """Return the larger of a name and a number; NaN stays NaN, which the order of the two decides."""
    return select(f32(low) > x, f32(low), x)


def at_most(x: Any, high: float) -> Expr:
    """Return the smaller of a name and a number; NaN stays NaN."""
    return select(f32(high) < x, f32(high), x)


def signed(value: Expr, x: Expr) -> Expr:
    """Return a value of positive sign with the sign of x."""
    sign = tirx.reinterpret("int32", x) & i32(-0x80000000)
    return tirx.reinterpret("float32", tirx.reinterpret("int32", value) | sign)


def fused(a: Expr, factor: float, c: Expr, dtype: str = "float64") -> Expr:
    """Return a * factor + c with one rounding, which reductions of arguments rely on.

    As a call it also is nothing that TVM's simplifier folds away, as it does with `(x + 1) - 1`.
    """
    return tirx.call_llvm_pure_intrin(dtype, "llvm.fma", a, f32(factor, dtype), c)
