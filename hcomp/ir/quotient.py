"""A graph of groups of nodes in which groups can be merged, and that never becomes cyclic.

The groups are kept in one topological order. Merging a and b, with a before b, closes a cycle
exactly if a path leads from a to b through a third group; such a path lies between them in the
order, so that is all that has to be searched and put in order again. Groups that are worth merging
stand close together, which makes a whole clustering nearly linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from hcomp.ir.graph import Graph
from hcomp.ir.liveness import dependencies


class Quotient:
    """Groups of a graph's nodes; at first one a node, named by its index.

    Attributes:
        members: node indices by group, ascending.
        after, before: the groups that depend on a group (on its values, or on a size that only
            one of them has), and those that it depends on.
    """

    def __init__(self, graph: Graph) -> None:
        count = len(graph.nodes)
        self.members: dict[int, list[int]] = {i: [i] for i in range(count)}
        self.after: dict[int, set[int]] = {i: set() for i in range(count)}
        self.before: dict[int, set[int]] = {i: set() for i in range(count)}
        self._group = list(range(count))
        self._order = list(range(count))
        self._place = list(range(count))
        for i, makers in enumerate(dependencies(graph)):
            self.before[i].update(makers)
            for maker in makers:
                self.after[maker].add(i)

    def group(self, node: int) -> int:
        """Return the group that the node with this index is in."""
        return self._group[node]

    def place(self, group: int) -> int:
        """Return where a group stands in the topological order; only the comparison means anything."""
        return self._place[group]

    def ordered(self) -> list[int]:
        """Return the groups in topological order."""
        return [g for g in self._order if g >= 0]

    def merge(self, a: int, b: int) -> int | None:
        """Make one group of two and return it, or return None where that would close a cycle."""
        if self._place[a] > self._place[b]:
            a, b = b, a
        below = self._between(a, b)
        if below is None:
            return None
        self._reorder(a, b, below)
        return self._unite(a, b)

    def _between(self, a: int, b: int) -> set[int] | None:
        """Return what is reachable from a and stands before b; None if b is reachable through it."""
        limit = self._place[b]
        found: set[int] = set()
        stack = [g for g in self.after[a] if self._place[g] < limit]
        while stack:
            group = stack.pop()
            if group in found:
                continue
            found.add(group)
            for reader in self.after[group]:
                if reader == b:
                    return None
                if self._place[reader] < limit:
                    stack.append(reader)
        return found

    def _reorder(self, a: int, b: int, below: set[int]) -> None:
        """Put what depends on a behind b: the rest between them, a, b, then `below`."""
        start, end = self._place[a], self._place[b]
        if end == start + 1:
            return
        window = self._order[start : end + 1]
        rest = [g for g in window if g not in below and g not in (a, b)]
        window = [*rest, a, b, *(g for g in window if g in below)]
        self._order[start : end + 1] = window
        for place, group in enumerate(window, start=start):
            if group >= 0:
                self._place[group] = place

    def _unite(self, a: int, b: int) -> int:
        keep, gone = (a, b) if len(self.members[a]) >= len(self.members[b]) else (b, a)
        self._order[self._place[gone]] = -1
        for node in self.members[gone]:
            self._group[node] = keep
        self.members[keep] = sorted(self.members[keep] + self.members.pop(gone))
        for reader in self.after.pop(gone):
            self.before[reader].discard(gone)
            self._link(keep, reader)
        for maker in self.before.pop(gone):
            self.after[maker].discard(gone)
            self._link(maker, keep)
        return keep

    def _link(self, maker: int, reader: int) -> None:
        if maker != reader:
            self.after[maker].add(reader)
            self.before[reader].add(maker)


def is_acyclic(graph: Graph, groups: Sequence[Sequence[int]]) -> bool:
    """Say whether groups of a graph's nodes can run one after another, each as a whole."""
    group = {node: g for g, nodes in enumerate(groups) for node in nodes}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for i, makers in enumerate(dependencies(graph)):
        sorter.add(group[i], *({group[maker] for maker in makers} - {group[i]}))
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True
