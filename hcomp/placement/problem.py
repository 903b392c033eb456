"""A placement problem as a plain value: nodes with times on two kinds of device, and what moving costs.

The kinds are those of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020):
CPU cores, and identical accelerators with a memory of their own. Times are in the problem's unit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hcomp.errors import UsageError

MAX_DEVICES = 4096
MAX_NODES = 1_000_000


@dataclass(frozen=True)
class Problem:
    """Nodes are numbered 0..n-1 in a topological order; `names` are those of the file.

    Attributes:
        names: the file's number of each node.
        cpu, accelerator: a node's time on a CPU core and on an accelerator.
        supported: whether an accelerator can run the node.
        size: bytes that the node takes on an accelerator.
        colour: nodes of one class run on one device; -1 is no class.
        cost: the time to move the node's output between an accelerator and main memory.
        succ: for each node, the nodes that read its output, in order.
        accelerators, cores: how many devices there are.
        memory: bytes of each accelerator.
    """

    names: tuple[int, ...]
    cpu: tuple[float, ...]
    accelerator: tuple[float, ...]
    supported: tuple[bool, ...]
    size: tuple[float, ...]
    colour: tuple[int, ...]
    cost: tuple[float, ...]
    succ: tuple[tuple[int, ...], ...]
    accelerators: int
    cores: int
    memory: float

    @cached_property
    def pred(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes whose outputs it reads, in order."""
        found: list[list[int]] = [[] for _ in self.names]
        for u, readers in enumerate(self.succ):
            for v in readers:
                found[v].append(u)
        return tuple(map(tuple, found))

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that must run on one device together: colour classes, and single nodes."""
        found: dict[tuple[bool, int], list[int]] = {}
        for v, colour in enumerate(self.colour):
            found.setdefault((colour >= 0, colour if colour >= 0 else v), []).append(v)
        return tuple(map(tuple, found.values()))


def piece_time(problem: Problem, nodes: Sequence[int]) -> float:
    """Return the time of nodes that run as one piece on an accelerator, its copies in and out included."""
    inside = set(nodes)
    entering = {u for v in inside for u in problem.pred[v]} - inside
    leaving = [v for v in inside if any(w not in inside for w in problem.succ[v])]
    parts = [problem.accelerator[v] for v in inside]
    return math.fsum([*parts, *(problem.cost[u] for u in entering), *(problem.cost[v] for v in leaving)])


def read_problem(text: str) -> Problem:
    """Return the problem that a JSON text holds.

    Raises:
        UsageError: a field is missing or wrong, or the graph has a cycle; names it.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not readable JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("expected an object with nodes, edges, maxFPGAs, maxCPUs and maxSizePerFPGA")
    nodes = _objects(found, "nodes")
    edges = _objects(found, "edges")
    if not 1 <= len(nodes) <= MAX_NODES:
        raise UsageError(f"nodes: expected 1 to {MAX_NODES} of them, found {len(nodes)}")
    names = [int(_number(node, "id", f"node {i}", least=-1e15)) for i, node in enumerate(nodes)]
    place = {name: i for i, name in enumerate(names)}
    if len(place) != len(names):
        twice = next(name for i, name in enumerate(names) if place[name] != i)
        raise UsageError(f"nodes: the id {twice} stands twice")
    succ: list[dict[int, None]] = [{} for _ in names]
    cost = [0.0] * len(names)
    for i, edge in enumerate(edges):
        ends = [int(_number(edge, key, f"edge {i}", least=-1e15)) for key in ("sourceId", "destId")]
        for key, end in zip(("sourceId", "destId"), ends, strict=True):
            if end not in place:
                raise UsageError(f"edge {i}: {key}: there is no node {end}")
        source = place[ends[0]]
        succ[source][place[ends[1]]] = None
        cost[source] = _number(edge, "cost", f"edge {i}")
    order = _topological(succ, names)
    rank = {old: new for new, old in enumerate(order)}
    fields = [(nodes[old], f"node {names[old]}") for old in order]
    return Problem(
        names=tuple(names[old] for old in order),
        cpu=tuple(_number(node, "cpuLatency", who) for node, who in fields),
        accelerator=tuple(_number(node, "fpgaLatency", who) for node, who in fields),
        supported=tuple(bool(_number(node, "supportedOnFpga", who, default=1.0)) for node, who in fields),
        size=tuple(_number(node, "size", who, default=0.0) for node, who in fields),
        colour=_colours(fields),
        cost=tuple(cost[old] for old in order),
        succ=tuple(tuple(sorted(rank[v] for v in succ[old])) for old in order),
        accelerators=int(_number(found, "maxFPGAs", "the problem", most=MAX_DEVICES)),
        cores=int(_number(found, "maxCPUs", "the problem", most=MAX_DEVICES)),
        memory=_number(found, "maxSizePerFPGA", "the problem"),
    )


def _colours(fields: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[int, ...]:
    numbers: dict[float, int] = {}
    found = []
    for node, who in fields:
        if node.get("colorClass") is None:
            found.append(-1)
        else:
            found.append(numbers.setdefault(_number(node, "colorClass", who, least=-1e15), len(numbers)))
    return tuple(found)


def _topological(succ: Sequence[Mapping[int, None]], names: Sequence[int]) -> list[int]:
    """Return an order in which readers come later, depth first, so that chains stay together."""
    left = [0] * len(names)
    for readers in succ:
        for v in readers:
            left[v] += 1
    order: list[int] = []
    waiting = [v for v in reversed(range(len(names))) if not left[v]]
    while waiting:
        u = waiting.pop()
        order.append(u)
        for v in succ[u]:
            left[v] -= 1
            if not left[v]:
                waiting.append(v)
    if len(order) != len(names):
        stuck = next(names[v] for v in range(len(names)) if left[v])
        raise UsageError(f"edges: node {stuck} is on a cycle or behind one")
    return order


def _objects(found: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = found.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UsageError(f"{key}: expected a list of objects")
    return value


def _number(
    fields: Mapping[str, Any],
    key: str,
    who: str,
    *,
    least: float = 0.0,
    most: float = 1e15,
    default: float | None = None,
) -> float:
    value = fields.get(key, default)
    if isinstance(value, str):  # some of the published files quote their numbers
        try:
            value = float(value)
        except ValueError:
            value = None
    if not isinstance(value, int | float) or not least <= value <= most:
        raise UsageError(f"{who}: {key}: expected a number in {least:g}..{most:g}, found {fields.get(key)!r:.40}")
    return float(value)
