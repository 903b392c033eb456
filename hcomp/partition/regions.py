"""Growing regions: nodes of one device and executor, as few calls as convexity allows.

Node n gets the stage max over its producers p of stage(p), plus one where p runs elsewhere. Nodes
of equal (device, executor, stage) form a region. An edge between two regions always leads to a
higher stage, so the graph of regions is acyclic and every region is convex.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hcomp.ir.graph import Graph, Value
from hcomp.ir.liveness import dependencies
from hcomp.ir.ops import CONTROL as CONTROL_OPS
from hcomp.partition.plan import Choice, Control, Plan, Region


def group_nodes(graph: Graph, choices: Sequence[Choice]) -> list[tuple[int, ...]]:
    """Return the regions as tuples of node indices, in an order in which they can run."""
    groups: dict[tuple[object, ...], list[int]] = {}
    stage: list[int] = []
    for index, producers in enumerate(dependencies(graph)):
        key = _key(graph, choices, index)
        level = 0
        for producer in producers:
            same = _key(graph, choices, producer) == key
            level = max(level, stage[producer] + (0 if same else 1))
        stage.append(level)
        groups.setdefault((level, *key), []).append(index)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[1][0]))
    return [tuple(nodes) for _, nodes in ordered]


def _key(graph: Graph, choices: Sequence[Choice], index: int) -> tuple[object, ...]:
    choice = choices[index]
    # Every control node is a step of its own.
    alone = index if graph.nodes[index].op in CONTROL_OPS else -1
    return (choice.device, choice.executor, alone)


def boundary(
    graph: Graph, nodes: Sequence[int], readers: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values that enter a region (constants left out) and those that leave it."""
    made = {v.name for i in nodes for v in graph.nodes[i].outputs}
    constants = graph.constant
    inputs: dict[str, None] = {}
    for i in nodes:
        for name in graph.nodes[i].used_inputs:
            if name not in made and name not in constants:
                inputs[name] = None
    inside = set(nodes)
    wanted = set(graph.outputs)
    outputs = [
        v.name
        for i in nodes
        for v in graph.nodes[i].outputs
        if v.name in wanted or any(r not in inside for r in readers.get(v.name, ()))
    ]
    return tuple(inputs), tuple(outputs)


def node_readers(graph: Graph) -> Mapping[str, tuple[int, ...]]:
    """Return the indices of the nodes that read each value."""
    found: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.used_inputs:
            found.setdefault(name, []).append(index)
    return {name: tuple(indices) for name, indices in found.items()}


def region_graph(graph: Graph, nodes: Sequence[int], name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Return a region as a graph of its own."""
    chosen = tuple(graph.nodes[i] for i in nodes)
    read = {n for node in chosen for n in node.used_inputs}
    return Graph(
        name,
        tuple(Value(n, graph.types[n]) for n in inputs),
        tuple(c for c in graph.constants if c.name in read),
        chosen,
        tuple(outputs),
    )


def planned_graphs(plan: Plan, device: str, executor: str) -> list[Graph]:
    """Return the graphs of a device's regions that `executor` runs, those of bodies included."""
    found = []
    for step in plan.steps:
        if isinstance(step, Region) and (step.device, step.executor) == (device, executor):
            found.append(region_graph(plan.graph, step.nodes, step.name, step.inputs, step.outputs))
        elif isinstance(step, Control):
            for body in step.bodies.values():
                found += planned_graphs(body, device, executor)
    return found
