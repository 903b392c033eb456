"""From a graph to a plan: devices, pins, regions, copies, and when each step runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hcomp.dims import is_symbol, symbols_of
from hcomp.errors import PartitionError
from hcomp.ir.graph import Graph
from hcomp.ir.ops import CONTROL as CONTROL_OPS
from hcomp.ir.types import TensorType, type_symbols
from hcomp.options import DEFAULT_SIZE, refuse_sizes
from hcomp.partition.assign import HOST_DEVICE, check_devices, choose
from hcomp.partition.compiled_loops import compiled_loop
from hcomp.partition.pins import Pin, check_pins
from hcomp.partition.plan import (
    CONTROL,
    EXTERN,
    HOST,
    Choice,
    Control,
    Device,
    Plan,
    Region,
    Step,
    Transfer,
)
from hcomp.partition.regions import boundary, group_nodes, node_readers
from hcomp.targets.base import Target


@dataclass(frozen=True)
class Options:
    """What the planner is asked for; `sizes` gives symbols a size for the costs."""

    devices: tuple[str, ...] = (HOST_DEVICE,)
    objective: str = "latency"
    pins: tuple[Pin, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


def make_plan(graph: Graph, targets: Mapping[str, Target], options: Options) -> Plan:
    """Return the plan of a graph for the devices `targets` (by name).

    Raises:
        PartitionError: no device, or a pin that matches nothing.
        UsageError: a size is given for a name that no dimension of the model has.
    """
    check_devices(options.devices)
    check_pins((graph,), options.pins)
    check_sizes(graph, options.sizes)
    if options.objective != "latency":
        raise PartitionError(f"the objective {options.objective!r} is not one that this version plans for: latency")
    best: Plan | None = None
    singles: dict[str, float] = {}
    for name in options.devices:
        alone = _plan(graph, targets, name, (), options)
        singles[name] = alone.seconds
        if best is None or alone.seconds < best.seconds:
            best, default = alone, name
    assert best is not None
    if options.pins:
        best = _plan(graph, targets, default, options.pins, options)
    return Plan(best.graph, best.devices, best.objective, best.sizes, best.choices, best.steps, singles)


def _plan(graph: Graph, targets: Mapping[str, Target], default: str, pins: Sequence[Pin], options: Options) -> Plan:
    sizes = _sizes(graph, options.sizes)
    choices = choose(graph, targets, default, pins, sizes)
    bodies = {
        index: {name: _plan(body, targets, default, pins, options) for name, body in node.graphs.items()}
        for index, node in enumerate(graph.nodes)
        if node.op in CONTROL_OPS
    }
    choices = tuple(
        (node.op == "loop" and compiled_loop(graph, node, bodies[index]["body"])) or choices[index]
        for index, node in enumerate(graph.nodes)
    )
    steps = _Scheduler(graph, choices, targets, sizes, bodies).steps()
    devices = tuple(Device(n, t.kind, t.memory) for n, t in targets.items())
    if HOST_DEVICE not in targets:
        devices += (Device(HOST_DEVICE, "cpu", HOST),)  # it runs what the others refuse
    return Plan(graph, devices, options.objective, sizes, choices, tuple(steps), {})


def check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Refuse sizes of names that the model does not have, misspelt ones for instance.

    Raises:
        UsageError: there is one; names the free sizes of the inputs.
    """
    unknown = sizes.keys() - _symbols(graph)
    if unknown:
        refuse_sizes(unknown, set().union(*(type_symbols(v.type) for v in graph.inputs)))


def _sizes(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    return {name: given.get(name, DEFAULT_SIZE) for name in sorted(_symbols(graph, bodies=False))}


def _symbols(graph: Graph, *, bodies: bool = True) -> set[str]:
    symbols: set[str] = set()
    for value_type in graph.types.values():
        symbols |= type_symbols(value_type)
    for node in graph.nodes:
        symbols |= symbols_of(tuple(node.attrs.values()))
        if bodies:
            symbols.update(*(_symbols(body) for body in node.graphs.values()))
    return symbols


class _Scheduler:
    """Places groups of nodes on a time line, a worker a device and one for copies."""

    def __init__(
        self,
        graph: Graph,
        choices: Sequence[Choice],
        targets: Mapping[str, Target],
        sizes: dict[str, int],
        bodies: Mapping[int, Mapping[str, Plan]],
    ) -> None:
        self.graph = graph
        self.choices = choices
        self.targets = targets
        self.sizes = sizes
        self.bodies = bodies
        self.made: list[Step] = []
        self.ready: dict[tuple[str, str], float] = {(v.name, HOST): 0.0 for v in graph.inputs}
        self.home: dict[str, str] = {v.name: HOST for v in graph.inputs}
        self.busy: dict[str, float] = {}

    def steps(self) -> list[Step]:
        """Return all steps in the order in which they run."""
        groups = group_nodes(self.graph, self.choices)
        extra = self._symbol_sources(groups)
        readers = node_readers(self.graph)
        for number, nodes in enumerate(groups):
            inputs, outputs = boundary(self.graph, nodes, readers)
            inside = {v.name for i in nodes for v in self.graph.nodes[i].outputs}
            outputs += tuple(n for n in extra if n in inside and n not in outputs)
            if outputs:
                self._add(f"r{number}", nodes, inputs, outputs)
        for name in self.graph.outputs:
            if name in self.home:
                self._bring(name, HOST)
        return self.made

    def _add(self, name: str, nodes: tuple[int, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        choice = self.choices[nodes[0]]
        memory = HOST
        if choice.executor not in (CONTROL,) and choice.device in self.targets:
            memory = self.targets[choice.device].memory
        start = max((self._bring(i, memory) for i in inputs), default=0.0)
        start = max(start, self.busy.get(choice.device, 0.0))
        if choice.executor == CONTROL:
            bodies = self.bodies[nodes[0]]
            end = start + max((b.seconds for b in bodies.values()), default=0.0)
            self.made.append(Control(name, nodes[0], bodies, start, end))
        else:
            end = start + self._seconds(choice, nodes)
            self.made.append(
                Region(
                    name, choice.device, memory, choice.executor, nodes, inputs, outputs, start, end,
                    self.bodies.get(nodes[0], {}),
                )
            )  # fmt: skip
        self.busy[choice.device] = end
        for output in outputs:
            self.home[output] = memory
            self.ready[output, memory] = end

    def _seconds(self, choice: Choice, nodes: tuple[int, ...]) -> float:
        """Return the time of a region: as one group where the target runs it, else node by node."""
        if choice.executor == EXTERN or not any(a.seconds is not None for a in choice.alternatives):
            return sum(self.choices[i].seconds for i in nodes)
        target = self.targets.get(choice.device)
        if target is None or target.executor != choice.executor:
            return sum(self.choices[i].seconds for i in nodes)
        return target.cost(self.graph, [self.graph.nodes[i] for i in nodes], self.sizes)

    def _bring(self, value: str, memory: str) -> float:
        """Return when `value` is in `memory`, adding the copies that it takes."""
        if (value, memory) in self.ready:
            return self.ready[value, memory]
        source = self.home[value]
        if source != HOST and memory != HOST:
            self._bring(value, HOST)  # devices have no links among themselves here
            source = HOST
        size = self._bytes(value)
        start = max(self.ready[value, source], self.busy.get("copies", 0.0))
        end = start + self._copy_seconds(source, memory, size)
        self.busy["copies"] = end
        self.ready[value, memory] = end
        self.made.append(Transfer(value, source, memory, size, start, end))
        return end

    def _bytes(self, value: str) -> int:
        value_type = self.graph.types[value]
        return value_type.bytes(self.sizes) if isinstance(value_type, TensorType) else 0

    def _copy_seconds(self, source: str, memory: str, size: int) -> float:
        other = memory if source == HOST else source
        target = next(t for t in self.targets.values() if t.memory == other)
        return target.link.seconds(size)

    def _symbol_sources(self, groups: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        """Return the values that must leave their region because a later one needs a size of theirs."""
        owner = {i: g for g, nodes in enumerate(groups) for i in nodes}
        source: dict[str, tuple[str, int]] = {}
        for index, node in enumerate(self.graph.nodes):
            for value in node.outputs:
                for dim in _plain_dims(value.type):
                    source.setdefault(dim, (value.name, owner[index]))
        given = {d for v in self.graph.inputs for d in _plain_dims(v.type)}
        needed: dict[str, None] = {}
        for number, nodes in enumerate(groups):
            for name in used_symbols(self.graph, nodes) - given:
                if name in source and source[name][1] != number:
                    needed[source[name][0]] = None
        return tuple(needed)


def used_symbols(graph: Graph, nodes: Sequence[int]) -> set[str]:
    """Return the symbols that a region's types and attributes mention."""
    found: set[str] = set()
    for index in nodes:
        node = graph.nodes[index]
        found |= symbols_of(tuple(node.attrs.values()))
        for value in node.outputs:
            found |= type_symbols(value.type)
        for name in node.used_inputs:
            found |= type_symbols(graph.types[name])
    return found


def _plain_dims(value_type: object) -> list[str]:
    shape = value_type.shape if isinstance(value_type, TensorType) else None
    return [str(d) for d in shape or () if is_symbol(d)]
