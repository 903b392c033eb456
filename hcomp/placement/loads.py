"""Loads of devices under a placement of items, kept up to date while single items move."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from hcomp.placement.coarse import Items
from hcomp.placement.problem import Problem

MAX_ROUNDS = 200


class Loads:
    """Evaluates placements of items; devices are accelerators, then CPU cores."""

    def __init__(self, items: Items, problem: Problem) -> None:
        self.items = items
        self.chips = problem.accelerators
        self.devices = problem.accelerators + problem.cores
        self.memory = problem.memory * (1 + 1e-9)

    def value(self, place: Sequence[int]) -> float | None:
        """Return the largest load, or None where the placement breaks a rule."""
        items = self.items
        held = [0.0] * self.devices
        for i, d in enumerate(place):
            if d < self.chips:
                held[d] += items.size[i]
                if not items.supported[i]:
                    return None
        if any(h > self.memory for h in held[: self.chips]):
            return None
        return max(self._loads(place))

    def _loads(self, place: Sequence[int]) -> list[float]:
        items = self.items
        loads = [0.0] * self.devices
        for i, d in enumerate(place):
            loads[d] += items.accelerator[i] if d < self.chips else items.cpu[i]
        for k in range(len(items.nets)):
            for d, cost in self._net(place, k):
                loads[d] += cost
        return loads

    def _net(self, place: Sequence[int], k: int) -> list[tuple[int, float]]:
        """Return what a net adds to which accelerators."""
        net = self.items.nets[k]
        home = place[net.source]
        others = {place[r] for r in net.readers} - {home}
        found = [(d, net.cost) for d in others if d < self.chips]
        if others and home < self.chips:
            found.append((home, net.cost))
        return found

    def improve(self, place: Sequence[int], until: float) -> tuple[list[int], float | None]:
        """Return a placement after moves of single items off the most loaded device, and its largest load.

        A move is taken where it lowers the larger load of the devices that it changes; ties are broken by the
        sum of squares, so that the search goes on over plateaus. It ends where no move helps.
        """
        found = list(place)
        if self.value(found) is None:
            return found, None
        items = self.items
        held = [0.0] * self.devices
        for i, d in enumerate(found):
            held[d] += items.size[i]
        for _ in range(MAX_ROUNDS):
            loads = self._loads(found)
            top = max(range(self.devices), key=loads.__getitem__)
            best: tuple[float, float, int, int] | None = None
            for i in [i for i, d in enumerate(found) if d == top]:
                if time.monotonic() > until:
                    return found, self.value(found)
                for d in range(self.devices):
                    if d == top or (d < self.chips and not self._may(i, d, held)):
                        continue
                    change = self._change(found, i, d)
                    worst = max(loads[e] + by for e, by in change.items())
                    square = math.fsum((loads[e] + by) ** 2 - loads[e] ** 2 for e, by in change.items())
                    if worst < loads[top] * (1 - 1e-12) and (best is None or (worst, square) < best[:2]):
                        best = worst, square, i, d
            if best is None:
                break
            _, _, i, d = best
            held[found[i]] -= items.size[i]
            held[d] += items.size[i]
            found[i] = d
        return found, self.value(found)

    def _may(self, item: int, device: int, held: Sequence[float]) -> bool:
        return self.items.supported[item] and held[device] + self.items.size[item] <= self.memory

    def _change(self, place: list[int], item: int, device: int) -> dict[int, float]:
        """Return by how much loads change where an item moves."""
        items, was = self.items, place[item]
        change = {was: 0.0, device: 0.0}
        for sign, d in ((-1.0, was), (1.0, device)):
            place[item] = d
            change[d] += sign * (items.accelerator[item] if d < self.chips else items.cpu[item])
            for k in items.touching[item]:
                for e, cost in self._net(place, k):
                    change[e] = change.get(e, 0.0) + sign * cost
        place[item] = was
        return change
