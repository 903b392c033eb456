"""What the compiler's planner places: jobs (clusters of nodes) that each of several devices may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hcomp.placement.schedule import HOST, Event, Links, Piece, peaks, schedule

OBJECTIVES = ("latency", "throughput")


@dataclass(frozen=True)
class Place:
    """Where a job can run: a device, how it runs there, the memory, and the seconds of starting one call."""

    device: str
    executor: str
    memory: str
    overhead: float


@dataclass(frozen=True)
class Value:
    """What one job makes (-1: given) and others read."""

    name: str
    maker: int
    readers: tuple[int, ...]
    returned: bool


@dataclass(frozen=True)
class Jobs:
    """The problem.

    Attributes:
        places: what `options` and assignments number.
        options: for each job, the seconds at each place that can run it; jobs are in topological order.
        alone: jobs that never share a call.
        after: for each job, those that must run before it.
        values: what passes between jobs.
        links: what copies take.
        weights: for each job, the constants that it reads, by name with their bytes.
        limits: bytes that memories may hold, where there is a limit.
        objective: "latency", the end of one run, or "throughput", the largest load of a device or the link.
    """

    places: tuple[Place, ...]
    options: tuple[Mapping[int, float], ...]
    alone: tuple[bool, ...]
    after: tuple[tuple[int, ...], ...]
    values: tuple[Value, ...]
    links: Links
    weights: tuple[Mapping[str, int], ...] = ()
    limits: Mapping[str, int] | None = None
    objective: str = "latency"

    @cached_property
    def inputs(self) -> tuple[tuple[str, ...], ...]:
        """The values that each job reads."""
        found: list[list[str]] = [[] for _ in self.options]
        for value in self.values:
            for reader in value.readers:
                found[reader].append(value.name)
        return tuple(map(tuple, found))

    @cached_property
    def made(self) -> tuple[tuple[Value, ...], ...]:
        """The values that each job makes."""
        found: list[list[Value]] = [[] for _ in self.options]
        for value in self.values:
            if value.maker >= 0:
                found[value.maker].append(value)
        return tuple(map(tuple, found))


@dataclass(frozen=True)
class Outcome:
    """How a placement runs: `over` is how many bytes it holds beyond the limits."""

    objective: float
    over: int
    groups: tuple[tuple[int, ...], ...]
    events: tuple[Event, ...]
    peaks: Mapping[str, int]

    @property
    def rank(self) -> tuple[int, float]:
        """What is compared: first what fits."""
        return self.over, self.objective


def group_jobs(jobs: Jobs, place: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the calls as tuples of jobs, in an order in which they can run.

    A job gets the stage max over those before it, plus one where they run elsewhere. Jobs of equal place and
    stage are one call: edges between calls lead to higher stages, so every call is convex.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    stages: list[int] = []
    keys = [(place[j], j if jobs.alone[j] else -1) for j in range(len(place))]
    for j, before in enumerate(jobs.after):
        level = max((stages[i] + (keys[i] != keys[j]) for i in before), default=0)
        stages.append(level)
        groups.setdefault((level, *keys[j]), []).append(j)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[1][0]))
    return [tuple(found) for _, found in ordered]


def evaluate(jobs: Jobs, place: Sequence[int]) -> Outcome:
    """Return how a placement runs."""
    groups = group_jobs(jobs, place)
    pieces = [_piece(jobs, place, group) for group in groups]
    given = [v.name for v in jobs.values if v.maker < 0]
    returned = [v.name for v in jobs.values if v.returned]
    events = schedule(pieces, given, returned, jobs.links)
    found: dict[str, int] = {}
    if jobs.limits:
        found = peaks(pieces, events, jobs.links, [*given, *returned])
        for memory, size in _weights(jobs, place).items():
            found[memory] = found.get(memory, 0) + size
    over = sum(max(0, found.get(memory, 0) - limit) for memory, limit in (jobs.limits or {}).items())
    return Outcome(objective_of(jobs.objective, pieces, events), over, tuple(groups), tuple(events), found)


def objective_of(objective: str, pieces: Sequence[Piece], events: Sequence[Event]) -> float:
    """Return what is minimised, in seconds."""
    if objective == "latency":
        return max((event.end for event in events), default=0.0)
    loads: dict[str, float] = {}
    for event in events:
        lane = pieces[event.piece].lane if event.piece >= 0 else ""
        loads[lane] = loads.get(lane, 0.0) + event.end - event.start
    return max(loads.values(), default=0.0)


def _piece(jobs: Jobs, place: Sequence[int], group: Sequence[int]) -> Piece:
    at = jobs.places[place[group[0]]]
    inside = set(group)
    seconds = at.overhead + sum(jobs.options[j][place[j]] for j in group)
    made = {v.name for j in group for v in jobs.made[j]}
    inputs = dict.fromkeys(name for j in group for name in jobs.inputs[j] if name not in made)
    outputs = [v.name for j in group for v in jobs.made[j] if v.returned or not inside.issuperset(v.readers)]
    return Piece(at.device, at.memory, seconds, tuple(inputs), tuple(outputs))


def _weights(jobs: Jobs, place: Sequence[int]) -> dict[str, int]:
    """Return the bytes of constants in each memory; one that several jobs read there counts once."""
    held: dict[str, dict[str, int]] = {}
    for j, constants in enumerate(jobs.weights):
        held.setdefault(jobs.places[place[j]].memory, {}).update(constants)
    return {memory: sum(constants.values()) for memory, constants in held.items()}


def lanes(jobs: Jobs) -> tuple[str, ...]:
    """Return the devices that run anything."""
    return tuple(dict.fromkeys(p.device for p in jobs.places))


__all__ = ["HOST", "Jobs", "Outcome", "Place", "Value", "evaluate", "group_jobs", "lanes", "objective_of"]
