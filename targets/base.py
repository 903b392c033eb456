"""What a target is: the nodes that it takes, what they cost, and how a region becomes files.

A target is one folder and one value of this class; `hcomp.targets.TARGETS` names them all. Its run
side, if it needs one of its own, is the folder's `device` module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.ir.graph import Graph, Node
from hcomp.tuning import Tuning

Executor: TypeAlias = Literal["vm", "reference", "onnxruntime"]
Options: TypeAlias = Mapping[str, Any]
Sizes: TypeAlias = Mapping[str, int]
Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class EmittedRegion:
    """One region as the artifact stores it and a launch step needs it.

    Attributes:
        executor: what runs it.
        files: file name within the region's folder -> contents.
        roles: what each file is to the executor ("object0", "program") -> file name.
        constants: the arguments behind the inputs, in order.
        symbols: the sizes handed over as one trailing shape argument; none: no such argument.
        fresh_outputs: for each output, whether it has memory of its own (else it may be a view).
        notes: what a report should say of it, such as that operators could not be fused.
        seconds: how long each stage of making it took.
    """

    executor: Executor
    files: Mapping[str, bytes]
    roles: Mapping[str, str]
    constants: tuple[tuple[str, NDArray[np.generic]], ...]
    fresh_outputs: tuple[bool, ...]
    symbols: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """A condition on nodes: `text` is what is printed where `holds` is false."""

    text: str
    holds: Callable[[Graph, Node], bool]


@dataclass(frozen=True)
class Link:
    """The way between the host's memory and a target's; zero latency and no limit is no copy."""

    latency_us: float = 0.0
    bandwidth_gb_s: float = 0.0

    def seconds(self, size: int) -> float:
        """Return the time that a copy of `size` bytes takes."""
        moving = size / (self.bandwidth_gb_s * 1e9) if self.bandwidth_gb_s else 0.0
        return self.latency_us * 1e-6 + moving


@dataclass(frozen=True)
class Target:
    """One kind of device.

    Attributes:
        name: what users write in `--devices`.
        kind: what the runtime calls the device.
        memory: the name of its memory; targets with one memory exchange values without a copy.
        rules: every condition on a node, the most general first.
        cost: seconds that some nodes of a graph take when they run as one region.
        emit: the region with this graph and name as files.
        trial: the last rule, for what only an attempt shows; returns a sentence or "".
        executor: what runs its regions.
        link: how its memory is reached from the host's.
        state: what `hcomp devices` says of it here and now: (state, detail).
        requirements: what its code needs of the machine that runs it, for the manifest.
        tune: measures kernels of regions (graphs, sizes, what is known, seconds, progress) and adds to what
            is known; None where there is nothing to choose.
        tuned_options: the options of `emit` for what was measured.
    """

    name: str
    kind: str
    memory: str
    rules: tuple[Rule, ...]
    cost: Callable[[Graph, Sequence[Node], Sizes], float]
    emit: Callable[[Graph, str, Options], EmittedRegion]
    trial: Callable[[Graph, Node], str] = field(default=lambda graph, node: "")
    executor: Executor = "reference"
    link: Link = Link()
    state: Callable[[], tuple[str, str]] = field(default=lambda: ("simulated", ""))
    requirements: Callable[[], Mapping[str, Any]] = field(default=dict)
    tune: Callable[[Sequence[Graph], Sizes, Tuning, float, Progress], None] | None = None
    tuned_options: Callable[[Tuning], Options] = field(default=lambda tuning: {})

    def why_not(self, graph: Graph, node: Node) -> str:
        """Return why the target cannot run `node`: the first rule that refuses it, or ""."""
        for rule in self.rules:
            if not rule.holds(graph, node):
                return rule.text
        return self.trial(graph, node)
