"""Taking the caller's inputs: any array, any layout; every name, type and shape checked.

The path for plain numpy arrays of the right type costs about a microsecond an input; all the
rest (conversions, and errors that say what is wrong) happens off it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from tvm_ffi import Tensor, from_dlpack

from hcomp.artifact.manifest import ValueSpec
from hcomp.artifact.types import (
    OpaqueType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
    shape_text,
)
from hcomp.dims import Dim, evaluate, is_symbol
from hcomp.dtypes import dtype_name, is_float, is_integer, numpy_dtype
from hcomp.errors import RunError
from hcomp.runtime.resources import numpy_is_plain
from hcomp.runtime.values import address, to_array, to_tensor

Shape = tuple[int, ...]

MAX_KNOWN_SHAPES = 4096


class Bound(NamedTuple):
    """Inputs ready to run: values in the program's order, and where their memory is.

    `torch` says that the caller passed torch tensors and wants them back.
    """

    values: list[object]
    addresses: set[int]
    torch: bool


@dataclass
class Row:
    """One input: its type, and the numpy dtype of its fast path."""

    name: str
    type: ValueType
    dtype: np.dtype | None = None
    shape: Shape | None = None  # where it is static
    is_plain: bool = False  # kernels read it, and numpy can pass it to them as it is


class InputBinder:
    """Checks and converts the inputs of a program with the given inputs' types.

    `static_shapes` are the inputs' shapes where all are static, `known_shapes` those that have
    been checked, `all_plain` says that generated code takes all inputs as numpy has them.

    `for_kernels[i]` says that generated code reads input i, so that it becomes a tensor here.
    """

    def __init__(self, specs: Sequence[ValueSpec], for_kernels: Sequence[bool]) -> None:
        self.rows = [_row(spec, used) for spec, used in zip(specs, for_kernels, strict=True)]
        self._names = frozenset(spec.name for spec in specs)
        self.known_shapes: set[tuple[Shape | None, ...]] = set()
        shapes = [row.shape for row in self.rows]
        # Shapes without elements take the long way each time.
        self.static_shapes = None if any(s is None or 0 in s for s in shapes) else shapes
        self.all_plain = all(row.is_plain for row in self.rows)

    def bind(self, inputs: Mapping[str, object]) -> Bound:
        """Return the inputs ready to run.

        Raises:
            RunError: a name is missing or unknown, or a type or shape does not fit; names the
                input, what was expected in the model's own symbols, and what was found.
        """
        if len(inputs) != len(self.rows):
            self._refuse_names(inputs)
        values: list[Any] = []
        torch = False
        for row in self.rows:
            try:
                value = inputs[row.name]
            except KeyError:
                self._refuse_names(inputs)
                raise
            if type(value) is not np.ndarray or value.dtype is not row.dtype:
                torch = torch or _is_torch(value)
                value = _accept(row, value)
            values.append(value)
        if self.static_shapes is None or [value.shape for value in values] != self.static_shapes:
            values = [one_element(row, value) for row, value in zip(self.rows, values, strict=True)]
            self._check_shapes(values)
        return self._convert(values, torch)

    def _convert(self, values: list[Any], torch: bool) -> Bound:
        """Turn arrays that kernels read into tensors, without a copy if they lie in a row."""
        addresses: set[int] = set()
        for i, row in enumerate(self.rows):
            value = values[i]
            if row.is_plain and isinstance(value, np.ndarray):
                # Without elements any strides are contiguous to numpy, but not to TVM.
                if value.flags.carray and value.size:
                    values[i] = tensor = from_dlpack(value)
                    addresses.add(tensor.data_ptr())
                    continue
                value = values[i] = to_tensor(value)
            if isinstance(value, Tensor | np.ndarray):
                addresses.add(address(value))
        return Bound(values, addresses, torch)

    def _refuse_names(self, inputs: Mapping[str, object]) -> None:
        missing = [row.name for row in self.rows if row.name not in inputs]
        unknown = [str(name) for name in inputs if name not in self._names]
        if not missing and not unknown:
            return
        parts = [f"input {name!r} is missing" for name in missing] + [f"there is no input {n!r}" for n in unknown]
        wanted = ", ".join(f"{row.name}: {row.type}" for row in self.rows) or "none"
        raise RunError(f"{', '.join(parts)}; the model's inputs are {wanted}")

    def _check_shapes(self, values: Sequence[Any]) -> None:
        """Check all shapes against the types, unless these have been checked before."""
        shapes = [tuple(v.shape) if isinstance(v, np.ndarray | Tensor) else None for v in values]
        if (key := tuple(shapes)) in self.known_shapes:
            return
        self._check_new_shapes(shapes)
        if len(self.known_shapes) < MAX_KNOWN_SHAPES and not any(0 in s for s in shapes if s):
            self.known_shapes.add(key)

    def _check_new_shapes(self, shapes: Sequence[Shape | None]) -> None:
        """Check shapes against the types; equal symbols must have equal sizes."""
        sizes: dict[str, int] = {}
        found_in: dict[str, str] = {}
        rows = [(row, shape) for row, shape in zip(self.rows, shapes, strict=True) if shape is not None]
        for row, shape in rows:
            dims = row.type.shape if isinstance(row.type, TensorType) else None
            if dims is None:
                continue
            if len(dims) != len(shape):
                _mismatch(row, shape, f"{len(shape)} dimensions, not {len(dims)}")
            for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
                if isinstance(dim, int) and dim != size:
                    _mismatch(row, shape, f"axis {axis} is {size}, not {dim}")
                if is_symbol(dim):
                    name = str(dim)
                    if sizes.setdefault(name, size) != size:
                        _mismatch(
                            row,
                            shape,
                            f"{name} is {sizes[name]} in {found_in[name]} and {size} here",
                        )
                    found_in.setdefault(name, f"input {row.name!r}")
        for row, shape in rows:
            _check_expressions(row, shape, sizes)


def check_mapping(inputs: object) -> None:
    """Refuse inputs that have no names.

    Raises:
        RunError: they are no mapping.
    """
    if not isinstance(inputs, Mapping):
        raise RunError(
            f"inputs are given by name, as a dictionary {{name: array}}, found {type(inputs).__name__};"
            " calling the program itself takes arrays in the model's order"
        )


def one_element(row: Row, value: Any) -> Any:
    """Return a single number in its declared shape: callers pass [16000] for a declared 0-D input."""
    if isinstance(value, np.ndarray) and row.shape is not None and value.size == 1 and value.shape != row.shape:
        return value.reshape(row.shape) if prod(row.shape) == 1 else value
    return value


def _row(spec: ValueSpec, for_kernel: bool) -> Row:
    row = Row(spec.name, spec.type)
    if isinstance(spec.type, TensorType):
        if numpy_is_plain(spec.type.dtype):
            row.dtype = numpy_dtype(spec.type.dtype)
            row.is_plain = for_kernel and row.dtype.kind in "biuf"
        if spec.type.shape is not None and not any(isinstance(dim, Dim) for dim in spec.type.shape):
            row.shape = tuple(dim for dim in spec.type.shape if isinstance(dim, int))
    return row


def _is_torch(value: object) -> bool:
    """Say whether a value is, or holds, a torch tensor; torch is never imported for this."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(value, list | tuple):
        return any(_is_torch(element) for element in value)
    return isinstance(value, torch.Tensor)


def _accept(row: Row, value: object) -> object:
    """Return an input that is not a plain array of the right dtype as an array, tensor, list..."""
    try:
        return _as_type(row.type, value)
    except _UnfitError as error:
        raise RunError(f"input {row.name!r}: expected {row.type}, got {error}") from None


class _UnfitError(Exception):
    """Says what was found instead."""


def _as_type(type_: ValueType, value: object) -> object:
    match type_:
        case TensorType():
            return _as_tensor(type_, value)
        case OptionalType(element):
            return None if value is None else _as_type(element, value)
        case SequenceType(element):
            if not isinstance(value, list | tuple):
                raise _UnfitError(_describe(value))
            return [to_array(v) if isinstance(v, Tensor) else v for v in (_as_type(element, v) for v in value)]
        case OpaqueType():
            return value


def _as_tensor(type_: TensorType, value: object) -> object:
    """Return an array or tensor of the right element type."""
    if _is_torch(value):
        return _from_torch(type_, value)
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(type_, np.asarray(value))
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(type_, value)
    return _from_python(type_, value)


def _from_numpy(type_: TensorType, array: np.ndarray) -> np.ndarray:
    try:
        name = dtype_name(array.dtype)
    except KeyError:
        name = str(array.dtype)
    if name != type_.dtype:
        raise _UnfitError(_spell(name, array.shape))
    if name == "string":
        return array.astype(object)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _from_torch(type_: TensorType, value: Any) -> object:
    if value.device.type != "cpu":
        raise _UnfitError(f"a tensor on {value.device}: move it to the cpu")
    if (layout := str(value.layout).removeprefix("torch.")) != "strided":
        raise _UnfitError(f"a tensor of layout {layout}: make it dense with to_dense()")
    name = str(value.dtype).removeprefix("torch.")
    if name != type_.dtype:
        raise _UnfitError(_spell(name, tuple(value.shape)))
    value = value.detach().resolve_conj().resolve_neg() if name.startswith("complex") else value.detach()
    if name.startswith("complex"):
        return value.numpy()
    value = value.contiguous()
    if not value.numel():
        return to_tensor(np.empty(tuple(value.shape), numpy_dtype(name)))
    return _aligned(_export(value))


def _from_dlpack(type_: TensorType, value: Any) -> object:
    if value.__dlpack_device__()[0] not in (1, 3, 11, 13):  # cpu, and host memory of cuda, rocm
        raise _UnfitError(f"an array on device {value.__dlpack_device__()}: move it to the cpu")
    tensor = _export(value)
    shape = tuple(tensor.shape)
    if str(tensor.dtype) != type_.dtype:
        raise _UnfitError(_spell(str(tensor.dtype), shape))
    if not tensor.is_contiguous() or not tensor.numel():
        return to_tensor(np.array(to_array(tensor)))
    return _aligned(tensor)


def _aligned(tensor: Tensor) -> Tensor:
    """Return a tensor whose elements start on multiples of their size, as kernels need it."""
    if tensor.data_ptr() % tensor.dtype.itemsize:
        return to_tensor(np.array(to_array(tensor)))
    return tensor


def _export(value: Any) -> Tensor:
    try:
        return from_dlpack(value)
    except (RuntimeError, ValueError, TypeError, BufferError) as error:
        raise _UnfitError(f"{type(value).__name__} that DLPack cannot pass on ({error})") from error


def _from_python(type_: TensorType, value: object) -> np.ndarray:
    """Return a scalar or nested list, whose numbers have no type yet, in the input's type."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise _UnfitError(f"{type(value).__name__} of uneven lengths") from None
    name, kind = type_.dtype, array.dtype.kind
    fits = {
        "b": name == "bool",
        "i": is_integer(name) or is_float(name),
        "u": is_integer(name) or is_float(name),
        "f": is_float(name) or not array.size,
        "U": name == "string",
    }
    if not fits.get(kind, False):
        raise _UnfitError(_describe(value))
    try:
        if is_integer(name) and array.size:
            _check_range(array, name)
        return array.astype(numpy_dtype(name))
    except OverflowError:
        raise _UnfitError(f"a number out of the range of {name}") from None


def _check_range(array: np.ndarray, name: str) -> None:
    bits = int(name.lstrip("uint"))
    low, high = (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if int(array.min()) < low or int(array.max()) > high:
        raise OverflowError


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return _spell(str(value.dtype), value.shape)
    return "None" if value is None else f"{type(value).__name__} {repr(value)[:60]}"


def _spell(dtype: str, shape: Shape) -> str:
    return dtype + shape_text(shape)


def _mismatch(row: Row, shape: Shape, reason: str) -> None:
    dtype = row.type.dtype if isinstance(row.type, TensorType) else ""
    raise RunError(f"input {row.name!r}: expected {row.type}, got {_spell(dtype, shape)}: {reason}")


def _check_expressions(row: Row, shape: Shape, sizes: Mapping[str, int]) -> None:
    """Check dimensions such as 2*N, where the symbols have sizes."""
    dims = row.type.shape if isinstance(row.type, TensorType) else None
    for axis, (dim, size) in enumerate(zip(dims or (), shape, strict=dims is not None)):
        if isinstance(dim, Dim) and dim.symbols <= sizes.keys():
            wanted = evaluate(dim, sizes)
            if wanted != size:
                _mismatch(row, shape, f"axis {axis} is {size}, not {dim} = {wanted}")
