"""How much work nodes are: floating-point operations and bytes moved, for cost models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hcomp.dims import DimLike, evaluate, symbols_of
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import OPS
from hcomp.ir.ops.attention import COLUMN, INNER
from hcomp.ir.types import TensorType, Type

TYPICAL_SIZE = 16
"""What a size counts as while nobody has said how large it is."""

_PER_ELEMENT = {"softmax": 12.0, "norm": 8.0, "elementwise": 1.0, "reduce": 1.0, "scan": 1.0}
_TRANSCENDENTAL = frozenset((
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1",
    "gelu", "gelu_tanh", "log", "log1p", "power", "sigmoid", "silu", "sin", "sinh", "softplus",
    "tan", "tanh",
))  # fmt: skip
_TRANSCENDENTAL_FLOPS = 15.0
_STEP_OPERATIONS = 8.0
"""From one node of a tree to the next."""


@dataclass(frozen=True)
class Work:
    """The work of nodes that run together.

    Attributes:
        flops: operations by cost class.
        read, written: bytes that enter and leave the group; what stays inside is not counted.
        kernels: how many kernels are started if everything elementwise is fused.
    """

    flops: Mapping[str, float]
    read: int
    written: int
    kernels: int


def size_of(value_type: Type, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a value; unknown ranks and sequences count as nothing."""
    if not isinstance(value_type, TensorType) or value_type.shape is None:
        return 0
    from hcomp.dtypes import item_bytes

    return _elements(value_type, sizes) * item_bytes(value_type.dtype)


def _number(dim: DimLike, sizes: Mapping[str, int]) -> int:
    full = {name: sizes.get(name, TYPICAL_SIZE) for name in symbols_of(dim)}
    return max(0, evaluate(dim, full))


def _elements(value_type: TensorType, sizes: Mapping[str, int]) -> int:
    total = 1
    for dim in value_type.shape or ():
        total *= _number(dim, sizes)
    return total


def cost_class(node: Node) -> str:
    """Return the node's cost class; control flow and extern nodes count as host work."""
    return OPS[node.op].cost if node.op in OPS else "host"


def flops(graph: Graph, node: Node, sizes: Mapping[str, int]) -> float:
    """Return the floating-point operations of one node."""
    out = node.outputs[0].type if node.outputs else None
    if not isinstance(out, TensorType) or out.shape is None:
        return 0.0
    made = _elements(out, sizes)
    types = [graph.types[i] if i else None for i in node.inputs]
    if node.op == "attention":
        return _attention(node, types, sizes)
    first = types[0] if types else None
    taken = _elements(first, sizes) if isinstance(first, TensorType) else made
    kind = cost_class(node)
    match kind:
        case "matmul":
            return 2.0 * made * _last(first, sizes)
        case "conv":
            return 2.0 * _conv_products(node, types[1], made, taken, sizes)
        case "pool":
            window = 1
            for size in _tuple(node.attrs["pool_size"]):
                window *= size
            return float(made * window)
        case "tree":
            trees, steps = types[3], node.attrs["depth"]
            assert isinstance(steps, int)
            walks = _elements(trees, sizes) if isinstance(trees, TensorType) else 1
            return _STEP_OPERATIONS * walks * steps * _rows(first, sizes)
        case "recurrent":
            return sum(2.0 * _elements(t, sizes) * _rows(first, sizes) for t in types[1:3] if isinstance(t, TensorType))
    if node.op in _TRANSCENDENTAL:
        return _TRANSCENDENTAL_FLOPS * made
    return _PER_ELEMENT.get(kind, 0.0) * max(made, taken)


def _attention(node: Node, types: Sequence[Type | None], sizes: Mapping[str, int]) -> float:
    """Return the operations of both products and of softmax."""
    axes = node.attrs["axes"]
    found = {
        letter: _number(size, sizes)
        for own, kind in zip(axes if isinstance(axes, tuple) else (), types, strict=True)
        if isinstance(own, str) and isinstance(kind, TensorType)
        for letter, size in zip(own, kind.shape or (), strict=True)
        if letter.isalpha()
    }
    scores = 1.0
    for letter in found.keys() - {INNER, COLUMN}:
        scores *= found[letter]
    return scores * (2.0 * (found.get(INNER, 1) + found.get(COLUMN, 1)) + _PER_ELEMENT["softmax"])


def _tuple(value: object) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _last(value_type: Type | None, sizes: Mapping[str, int]) -> int:
    if not isinstance(value_type, TensorType) or not value_type.shape:
        return 1
    return _number(value_type.shape[-1], sizes)


def _rows(value_type: Type | None, sizes: Mapping[str, int]) -> int:
    if not isinstance(value_type, TensorType) or not value_type.shape:
        return 1
    return _elements(TensorType("bool", value_type.shape[:-1]), sizes)


def _conv_products(node: Node, weight: Type | None, made: int, taken: int, sizes: Mapping[str, int]) -> float:
    """Return the multiplications: each output (transposed: each input) meets one filter."""
    if not isinstance(weight, TensorType) or not weight.shape:
        return 0.0
    per_filter = _elements(TensorType("bool", weight.shape[1:]), sizes)
    return float(per_filter) * (taken if node.op == "conv_transpose" else made)


def work_of(graph: Graph, nodes: Sequence[Node], sizes: Mapping[str, int]) -> Work:
    """Return the work of `nodes` as one group: a value that stays inside moves no bytes."""
    made = {v.name for n in nodes for v in n.outputs}
    members = {id(n) for n in nodes}
    by_class: dict[str, float] = {}
    kernels = 0
    for node in nodes:
        kind = cost_class(node)
        by_class[kind] = by_class.get(kind, 0.0) + flops(graph, node, sizes)
        kernels += kind not in ("view", "elementwise")
    read = {i for n in nodes if cost_class(n) != "view" for i in n.used_inputs if i not in made}
    written = [
        v
        for n in nodes
        if cost_class(n) != "view"
        for v in n.outputs
        if v.name in graph.outputs or any(id(user) not in members for user in graph.users.get(v.name, ()))
    ]
    return Work(
        flops=by_class,
        read=sum(size_of(graph.types[i], sizes) for i in read),
        written=sum(size_of(v.type, sizes) for v in written),
        kernels=max(1, kernels) if nodes else 0,
    )
