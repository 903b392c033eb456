"""Best load and bound brought together by questions whether anything is below a load.

That nothing is below a load is often proven at once where minimising alone would not raise the bound for
minutes; the best placement that is known is such a load, and so are those between it and the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.placement.answer import Deadline
from hcomp.placement.coarse import Items
from hcomp.placement.loads import Loads
from hcomp.placement.problem import Problem
from hcomp.placement.throughput_model import ThroughputModel

SCALE = 1_000_000
"""What CP-SAT counts the best load as: rounding costs a millionth of it, on the side of the bound."""
CLOSE = 1e-5
"""How near to the best load the bound is brought."""
BISECTIONS = 6
MAX_OPEN = 2
"""Questions that may stay open before the rest of the time goes to minimising."""


class Squeeze:
    """A placement, its load and a bound; `run` improves them while there is time."""

    def __init__(
        self, items: Items, problem: Problem, start: tuple[float, Sequence[int]], bound: float, seconds: float
    ) -> None:
        self.items, self.problem = items, problem
        self.loads = Loads(items, problem)
        self.best, self.place = start[0], list(start[1])
        self.bound = bound
        self.deadline = Deadline(seconds)

    def run(self) -> tuple[list[int], float]:
        """Return the best placement and the bound."""
        while self._open() and self._below(self.best * (1 - CLOSE), 0.12):
            pass
        high, unknown = self.best, 0
        for _ in range(BISECTIONS):
            middle = (self.bound + high) / 2
            if not self._open() or unknown == MAX_OPEN or middle - self.bound < CLOSE * self.best:
                break
            if self._below(middle, 0.05) is not False:
                high = min(middle, self.best)
                unknown += 1
        if self._open():
            self._minimise()
        return self.place, self.bound

    def _open(self) -> bool:
        return self.bound < self.best * (1 - 2 * CLOSE) and self.deadline.left() > 0.3

    def _below(self, load: float, share: float) -> bool | None:
        """Say whether a placement is below a load; None where that stays open."""
        model = ThroughputModel(self.items, self.problem, self._unit(), 0.0, load)
        found, proven = model.solve(share * self.deadline.left())
        if proven >= load:
            self.bound = max(self.bound, load)
            return False
        return True if self._keep(found) else None

    def _minimise(self) -> None:
        model = ThroughputModel(self.items, self.problem, self._unit(), self.bound)
        model.hint(self.place)
        found, proven = model.solve(self.deadline.left())
        self._keep(found)
        self.bound = max(self.bound, proven)

    def _keep(self, found: list[int] | None) -> bool:
        value = None if found is None else self.loads.value(found)
        if found is None or value is None or value >= self.best:
            return False
        self.best, self.place = value, found
        return True

    def _unit(self) -> float:
        return SCALE / max(self.best, 1e-30)
