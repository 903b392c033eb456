"""The grain of placement: which nodes always stand on one device together.

A cluster is a heavy operator (matmul, convolution, reduction...) with the light ones around it that
become one kernel with it, or a chain of light ones where there is no heavy one. It does not depend
on any device. Cost and copies mean something at this grain: one kernel, its inputs, its outputs.

Two steps, both near linear in the nodes (see `hcomp.ir.quotient`):

1. Each light node joins the cluster of its latest producer.
2. Each light cluster that only one other cluster reads joins that one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import OPS
from hcomp.ir.quotient import Quotient

LIGHT = ("elementwise", "view", "move")
"""Cost classes of operators that cost little more than touching their elements."""

JOINS = ("concat",)
"""They read several clusters: in one of them they would tie it to all the others."""

LARGEST = 64
"""A cluster has at most so many nodes, so that long chains of light ones can still be divided."""


@dataclass(frozen=True)
class Cluster:
    """Nodes that are placed together.

    `nodes` are indices into `Graph.nodes`, ascending; `heavy` is the one that gives the cluster
    its cost, or None where all are light.
    """

    nodes: tuple[int, ...]
    heavy: int | None


def clusters(graph: Graph, key: Callable[[Node], Hashable] | None = None) -> tuple[Cluster, ...]:
    """Return the clusters of `graph` in an order in which they can run.

    Every node is in exactly one. Subgraphs are part of the node that holds them.

    Args:
        graph: A well-formed graph.
        key: Nodes with different keys are never in one cluster (pins); default: all alike.
    """
    grower = _Grower(graph, key or (lambda node: None))
    for i in range(len(graph.nodes)):
        grower.join_producer(i)
    for group in reversed(grower.groups.ordered()):
        grower.join_reader(group)
    found = []
    for group in grower.groups.ordered():
        nodes = tuple(grower.groups.members[group])
        found.append(Cluster(nodes, next((i for i in nodes if not grower.light[i]), None)))
    return tuple(found)


class _Grower:
    def __init__(self, graph: Graph, key: Callable[[Node], Hashable]) -> None:
        self.groups = Quotient(graph)
        self.light = [_is_light(node) for node in graph.nodes]
        self._key = [(key(node), _is_apart(node) and i) for i, node in enumerate(graph.nodes)]
        self._join = [node.op in JOINS for node in graph.nodes]
        outputs = set(graph.outputs)
        self._returned = [any(v.name in outputs for v in node.outputs) for node in graph.nodes]

    def join_producer(self, node: int) -> None:
        """Put a light node into the cluster of the last of its producers that takes it."""
        groups = self.groups
        if not self.light[node] or self._join[node]:
            return
        own = groups.group(node)
        for maker in sorted(groups.before[own], key=groups.place, reverse=True):
            if self._may_join(own, maker) and groups.merge(maker, own) is not None:
                return

    def join_reader(self, group: int) -> None:
        """Put a light cluster into its only reader's; there is no other way between the two."""
        groups = self.groups
        members = groups.members[group]
        if not all(self.light[i] for i in members) or any(self._returned[i] for i in members):
            return
        if len(groups.after[group]) == 1:
            (reader,) = groups.after[group]
            if self._may_join(group, reader):
                groups.merge(group, reader)

    def _may_join(self, a: int, b: int) -> bool:
        members = self.groups.members
        alike = self._key[members[a][0]] == self._key[members[b][0]]
        return alike and len(members[a]) + len(members[b]) <= LARGEST


def _is_light(node: Node) -> bool:
    row = OPS.get(node.op)
    return row is not None and not row.host_only and row.cost in LIGHT


def _is_apart(node: Node) -> bool:
    """Say whether a node never shares a cluster: control flow, extern and host-only nodes."""
    row = OPS.get(node.op)
    return row is None or bool(row.host_only)
