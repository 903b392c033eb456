"""Topological orders that keep together what belongs together."""

from __future__ import annotations

from hcomp.placement.problem import Problem


def needed_order(problem: Problem, *, backward: bool) -> list[int]:
    """Return the nodes in the order that ends of the graph need them: parameters stand before their reader."""
    order: list[int] = []
    seen = [False] * len(problem.names)
    ends = [v for v, readers in enumerate(problem.succ) if not readers]
    for end in ends:
        stack = [(end, False)]
        while stack:
            v, leaving = stack.pop()
            if leaving:
                order.append(v)
            elif not seen[v]:
                seen[v] = True
                stack.append((v, True))
                preds = problem.pred[v] if backward else problem.pred[v][::-1]
                stack += [(u, False) for u in preds if not seen[u]]
    return order
