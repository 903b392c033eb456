"""Conversion between element types, with ONNX's rules for the small floats.

Source: the tables in the documentation of ONNX's Cast, version 25.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hcomp.dtypes import SMALL_FLOATS, dtype_name, is_float, is_integer, numpy_dtype
from hcomp.reference.numeric import Array

LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
    "float4_e2m1fn": 6.0,
}
"""The largest finite number of each small float."""

_E8M0_NAN = 255
_E8M0_MAX = 254


def cast(x: Array, *, dtype: str, saturate: bool = True) -> Array:
    """Return `x` as `dtype`.

    Float to integer truncates (a number that does not fit gives any number); integer to integer
    wraps; anything but zero is true. To an 8-bit float the value is rounded to even and, where it
    does not fit, becomes the largest number (`saturate`) or inf or NaN. float8_e8m0fnu rounds up.

    Raises:
        ValueError: text that is no number, or a number to be made text.
    """
    source = dtype_name(x.dtype)
    if source == dtype:
        return x
    if "string" in (source, dtype):
        return _from_text(x, dtype)
    target = numpy_dtype(dtype)
    if dtype == "float8_e8m0fnu":
        return _to_e8m0(np.asarray(x, np.float32), saturate)
    if dtype in SMALL_FLOATS:
        return _to_small_float(x, target, saturate or dtype == "float4_e2m1fn")
    if is_integer(dtype) and is_float(source):
        return _to_integer(x, dtype)
    if is_integer(source) and target.kind == "V":
        # ml_dtypes knows its own types only from some of numpy's.
        middle = np.int64 if is_integer(dtype) else np.float32
        return np.asarray(x.astype(middle).astype(target))
    return np.asarray(x.astype(target))


def _to_integer(x: Array, dtype: str) -> Array:
    """Truncate; what does not fit wraps where int64 can hold it, so that -1 becomes 255."""
    wide = x.astype(np.float64) if x.dtype.kind == "V" else x
    target = numpy_dtype(dtype)
    if target.kind == "V":
        # ONNX leaves open what becomes of a number that does not fit; its test data are ml_dtypes'.
        return np.asarray(wide.astype(np.float32).astype(target))
    wrapped = wide.astype(np.int64).astype(target)
    if dtype != "uint64":
        return np.asarray(wrapped)
    return np.where(wide < 0, wrapped, wide.astype(target))


def _to_small_float(x: Array, target: np.dtype[Any], saturate: bool) -> Array:
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    if saturate:
        largest = LARGEST[dtype_name(target)]
        wide = np.clip(wide, -largest, largest)
    return np.asarray(wide.astype(target))


def _to_e8m0(x: Array, saturate: bool) -> Array:
    """Return the power of two at or above |x|: the exponent bits, one more where others are set."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.uint16)
    special = exponent == _E8M0_NAN
    # Subnormal numbers up to 2**-127 are that number, which is the smallest of the type.
    rest = (bits & 0x7FFFFF).astype(np.int64) - np.where(exponent == 0, 0x400000, 0)
    exponent += (rest > 0) & ~special
    exponent = np.minimum(exponent, _E8M0_MAX if saturate else _E8M0_NAN)
    if saturate:
        exponent[np.isinf(x)] = _E8M0_MAX
        exponent[np.isnan(x)] = _E8M0_NAN
    else:
        exponent[x == 0] = _E8M0_NAN
        exponent[special] = _E8M0_NAN
    return exponent.astype(np.uint8).view(numpy_dtype("float8_e8m0fnu")).reshape(x.shape)


def _from_text(x: Array, dtype: str) -> Array:
    if dtype == "string":
        raise ValueError("a number has no one text: cast to string is left to the source's engine")
    numbers = np.array([float(item) for item in x.ravel()], np.float64).reshape(x.shape)
    return numbers if dtype == "float64" else cast(numbers, dtype=dtype)
