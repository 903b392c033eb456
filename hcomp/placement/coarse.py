"""A problem for throughput with fewer parts: what must or may be together is one item.

Items are colour classes, joined further where that is never worse. A net is a set of values of one item
that the same other items read: its cost counts once on each accelerator that it enters or leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hcomp.placement.problem import Problem


@dataclass(frozen=True)
class Net:
    """Values of the item `source` that the items `readers` (without the source) read."""

    source: int
    readers: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class Items:
    """What is placed: `members` are the problem's nodes of each item, times and sizes are sums of theirs."""

    members: tuple[tuple[int, ...], ...]
    cpu: tuple[float, ...]
    accelerator: tuple[float, ...]
    supported: tuple[bool, ...]
    size: tuple[float, ...]
    nets: tuple[Net, ...]

    @cached_property
    def touching(self) -> tuple[tuple[int, ...], ...]:
        """For each item, the nets that it is the source or a reader of."""
        found: list[list[int]] = [[] for _ in self.members]
        for i, net in enumerate(self.nets):
            for item in (net.source, *net.readers):
                found[item].append(i)
        return tuple(map(tuple, found))


def items_of(problem: Problem) -> Items:
    """Return the items of a problem."""
    groups: list[tuple[int, ...]] = [*problem.groups]
    # Joining adds bytes to one device: it is free only where all of them fit into any.
    free = math.fsum(problem.size) <= problem.memory
    while True:
        items = _items(problem, groups)
        into = _joins(items) if free else {}
        if not into:
            return items
        merged: dict[int, list[int]] = {}
        for item, members in enumerate(items.members):
            root = item
            while root in into:
                root = into[root]
            merged.setdefault(root, []).extend(members)
        groups = [tuple(sorted(members)) for members in merged.values()]


def _items(problem: Problem, groups: Sequence[tuple[int, ...]]) -> Items:
    groups = sorted(groups)
    owner = {v: i for i, members in enumerate(groups) for v in members}
    costs: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    for u, readers in enumerate(problem.succ):
        others = tuple(sorted({owner[v] for v in readers} - {owner[u]}))
        if others and problem.cost[u]:
            costs.setdefault((owner[u], others), []).append(problem.cost[u])

    def total(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(math.fsum(values[v] for v in members) for members in groups)

    return Items(
        members=tuple(groups),
        cpu=total(problem.cpu),
        accelerator=total(problem.accelerator),
        supported=tuple(all(problem.supported[v] for v in members) for members in groups),
        size=total(problem.size),
        nets=tuple(Net(s, readers, math.fsum(cost)) for (s, readers), cost in costs.items()),
    )


def _joins(items: Items) -> dict[int, int]:
    """Return items that lose nothing by going where another one goes: they take no time and touch no third."""
    found: dict[int, int] = {}
    for item, nets in enumerate(items.touching):
        if items.cpu[item] or items.accelerator[item]:
            continue
        around = {i for n in nets for i in (items.nets[n].source, *items.nets[n].readers)} - {item}
        # As a reader among several it can only save; as a source it must have one reader in all.
        near = {items.nets[n].source for n in nets} - {item}
        reads = {i for n in nets if items.nets[n].source == item for i in items.nets[n].readers}
        target = next(iter(around), None) if len(around) == 1 else None
        if target is None and len(near) == 1 and not reads:
            (target,) = near
        if target is None or (items.supported[target] and not items.supported[item]):
            continue
        if target not in found and item not in found.values():
            found[item] = target
    return found
