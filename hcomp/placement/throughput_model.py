"""The exact model of throughput for CP-SAT.

Numbers are rounded down, so that the model's optimum is a lower bound on the true one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortools.sat.python import cp_model

from hcomp.placement.coarse import Items
from hcomp.placement.memory import whole_sizes
from hcomp.placement.problem import Problem

MAX_LOAD = 2**50


class ThroughputModel:
    """One variable an item and device; a net's cost counts on the devices that it enters or leaves."""

    def __init__(self, items: Items, problem: Problem, unit: float, bound: float, below: float | None = None) -> None:
        """Build the model.

        Args:
            items, problem: what is placed.
            unit: what a unit of time counts as.
            bound: a known lower bound.
            below: ask for any placement of at most this load instead of the best one.
        """
        self.items, self.unit = items, unit
        self.chips, self.devices = problem.accelerators, problem.accelerators + problem.cores
        self.model = cp_model.CpModel()
        self.x = [[self.model.new_bool_var("") for _ in range(self.devices)] for _ in items.members]
        # A tighter domain, such as the best known load, makes the solver's search markedly worse.
        self.below = below
        self.top: cp_model.IntVar | int = 0
        if below is None:
            self.top = self.model.new_int_var(max(0, math.floor(bound * unit) - 1), MAX_LOAD, "load")
        else:
            self.top = math.floor(below * unit)
        for row in self.x:
            self.model.add_exactly_one(row)
        for device in range(self.devices):
            self._load(device)
        sizes, limit = whole_sizes(items.size, problem.memory)
        for device in range(self.chips):
            column = [row[device] for row in self.x]
            for literal, supported in zip(column, items.supported, strict=True):
                if not supported:
                    self.model.add(literal == 0)
            if sum(sizes) > limit:
                self.model.add(cp_model.LinearExpr.weighted_sum(column, sizes) <= limit)
        if below is None:
            self.model.minimize(self.top)

    def _load(self, device: int) -> None:
        terms = [row[device] for row in self.x]
        if device >= self.chips:
            weights = self._whole(self.items.cpu)
        else:
            weights = self._whole(self.items.accelerator)
            for net in self.items.nets:
                weight = math.floor(net.cost * self.unit)
                if weight:
                    terms += self._crossings(net.source, net.readers, device)
                    weights += [weight, weight]
        self.model.add(cp_model.LinearExpr.weighted_sum(terms, weights) <= self.top)

    def _crossings(self, source: int, readers: Sequence[int], device: int) -> list[cp_model.IntVar]:
        """Return whether a net leaves and whether it enters a device."""
        leaves, enters = self.model.new_bool_var(""), self.model.new_bool_var("")
        home = self.x[source][device]
        for r in readers:
            there = self.x[r][device]
            self.model.add_bool_or([leaves, home.negated(), there])
            self.model.add_bool_or([enters, home, there.negated()])
        return [leaves, enters]

    def _whole(self, times: Sequence[float]) -> list[int]:
        return [math.floor(t * self.unit) for t in times]

    def hint(self, place: Sequence[int]) -> None:
        """Tell the solver where to start."""
        for row, device in zip(self.x, place, strict=True):
            for d, literal in enumerate(row):
                self.model.add_hint(literal, d == device)

    def solve(self, seconds: float) -> tuple[list[int] | None, float]:
        """Return a placement, or None, and a lower bound on the largest load of any.

        Asked for one below a load, the bound is that load where there is none, and 0 where nothing is known.
        """
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 2
        solver.parameters.random_seed = 1
        solver.parameters.symmetry_level = 3
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.relative_gap_limit = 2e-6
        status = solver.solve(self.model)
        proven = 0.0
        if self.below is not None:
            proven = self.below if status == cp_model.INFEASIBLE else 0.0
        elif status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            proven = max(0.0, solver.best_objective_bound / self.unit * (1 - 1e-9))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, proven
        return [next(d for d, literal in enumerate(row) if solver.value(literal)) for row in self.x], proven
