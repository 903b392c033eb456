"""Checks of an ONNX node against the standard, before its converter sees it, and of the sizes it gives.

A converter trusts the kinds of its attributes and the number and element types of its inputs. What
breaks them is broken for every engine, so it is an error here and no reason to try another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto

from hcomp.capture.context import Refused
from hcomp.dtypes import item_bytes
from hcomp.errors import CaptureError
from hcomp.ir.types import TensorType, Type

MAX_BYTES = 1 << 40
"""A tensor that is larger fits no machine: its size is damage, and nothing is allocated for it."""
MAX_RANK = 64
"""numpy has no more dimensions."""

POSITIVE = frozenset(
    ["strides", "dilations", "kernel_shape", "group", "blocksize", "num_groups", "hidden_size", "num_outputs"]
)
"""Attributes that divide something, in all operators that have one of this name."""

FLAGS = frozenset(
    ["keepdims", "select_last_index", "exclusive", "reverse", "noop_with_empty_axes", "allowzero", "ceil_mode",
     "count_include_pad", "largest", "sorted", "fmod", "upper", "linear_before_reset", "transA", "transB"]
)  # fmt: skip
"""Attributes that are 0 or 1; engines differ in what they make of other numbers."""

_ONNX_NAMES = {
    "float16": "float16", "float32": "float", "float64": "double",
    "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz", "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz", "float8_e8m0fnu": "float8e8m0", "float4_e2m1fn": "float4e2m1",
}  # fmt: skip


@dataclass(frozen=True)
class _Formal:
    """An input as the standard declares it."""

    name: str
    variable: str
    types: frozenset[str]
    homogeneous: bool


@dataclass(frozen=True)
class _Schema:
    """What the standard says of an operator, in plain Python."""

    attributes: dict[str, int]
    formals: tuple[_Formal, ...]
    inputs: tuple[int, int]
    outputs: tuple[int, int]


def check_node(node: NodeProto, types: list[Type | None], opset: int, domain: str) -> None:
    """Check a node's attributes, the number of its inputs and outputs, and its inputs' types.

    `types[i]` is the type of input i, None where it is absent. An operator that the installed
    onnx does not know is checked for its attributes' ranges only.

    Raises:
        CaptureError: something is not as the standard has it; the text does not name the node.
    """
    _check_attributes(node)
    schema = _schema(node.op_type, opset, domain)
    if schema is None:
        return
    for attribute in node.attribute:
        expected = schema.attributes.get(attribute.name)
        if expected is not None and attribute.type != expected:
            found, wanted = (AttributeProto.AttributeType.Name(n) for n in (attribute.type, expected))
            raise CaptureError(f"its attribute {attribute.name!r} must be of the kind {wanted}, found {found}")
    _check_count("inputs", _used(node.input), schema.inputs)
    _check_count("outputs", _used(node.output), schema.outputs)
    _check_types(schema, types)


def check_sizes(types: Iterable[Type]) -> None:
    """Check the sizes of values that a converter made.

    Raises:
        Refused: a size is below zero.
        CaptureError: a tensor is larger than any memory, or has too many dimensions.
    """
    for found in types:
        if not isinstance(found, TensorType) or found.shape is None:
            continue
        numbers = [d for d in found.shape if isinstance(d, int)]
        if any(d < 0 for d in numbers):
            raise Refused(f"a size of {found} is below zero")
        if len(found.shape) > MAX_RANK:
            raise CaptureError(f"a tensor has {len(found.shape)} dimensions, at most {MAX_RANK} are possible")
        if prod(numbers) * item_bytes(found.dtype) > MAX_BYTES:
            raise CaptureError(f"a tensor {found} is larger than any memory")


def _check_attributes(node: NodeProto) -> None:
    seen: set[str] = set()
    for attribute in node.attribute:
        name = attribute.name
        if name in seen:
            raise CaptureError(f"its attribute {name!r} is given twice")
        seen.add(name)
        if attribute.ref_attr_name:
            raise CaptureError(f"its attribute {name!r} refers to one of a function, and is in none")
        if name in POSITIVE:
            numbers = attribute.ints if attribute.type == AttributeProto.INTS else [attribute.i]
            if attribute.type in (AttributeProto.INT, AttributeProto.INTS) and any(n < 1 for n in numbers):
                raise CaptureError(f"its attribute {name!r} must be at least 1, found {list(numbers)}")
        if name in FLAGS and attribute.type == AttributeProto.INT and attribute.i not in (0, 1):
            raise CaptureError(f"its attribute {name!r} must be 0 or 1, found {attribute.i}")


def _used(names: Iterable[str]) -> int:
    """Return the number of names up to the last one that is there."""
    return max((i for i, name in enumerate(names, start=1) if name), default=0)


def _check_count(what: str, found: int, limits: tuple[int, int]) -> None:
    low, high = limits
    if not low <= found <= high:
        wanted = str(low) if low == high else f"{low} or more" if high > 1 << 20 else f"{low} to {high}"
        raise CaptureError(f"it has {found} {what}, its operator takes {wanted}")


def _check_types(schema: _Schema, types: list[Type | None]) -> None:
    """Check element types; inputs that share a type variable must share the type."""
    bound: dict[str, tuple[str, str]] = {}
    if not schema.formals:
        return
    for position, found in enumerate(types):
        formal = schema.formals[min(position, len(schema.formals) - 1)]
        if not isinstance(found, TensorType):
            continue
        text = f"tensor({_ONNX_NAMES.get(found.dtype, found.dtype)})"
        if text not in formal.types:
            raise CaptureError(f"its input {position} ({formal.name}) cannot be of {found.dtype}")
        if not formal.homogeneous or not formal.variable.isidentifier():
            continue
        first, name = bound.setdefault(formal.variable, (found.dtype, formal.name))
        if first != found.dtype:
            raise CaptureError(f"its input {formal.name} is of {found.dtype}, but {name} of {first}")


@cache
def _schema(op: str, opset: int, domain: str) -> _Schema | None:
    try:
        found: Any = onnx.defs.get_schema(op, opset, domain)  # its stubs lack half of it
    except onnx.defs.SchemaError:
        return None
    formals = tuple(_Formal(i.name, i.type_str, frozenset(i.types), i.is_homogeneous) for i in found.inputs)
    attributes = {name: int(a.type) for name, a in found.attributes.items()}
    return _Schema(
        attributes, formals, (found.min_input, found.max_input), (found.min_output, found.max_output)
    )  # fmt: skip
