"""The time of one sample: splits of a topological order, moves, then CP-SAT; a bound from a relaxation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hcomp.placement.answer import CPU, Answer, Deadline
from hcomp.placement.calls import best_calls
from hcomp.placement.chains import chain_places
from hcomp.placement.latency_bound import latency_bound
from hcomp.placement.problem import Problem

RESERVE_SECONDS = 0.7
SEARCH_SHARE = 0.45
"""The part of the time that moves take; the rest is for the bound."""
MAX_TRIALS = 40_000


def solve_latency(problem: Problem, deadline: Deadline) -> Answer | None:
    """Return the best placement and calls that are found in time; all on the CPU is always one."""
    starts = [[CPU] * len(problem.names), *(chain_places(problem) if problem.accelerators else [])]
    search = _Search(problem)
    best = min((search.end(place), place) for place in starts if search.fits(place))
    until = Deadline(SEARCH_SHARE * deadline.left(RESERVE_SECONDS))
    if problem.accelerators:
        best = search.improve(best, until)
    end, calls = best_calls(problem, best[1])
    bound = min(latency_bound(problem, end, best[1], deadline, RESERVE_SECONDS), end)
    place = tuple(problem.accelerators if d == CPU else d for d in best[1])
    return Answer(end, bound, place, tuple(calls))


class _Search:
    """Moves of colour classes, and of runs of them, between devices; kept where the end is no later."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.groups = sorted(problem.groups, key=lambda g: sum(g) / len(g))
        self.size = [math.fsum(problem.size[v] for v in g) for g in self.groups]
        self.supported = [all(problem.supported[v] for v in g) for g in self.groups]
        self.limit = problem.memory * (1 + 1e-9)
        owner = {v: i for i, g in enumerate(self.groups) for v in g}
        self.near: list[list[int]] = []
        for g in self.groups:
            around = {owner[w] for v in g for w in (*problem.succ[v], *problem.pred[v])} - {owner[g[0]]}
            self.near.append(sorted(around))

    def end(self, place: Sequence[int]) -> float:
        """Return when a placement of nodes ends."""
        return best_calls(self.problem, place)[0]

    def fits(self, place: Sequence[int]) -> bool:
        """Say whether a placement of nodes keeps to support and memory."""
        return self._fits([place[g[0]] for g in self.groups])

    def _fits(self, devices: Sequence[int]) -> bool:
        held = [0.0] * self.problem.accelerators
        for i, d in enumerate(devices):
            if d != CPU:
                if not self.supported[i]:
                    return False
                held[d] += self.size[i]
        return all(h <= self.limit for h in held)

    def improve(self, best: tuple[float, list[int]], until: Deadline) -> tuple[float, list[int]]:
        """Return the best placement that moves lead to."""
        random_ = random.Random(1)
        end, place = best
        devices = [place[g[0]] for g in self.groups]
        top, kept = end, place
        heat = 0.002 * end
        for trial in range(MAX_TRIALS):
            if not until.left():
                break
            changed = self._move(devices, random_)
            if changed is None or not self._fits(changed):
                continue
            spread = [0] * len(place)
            for g, d in zip(self.groups, changed, strict=True):
                for v in g:
                    spread[v] = d
            after = self.end(spread)
            cooled = heat * (1 - trial / MAX_TRIALS) ** 2
            if after <= end or random_.random() < math.exp((end - after) / max(cooled, 1e-12)):
                end, devices = after, changed
                if after < top:
                    top, kept = after, spread
        return top, kept

    def _move(self, devices: Sequence[int], random_: random.Random) -> list[int] | None:
        """Return devices with one class, one class and its neighbours, a run, or two classes moved."""
        i = random_.randrange(len(devices))
        changed = [*devices]
        beside = [devices[j] for j in self.near[i] if devices[j] != devices[i]]
        anywhere = random_.randrange(-1, self.problem.accelerators)
        target = random_.choice(beside) if beside and random_.random() < 0.8 else anywhere
        if target == devices[i]:
            return None
        kind = random_.random()
        changed[i] = target
        if kind < 0.25:  # neighbours of the same device come along
            changed = [target if j in self.near[i] and d == devices[i] else d for j, d in enumerate(changed)]
        elif kind < 0.6:
            for j in self._connected(devices, i, random_.randrange(2, 24)):
                changed[j] = target
        elif kind < 0.75:  # an exchange, where memory is full
            others = [j for j in range(len(devices)) if devices[j] == target]
            if others:
                changed[random_.choice(others)] = devices[i]
        return changed

    def _connected(self, devices: Sequence[int], first: int, wanted: int) -> list[int]:
        """Return up to `wanted` classes of one device that hang together."""
        grown = {first: None}
        waiting = [first]
        while waiting and len(grown) < wanted:
            for k in self.near[waiting.pop(0)]:
                if devices[k] == devices[first] and k not in grown and len(grown) < wanted:
                    grown[k] = None
                    waiting.append(k)
        return [*grown]
