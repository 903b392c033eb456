"""What a pass is: a value with a name, a function on graphs, and the invariants around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hcomp.errors import PassError
from hcomp.ir.graph import Graph
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.verifier import Invariant, verify

Transform: TypeAlias = Callable[[Graph], Graph]


@dataclass(frozen=True)
class Pass:
    """One step of the compiler on graphs.

    `run` is a pure function that keeps the graph's meaning, its inputs and the order of its
    outputs. It may rely on `requires` and makes `establishes` hold; from then on the driver checks
    these after every later pass that does not list them in `breaks`.
    """

    name: str
    run: Transform
    requires: tuple[Invariant, ...] = ()
    establishes: tuple[Invariant, ...] = ()
    breaks: tuple[Invariant, ...] = ()


def repeat(name: str, *passes: Pass, limit: int = 50) -> Pass:
    """Return the pass that runs `passes` in order, again and again, until nothing changes.

    WELL_FORMED is verified after each of them that changes something. `run` raises PassError where
    the graph still changes after `limit` rounds: two passes undo each other's work.
    """

    def run(graph: Graph) -> Graph:
        for _ in range(limit):
            before = graph
            for step in passes:
                after = step.run(graph)
                if after is not graph:
                    verify(after, WELL_FORMED, f"after {step.name} in {name}")
                graph = after
            if graph is before or graph == before:
                return graph
        raise PassError(f"{name}: the graph still changes after {limit} rounds")

    return Pass(
        name,
        run,
        tuple(dict.fromkeys(i for p in passes for i in p.requires)),
        tuple(dict.fromkeys(i for p in passes for i in p.establishes)),
        tuple(dict.fromkeys(i for p in passes for i in p.breaks)),
    )
