"""From devices to calls: how a placement of nodes runs, and when it ends.

An accelerator runs calls one after the other, a CPU node starts when its inputs are ready. Nodes get stages: a
reader on another device is a stage later than what it reads. Nodes of equal device and stage are one call, so
edges between calls lead to higher stages: calls are convex, and never wait for each other in a circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hcomp.placement.answer import CPU, Call
from hcomp.placement.problem import Problem, piece_time


def best_calls(problem: Problem, place: Sequence[int]) -> tuple[float, list[Call]]:
    """Return the end of the earlier of two schedules of a placement, and its calls in order."""
    early = _early(problem, place)
    found: tuple[float, list[Call]] | None = None
    for stages in (_late(problem, place, early, sources_only=True), _late(problem, place, early, sources_only=False)):
        calls = _calls(place, stages)
        end = makespan(problem, calls)
        if found is None or end < found[0]:
            found = end, calls
    assert found is not None
    return found


def _early(problem: Problem, place: Sequence[int]) -> list[int]:
    stages: list[int] = []
    for v, preds in enumerate(problem.pred):
        stages.append(max((stages[u] + (place[u] != place[v]) for u in preds), default=0))
    return stages


def _late(problem: Problem, place: Sequence[int], early: Sequence[int], *, sources_only: bool) -> list[int]:
    """Return stages moved towards what reads the node: what a call only brings along costs no copy."""
    stages = [*early]
    for v in reversed(range(len(stages))):
        readers = problem.succ[v]
        # A source moves with what it feeds; a node whose inputs stay behind may gain or lose.
        if readers and (not sources_only or not problem.pred[v]):
            stages[v] = max(early[v], min(stages[w] - (place[w] != place[v]) for w in readers))
    return stages


def _calls(place: Sequence[int], stages: Sequence[int]) -> list[Call]:
    held: dict[tuple[int, int], list[int]] = {}
    for v, device in enumerate(place):
        if device != CPU:
            held.setdefault((stages[v], device), []).append(v)
    return [Call(device, tuple(nodes)) for (_, device), nodes in sorted(held.items())]


def makespan(problem: Problem, calls: Sequence[Call]) -> float:
    """Return when all nodes are done; those in no call run on CPU cores. Infinite where calls wait in a circle."""
    call_of = {v: c for c, call in enumerate(calls) for v in call.nodes}
    alone = [v for v in range(len(problem.names)) if v not in call_of]
    unit = call_of | {v: len(calls) + i for i, v in enumerate(alone)}
    times = [piece_time(problem, call.nodes) for call in calls] + [problem.cpu[v] for v in alone]
    after: list[set[int]] = [set() for _ in times]
    for u, readers in enumerate(problem.succ):
        after[unit[u]].update(unit[v] for v in readers)
    last: dict[int, int] = {}
    for c, call in enumerate(calls):
        if call.device in last:
            after[last[call.device]].add(c)
        last[call.device] = c
    for i, units in enumerate(after):
        units.discard(i)
    return longest_path(times, after)


def longest_path(times: Sequence[float], after: Sequence[set[int]]) -> float:
    """Return the end of the last unit, each starting after those that it follows; infinite on a cycle."""
    left = [0] * len(times)
    for units in after:
        for w in units:
            left[w] += 1
    waiting = [i for i, count in enumerate(left) if not count]
    start, end, done = [0.0] * len(times), 0.0, 0
    while waiting:
        i = waiting.pop()
        done += 1
        ready = start[i] + times[i]
        end = max(end, ready)
        for w in after[i]:
            start[w] = max(start[w], ready)
            left[w] -= 1
            if not left[w]:
                waiting.append(w)
    return end if done == len(times) else math.inf
