"""A lower bound on the time of one sample: placements without queues.

Relaxed are the order of calls and that a call's results come together: a node starts once each input is there,
after the copies that its device's kind asks for. What stays is the memory, the classes, and every path.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.placement.answer import Deadline
from hcomp.placement.problem import Problem

SCALE = 1_000_000
MAX_EXACT = 100_000


def latency_bound(problem: Problem, end: float, place: Sequence[int], deadline: Deadline, reserve: float) -> float:
    """Return a lower bound on the end of any placement; `place` ends at `end`."""
    path = _path_bound(problem)
    chips = problem.accelerators
    if not chips or end <= 0 or len(problem.names) * chips > MAX_EXACT or deadline.left(reserve) < 0.3:
        return path
    from hcomp.placement.latency_model import RelaxedModel

    model = RelaxedModel(problem, SCALE / end)
    model.hint(place)
    return max(path, model.solve(deadline.left(reserve)))


def _path_bound(problem: Problem) -> float:
    """Return the longest path with each node's better time."""
    done: list[float] = []
    for v, preds in enumerate(problem.pred):
        least = problem.cpu[v]
        if problem.supported[v] and problem.accelerators:
            least = min(least, problem.accelerator[v])
        done.append(max((done[u] for u in preds), default=0.0) + least)
    return max(done) * (1 - 1e-9)
