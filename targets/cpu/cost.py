"""What nodes cost on the processor: a roofline of operations, bytes and starts.

The numbers are of a desktop core; `hcomp calibrate` replaces them where it was run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hcomp.ir.graph import Graph, Node
from hcomp.targets.base import Sizes
from hcomp.targets.work import work_of


@dataclass(frozen=True)
class CpuRates:
    """One processor's speeds.

    Attributes:
        flops_per_second: the peak of float32 multiply-add, counted as two operations.
        bytes_per_second: memory bandwidth of one thread.
        kernel_seconds: starting one kernel inside a region.
        region_seconds: calling a region.
        host_seconds: one numpy call of a node that is not compiled.
        efficiency: share of the peak that a cost class reaches; other classes are counted by
            their bytes alone.
    """

    flops_per_second: float = 180e9
    bytes_per_second: float = 14e9
    kernel_seconds: float = 0.4e-6
    region_seconds: float = 2e-6
    host_seconds: float = 8e-6
    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {
            "matmul": 0.8,
            "conv": 0.7,
            "attention": 0.6,
            "recurrent": 0.4,
            "pool": 0.1,
            "softmax": 0.15,
            "norm": 0.15,
            "elementwise": 0.15,
            "reduce": 0.1,
            "scan": 0.01,
            "sort": 0.01,
            "tree": 0.02,
        }
    )


RATES = CpuRates()


def cost(graph: Graph, nodes: Sequence[Node], sizes: Sizes) -> float:
    """Return the seconds that compiled `nodes` take as one region."""
    return cost_at(graph, nodes, sizes, RATES)


def cost_at(graph: Graph, nodes: Sequence[Node], sizes: Sizes, rates: CpuRates) -> float:
    """Return the seconds that compiled `nodes` take as one region on a processor of `rates`."""
    work = work_of(graph, nodes, sizes)
    computing = sum(
        amount / (rates.flops_per_second * rates.efficiency[kind])
        for kind, amount in work.flops.items()
        if kind in rates.efficiency
    )
    moving = (work.read + work.written) / rates.bytes_per_second
    return rates.region_seconds + work.kernels * rates.kernel_seconds + max(computing, moving)


def host_cost(graph: Graph, nodes: Sequence[Node], sizes: Sizes) -> float:
    """Return the seconds that nodes take when numpy runs them, one by one."""
    total = 0.0
    for node in nodes:
        work = work_of(graph, [node], sizes)
        moving = (work.read + work.written) / RATES.bytes_per_second
        computing = sum(work.flops.values()) / (RATES.flops_per_second * 0.05)
        total += RATES.host_seconds + max(moving, computing)
    return total
