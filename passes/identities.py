"""Nodes that do nothing: their result is their first input, whatever that holds.

`does_nothing` is what `canonicalize` removes and what the invariant NO_IDENTITY says is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hcomp.ir.graph import Graph, Node
from hcomp.ir.invariants import everywhere
from hcomp.ir.types import TensorType, Type
from hcomp.ir.verifier import Invariant, Violation

Attrs: TypeAlias = Mapping[str, Any]

VIEWS = ("reshape", "expand_dims", "squeeze")
"""Operators that give the same elements, in the same order, another shape."""

CASTS = ("cast", "bitcast")
RESHAPES = ("broadcast_to", *VIEWS)
"""Operators that change nothing but the type: with the type equal they change nothing."""

IDLE: Mapping[str, Callable[[Attrs], bool]] = {
    "permute_dims": lambda a: a["axes"] == tuple(range(len(a["axes"]))),
    "pad": lambda a: all(p == 0 for p in a["padding"]),
    "tile": lambda a: all(r == 1 for r in a["repeats"]),
    "clip": lambda a: a["min"] is None and a["max"] is None,
    **dict.fromkeys(("flip", "sum", "mean", "prod", "max", "min"), lambda a: a["axis"] == ()),
}
"""By operator, whether its attributes say that nothing happens."""


def does_nothing(node: Node, types: Mapping[str, Type]) -> bool:
    """Say whether a node's one result is its first input to the last bit."""
    if len(node.outputs) != 1 or not node.inputs or not node.inputs[0]:
        return False
    if node.op in IDLE:
        return IDLE[node.op](node.attrs)
    if node.op in ("concat", "split"):
        return len(node.inputs) == 1
    if node.op in CASTS:
        return types[node.inputs[0]] == node.outputs[0].type
    same = same_shape(types[node.inputs[0]], node.outputs[0].type)
    return same and (node.op in RESHAPES or _takes_all(node))


def same_shape(a: Type, b: Type) -> bool:
    """Say whether two tensors have one type and so one shape; two unknown ranks may differ."""
    return a == b and isinstance(a, TensorType) and a.shape is not None


def _takes_all(node: Node) -> bool:
    """Say whether a slice that keeps every size starts at the front and goes forward."""
    attrs: Attrs = node.attrs
    return node.op == "strided_slice" and all(b == 0 for b in attrs["begin"]) and all(s == 1 for s in attrs["strides"])


def _check(graph: Graph) -> list[Violation]:
    return [Violation(f"{node.op} does nothing here", node) for node in graph.nodes if does_nothing(node, graph.types)]


NO_IDENTITY = Invariant("no-identity", everywhere(_check))
