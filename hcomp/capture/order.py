"""The order of an ONNX graph's nodes: ONNX Runtime takes any order, so models come in any."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, NodeProto

from hcomp.errors import CaptureError


def sort_nodes(graph: GraphProto) -> None:
    """Put the nodes of a graph, and of the graphs inside of it, behind those that they read.

    Nodes that are in order stay where they are.

    Raises:
        CaptureError: the nodes form a cycle; names the nodes on it.
    """
    nodes = list(graph.node)
    for node in nodes:
        for inner in subgraphs(node):
            sort_nodes(inner)
    order = _order(nodes)
    if order != list(range(len(nodes))):
        ordered = [nodes[i] for i in order]
        copies = []
        for node in ordered:
            copy = NodeProto()
            copy.CopyFrom(node)
            copies.append(copy)
        del graph.node[:]
        graph.node.extend(copies)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def names_read(node: NodeProto) -> set[str]:
    """Return the values that a node reads, those that its subgraphs capture included."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        made = {i.name for i in graph.input} | {t.name for t in graph.initializer}
        made |= {name for inner in graph.node for name in inner.output}
        read = {o.name for o in graph.output}.union(*(names_read(inner) for inner in graph.node))
        names |= read - made
    return names


def _order(nodes: list[NodeProto]) -> list[int]:
    """Return the nodes' indices in topological order, the first in the file first."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in names_read(node) if name in maker} for node in nodes]
    waiting = [len(n) for n in needs]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, sources in enumerate(needs):
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise CaptureError(f"the nodes form a cycle: {_cycle(nodes, needs, set(order))}")
    return order


def _cycle(nodes: list[NodeProto], needs: list[set[int]], done: set[int]) -> str:
    """Return the names along one cycle among the nodes that could not be ordered."""
    at = next(i for i in range(len(nodes)) if i not in done)
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = min(i for i in needs[at] if i not in done)
    circle = path[path.index(at) :]
    names = [nodes[i].name or next(iter(nodes[i].output), nodes[i].op_type) for i in reversed(circle)]
    return " -> ".join([*names[:6], *(["..."] if len(names) > 6 else []), names[0]])
