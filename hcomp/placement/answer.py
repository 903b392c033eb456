"""What solvers return, and how long they may take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hcomp.placement.problem import Problem

CPU = -1
"""In a list of places: a CPU core whose number does not matter, as for latency."""


@dataclass(frozen=True)
class Call:
    """Nodes that an accelerator runs as one piece."""

    device: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """A placement with its exact objective and a proven lower bound.

    Attributes:
        objective, bound: in the problem's unit of time.
        place: the device of each node: 0..accelerators-1, then the CPU cores.
        calls: for latency, in an order in which they can run.
    """

    objective: float
    bound: float
    place: tuple[int, ...]
    calls: tuple[Call, ...] = ()

    @property
    def gap(self) -> float:
        """The share of the objective that the bound leaves open."""
        return 1 - self.bound / self.objective if self.objective else 0.0

    def to_json(self, problem: Problem, seconds: float) -> Mapping[str, Any]:
        """Return the answer in the published form, with the names of the file."""
        found: dict[str, Any] = {
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "seconds": seconds,
            "assignment": {str(problem.names[v]): _device(problem, device) for v, device in enumerate(self.place)},
        }
        if self.calls:
            found["calls"] = [
                {"device": _device(problem, call.device), "nodes": [problem.names[v] for v in call.nodes]}
                for call in self.calls
            ]
        return found


def _device(problem: Problem, device: int) -> str:
    return f"acc{device}" if device < problem.accelerators else f"cpu{device - problem.accelerators}"


class Deadline:
    """A moment that solvers must not pass; one that is long past is still a valid one."""

    def __init__(self, seconds: float, started: float | None = None) -> None:
        self.end = (time.monotonic() if started is None else started) + seconds

    def left(self, reserve: float = 0.0) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.end - time.monotonic() - reserve)
