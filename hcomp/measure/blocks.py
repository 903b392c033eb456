"""Search the blocks of a model's heaviest kernels by measuring them on this processor.

Each kernel is built by itself, by the way that a model's is, and timed beside the analytic choice in turns.
A challenger must win by a margin, in the median of the pairs and in the best times, twice: when it is
found, and at the end against the analytic choice. So a choice is never worse but for what noise can do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hcomp.codegen.relax_module import lower_region
from hcomp.dims import evaluate, symbols_of
from hcomp.dtypes import numpy_dtype
from hcomp.errors import CodegenError
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType
from hcomp.options import DEFAULT_SIZE
from hcomp.partition.plan import Plan
from hcomp.partition.regions import boundary, node_readers, planned_graphs, region_graph
from hcomp.runtime.kernel_clock import KernelClock
from hcomp.runtime.threads import load_thread_pool, use_threads
from hcomp.runtime.values import to_tensor
from hcomp.runtime.vm import vm_region
from hcomp.targets.base import Sizes
from hcomp.targets.cpu import CPU
from hcomp.targets.cpu.choices import Choices, Point, Space, analytic
from hcomp.targets.cpu.codegen import build, laid_out, processor, processor_key
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.lowering import cpu_rules
from hcomp.targets.cpu.thread_pool import thread_pool_object
from hcomp.targets.work import flops
from hcomp.tuning import Measured, Tuning

MARGIN = 0.97
"""A challenger takes at most this share of the other's time."""
ROUNDS, LAST_ROUNDS = 5, 15
LAP_SECONDS = 0.004
FIRST_SHARE = 0.4
"""Of the time, what may go into measuring the analytic choices, which says what is heaviest."""

_TUNED = ("conv", "matmul")
Progress = Callable[[str], None]


@dataclass
class Job:
    """One kernel to tune.

    Attributes:
        signature, space: what it is, and what may be chosen.
        nodes: by sizes of the inputs, a node of the model by itself, and how often the model has it. Free
            sizes make several of one signature: a choice is for all of them.
        work: operations of all.
    """

    signature: str
    space: Space
    nodes: dict[object, tuple[Graph, int]]
    work: float


def tune_plan(plan: Plan, sizes: Sizes, tuning: Tuning, seconds: float, progress: Progress) -> None:
    """Add choices for the kernels of a plan's compiled regions to `tuning`, as `tune` finds them."""
    own = tuning.processors.setdefault(processor_key(), {})
    own.update(tune(planned_graphs(plan, CPU.name, CPU.executor), sizes, own, seconds, progress))


def tune(
    parts: Sequence[Graph], sizes: Sizes, known: Mapping[str, Measured], seconds: float, progress: Progress
) -> dict[str, Measured]:
    """Return choices by signature for the kernels of some regions that `known` lacks.

    Args:
        parts: the regions' graphs.
        sizes: of free sizes; others count as DEFAULT_SIZE.
        known: what was measured before.
        seconds: about how long to go on; a kernel whose turn does not come has no entry.
        progress: is told what is going on.
    """
    end = time.perf_counter() + seconds
    load_thread_pool(thread_pool_object(processor()[0].triple))
    use_threads(1)
    found: dict[str, Measured] = {}
    first: list[tuple[float, Job, _Candidate]] = []
    for job in _jobs(parts, sizes):
        if job.signature in known or time.perf_counter() >= end - (1 - FIRST_SHARE) * seconds:
            continue
        progress(f"measuring {job.signature}")
        try:
            candidate = _Candidate(job, analytic(job.space), sizes)
        except (CodegenError, RuntimeError, ValueError):  # made-up data may not suit the node
            continue
        first.append((min(candidate.lap() for _ in range(3)), job, candidate))
    for _, job, candidate in sorted(first, key=lambda entry: -entry[0]):
        if time.perf_counter() >= end:
            break
        progress(f"tuning {job.signature}")
        found[job.signature] = _Search(job, candidate, sizes, end).result()
    return found


def _jobs(parts: Sequence[Graph], sizes: Sizes) -> list[Job]:
    """Return the kernels that have a choice, those of most operations first."""
    cpu = processor()[0]
    found: dict[str, Job] = {}
    for part in (laid_out(given, cpu) for given in parts):  # so that no layout changes around a node
        readers = node_readers(part)
        for index, node in enumerate(part.nodes):
            if node.op not in _TUNED:
                continue
            inputs, _ = boundary(part, (index,), readers)
            alone = region_graph(part, (index,), "tune", inputs, tuple(v.name for v in node.outputs))
            for signature, space in _asked(alone, cpu).items():
                if all(len(values) == 1 for values in space.values()):
                    continue
                job = found.setdefault(signature, Job(signature, space, {}, 0.0))
                every = _every_size(alone, sizes)
                key = tuple(_shape(value.type, every) for value in alone.inputs)
                graph, count = job.nodes.get(key, (alone, 0))
                job.nodes[key] = (graph, count + 1)
                job.work += flops(part, node, every)
    return sorted(found.values(), key=lambda j: -j.work)


def _asked(graph: Graph, cpu: CpuFeatures) -> Mapping[str, Space]:
    choices = Choices()
    try:
        lower_region(graph, cpu_rules(cpu, choices))
    except CodegenError:  # only together with its neighbours: what it then takes is not known
        return {}
    return choices.asked


class _Search:
    """The search for one kernel: number by number, each value against the best choice so far."""

    def __init__(self, job: Job, first: _Candidate, sizes: Sizes, end: float) -> None:
        self.job, self.sizes, self.end = job, sizes, end
        self.first = self.best = first

    def result(self) -> Measured:
        """Return the choice to keep: the analytic one unless another has won twice."""
        for name, values in self.job.space.items():
            for value in values[1:]:
                if time.perf_counter() < self.end:
                    self._try({**self.best.point, name: value})
        ours, theirs = _duel(self.first, self.best, LAST_ROUNDS)
        least = round(1e6 * min(ours), 3)
        if self.best is self.first or not _wins(ours, theirs):
            return Measured(self.first.point, least, least)
        return Measured(self.best.point, round(1e6 * min(theirs), 3), least)

    def _try(self, point: Point) -> None:
        try:
            challenger = _Candidate(self.job, point, self.sizes)
        except CodegenError:
            return
        # One lap says enough of a choice that is far behind.
        if challenger.lap() < 1.2 * self.best.lap() and _wins(*_duel(self.best, challenger, ROUNDS)):
            self.best = challenger


def _duel(first: _Candidate, second: _Candidate, rounds: int) -> tuple[list[float], list[float]]:
    """Return the times of two candidates in turns."""
    pairs = [(first.lap(), second.lap()) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _wins(holder: Sequence[float], challenger: Sequence[float]) -> bool:
    """Say whether a challenger is faster beyond noise: in the median of the pairs and in the best times."""
    ratio = statistics.median(b / a for a, b in zip(holder, challenger, strict=True))
    return ratio <= MARGIN and min(challenger) <= MARGIN * min(holder)


class _Candidate:
    """A kernel built by one choice, ready to be timed: its nodes alone, on made-up data."""

    def __init__(self, job: Job, point: Point, sizes: Sizes) -> None:
        self.point = point
        choices = {job.signature: point}
        self.nodes = [(_Node(graph, choices, sizes), count) for graph, count in job.nodes.values()]

    def lap(self) -> float:
        """Return the seconds of all the model's calls of the kernel."""
        return sum(count * node.lap() for node, count in self.nodes)


class _Node:
    """One node of the model, built alone."""

    def __init__(self, graph: Graph, choices: Mapping[str, Point], sizes: Sizes) -> None:
        built = build(graph, "tune", Choices(choices))
        self.clock = KernelClock()
        watch = self.clock.watch("tune", built.listing)
        constants = [to_tensor(np.ascontiguousarray(array)) for _, array in built.constants]
        self.region = vm_region(built.interpreted, built.objects, constants, watch)
        every = _every_size(graph, sizes)
        self.inputs = [_made_up(value.type, every) for value in graph.inputs]
        self.symbols = [every[name] for name in built.symbols] if built.symbols else None
        self._once()
        self.calls = max(1, int(LAP_SECONDS / max(1e-6, self._once())))

    def lap(self) -> float:
        """Return the seconds of one call, the mean of a lap's calls."""
        return sum(self._once() for _ in range(self.calls)) / self.calls

    def _once(self) -> float:
        """Return the time of the heavy kernel, without checks around it."""
        self.clock.laps = {}
        self.region.call(self.inputs, self.symbols)
        return max(lap.seconds for lap in self.clock.laps.values())


def _every_size(graph: Graph, sizes: Sizes) -> dict[str, int]:
    types = [v.type for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs))]
    names = {name for t in types if isinstance(t, TensorType) for name in symbols_of(t.shape or ())}
    return {name: sizes.get(name, DEFAULT_SIZE) for name in names}


def _shape(value_type: Any, sizes: Sizes) -> tuple[int, ...]:
    return tuple(evaluate(d, sizes) for d in value_type.shape or ())


def _made_up(value_type: Any, sizes: Sizes) -> Any:
    shape = _shape(value_type, sizes)
    return to_tensor(np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(value_type.dtype)))
