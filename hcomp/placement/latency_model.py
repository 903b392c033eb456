"""The relaxation of latency for CP-SAT: no queues and no calls, numbers rounded down."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortools.sat.python import cp_model

from hcomp.placement.answer import CPU
from hcomp.placement.memory import whole_sizes
from hcomp.placement.problem import Problem

LATEST = 2**40


class RelaxedModel:
    """One variable a group and device (the last is the CPU), and the end of each node."""

    def __init__(self, problem: Problem, unit: float) -> None:
        """Build the model; `unit` is what a unit of time counts as."""
        self.problem, self.unit, self.chips = problem, unit, problem.accelerators
        self.model = cp_model.CpModel()
        self.group = {v: i for i, members in enumerate(problem.groups) for v in members}
        self.x = [[self.model.new_bool_var("") for _ in range(self.chips + 1)] for _ in problem.groups]
        self.top = self.model.new_int_var(0, LATEST, "end")
        self.same: dict[tuple[int, int], cp_model.IntVar] = {}
        self._devices()
        self._paths()
        self.model.minimize(self.top)

    def _devices(self) -> None:
        problem = self.problem
        for members, row in zip(problem.groups, self.x, strict=True):
            self.model.add_exactly_one(row)
            if not all(problem.supported[v] for v in members):
                self.model.add(row[self.chips] == 1)
        of_groups = [math.fsum(problem.size[v] for v in members) for members in problem.groups]
        sizes, limit = whole_sizes(of_groups, problem.memory)
        times = [self._whole(math.fsum(problem.accelerator[v] for v in members)) for members in problem.groups]
        for d in range(self.chips):
            column = [row[d] for row in self.x]
            if sum(sizes) > limit:
                self.model.add(cp_model.LinearExpr.weighted_sum(column, sizes) <= limit)
            self.model.add(cp_model.LinearExpr.weighted_sum(column, times) <= self.top)

    def _paths(self) -> None:
        problem, group = self.problem, self.group
        done = [self.model.new_int_var(0, LATEST, "") for _ in problem.names]
        for v, preds in enumerate(problem.pred):
            on_cpu = self.x[group[v]][self.chips]
            fast, slow = self._whole(problem.accelerator[v]), self._whole(problem.cpu[v])
            own = fast + (slow - fast) * on_cpu
            self.model.add(done[v] >= own)
            self.model.add(self.top >= done[v])
            for u in preds:
                self.model.add(done[v] >= done[u] + own)
                copy = self._whole(problem.cost[u])
                if copy and group[u] != group[v]:
                    # Out of an accelerator once, into one once.
                    copies = copy * (2 - self.x[group[u]][self.chips] - on_cpu)
                    near = self._together(group[u], group[v])
                    self.model.add(done[v] >= done[u] + own + copies).only_enforce_if(near.negated())

    def _together(self, a: int, b: int) -> cp_model.IntVar:
        """Return a literal that can be true only where two groups are on one device."""
        if (a, b) not in self.same:
            literal = self.same[a, b] = self.model.new_bool_var("")
            for one, other in zip(self.x[a], self.x[b], strict=True):
                self.model.add_bool_or([literal.negated(), one.negated(), other])
                self.model.add_bool_or([literal.negated(), one, other.negated()])
        return self.same[a, b]

    def _whole(self, value: float) -> int:
        return math.floor(value * self.unit)

    def hint(self, place: Sequence[int]) -> None:
        """Tell the solver where to start: a device for each node."""
        for members, row in zip(self.problem.groups, self.x, strict=True):
            at = self.chips if place[members[0]] == CPU else place[members[0]]
            for d, literal in enumerate(row):
                self.model.add_hint(literal, d == at)

    def solve(self, seconds: float) -> float:
        """Return a lower bound on the end of any schedule."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 2
        solver.parameters.random_seed = 1
        solver.parameters.symmetry_level = 3
        solver.parameters.max_time_in_seconds = seconds
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            return 0.0
        return max(0.0, solver.best_objective_bound / self.unit * (1 - 1e-9))
