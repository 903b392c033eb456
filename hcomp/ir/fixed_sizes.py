"""Sizes of a graph's inputs that are declared free, and that a node lets have one value only.

Exporters leave dimensions open that the weights decide: rows of features whose number the first matmul
fixes. Where the size is known, operators get kernels for it, and costs and folding see it.
"""

from __future__ import annotations

from hcomp.dims import is_symbol
from hcomp.ir.graph import Graph
from hcomp.ir.liveness import without_dead
from hcomp.ir.needs import rule_notes
from hcomp.ir.ops import OPS
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
    for node in without_dead(graph).nodes:
        for a, b in rule_notes(graph, node).equal or () if node.op in OPS else ():
            for dim, size in ((a, b), (b, a)):
                if is_symbol(dim) and isinstance(size, int) and size > 0 and str(dim) in free:
                    found.setdefault(str(dim), set()).add(size)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}
