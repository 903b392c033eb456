"""Reading an ONNX model that may come from a stranger: sizes and paths are checked before use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from hcomp.capture.normalize import normalize
from hcomp.errors import CaptureError
from hcomp.files import as_path, reason_of, why_unreadable

MAX_BYTES = 1 << 40
"""No tensor in a file is larger; a size beyond it is damage, not data."""
MAX_DEPTH = 40
"""Graphs nested deeper than this are refused before anything recurses into them."""
NEWEST_IR = onnx.IR_VERSION


def load_model(model: str | os.PathLike[str] | ModelProto) -> ModelProto:
    """Return a model ready for conversion: external data read, functions inlined.

    The given ModelProto is not changed.

    Raises:
        CaptureError: the file is no ONNX model, is damaged, or asks for a newer hcomp.
    """
    if isinstance(model, ModelProto):
        own = ModelProto()
        own.CopyFrom(model)
        folder = None
    else:
        path = as_path(model, "a model")
        own, folder = _parse(path), path.resolve().parent
    _check_text(own)
    _check_header(own)
    _check_depth(own.graph, 0)
    for tensor in all_tensors(own):
        _check_tensor(tensor, folder)
    return normalize(own)


def external_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a model's external data; none of a model that cannot be read."""
    try:
        model = _parse(path)
        entries = [entry for tensor in all_tensors(model) for entry in tensor.external_data]
    except (CaptureError, RecursionError):
        return ()
    names = dict.fromkeys(entry.value for entry in entries if entry.key == "location" and entry.value)
    return tuple(path.resolve().parent / name for name in names)


def _parse(path: Path) -> ModelProto:
    if reason := why_unreadable(path):
        raise CaptureError(f"{path}: cannot be read: {reason}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {reason_of(error)}") from None
    if not data:
        raise CaptureError(f"{path}: the file is empty")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError is not importable from one stable place
        raise CaptureError(f"{path}: not an ONNX model, or truncated: {str(error).strip()}") from None
    if not model.HasField("graph"):
        raise CaptureError(f"{path}: not an ONNX model: it has no graph")
    return model


def _check_text(message: Any) -> None:
    """Refuse names that are no text: protobuf gives those as bytes, which nothing here expects.

    Comments and metadata may hold anything; they are not read. Nor are a tensor's contents here.
    """
    if isinstance(message, TensorProto):
        _refuse_bytes("the name of a tensor", message.name)
        for entry in message.external_data:
            _check_text(entry)
        return
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            continue
        if field.type == field.TYPE_STRING:
            for text in value if field.is_repeated else [value]:
                _refuse_bytes(field.full_name, text)
        elif field.type == field.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                _check_text(item)


def _refuse_bytes(where: str, text: str | bytes) -> None:
    if isinstance(text, bytes):
        raise CaptureError(f"the model is damaged: {where} is {text[:40]!r}, which is no text")


def _check_header(model: ModelProto) -> None:
    if not model.opset_import:
        # Files before IR version 3 name no opset; version 1 is what the standard then assumes.
        model.opset_import.append(onnx.helper.make_opsetid("", 1))
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not 0 < entry.version <= newest:
            raise CaptureError(
                f"the model asks for opset {entry.version}; this hcomp reads 1 to {newest}:"
                " export it again for an older one"
            )
    if model.ir_version > NEWEST_IR:
        raise CaptureError(f"the model has IR version {model.ir_version}; this hcomp reads up to {NEWEST_IR}")


def _subgraphs(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.g
            yield from attribute.graphs


def _check_depth(graph: GraphProto, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CaptureError(f"graphs are nested deeper than {MAX_DEPTH}")
    for inner in _subgraphs(graph):
        _check_depth(inner, depth + 1)


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model: initializers and attributes, subgraphs and functions included."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _attribute_tensors(node.attribute)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: object) -> Iterator[TensorProto]:
    for attribute in attributes:  # type: ignore[attr-defined]  # protobuf's containers have no stubs
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)


def _check_tensor(tensor: TensorProto, folder: Path | None) -> None:
    """Compare a tensor's bytes with its shape, and read them in where they lie outside."""
    if any(d < 0 for d in tensor.dims):
        raise CaptureError(f"the tensor {tensor.name!r} has a negative size: {list(tensor.dims)}")
    elements = prod(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        if len(tensor.string_data) != elements:
            raise CaptureError(
                f"the tensor {tensor.name!r} holds {len(tensor.string_data)} texts, its shape {elements}"
            )
        return
    size = _stored_bytes(tensor, elements)
    if size > MAX_BYTES:
        raise CaptureError(f"the tensor {tensor.name!r} of shape {list(tensor.dims)} is larger than any memory")
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.raw_data = _external(tensor, folder, size)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size:
            raise CaptureError(
                f"the tensor {tensor.name!r} has {len(tensor.raw_data)} bytes,"
                f" its shape {list(tensor.dims)} needs {size}"
            )
    elif elements > 0:
        _check_fields(tensor, elements)


_BITS: dict[int, int] = {
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2, TensorProto.UINT2: 2,
}  # fmt: skip


def _stored_bytes(tensor: TensorProto, elements: int) -> int:
    bits = _BITS.get(tensor.data_type)
    if bits is not None:
        return (elements * bits + 7) // 8
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError):
        raise CaptureError(f"the tensor {tensor.name!r} has the unknown element type {tensor.data_type}") from None
    return elements * int(dtype.itemsize)


def _check_fields(tensor: TensorProto, elements: int) -> None:
    """Compare the length of the typed field (float_data and so on) with the shape."""
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    have = len(getattr(tensor, field))
    want = elements
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        want = 2 * elements
    elif tensor.data_type in _BITS:
        want = _stored_bytes(tensor, elements)
    if have != want:
        raise CaptureError(f"the tensor {tensor.name!r} has {have} entries, its shape {list(tensor.dims)} needs {want}")


def _external(tensor: TensorProto, folder: Path | None, size: int) -> bytes:
    """Return a tensor's bytes from a file inside the model's own folder, links not followed out of it."""
    info = {entry.key: entry.value for entry in tensor.external_data}
    location = info.get("location", "")
    where = f"the tensor {tensor.name!r}"
    if folder is None:
        raise CaptureError(f"{where} lies in the file {location!r}, but the model was not read from a folder")
    if "\0" in location:
        raise CaptureError(f"{where} lies in {location!r}, which is no file name")
    path = (folder / location).resolve()
    if not location or not path.is_relative_to(folder):
        raise CaptureError(f"{where} lies in {location!r}, outside the model's own folder")
    try:
        offset, length = int(info.get("offset", 0)), int(info.get("length", size))
    except ValueError:
        raise CaptureError(f"{where} has an offset or length that is no number") from None
    if length != size or offset < 0:
        raise CaptureError(f"{where} declares {length} bytes at {offset}, its shape {list(tensor.dims)} needs {size}")
    try:
        # A named pipe or a device could block or never end.
        if not path.is_file():
            reason = "it is no regular file" if path.exists() else "No such file or directory"
            raise CaptureError(f"{where}: {location!r} cannot be read: {reason}")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < offset + size:
                raise CaptureError(f"{where} needs {size} bytes at {offset} of {location!r}, which is shorter")
            file.seek(offset)
            data: bytes = file.read(size)
    except OSError as error:
        raise CaptureError(f"{where}: {location!r} cannot be read: {reason_of(error)}") from None
    return data
