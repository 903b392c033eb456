"""Lower bounds on the objective of placements of jobs: paths, and loads weighed over devices.

Left out are the starts of calls, the order of jobs on a device, and copies where a place is open.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.placement.jobs import Jobs, lanes
from hcomp.placement.schedule import HOST

ROUNDS = 60


class Bounds:
    """Bounds of one problem; `root` holds for all placements."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.latency = jobs.objective == "latency"
        self.least = [min(options.values()) for options in jobs.options]
        self.lanes = lanes(jobs)
        self.weights = self._weigh()
        self.open = [0.0] * (len(jobs.options) + 1)
        for j in reversed(range(len(jobs.options))):
            self.open[j] = self.open[j + 1] + min(self._weighed(j, p) for p in jobs.options[j])
        # What follows a job at the least, itself left out.
        self.tail = [0.0] * len(jobs.options)
        for j in reversed(range(len(jobs.options))):
            for i in jobs.after[j]:
                self.tail[i] = max(self.tail[i], self.tail[j] + self.least[j])
        self.root = self.partial([]) * (1 - 1e-12)

    def _weighed(self, job: int, place: int) -> float:
        return self.weights[self.jobs.places[place].device] * self.jobs.options[job][place]

    def _weigh(self) -> dict[str, float]:
        """Return weights of the devices, of sum 1: any of them bound the largest load; these do it well.

        Each round gives weight to the devices that the cheapest places load most.
        """
        weights = dict.fromkeys(self.lanes, 1 / max(len(self.lanes), 1))
        best, kept = -1.0, dict(weights)
        self.weights = weights
        for round_ in range(ROUNDS if len(self.lanes) > 1 else 1):
            loads = dict.fromkeys(self.lanes, 0.0)
            for j, options in enumerate(self.jobs.options):
                p = min(options, key=lambda p, j=j: self._weighed(j, p))  # type: ignore[misc]
                loads[self.jobs.places[p].device] += options[p]
            value = sum(weights[lane] * load for lane, load in loads.items())
            if value > best:
                best, kept = value, dict(weights)
            total = sum(loads.values()) or 1.0
            step = 1.0 / (1 + round_ / 4)
            raised = {lane: weights[lane] * (1 + step * loads[lane] / total) for lane in self.lanes}
            whole = sum(raised.values())
            weights = self.weights = {lane: w / whole for lane, w in raised.items()}
        return kept

    def partial(self, chosen: Sequence[int]) -> float:
        """Return a bound on all placements whose first jobs are at `chosen`."""
        jobs = self.jobs
        load = self.open[len(chosen)] + sum(self._weighed(j, p) for j, p in enumerate(chosen))
        held: dict[str, float] = {}
        for j, p in enumerate(chosen):
            device = jobs.places[p].device
            held[device] = held.get(device, 0.0) + jobs.options[j][p]
        found = max([load, *held.values()])
        return max(found, self._path(chosen)) if self.latency else found

    def _path(self, chosen: Sequence[int]) -> float:
        jobs, longest = self.jobs, 0.0
        done: list[float] = []
        if not chosen:
            return max((t + s for t, s in zip(self.tail, self.least, strict=True)), default=0.0)
        memory = [jobs.places[p].memory for p in chosen]
        arrive = [0.0] * len(chosen)
        for j, p in enumerate(chosen):
            end = max([arrive[j], *(done[i] for i in jobs.after[j])]) + jobs.options[j][p]
            done.append(end)
            longest = max(longest, end + self.tail[j])
            for value in jobs.made[j]:
                for reader in value.readers:
                    if reader < len(chosen):
                        arrive[reader] = max(arrive[reader], end + self._copy(value.name, memory[j], memory[reader]))
                if value.returned:
                    longest = max(longest, end + self._copy(value.name, memory[j], HOST))
        return longest

    def _copy(self, value: str, source: str, target: str) -> float:
        links = self.jobs.links
        if source == target:
            return 0.0
        if HOST in (source, target):
            return links.time(value, source, target)
        return links.time(value, source, HOST) + links.time(value, HOST, target)
