"""The plan as a value: which device runs each node and why, the regions in order, the copies.

A plan holds numbers in seconds and bytes, predicted for `sizes`, the sizes of the symbols that
costs were computed for. Bodies of `if` and `loop` nodes have plans of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from hcomp.ir.graph import Graph, Node

HOST = "host"
"""The memory that the runtime, extern nodes and the CPU share."""

VM = "vm"
REFERENCE = "reference"
EXTERN = "onnxruntime"
CONTROL = "control"
EXECUTORS = {
    VM: "compiled",
    REFERENCE: "numpy",
    EXTERN: "ONNX Runtime",
    CONTROL: "control flow",
}
"""How a region runs, and what reports call it."""


@dataclass(frozen=True)
class Alternative:
    """A device that a node could have: its seconds there, or the sentence why it cannot run there."""

    device: str
    seconds: float | None
    refusal: str = ""


@dataclass(frozen=True)
class Choice:
    """Where one node runs and why."""

    device: str
    executor: str
    reason: str
    seconds: float
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Region:
    """Nodes that run as one call on one device; `nodes` are indices into the graph, in order.

    `inputs` and `outputs` are values of the graph (constants left out). A loop that is a region has the plan
    of its body, as a control step has.
    """

    name: str
    device: str
    memory: str
    executor: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    start: float = 0.0
    end: float = 0.0
    bodies: Mapping[str, Plan] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The predicted time of one run."""
        return self.end - self.start


@dataclass(frozen=True)
class Transfer:
    """One value copied from one memory to another; one copy serves all readers there."""

    value: str
    source: str
    target: str
    bytes: int
    start: float = 0.0
    end: float = 0.0

    @property
    def copied(self) -> str:
        """The name of the copy."""
        return located(self.value, self.target)


@dataclass(frozen=True)
class Control:
    """An `if` or `loop` node (index `node`), with the plans of its bodies by their names."""

    name: str
    node: int
    bodies: Mapping[str, Plan]
    start: float = 0.0
    end: float = 0.0


Step: TypeAlias = Region | Transfer | Control


@dataclass(frozen=True)
class Device:
    """A device of a plan: its name, the kind of target it is, and the memory it works in."""

    name: str
    kind: str
    memory: str


@dataclass(frozen=True)
class Plan:
    """Where and when everything of one graph runs."""

    graph: Graph
    devices: tuple[Device, ...]
    objective: str
    sizes: Mapping[str, int]
    choices: tuple[Choice, ...]
    steps: tuple[Step, ...]
    singles: Mapping[str, float]
    """The predicted seconds of each device alone, pins apart."""

    @property
    def seconds(self) -> float:
        """The predicted time of one run of the whole graph."""
        return max((step.end for step in self.steps), default=0.0)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of this graph itself, in order."""
        return tuple(step for step in self.steps if isinstance(step, Region))

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The copies of this graph itself, in order."""
        return tuple(step for step in self.steps if isinstance(step, Transfer))

    @cached_property
    def region_of(self) -> Mapping[int, str]:
        """The name of the region or control step of each node, by index."""
        found: dict[int, str] = {}
        for step in self.steps:
            if isinstance(step, Region):
                found.update(dict.fromkeys(step.nodes, step.name))
            elif isinstance(step, Control):
                found[step.node] = step.name
        return found

    def walk(self) -> Iterator[Plan]:
        """Yield this plan and those of all bodies."""
        yield self
        for step in self.steps:
            if isinstance(step, Control | Region):
                for body in step.bodies.values():
                    yield from body.walk()

    def nodes(self) -> Iterator[tuple[Plan, int, Node]]:
        """Yield (plan, index, node) for every node, those of bodies included."""
        for plan in self.walk():
            for index, node in enumerate(plan.graph.nodes):
                yield plan, index, node


def located(value: str, memory: str) -> str:
    """Return the name of a value's copy in `memory`; in host memory it keeps its own name."""
    return value if memory == HOST else f"{value}@{memory}"
