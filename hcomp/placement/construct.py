"""Placements to start from: a list schedule over devices, and minimum cuts between two places."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hcomp.placement.jobs import Jobs
from hcomp.placement.schedule import HOST

MAX_CUT_JOBS = 1500


def list_place(jobs: Jobs) -> list[int]:
    """Return each job at the place where it would end first, given where those before it are."""
    done: list[float] = []
    free: dict[str, float] = {}
    place: list[int] = []
    maker = {v.name: v.maker for v in jobs.values}
    for j, options in enumerate(jobs.options):
        best: tuple[float, int] | None = None
        for p, seconds in options.items():
            at = jobs.places[p]
            ready = max((done[i] for i in jobs.after[j]), default=0.0)
            for name in jobs.inputs[j]:
                source = jobs.places[place[maker[name]]].memory if maker[name] >= 0 else HOST
                made = done[maker[name]] if maker[name] >= 0 else 0.0
                ready = max(ready, made + _copy(jobs, name, source, at.memory))
            end = max(ready, free.get(at.device, 0.0)) + seconds
            if best is None or end < best[0]:
                best = end, p
        assert best is not None
        done.append(best[0])
        place.append(best[1])
        free[jobs.places[best[1]].device] = best[0]
    return place


def _copy(jobs: Jobs, value: str, source: str, target: str) -> float:
    if source == target:
        return 0.0
    if HOST in (source, target):
        return jobs.links.time(value, source, target)
    return jobs.links.time(value, source, HOST) + jobs.links.time(value, HOST, target)


def min_cut_place(jobs: Jobs) -> list[list[int]]:
    """Return for each two places the placement with the least sum of seconds and copies.

    Jobs that neither of the two can run stay at their first place and count for no copies.
    """
    if len(jobs.options) > MAX_CUT_JOBS:
        return []
    return [_cut(jobs, a, b) for a, b in combinations(range(len(jobs.places)), 2)]


def _cut(jobs: Jobs, a: int, b: int) -> list[int]:
    import networkx as nx

    network = _Network(nx.DiGraph())
    for j, options in enumerate(jobs.options):
        # On the side of `a` a job pays the edge to the sink; what is unlimited cannot be cut.
        if a in options:
            network.add("a", j, options.get(b))
        if b in options:
            network.add(j, "b", options.get(a))
    memories = jobs.places[a].memory, jobs.places[b].memory
    for value in jobs.values:
        ends = [j for j in (value.maker, *value.readers) if j >= 0 and {a, b} & jobs.options[j].keys()]
        cost = _copy(jobs, value.name, *memories)
        if cost and len(ends) > 1:
            # One copy serves all readers: a node of its own pays once for either direction.
            network.add(ends[0], ("into", value.name), cost)
            network.add(("out", value.name), ends[0], cost)
            for reader in ends[1:]:
                network.add(("into", value.name), reader, None)
                network.add(reader, ("out", value.name), None)
    network.graph.add_nodes_from(("a", "b"))
    _, (side, _) = nx.minimum_cut(network.graph, "a", "b")
    wanted = [a if j in side else b for j in range(len(jobs.options))]
    return [w if w in options else next(iter(options)) for w, options in zip(wanted, jobs.options, strict=True)]


@dataclass(frozen=True)
class _Network:
    """A graph with capacities; parallel edges are one."""

    graph: Any

    def add(self, u: object, v: object, capacity: float | None) -> None:
        """Add an edge; None is no limit."""
        if capacity is None:
            self.graph.add_edge(u, v)
        elif self.graph.has_edge(u, v):
            self.graph[u][v]["capacity"] += capacity
        else:
            self.graph.add_edge(u, v, capacity=capacity)
