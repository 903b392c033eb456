"""ONNX types and tensors in hcomp's terms: element types, symbolic dims, values of attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, TypeProto

from hcomp.dims import DimLike
from hcomp.dtypes import dtype_name
from hcomp.errors import CaptureError
from hcomp.ir.builder import Names
from hcomp.ir.types import OpaqueType, OptionalType, SequenceType, TensorType, Type


class Symbols:
    """One symbol for each dim_param of a model; unnamed dims get a symbol of their own.

    `fixed` gives symbols that turned out to be numbers; they are numbers from the start then.
    """

    def __init__(self, names: Names, fixed: Mapping[str, int]) -> None:
        self._names = names
        self._fixed = fixed
        self._by_param: dict[str, DimLike] = {}

    def bind(self, param: str, size: int) -> None:
        """Make the dim_param `param` the number `size` from now on."""
        self._by_param[param] = size

    def of(self, param: str) -> DimLike:
        """Return the dimension for the dim_param `param`; "", "_" and "?" name nothing."""
        if not param.strip("_?*-. "):
            return self._fresh("d")
        if param not in self._by_param:
            plain = "".join(c if c.isalnum() or c == "_" else "_" for c in param)
            if not plain.isidentifier():
                plain = f"d_{plain}" if f"d_{plain}".isidentifier() else "d"
            self._by_param[param] = self._fresh(plain)
        return self._by_param[param]

    def _fresh(self, hint: str) -> DimLike:
        made = self._names.fresh_symbol(hint)
        return self._fixed.get(str(made), made)


def element_type(number: int) -> str:
    """Return the dtype name of an ONNX element type.

    Raises:
        CaptureError: there is no such element type in this version of ONNX.
    """
    if number == TensorProto.STRING:
        return "string"
    try:
        return dtype_name(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)))
    except (KeyError, TypeError):
        raise CaptureError(f"element type {number} is not one that hcomp knows") from None


def onnx_element_type(dtype: str) -> int:
    """Return the ONNX element type of a dtype name."""
    from hcomp.dtypes import numpy_dtype

    if dtype == "string":
        return int(TensorProto.STRING)
    return int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


def value_type(proto: TypeProto, symbols: Symbols) -> Type:
    """Return the type that an ONNX TypeProto declares."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            tensor = proto.tensor_type
            dtype = element_type(tensor.elem_type)
            if not tensor.HasField("shape"):
                return TensorType(dtype, None)
            return TensorType(dtype, tuple(_dim(d, symbols) for d in tensor.shape.dim))
        case "sequence_type":
            return SequenceType(_loose(value_type(proto.sequence_type.elem_type, symbols)))
        case "optional_type":
            return OptionalType(value_type(proto.optional_type.elem_type, symbols))
        case "map_type":
            return OpaqueType("map")
        case kind:
            raise CaptureError(f"a value of the kind {kind} is not one that hcomp knows")


def _loose(element: Type) -> Type:
    return TensorType(element.dtype, None) if isinstance(element, TensorType) else element


def _dim(dim: Any, symbols: Symbols) -> DimLike:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        size: int = dim.dim_value
        return size
    return symbols.of(dim.dim_param)


def to_type_proto(value: Type) -> TypeProto:
    """Return the ONNX TypeProto for a type; symbolic dims become unnamed."""
    match value:
        case TensorType(dtype=dtype, shape=shape):
            sizes = None if shape is None else [d if isinstance(d, int) else None for d in shape]
            return onnx.helper.make_tensor_type_proto(onnx_element_type(dtype), sizes)
        case SequenceType(element=element):
            return onnx.helper.make_sequence_type_proto(to_type_proto(element))
        case OptionalType(element=element):
            return onnx.helper.make_optional_type_proto(to_type_proto(element))
    raise CaptureError(f"a value of type {value} cannot enter an extern node")


def to_array(tensor: TensorProto, folder: str = "") -> NDArray[Any]:
    """Return the contents of an ONNX tensor; text becomes an object array of str.

    Raises:
        CaptureError: the tensor's bytes do not fill its shape.
    """
    try:
        array = onnx.numpy_helper.to_array(tensor, folder)
    except Exception as error:
        raise CaptureError(f"the tensor {tensor.name!r} does not read: {error}") from error
    if tensor.data_type == TensorProto.STRING:
        flat = [s.decode("utf-8", "surrogateescape") if isinstance(s, bytes) else s for s in array.ravel()]
        text = np.empty(len(flat), dtype=object)
        text[:] = flat
        return text.reshape(array.shape)
    return np.asarray(array)


def attribute_value(attribute: AttributeProto) -> Any:
    """Return an attribute as plain Python: str for text, tuples for lists, protos for tensors, graphs."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if attribute.type in (AttributeProto.FLOATS, AttributeProto.INTS):
        return tuple(value)
    if attribute.type == AttributeProto.STRINGS:
        return tuple(v.decode("utf-8", "surrogateescape") for v in value)
    return value
