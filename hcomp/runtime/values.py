"""Values of a running program in their forms: TVM tensors for kernels, numpy arrays for the host.

Both forms share memory where they can. Generated code needs C-contiguous, native-endian data whose
elements start on multiples of their size; what is not gets copied here and nowhere else.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm_ffi import Tensor, from_dlpack

from hcomp.dtypes import dtype_name, numpy_dtype
from hcomp.errors import RunError
from hcomp.runtime.library import tvm_function

ALIGNMENT = 64

# TVM's runtime has no tensors of these; kernels take and give them a byte each, as here.
CARRIERS = {
    "int4": "int8",
    "int2": "int8",
    "uint4": "uint8",
    "uint2": "uint8",
    "float4_e2m1fn": "uint8",
}
# numpy exports no DLPack of its extension types: they pass as integers of their width.
BITS = {1: "uint8", 2: "uint16"}

CPU = tvm_ffi.device("cpu", 0)


class _Writable:
    """A read-only array offered as a writable one, because DLPack refuses the former."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def to_tensor(value: object) -> Tensor:
    """Return a value as a tensor for generated code: its own memory if that is fit, else a copy.

    Raises:
        RunError: the value is no array, or of a type that kernels cannot take.
    """
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise RunError(f"a kernel needs an array, found {type(value).__name__}")
    # 2 is a type of an extension; an unpickled array of a plain type says 0, not 1.
    if value.dtype.isbuiltin != 2:
        return _plain_tensor(value)
    name = dtype_name(value.dtype)
    if name in CARRIERS:
        return _plain_tensor(to_carrier(value))
    return reinterpret(_plain_tensor(value.view(BITS[value.dtype.itemsize])), name)


def aligned_copy(array: np.ndarray) -> Tensor:
    """Return a fresh tensor with the content of an array of a numpy type, in any layout."""
    if array.dtype.kind not in "biuf":
        raise RunError(f"a kernel cannot take arrays of {array.dtype}")
    tensor = empty_tensor(array.shape, array.dtype.newbyteorder("=").name)
    np.copyto(np.from_dlpack(tensor), array)
    return tensor


def empty_tensor(shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a fresh aligned tensor with undefined content."""
    allocate: Any = tvm_function("runtime.TVMTensorAllocWithScope")
    tensor: Tensor = allocate(shape, _ffi_dtype(dtype), CPU, None)
    return tensor


def to_array(value: object) -> np.ndarray:
    """Return a tensor or array as an array over the same memory.

    Raises:
        RunError: the value is neither.
    """
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Tensor):
        raise RunError(f"expected an array, found {type(value).__name__}")
    return array_of(value, str(value.dtype))


def array_of(tensor: Tensor, dtype: str) -> np.ndarray:
    """Return a tensor of the element type `dtype` as an array over the same memory."""
    numpy = numpy_dtype(dtype)
    if numpy.isbuiltin != 2:
        return np.from_dlpack(tensor)
    if dtype in CARRIERS:
        return from_carrier(np.from_dlpack(tensor), dtype)
    return np.from_dlpack(reinterpret(tensor, BITS[numpy.itemsize])).view(numpy)


def to_carrier(array: np.ndarray) -> np.ndarray:
    """Return an array of a sub-byte type as the bytes that kernels take: numbers, or float4's codes."""
    name = dtype_name(array.dtype)
    # ml_dtypes leaves the upper bits of a byte undefined, so that a view will not do.
    return array.astype(CARRIERS[name]) if "int" in name else array.view(CARRIERS[name])


def from_carrier(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bytes that kernels gave as an array of the sub-byte type they stand for."""
    numpy = numpy_dtype(dtype)
    return array.astype(numpy) if "int" in dtype else array.view(numpy)


def to_host(value: object) -> object:
    """Return a value as host executors take it: an array; no tensor."""
    return to_array(value) if isinstance(value, Tensor) else value


def copied(value: object) -> object:
    """Return a value in memory of its own; sequences and dictionaries element by element."""
    if isinstance(value, Tensor):
        return _copy_tensor(value)
    if isinstance(value, np.ndarray):
        return _copy_array(value)
    if isinstance(value, list | tuple):
        return [copied(element) for element in value]
    if isinstance(value, dict):
        return {key: copied(element) for key, element in value.items()}
    return value


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a fresh array whose data starts on a multiple of 64, with undefined content."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -address(raw) % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_number(dtype: np.dtype, value: int) -> Tensor:
    """Return a fresh tensor of no dimensions."""
    number = aligned_empty((), dtype)
    number[...] = value
    return from_dlpack(number)


def value_bytes(value: object) -> int:
    """Return the bytes of a value's data; of texts and other objects, 0."""
    if isinstance(value, Tensor):
        return int(value.numel()) * (tvm_ffi.dtype(value.dtype).itemsize)
    if isinstance(value, list | tuple):
        return sum(value_bytes(element) for element in value)
    return value.nbytes if isinstance(value, np.ndarray) and not value.dtype.hasobject else 0


def address(value: Tensor | np.ndarray) -> int:
    """Return where a value's data is."""
    if isinstance(value, Tensor):
        return int(value.data_ptr())
    return int(value.__array_interface__["data"][0])


def reinterpret(tensor: Tensor, dtype: str) -> Tensor:
    """Return a tensor over the same memory with elements of another type of the same width."""
    create: Any = tvm_function("runtime.TVMTensorCreateView")
    view: Tensor = create(tensor, tvm_ffi.Shape(tuple(tensor.shape)), _ffi_dtype(dtype), 0)
    return view


def _plain_tensor(array: np.ndarray) -> Tensor:
    flags = array.flags
    if array.size and flags.c_contiguous and flags.aligned and array.dtype.isnative and array.dtype.kind in "biuf":
        if not flags.writeable:
            array = np.asarray(_Writable(array))
        return from_dlpack(array)
    return aligned_copy(array)


def _copy_tensor(tensor: Tensor) -> Tensor:
    fresh = empty_tensor(tuple(tensor.shape), str(tensor.dtype))
    if tensor.numel():
        tvm_function("runtime.TVMTensorCopyFromTo")(tensor, fresh)
    return fresh


def _copy_array(array: np.ndarray) -> np.ndarray:
    fresh = aligned_empty(array.shape, array.dtype)
    np.copyto(fresh, array)
    return fresh


@cache
def _ffi_dtype(name: str) -> Any:
    return tvm_ffi.dtype(name)
