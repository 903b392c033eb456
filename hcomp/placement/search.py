"""The best placement of jobs: every one where that is affordable, else construction and local search; a bound.

Work is counted in jobs looked at, not in seconds: the same problem gets the same answer on any machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hcomp.placement.bounds import Bounds
from hcomp.placement.construct import list_place, min_cut_place
from hcomp.placement.jobs import Jobs, Outcome, evaluate

WORK = 1_500_000
"""Jobs that may be looked at; about three microseconds each."""
MIN_TRIALS = 24
MAX_TRIALS = 4000
MAX_VISITS = 40_000
"""Partial placements that the exact search looks at before it gives up."""
EXACT_JOBS = 24


@dataclass(frozen=True)
class Placement:
    """A placement, how it runs, and a proven lower bound on the objective of any."""

    place: tuple[int, ...]
    outcome: Outcome
    bound: float

    @property
    def gap(self) -> float:
        """The share of the objective that the bound leaves open."""
        best = self.outcome.objective
        return max(0.0, 1 - self.bound / best) if best else 0.0


def find_placement(jobs: Jobs, candidates: Sequence[Sequence[int]]) -> Placement:
    """Return the best placement that is found; no candidate is better.

    Args:
        jobs: what is placed.
        candidates: placements to start from, at least one; the first wins where objectives are equal.
    """
    bounds = Bounds(jobs)
    best_place, best = None, None
    free = any(len(options) > 1 for options in jobs.options)
    built = [list_place(jobs), *min_cut_place(jobs)] if free else []
    for place in [*candidates, *built]:
        outcome = evaluate(jobs, place)
        if best is None or outcome.rank < best.rank:
            best_place, best = tuple(place), outcome
    assert best_place is not None
    assert best is not None
    bound = bounds.root
    if not free:
        return Placement(best_place, best, best.objective)
    if best.over or best.objective > bound * (1 + 1e-9):
        best_place, best = _improve(jobs, best_place, best)
        if len(jobs.options) <= EXACT_JOBS:
            exact = _Exact(jobs, bounds, best_place, best)
            best_place, best = exact.place, exact.best
            bound = best.objective if exact.complete else bound
    return Placement(best_place, best, min(bound, best.objective))


def _improve(jobs: Jobs, place: tuple[int, ...], best: Outcome) -> tuple[tuple[int, ...], Outcome]:
    """Return a placement after moves of connected jobs that are kept where they help."""
    movable = [j for j, options in enumerate(jobs.options) if len(options) > 1]
    around: list[set[int]] = [set(before) for before in jobs.after]
    for j, before in enumerate(jobs.after):
        for i in before:
            around[i].add(j)
    near = [sorted(found) for found in around]
    random_ = random.Random(1)
    size = len(place) + sum(map(len, jobs.after))
    trials = max(MIN_TRIALS, min(MAX_TRIALS, WORK // max(size, 1), 60 * len(movable)))
    for _ in range(trials):
        first = random_.choice(movable)
        target = random_.choice([p for p in jobs.options[first] if p != place[first]])
        wanted = min(len(movable), int(2 ** random_.uniform(0, math.log2(len(movable) + 1))))
        changed = list(place)
        for j in _connected(near, place, first, wanted):
            if target in jobs.options[j]:
                changed[j] = target
        outcome = evaluate(jobs, changed)
        if outcome.rank <= best.rank:
            place, best = tuple(changed), outcome
    return place, best


def _connected(near: Sequence[Sequence[int]], place: Sequence[int], first: int, wanted: int) -> list[int]:
    grown = {first: None}
    waiting = [first]
    for j in waiting:
        for k in near[j]:
            if len(grown) >= wanted:
                return [*grown]
            if k not in grown and place[k] == place[first]:
                grown[k] = None
                waiting.append(k)
    return [*grown]


class _Exact:
    """Branch and bound over jobs in order: what a partial placement costs at least against the best."""

    def __init__(self, jobs: Jobs, bounds: Bounds, place: tuple[int, ...], best: Outcome) -> None:
        self.jobs, self.bounds, self.place, self.best = jobs, bounds, place, best
        self.visits = 0
        self.complete = True
        self._visit([])

    def _visit(self, chosen: list[int]) -> None:
        self.visits += 1
        if self.visits > MAX_VISITS:
            self.complete = False
            return
        if len(chosen) == len(self.jobs.options):
            outcome = evaluate(self.jobs, chosen)
            if outcome.rank < self.best.rank:
                self.place, self.best = tuple(chosen), outcome
            return
        for p in self.jobs.options[len(chosen)]:
            chosen.append(p)
            if self.best.over or self.bounds.partial(chosen) < self.best.objective * (1 - 1e-12):
                self._visit(chosen)
            chosen.pop()
            if not self.complete:
                return
