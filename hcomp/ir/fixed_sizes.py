"""Sizes of a graph's inputs that are declared free, and that a node lets have one value only.

Exporters leave dimensions open that the weights decide: rows of features whose number the first matmul
fixes. Where the size is known, operators get kernels for it, and costs and folding see it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hcomp.dims import DimLike, is_symbol, symbol
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import OPS, Infer, TypeRuleError
from hcomp.ir.types import type_symbols


def fixed_sizes(graph: Graph) -> dict[str, int]:
    """Return the symbols of the inputs that must be one number, by the nodes that the outputs need.

    Nodes in subgraphs say nothing: a branch or a loop's body may never run. Where two nodes
    disagree, neither is believed, and the run will fail at the second.
    """
    free = {name for value in graph.inputs for name in type_symbols(value.type)}
    if not free:
        return {}
    found: dict[str, set[int]] = {}
    for node in _needed(graph):
        for a, b in _equal(graph, node):
            for dim, size in ((a, b), (b, a)):
                if is_symbol(dim) and isinstance(size, int) and size > 0 and str(dim) in free:
                    found.setdefault(str(dim), set()).add(size)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}


def _needed(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that an output depends on."""
    wanted = set(graph.outputs)
    for node in reversed(graph.nodes):
        if any(value.name in wanted for value in node.outputs):
            wanted.update(node.used_inputs)
            yield node


def _equal(graph: Graph, node: Node) -> list[tuple[DimLike, DimLike]]:
    if node.op not in OPS:
        return []
    equal: list[tuple[DimLike, DimLike]] = []
    types = tuple(graph.types[name] if name else None for name in node.inputs)
    try:
        OPS[node.op].infer(Infer(node.op, types, node.attrs, symbol, equal=equal))
    except TypeRuleError:
        return []
    return equal
