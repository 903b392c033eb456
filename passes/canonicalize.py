"""Brings a graph into one form: what does nothing goes, chains of one kind become one node.

Every rule keeps the result to the last bit, NaN and the sign of zero included: `x + 0` stays for
floats (it turns -0 into 0), `x - 0` and `x * 1` go. The table RULES holds the rules: each is a
function from a node to the value that takes its place, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dtypes import numpy_dtype
from hcomp.ir.graph import Graph, Node, Value
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.types import TensorType, Type
from hcomp.passes.base import Pass
from hcomp.passes.identities import NO_IDENTITY, VIEWS, does_nothing, same_shape
from hcomp.passes.late_rules import LATE_RULES
from hcomp.passes.list_rules import LIST_RULES

Rule: TypeAlias = Callable[[Node, Editor], str | None]


def canonicalize(graph: Graph) -> Graph:
    """Return `graph` in canonical form: the rules applied once from front to back."""
    return rewrite(graph, _rule)


def _rule(node: Node, edit: Editor) -> Sequence[str] | None:
    if node.outputs and all(_holds_nothing(v.type) for v in node.outputs):
        return tuple(_nothing(v, edit) for v in node.outputs)
    if does_nothing(node, edit.types):
        return (node.inputs[0],)
    if node.op in LATE_RULES:
        return LATE_RULES[node.op](node, edit)
    found = _of_full(node, edit) or (RULES[node.op](node, edit) if node.op in RULES else None)
    return None if found is None else (found,)


def _holds_nothing(kind: Type) -> bool:
    """Say whether a value is a tensor of numbers that is certain to have no elements."""
    if not isinstance(kind, TensorType) or kind.shape is None or kind.dtype == "string":
        return False
    return 0 in kind.shape and all(isinstance(d, int) for d in kind.shape)


def _nothing(value: Value, edit: Editor) -> str:
    """Return an empty constant: schedules need not know loops that never run."""
    assert isinstance(value.type, TensorType)
    sizes = [d for d in value.type.shape or () if isinstance(d, int)]
    return edit.constant(np.zeros(sizes, numpy_dtype(value.type.dtype)), value.name)


def _view(node: Node, edit: Editor) -> str | None:
    """A view of a view is one view of the first value, or that value itself."""
    source = edit.producer(node.inputs[0])
    if source is None or source.op not in VIEWS:
        return None
    origin = source.inputs[0]
    wanted = node.outputs[0].type
    if same_shape(edit.types[origin], wanted):
        return origin
    if not isinstance(wanted, TensorType) or wanted.shape is None or edit.tensor(origin) is None:
        return None
    return edit.emit("reshape", origin, hint=node.output, shape=wanted.shape)


def _permute(node: Node, edit: Editor) -> str | None:
    """Two permutations are one; one that moves only axes of size 1 is a view."""
    source, kind, axes = edit.producer(node.inputs[0]), edit.tensor(node.inputs[0]), _attr(node, "axes")
    if kind is not None and kind.shape is not None:
        wide = [a for a in axes if kind.shape[a] != 1]
        if wide == sorted(wide):
            return edit.emit("reshape", node.inputs[0], hint=node.output, shape=tuple(kind.shape[a] for a in axes))
    if source is None or source.op != "permute_dims":
        return None
    first, second = _attr(source, "axes"), _attr(node, "axes")
    axes = tuple(first[a] for a in second)
    if axes == tuple(range(len(axes))):
        return source.inputs[0]
    return edit.emit("permute_dims", source.inputs[0], hint=node.output, axes=axes)


def _of_full(node: Node, edit: Editor) -> str | None:
    """Equal elements moved or viewed are equal elements in another shape."""
    if node.op not in (*VIEWS, "permute_dims"):
        return None
    source, wanted = edit.producer(node.inputs[0]), node.outputs[0].type
    if source is None or source.op != "full" or not isinstance(wanted, TensorType) or wanted.shape is None:
        return None
    return edit.emit("full", hint=node.output, **{**source.attrs, "shape": wanted.shape})


def _undone(node: Node, edit: Editor) -> str | None:
    """An operation that undoes itself, done twice, is nothing."""
    source = edit.producer(node.inputs[0])
    return source.inputs[0] if source is not None and source.op == node.op else None


def _done(node: Node, edit: Editor) -> str | None:
    """An operation done to its own result changes nothing more."""
    source = edit.producer(node.inputs[0])
    return node.inputs[0] if source is not None and source.op == node.op else None


def _where(node: Node, edit: Editor) -> str | None:
    """A condition that is the same everywhere has chosen."""
    condition = edit.constant_value(node.inputs[0])
    if condition is None or condition.size == 0 or condition.min() != condition.max():
        return None
    chosen = node.inputs[1 if condition.flat[0] else 2]
    wanted = node.outputs[0].type
    if same_shape(edit.types[chosen], wanted):
        return chosen
    if not isinstance(wanted, TensorType) or wanted.shape is None or edit.tensor(chosen) is None:
        return None
    return edit.emit("broadcast_to", chosen, hint=node.output, shape=wanted.shape)


def _neutral(node: Node, edit: Editor) -> str | None:
    """Arithmetic with a constant that changes nothing leaves the other operand."""
    for side in (1, 0) if node.op in ("add", "multiply") else (1,):
        value = edit.constant_value(node.inputs[side])
        other = node.inputs[1 - side]
        if value is None:
            continue
        kept = value.ndim == 0 or same_shape(edit.types[other], node.outputs[0].type)
        if kept and _changes_nothing(node.op, value):
            return other
    return None


def _changes_nothing(op: str, value: NDArray[np.generic]) -> bool:
    number = _NEUTRAL[op]
    if value.size == 0 or not (value == np.asarray(number, value.dtype)).all():
        return False
    if number == 1 or value.dtype.kind in "iub":
        return True
    # A float sum leaves only -0 alone (-0 + 0 is 0), a difference only +0.
    return value.dtype.kind != "c" and bool((np.signbit(value.astype(np.float64)) == (op == "add")).all())


_NEUTRAL = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1, "power": 1}


def _concat(node: Node, edit: Editor) -> str | None:
    """Inputs without elements along the axis add nothing; a concat inside is part of this one."""
    inputs: list[str] = []
    for name in node.inputs:
        kind = edit.tensor(name)
        if kind is None or kind.shape is None:
            return None
        source = edit.producer(name)
        axis = _attr(node, "axis") % len(kind.shape)
        if (
            source is not None
            and source.op == "concat"
            and _attr(source, "axis") % len(kind.shape) == axis
            and edit.other_reads(name) == 0
        ):
            inputs += source.inputs
        elif kind.shape[axis] != 0:
            inputs.append(name)
    if tuple(inputs) == node.inputs or not inputs:
        return None
    new = inputs[0]
    if len(inputs) > 1:
        new = edit.emit("concat", *inputs, hint=node.output, axis=_attr(node, "axis"))
    # An input without elements may be the one that knows another axis's size as a number.
    return new if edit.types[new] == node.outputs[0].type else None


def _attr(node: Node, name: str) -> Any:
    return node.attrs[name]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(VIEWS, _view),
    "permute_dims": _permute,
    **dict.fromkeys(("negative", "logical_not", "bitwise_not"), _undone),
    **dict.fromkeys(("relu", "abs", "ceil", "floor", "round", "trunc", "sign"), _done),
    "where": _where,
    **dict.fromkeys(_NEUTRAL, _neutral),
    "concat": _concat,
    **LIST_RULES,
}
"""By operator, what else can be simpler."""

CANONICALIZE = Pass("canonicalize", canonicalize, establishes=(NO_IDENTITY,))
