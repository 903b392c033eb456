"""The element types of tensors: their names, their bytes, and their numpy form."""

from functools import cache

import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")
SMALL_FLOATS = (
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)
SIGNED = ("int64", "int32", "int16", "int8", "int4", "int2")
UNSIGNED = ("uint64", "uint32", "uint16", "uint8", "uint4", "uint2")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *FLOATS, *SMALL_FLOATS, *SIGNED, *UNSIGNED, *COMPLEX, "string")

_NUMPY_OWN = {
    "bool": np.bool_,
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint64": np.uint64,
    "uint32": np.uint32,
    "uint16": np.uint16,
    "uint8": np.uint8,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "string": np.object_,
}


@cache
def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy dtype of the element type `name`; strings are object arrays.

    Raises:
        KeyError: `name` is not one of DTYPES.
    """
    own = _NUMPY_OWN.get(name)
    if own is not None:
        found: np.dtype = np.dtype(own)
        return found
    if name not in DTYPES:
        raise KeyError(name)
    import ml_dtypes  # late: it costs 0.4 s and few models need it

    small: np.dtype = np.dtype(getattr(ml_dtypes, name))
    return small


@cache
def dtype_name(dtype: np.dtype) -> str:
    """Return hcomp's name of a numpy dtype; object and text arrays are "string".

    Raises:
        KeyError: the dtype has no place in a model (records, times).
    """
    if dtype.kind in "OUST":
        return "string"
    name = dtype.newbyteorder("=").name
    if name not in DTYPES:
        raise KeyError(name)
    return name


def is_float(name: str) -> bool:
    """Say whether `name` is a real floating type of any width."""
    return name in FLOATS or name in SMALL_FLOATS


def is_integer(name: str) -> bool:
    """Say whether `name` is an integer type; bool is not."""
    return name in SIGNED or name in UNSIGNED


def item_bytes(name: str) -> int:
    """Return the bytes of one element as hcomp stores it: sub-byte types take a byte."""
    return numpy_dtype(name).itemsize
