"""Removes control flow that is decided when compiling.

An `if` with a constant condition becomes the nodes of its branch, and one whose branches agree on
a captured value becomes that. A `loop` with a constant number
of trips, whose condition stays true, becomes its body once for each trip: none at all for no
trips, and as often as is worth it (UNROLLED) for few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hcomp.ir.graph import Graph, Node
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.types import TensorType, type_symbols
from hcomp.passes.base import Pass

UNROLLED = 256
"""A loop may become so many nodes; one of a single trip may be of any size."""


def inline_branches(graph: Graph) -> Graph:
    """Return `graph` without the control flow whose course is known."""
    return rewrite(graph, _rule)


def _rule(node: Node, edit: Editor) -> Sequence[str] | None:
    if node.op == "if":
        condition = edit.constant_value(node.inputs[0])
        if condition is None or condition.size != 1:
            return _undivided(node, edit)
        branch = node.graphs["then" if condition.reshape(-1)[0] else "else"]
        return edit.inline(branch, node.inputs[1:])
    return _loop(node, edit) if node.op == "loop" else None


def _undivided(node: Node, edit: Editor) -> Sequence[str] | None:
    """Results that are the same captured value in both branches do not depend on the condition."""
    ways = []
    for body in node.graphs.values():
        captured = {v.name: name for v, name in zip(body.inputs, node.inputs[1:], strict=True)}
        ways.append([captured.get(name) for name in body.outputs])
    same = [a if a == b else None for a, b in zip(*ways, strict=True)]
    if not any(same):
        return None
    own = edit.put(node) if None in same else tuple(v.name for v in node.outputs)
    return [a or b for a, b in zip(same, own, strict=True)]


def _loop(node: Node, edit: Editor) -> Sequence[str] | None:
    trips = _trips(node, edit)
    if trips is None or (trips > 1 and trips * sum(1 for _ in node.graphs["body"].walk()) > UNROLLED):
        return None
    carried: Any = node.attrs["carried"]
    if trips == 0:
        return _no_trip(node, carried, edit)
    body = node.graphs["body"]
    scans = body.outputs[1 + carried :]
    if any(not _has_rank(body, name) for name in scans):
        return None
    values = node.inputs[2 : 2 + carried]
    captures = node.inputs[2 + carried :]
    true = edit.constant(np.bool_(True), "true")
    collected: list[list[str]] = [[] for _ in scans]
    for trip in range(trips):
        index = edit.constant(np.int64(trip), "trip")
        _, *found = edit.inline(body, (index, true, *values, *captures))
        values = tuple(found[:carried])
        for pieces, name in zip(collected, found[carried:], strict=True):
            pieces.append(edit.emit("expand_dims", name, axis=(0,)))
    stacked = [
        edit.emit("concat", *pieces, hint=value.name, axis=0)
        for pieces, value in zip(collected, node.outputs[carried:], strict=True)
    ]
    return (*values, *stacked)


def _trips(node: Node, edit: Editor) -> int | None:
    """Return how often the body runs, where that is known."""
    condition = edit.constant_value(node.inputs[1]) if node.inputs[1] else np.bool_(True)
    if condition is not None and not np.asarray(condition).reshape(-1)[0]:
        return 0
    limit = edit.constant_value(node.inputs[0]) if node.inputs[0] else None
    if limit is None:
        return None
    trips = max(0, int(limit.reshape(-1)[0]))
    if trips == 0:
        return 0
    if condition is None:
        return None
    return trips if trips == 1 or _stays_true(node.graphs["body"]) else None


def _stays_true(body: Graph) -> bool:
    """Say whether the body returns the condition that it got, or a constant that is true."""
    if body.outputs[0] == body.inputs[1].name:
        return True
    constant = body.constant.get(body.outputs[0])
    return constant is not None and bool(constant.reshape(-1)[0])


def _has_rank(graph: Graph, name: str) -> bool:
    kind = graph.types[name]
    return isinstance(kind, TensorType) and kind.shape is not None


def _no_trip(node: Node, carried: int, edit: Editor) -> Sequence[str] | None:
    """The carried values come out as they went in; the scans have no elements."""
    known = {s for t in edit.types.values() for s in type_symbols(t)}
    scans = []
    for value in node.outputs[carried:]:
        kind = value.type
        if not isinstance(kind, TensorType) or kind.shape is None or kind.dtype == "string":
            return None
        shape = (0, *kind.shape[1:])
        if type_symbols(TensorType(kind.dtype, shape)) - known:
            return None  # how large the elements would have been, only the body knows
        fill = False if kind.dtype == "bool" else 0
        scans.append(edit.emit("full", hint=value.name, shape=shape, value=fill, dtype=kind.dtype))
    return (*node.inputs[2 : 2 + carried], *scans)


INLINE_BRANCHES = Pass("inline_branches", inline_branches)
