"""Placements for latency to start from: parts of a topological order, one an accelerator, the rest on CPU cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcomp.placement.answer import CPU
from hcomp.placement.coarse import Items, Net
from hcomp.placement.orders import needed_order
from hcomp.placement.problem import Problem
from hcomp.placement.splits import part_times

MAX_NODES = 1500


def chain_places(problem: Problem) -> list[list[int]]:
    """Return placements by the best splits of two topological orders."""
    found = []
    for backward in (False, True):
        order = needed_order(problem, backward=backward)
        place = _split(problem, order) if len(order) <= MAX_NODES else _fill(problem, order)
        found.append(_one_place_a_colour(problem, place))
    return found


def _split(problem: Problem, order: Sequence[int]) -> list[int]:
    """Return the split with the least sum of times, run one after the other."""
    count = len(order)
    alone = Items(
        members=tuple((v,) for v in range(count)),
        cpu=problem.cpu,
        accelerator=problem.accelerator,
        supported=problem.supported,
        size=_sizes_at_first(problem, order),
        nets=tuple(Net(u, readers, problem.cost[u]) for u, readers in enumerate(problem.succ) if readers),
    )
    times = part_times(alone, problem.memory, order)
    chips = problem.accelerators
    best = np.full((chips + 1, count + 1), np.inf)
    came = np.full((chips + 1, count + 1), -1, dtype=np.int64)  # -1: the last node is on the CPU
    for k in range(chips + 1):
        if k:
            reached = best[k - 1][:, None] + times
            came[k] = reached.argmin(axis=0)
            best[k] = reached[came[k], np.arange(count + 1)]
        else:
            best[0, 0] = 0.0
        for j in range(count):
            after = best[k, j] + problem.cpu[order[j]]
            if after < best[k, j + 1]:
                best[k, j + 1] = after
                came[k, j + 1] = -1
    k, j = int(best[:, count].argmin()), count
    place = [CPU] * count
    while j:
        start = int(came[k, j])
        if start < 0:
            j -= 1
            continue
        k -= 1
        for i in range(start, j):
            place[order[i]] = k
        j = start
    return place


def _sizes_at_first(problem: Problem, order: Sequence[int]) -> tuple[float, ...]:
    """Return sizes with those of a colour class at its first node, where its device is decided."""
    sizes = [*problem.size]
    first: dict[int, int] = {}
    for v in order:
        colour = problem.colour[v]
        if colour >= 0 and first.setdefault(colour, v) != v:
            sizes[first[colour]] += sizes[v]
            sizes[v] = 0.0
    return tuple(sizes)


def _fill(problem: Problem, order: Sequence[int]) -> list[int]:
    """Return accelerators filled one after the other up to their memory."""
    sizes = _sizes_at_first(problem, order)
    place, device, held = [CPU] * len(order), 0, 0.0
    for v in order:
        if held + sizes[v] > problem.memory:
            device, held = device + 1, 0.0
        if device < problem.accelerators and problem.supported[v] and sizes[v] <= problem.memory:
            place[v] = device
            held += sizes[v]
    return place


def _one_place_a_colour(problem: Problem, place: list[int]) -> list[int]:
    """Return a placement in which a class is where its first node is, or on the CPU where it must be."""
    order = {members[0]: members for members in problem.groups}
    for members in order.values():
        # The class's bytes were counted at the first node of the order; any of its places is a valid one.
        device = max(
            {place[v] for v in members}, key=lambda d: sum(problem.accelerator[v] for v in members if place[v] == d)
        )
        if not all(problem.supported[v] for v in members):
            device = CPU
        for v in members:
            place[v] = device
    return _within_memory(problem, place)


def _within_memory(problem: Problem, place: list[int]) -> list[int]:
    """Return a placement without accelerators that hold too much: classes go where there is room, or to the CPU."""
    limit = problem.memory * (1 + 1e-9)
    held = [0.0] * problem.accelerators
    for v, d in enumerate(place):
        if d != CPU:
            held[d] += problem.size[v]
    for members in sorted(problem.groups, key=lambda g: sum(problem.accelerator[v] for v in g)):
        d = place[members[0]]
        size = sum(problem.size[v] for v in members)
        if d == CPU or held[d] <= limit or not size:
            continue
        held[d] -= size
        room = [e for e in range(problem.accelerators) if held[e] + size <= limit and e != d]
        target = min(room, key=lambda e: abs(e - d)) if room else CPU
        if target != CPU:
            held[target] += size
        for v in members:
            place[v] = target
    return place
