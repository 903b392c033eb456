"""What a graph needs of its sizes and only run time can tell: no dimension below zero, no result beyond all memory.

A window larger than its input, or padding that cuts off more than there is, gives a negative size
as soon as sizes are symbols. Memory and loops of such a size are nonsense, so it is refused before
they are made. Most needs come from the typing rules (`hcomp.ir.ops.core.nonnegative`), which know
what to say; any other dimension that could be negative is named as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hcomp.dims import Dim, DimLike, lower_bound, symbol, symbols_of
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import OPS, Infer
from hcomp.ir.types import TensorType

_UNKNOWN = "unknown_size"

MOST_ELEMENTS = 1 << 44
"""Of one result. Some thousand results of 16-byte elements then take less than 2**63 bytes together."""

_MOST_TIMES = 1 << 14


@dataclass(frozen=True)
class Need:
    """A dimension that must not be below zero, of which node, and what to say where it is.

    Dimensions stand in braces in `problem`.
    """

    dim: Dim
    node: str
    problem: str


def size_needs(graph: Graph) -> list[Need]:
    """Return what the nodes of `graph` need, each once, in their order; of subgraphs what concerns memory."""
    return _each_once([*axis_needs(graph), *_memory_needs(graph)])


def axis_needs(graph: Graph) -> list[Need]:
    """Return what keeps every dimension from being below zero, of the nodes of `graph` but not of its subgraphs."""
    return _each_once(need for node in graph.nodes for need in _needs(node, _of_node(graph, node)))


def _each_once(needs: Iterable[Need]) -> list[Need]:
    found: dict[Dim, Need] = {}
    for need in needs:
        found.setdefault(need.dim, need)
    return list(found.values())


def _needs(node: Node, found: Iterable[tuple[DimLike, str]]) -> Iterator[Need]:
    for dim, problem in found:
        if isinstance(dim, Dim) and _UNKNOWN not in symbols_of(dim):
            yield Need(dim, node.label, f"{node.op}: {problem}")


def _memory_needs(graph: Graph) -> Iterator[Need]:
    for node in graph.nodes:
        yield from _needs(node, _beyond_memory(graph, node))
        for body in node.graphs.values():
            yield from _memory_needs(body)


def _of_node(graph: Graph, node: Node) -> list[tuple[DimLike, str]]:
    if node.op not in OPS:
        return []  # the subgraphs of control nodes are checked when they run; ONNX Runtime checks its own
    return rule_notes(graph, node).needs or list(_unexplained(graph, node))


def rule_notes(graph: Graph, node: Node) -> Infer:
    """Return what the typing rule of a node of `graph` saw, with the needs and equal sizes that it noted."""
    types = tuple(graph.types[name] if name else None for name in node.inputs)
    context = Infer(node.op, types, node.attrs, lambda hint: symbol(_UNKNOWN), needs=[], equal=[])
    OPS[node.op].infer(context)
    return context


def _unexplained(graph: Graph, node: Node) -> Iterator[tuple[DimLike, str]]:
    """Yield the dimensions that the node makes and that could be negative."""
    given = {dim for name in node.used_inputs for dim in _shape(graph, name)}
    for value in node.outputs:
        for axis, dim in enumerate(_shape(graph, value.name)):
            low = lower_bound(dim)
            if dim not in given and (low is None or low < 0):
                yield dim, f"axis {axis} of its result would have {{{dim}}} elements"


def _beyond_memory(graph: Graph, node: Node) -> Iterator[tuple[DimLike, str]]:
    """Yield what is left of `MOST_ELEMENTS` by results that may be larger than the graph's inputs.

    What is so many times an input, which is in memory, needs no check.
    """
    there = [kind.elements() for v in graph.inputs if isinstance(kind := v.type, TensorType)]
    for value in node.outputs:
        kind = graph.types[value.name]
        elements = kind.elements() if isinstance(kind, TensorType) else None
        if isinstance(elements, Dim) and not any(_is_multiple(elements, other) for other in there):
            sizes = " x ".join(f"{{{dim}}}" for dim in _shape(graph, value.name))
            yield MOST_ELEMENTS - elements, f"its result would have {sizes} elements, more than any memory holds"


def _is_multiple(elements: Dim, other: DimLike | None) -> bool:
    """Return whether `elements` is a product of the same symbols as `other`, and not many times as much."""
    if not isinstance(other, Dim) or len(elements.terms) != 1 or len(other.terms) != 1:
        return False
    ((own, factor),), ((symbols, divisor),) = elements.terms, other.terms
    return own == symbols and factor <= _MOST_TIMES * divisor


def _shape(graph: Graph, name: str) -> tuple[DimLike, ...]:
    kind = graph.types[name]
    return kind.shape or () if isinstance(kind, TensorType) else ()
