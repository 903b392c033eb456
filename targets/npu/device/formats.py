"""Numbers as the machine stores them, and the two domains in which it computes: float32 and int32.

bfloat16 is kept as the upper half of a float32 in a uint16, so that numpy alone is enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.targets.npu.device.isa import INTEGERS

Floats = NDArray[np.float32]

STORAGE: dict[str, np.dtype[Any]] = {
    name: np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
    for name in ("int8", "uint8", "int32", "float32", "float16", "bfloat16")
}
"""numpy's type for the bytes of each type."""


def to_float(stored: NDArray[Any], dtype: str) -> Floats:
    """Return stored numbers as float32: exact but for int32, which is rounded to nearest even."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


def from_float(values: Floats, dtype: str) -> NDArray[Any]:
    """Return float32 numbers as `dtype` stores them: nearest even; integers saturate and take NaN as 0."""
    if dtype == "bfloat16":
        return _to_bfloat16(values)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        wide = values.astype(np.float64) if dtype == "int32" else values
        levels = np.nan_to_num(np.clip(np.rint(wide), info.min, info.max), nan=0.0)
        stored: NDArray[Any] = levels.astype(STORAGE[dtype])
        return stored
    return values.astype(STORAGE[dtype], copy=False)


def _to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    result = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():
        result[nan] = (bits[nan] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return result.reshape(values.shape)


def from_int(values: NDArray[np.int32], dtype: str) -> NDArray[Any]:
    """Return int32 numbers as `dtype` stores them: smaller integers saturate, floats are rounded to nearest even."""
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return np.clip(values, info.min, info.max).astype(STORAGE[dtype], copy=False)
    return from_float(values.astype(np.float32), dtype)
