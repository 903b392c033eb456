"""The largest load of a pipeline: a contiguous split, moves of single items, then CP-SAT with a proof."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hcomp.placement.answer import Answer, Deadline
from hcomp.placement.coarse import Items, items_of
from hcomp.placement.loads import Loads
from hcomp.placement.orders import needed_order
from hcomp.placement.packing import packing_bound
from hcomp.placement.problem import Problem, piece_time
from hcomp.placement.splits import part_times

MAX_SPLIT_ITEMS = 1500
"""Items up to which all contiguous parts are costed: their number is the square."""
MAX_EXACT = 200_000
"""Items times devices up to which the exact model is built."""
RESERVE_SECONDS = 0.7
"""What building the last answer and ending the process take."""


def solve_throughput(problem: Problem, deadline: Deadline) -> Answer | None:
    """Return the best placement that is found in time, or None where none fits."""
    items = items_of(problem)
    loads = Loads(items, problem)
    best: tuple[float, list[int]] | None = None
    for place in _starts(items, problem):
        place, value = loads.improve(place, deadline.end - RESERVE_SECONDS - 0.4 * deadline.left())
        if value is not None and (best is None or value < best[0]):
            best = value, place
    bound = _simple_bound(items, problem, best[0] if best else math.inf)
    if best is None or bound < best[0] * (1 - 1e-9):
        found, proven = _exact(items, problem, best, bound, deadline)
        bound = max(bound, proven)
        if found is not None:
            value = loads.value(found)
            if value is not None and (best is None or value < best[0]):
                best = value, found
    if best is None:
        return None
    place = _of_nodes(items, problem, best[1])
    objective = throughput_of(problem, place)
    return Answer(objective, min(bound, objective), tuple(place))


def throughput_of(problem: Problem, place: Sequence[int]) -> float:
    """Return the largest load of a placement of all nodes."""
    held: dict[int, list[int]] = {}
    for v, device in enumerate(place):
        held.setdefault(device, []).append(v)
    return max(
        piece_time(problem, nodes) if device < problem.accelerators else math.fsum(problem.cpu[v] for v in nodes)
        for device, nodes in held.items()
    )


def _of_nodes(items: Items, problem: Problem, place: Sequence[int]) -> list[int]:
    found = [0] * len(problem.names)
    for item, members in enumerate(items.members):
        for v in members:
            found[v] = place[item]
    return found


def _starts(items: Items, problem: Problem) -> list[list[int]]:
    """Return placements to start from: contiguous splits, and everything on one device."""
    found = []
    if problem.cores:
        found.append([problem.accelerators] * len(items.members))
    if problem.accelerators:
        cpu = problem.accelerators if problem.cores else 0
        found.append([0 if s else cpu for s in items.supported])
    if len(items.members) <= MAX_SPLIT_ITEMS:
        splits = [_contiguous(items, problem, order) for order in _orders(items, problem)]
        found += [split for split in splits if split is not None]
    return found


def _orders(items: Items, problem: Problem) -> list[list[int]]:
    """Return orders of the items: by the middle of their nodes in several topological orders."""
    found = []
    for nodes in (range(len(problem.names)), *(needed_order(problem, backward=b) for b in (False, True))):
        rank = {v: i for i, v in enumerate(nodes)}
        middle = [sum(rank[v] for v in members) / len(members) for members in items.members]
        found.append(sorted(range(len(items.members)), key=middle.__getitem__))
    return found


def _contiguous(items: Items, problem: Problem, order: Sequence[int]) -> list[int] | None:
    """Return the best split of an order of the items into one part a device."""
    count = len(items.members)
    accelerator = part_times(items, problem.memory, order)
    cpu = np.concatenate([[0.0], np.cumsum([items.cpu[i] for i in order])])
    cores, chips = min(problem.cores, 8), min(problem.accelerators, 64)
    best = np.full((cores + 1, chips + 1, count + 1), np.inf)
    best[0, 0, 0] = 0.0
    came = np.zeros((cores + 1, chips + 1, count + 1, 2), dtype=np.int64)
    on_cpu = cpu[None, :] - cpu[:, None]  # [from, to]
    on_cpu[np.tril_indices(count + 1, -1)] = np.inf
    for c in range(cores + 1):
        for k in range(chips + 1):
            for step, (dc, dk, times) in enumerate(((0, 1, accelerator), (1, 0, on_cpu))):
                if c < dc or k < dk:
                    continue
                reached = np.maximum(best[c - dc, k - dk][:, None], times)
                start = reached.argmin(axis=0)
                value = reached[start, np.arange(count + 1)]
                better = value < best[c, k]
                best[c, k][better] = value[better]
                came[c, k, better, 0] = start[better]
                came[c, k, better, 1] = step
    c, k = divmod(int(best[:, :, count].argmin()), chips + 1)
    if not np.isfinite(best[c, k, count]):
        return None
    place, end = [0] * count, count
    while c or k:
        start, step = came[c, k, end]
        c, k = (c, k - 1) if step == 0 else (c - 1, k)
        for i in range(start, end):
            place[order[i]] = int(k) if step == 0 else problem.accelerators + int(c)
        end = int(start)
    return place


def _simple_bound(items: Items, problem: Problem, best: float) -> float:
    """Return a lower bound from the items' times alone: each one's, their average, the heaviest packed."""

    def least(i: int) -> float:
        choices = [items.accelerator[i]] if items.supported[i] and problem.accelerators else []
        return min([*choices, *([items.cpu[i]] if problem.cores else [])], default=0.0)

    low = max((least(i) for i in range(len(items.members))), default=0.0)
    if math.isfinite(best):
        on_chips = [items.accelerator[i] for i in range(len(items.members)) if not problem.cores or items.cpu[i] > best]
        low = packing_bound(on_chips, problem.accelerators, low, best)
    return low


def _exact(
    items: Items, problem: Problem, start: tuple[float, list[int]] | None, bound: float, deadline: Deadline
) -> tuple[list[int] | None, float]:
    """Return a placement from CP-SAT, or None, and a lower bound."""
    from hcomp.placement.squeeze import SCALE, Squeeze
    from hcomp.placement.throughput_model import ThroughputModel

    devices = problem.accelerators + problem.cores
    if len(items.members) * devices > MAX_EXACT or deadline.left(RESERVE_SECONDS) < 0.2:
        return None, 0.0
    if start is not None:
        return Squeeze(items, problem, start, bound, deadline.left(RESERVE_SECONDS)).run()
    both = zip(items.accelerator, items.cpu, strict=True)
    unit = devices / max(math.fsum(max(pair) for pair in both), 1e-30)
    return ThroughputModel(items, problem, SCALE * unit, bound).solve(deadline.left(RESERVE_SECONDS))
