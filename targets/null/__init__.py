"""The device that needs no hardware: every operator runs by its numpy reference.

It is the folder to copy for a new target, and a second device with a memory of its own for tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.codegen.reference_region import emit_reference
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import OPS
from hcomp.targets.base import EmittedRegion, Link, Options, Rule, Sizes, Target
from hcomp.targets.work import work_of

NODE_SECONDS = 5e-6
"""What one call into numpy costs."""
BYTES_PER_SECOND = 4e9
FLOPS_PER_SECOND = 2e9


def _cost(graph: Graph, nodes: Sequence[Node], sizes: Sizes) -> float:
    """Return the seconds of numpy calls: nothing is fused, everything goes through memory."""
    total = 0.0
    for node in nodes:
        work = work_of(graph, [node], sizes)
        moved = (work.read + work.written) / BYTES_PER_SECOND
        total += NODE_SECONDS + max(moved, sum(work.flops.values()) / FLOPS_PER_SECOND)
    return total


def _emit(graph: Graph, name: str, options: Options) -> EmittedRegion:
    return emit_reference(graph)


LINK = Link(latency_us=5.0, bandwidth_gb_s=8.0)
"""A made-up link, so that plans have copies to count."""


def _state() -> tuple[str, str]:
    return "simulated", "numpy with a memory and a clock of its own"


RULES = (Rule("the operator has no numpy reference", lambda graph, node: node.op in OPS),)

NULL = Target(
    name="null",
    kind="null",
    memory="null",
    rules=RULES,
    cost=_cost,
    emit=_emit,
    link=LINK,
    state=_state,
)
