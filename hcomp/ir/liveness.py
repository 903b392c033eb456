"""What the outputs of a graph need: values, and the sizes that only some value's shape tells."""

from __future__ import annotations

from dataclasses import replace

from hcomp.dims import is_symbol, symbols_of
from hcomp.ir.graph import Graph, Node
from hcomp.ir.types import TensorType, Type, type_symbols


def without_dead(graph: Graph) -> Graph:
    """Return `graph` without the nodes and constants that no output depends on.

    A node whose results nobody reads stays where a later node needs a size that no value before it
    has (the number of boxes found, say). Subgraphs are left as they are.
    """
    sources = _sources(graph)
    live = set(graph.outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if any(v.name in live for v in node.outputs):
            nodes.append(node)
            live.update(node.used_inputs)
            # The value that has a size as its dimension counts as read.
            live.update(sources[s] for s in needed_symbols(node) if s in sources)
    constants = tuple(c for c in graph.constants if c.name in live)
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return replace(graph, nodes=tuple(reversed(nodes)), constants=constants)


def dependencies(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return for each node the indices of the nodes that must run before it, ascending.

    These make its inputs, or the value whose shape first tells a size that the node needs.
    """
    maker = {v.name: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    sources = _sources(graph)
    found = []
    for i, node in enumerate(graph.nodes):
        read = {*node.used_inputs, *(sources[s] for s in needed_symbols(node) if s in sources)}
        found.append(tuple(sorted({maker[name] for name in read if name in maker} - {i})))
    return tuple(found)


def needed_symbols(node: Node) -> set[str]:
    """Return the symbols in a node's attributes, types and subgraphs that it does not introduce."""
    found = set(symbols_of(tuple(node.attrs.values())))
    for value in node.outputs:
        found.update(type_symbols(value.type) - introduced_symbols(value.type))
    for body in node.graphs.values():
        found.update(*(type_symbols(v.type) for v in body.inputs))
        found.update(*(needed_symbols(inner) for inner in body.nodes))
    return found


def introduced_symbols(value_type: Type) -> set[str]:
    """Return the symbols that a value of this type gives a number: those that stand alone."""
    if not isinstance(value_type, TensorType):
        return set()
    return {str(d) for d in value_type.shape or () if is_symbol(d)}


def _sources(graph: Graph) -> dict[str, str]:
    """Return the first node output that introduces each symbol which no input introduces."""
    found: dict[str, str] = {}
    given = set().union(*(introduced_symbols(v.type) for v in graph.inputs))
    for node in graph.nodes:
        for value in node.outputs:
            for name in introduced_symbols(value.type) - given:
                found.setdefault(name, value.name)
    return found
