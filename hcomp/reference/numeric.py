"""What all reference functions share: quiet arithmetic, and narrow types computed wide.

float16, bfloat16 and the smaller floats are computed in float32 and rounded once at the end;
integers of less than 8 bits are computed in 8 and wrap at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dtypes import SIGNED, dtype_name, is_float, is_integer, numpy_dtype

Array: TypeAlias = NDArray[Any]
Function: TypeAlias = Callable[..., Any]


def quiet(function: Function) -> Function:
    """Return `function` without numpy's warnings (inf and nan are values here) and scalars."""

    @wraps(function)
    def run(*inputs: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            result = function(*inputs, **attrs)
        return np.asarray(result) if isinstance(result, np.generic) else result

    return run


def quiet_table(table: dict[str, Function]) -> dict[str, Function]:
    """Return the table with `quiet` around every function."""
    return {name: quiet(function) for name, function in table.items()}


@cache
def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that values of `dtype` are computed in."""
    name = dtype_name(dtype)
    if name in ("int4", "int2"):
        return np.dtype(np.int8)
    if name in ("uint4", "uint2"):
        return np.dtype(np.uint8)
    if is_float(name) and name not in ("float32", "float64"):
        return np.dtype(np.float32)
    return dtype


def widen(x: Array) -> Array:
    """Return `x` in the dtype that it is computed in."""
    return x.astype(compute_dtype(x.dtype), copy=False)


def narrow(x: Any, dtype: np.dtype[Any]) -> Array:
    """Return `x` rounded (or wrapped) to `dtype`."""
    return np.asarray(x).astype(dtype, copy=False)


def is_float_array(x: Array) -> bool:
    """Say whether `x` holds real floating-point numbers."""
    return is_float(dtype_name(x.dtype))


def is_integer_array(x: Array) -> bool:
    """Say whether `x` holds integers (bool does not count)."""
    return is_integer(dtype_name(x.dtype))


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the value of `dtype` that is below all others: -inf, the smallest integer, False."""
    return _extreme(dtype, -1)


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the value of `dtype` that is above all others: inf, the largest integer, True."""
    return _extreme(dtype, 1)


@cache
def _extreme(dtype: np.dtype[Any], sign: int) -> Any:
    name = dtype_name(dtype)
    if name == "bool":
        return sign > 0
    low, high = integer_range(name) if is_integer(name) else (-np.inf, np.inf)
    return high if sign > 0 else low


def integer_range(name: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    bits = int(name.lstrip("uint"))
    if name in SIGNED:
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def out_dtype_of(x: Array, out_dtype: str) -> np.dtype[Any]:
    """Return the dtype that the attribute `out_dtype` asks for; "" is the dtype of `x`."""
    return numpy_dtype(out_dtype) if out_dtype else x.dtype
