"""Removes what no output depends on: nodes, constants, and what subgraphs take or give in vain."""

from __future__ import annotations

from dataclasses import replace

from hcomp.ir.graph import Graph, Node
from hcomp.ir.invariants import everywhere
from hcomp.ir.liveness import introduced_symbols, needed_symbols, without_dead
from hcomp.ir.types import type_symbols
from hcomp.ir.verifier import Invariant, Violation
from hcomp.passes.base import Pass


def drop_dead(graph: Graph) -> Graph:
    """Return `graph` with only what its outputs need.

    Results of an `if` that nobody reads go from its branches too, and captured values that no
    branch or body reads are no longer handed in. The carried values of a loop stay: the body needs
    them from one trip to the next.
    """
    before = None
    # What a subgraph no longer reads can leave its producers dead, and so on outwards.
    while graph is not before:
        before = graph
        graph = without_dead(graph)
        live = set(graph.outputs).union(*(n.used_inputs for n in graph.nodes))
        nodes = tuple(_slim(node, live) if node.graphs else node for node in graph.nodes)
        if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True)):
            graph = replace(graph, nodes=nodes)
    return graph


def _slim(node: Node, live: set[str]) -> Node:
    """Return a control node without results that are not `live` and captures that are not read."""
    slim = _without_captures(_without_results(node, live))
    graphs = {k: drop_dead(g) for k, g in slim.graphs.items()}
    if any(graphs[k] is not g for k, g in slim.graphs.items()):
        slim = replace(slim, graphs=graphs)
    return slim


def _without_results(node: Node, live: set[str]) -> Node:
    carried = _carried(node)
    # An `if` keeps one result at least: a node without results has no name.
    keep = [i for i, v in enumerate(node.outputs) if v.name in live or i < carried] or [0]
    if len(keep) == len(node.outputs):
        return node
    # The body of a loop returns its condition first.
    inner = [0, *(i + 1 for i in keep)] if node.op == "loop" else keep
    graphs = {k: replace(g, outputs=tuple(g.outputs[i] for i in inner)) for k, g in node.graphs.items()}
    return replace(node, outputs=tuple(node.outputs[i] for i in keep), graphs=graphs)


def _without_captures(node: Node) -> Node:
    own = 2 + _carried(node) if node.op == "loop" else 1
    offset = own if node.op == "loop" else 0  # where the captures start in the subgraph's inputs
    needed = set().union(*(_read_inputs(g) for g in node.graphs.values()))
    read = [i for i in range(len(node.inputs) - own) if offset + i in needed]
    if own + len(read) == len(node.inputs):
        return node
    kept = [*range(offset), *(offset + i for i in read)]
    graphs = {k: replace(g, inputs=tuple(g.inputs[i] for i in kept)) for k, g in node.graphs.items()}
    inputs = (*node.inputs[:own], *(node.inputs[own + i] for i in read))
    return replace(node, inputs=inputs, graphs=graphs)


def _carried(node: Node) -> int:
    carried = node.attrs.get("carried", 0)
    return carried if isinstance(carried, int) else 0


def _read_inputs(graph: Graph) -> set[int]:
    """Return which inputs a graph reads, or needs for the symbols that only their types give."""
    read = {i for i, value in enumerate(graph.inputs) if value.name in graph.users or value.name in graph.outputs}
    given = set().union(*(introduced_symbols(graph.inputs[i].type) for i in read))
    # An input of [2*N] is read with strides of N: its type needs what only another input tells.
    typed = set().union(*(type_symbols(graph.inputs[i].type) for i in read))
    missing = typed.union(*(needed_symbols(n) for n in graph.nodes)) - given
    for i, value in enumerate(graph.inputs):
        if i not in read and missing & introduced_symbols(value.type):
            read.add(i)
            missing -= introduced_symbols(value.type)
    return read


def _check(graph: Graph) -> list[Violation]:
    kept = {id(node) for node in without_dead(graph).nodes}
    return [
        Violation(f"%{node.output} is not needed", node, node.output) for node in graph.nodes if id(node) not in kept
    ]


NO_DEAD = Invariant("no-dead", everywhere(_check))
DROP_DEAD = Pass("drop_dead", drop_dead, establishes=(NO_DEAD,))
