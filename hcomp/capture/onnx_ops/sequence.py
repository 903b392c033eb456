"""Sequences and optionals: host operators on Python lists and None."""

from __future__ import annotations

import numpy as np
from onnx import TypeProto

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_types import element_type
from hcomp.ir.types import OptionalType


def _empty(c: NodeContext) -> str:
    dtype = c.attr("dtype")
    return c.emit("sequence_empty", dtype="float32" if dtype is None else element_type(dtype))


def _construct(c: NodeContext) -> str:
    return c.emit("sequence_construct", *range(len(c.inputs)))


def _insert(c: NodeContext) -> str:
    return c.emit("sequence_insert", 0, 1, c.optional(2))


def _erase(c: NodeContext) -> str:
    return c.emit("sequence_erase", 0, c.optional(1))


def _at(c: NodeContext) -> str:
    return c.emit("sequence_at", 0, 1)


def _length(c: NodeContext) -> str:
    return c.emit("sequence_length", 0)


def _concat(c: NodeContext) -> str:
    return c.emit("sequence_concat", 0, axis=c.required("axis"), new_axis=bool(c.attr("new_axis", 0)))


def _split(c: NodeContext) -> str:
    keep = bool(c.attr("keepdims", 1))
    return c.emit("split_to_sequence", 0, c.optional(1), axis=c.attr("axis", 0), keepdims=keep)


def _optional(c: NodeContext) -> str:
    declared: TypeProto | None = c.attr("type")
    if c.has(0):
        return c.emit("optional", 0)
    if declared is None:
        raise c.refuse("it has neither a value nor a type")
    is_list = declared.WhichOneof("value") == "sequence_type"
    tensor = declared.sequence_type.elem_type.tensor_type if is_list else declared.tensor_type
    return c.emit("optional_empty", dtype=element_type(tensor.elem_type), sequence=is_list)


def _get(c: NodeContext) -> str:
    if not isinstance(c.any_type(0), OptionalType):
        return c.input(0)  # since opset 18 a plain value may stand for an optional that holds it
    return c.emit("optional_get", 0)


def _has(c: NodeContext) -> str:
    if not c.has(0):
        return c.b.constant(np.array(False), "has")
    if not isinstance(c.any_type(0), OptionalType):
        return c.b.constant(np.array(True), "has")
    return c.emit("optional_has", 0)


SEQUENCE: dict[str, Converter] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "Optional": _optional,
    "OptionalGetElement": _get,
    "OptionalHasElement": _has,
}
