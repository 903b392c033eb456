"""Sequences and optionals whose contents are in the graph: read directly, not through the host.

Exporters wrap tensors in lists for a moment (SequenceConstruct then SequenceAt); without these
rules each such moment would stop compiled code and start the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hcomp.ir.graph import Node
from hcomp.ir.rewrite import Editor

Rule = Callable[[Node, Editor], "str | None"]


def _elements(name: str, edit: Editor) -> tuple[str, ...] | None:
    """Return the values that a sequence consists of, where the graph says it."""
    source = edit.producer(name)
    if source is None:
        return None
    if source.op == "sequence_construct":
        return source.inputs
    return () if source.op == "sequence_empty" else None


def _position(node: Node, index: int, size: int, edit: Editor) -> int | None:
    """Return the constant position in input `index` (the end where it is absent)."""
    if index >= len(node.inputs) or not node.inputs[index]:
        return size
    value = edit.constant_value(node.inputs[index])
    if value is None:
        return None
    position = int(value.reshape(-1)[0])
    return position + size if position < 0 else position


def _at(node: Node, edit: Editor) -> str | None:
    elements = _elements(node.inputs[0], edit)
    if elements is None:
        return None
    position = _position(node, 1, len(elements), edit)
    # A position outside is an error of the run, which the host reports.
    return elements[position] if position is not None and position in range(len(elements)) else None


def _insert(node: Node, edit: Editor) -> str | None:
    elements = _elements(node.inputs[0], edit)
    if elements is None:
        return None
    position = _position(node, 2, len(elements), edit)
    if position is None or position not in range(len(elements) + 1):
        return None
    return _construct((*elements[:position], node.inputs[1], *elements[position:]), node, edit)


def _erase(node: Node, edit: Editor) -> str | None:
    elements = _elements(node.inputs[0], edit)
    if elements is None or len(elements) < 2:
        return None
    last = len(node.inputs) < 2 or not node.inputs[1]
    position = len(elements) - 1 if last else _position(node, 1, len(elements), edit)
    if position is None or position not in range(len(elements)):
        return None
    return _construct(elements[:position] + elements[position + 1 :], node, edit)


def _construct(elements: tuple[str, ...], node: Node, edit: Editor) -> str | None:
    name = edit.emit("sequence_construct", *elements, hint=node.output)
    return name if edit.types[name] == node.outputs[0].type else None


def _length(node: Node, edit: Editor) -> str | None:
    elements = _elements(node.inputs[0], edit)
    return None if elements is None else edit.constant(np.int64(len(elements)), node.output)


def _concat(node: Node, edit: Editor) -> str | None:
    elements = _elements(node.inputs[0], edit)
    attrs: Mapping[str, Any] = node.attrs
    if not elements or attrs["new_axis"] or any(edit.tensor(e) is None for e in elements):
        return None
    return edit.emit("concat", *elements, hint=node.output, axis=attrs["axis"])


def _get(node: Node, edit: Editor) -> str | None:
    source = edit.producer(node.inputs[0])
    return source.inputs[0] if source is not None and source.op == "optional" else None


def _has(node: Node, edit: Editor) -> str | None:
    source = edit.producer(node.inputs[0]) if node.inputs and node.inputs[0] else None
    if source is None or source.op not in ("optional", "optional_empty"):
        return None
    return edit.constant(np.bool_(source.op == "optional"), node.output)


LIST_RULES: Mapping[str, Rule] = {
    "sequence_at": _at,
    "sequence_insert": _insert,
    "sequence_erase": _erase,
    "sequence_length": _length,
    "sequence_concat": _concat,
    "optional_get": _get,
    "optional_has": _has,
}
