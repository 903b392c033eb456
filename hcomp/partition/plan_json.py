"""The JSON form of a plan (version 1): what is stored in artifacts and what tools read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hcomp.partition.plan import EXECUTORS, Control, Plan, Region, Step, Transfer

VERSION = 1

Json = dict[str, Any]


def plan_to_json(plan: Plan, values: Mapping[str, str] | None = None) -> Json:
    """Return a plan as plain data; times are in microseconds, sizes in bytes.

    `values` gives the names of the model's values and of the nodes that make them.
    """
    return {
        **({} if values is None else {"values": dict(values)}),
        "version": VERSION,
        "graph": plan.graph.name,
        "objective": plan.objective,
        "predicted_us": _us(plan.seconds),
        "single_device_us": {name: _us(s) for name, s in plan.singles.items()},
        "sizes": dict(plan.sizes),
        "devices": [{"name": d.name, "kind": d.kind, "memory": d.memory} for d in plan.devices],
        "steps": [_step(plan, step) for step in plan.steps],
        "nodes": [_node(plan, index) for index in range(len(plan.graph.nodes))],
        "edges": _edges(plan),
    }


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _step(plan: Plan, step: Step) -> Json:
    times = {"start_us": _us(step.start), "end_us": _us(step.end)}
    match step:
        case Region():
            bodies = {name: plan_to_json(body) for name, body in step.bodies.items()}
            return {
                "kind": "region", "name": step.name, "device": step.device, "executor": step.executor,
                "inputs": list(step.inputs), "outputs": list(step.outputs), "nodes": len(step.nodes),
                **({"bodies": bodies} if bodies else {}), **times,
            }  # fmt: skip
        case Transfer():
            return {
                "kind": "copy", "value": step.value, "from": step.source, "to": step.target,
                "bytes": step.bytes, **times,
            }  # fmt: skip
        case Control():
            bodies = {name: plan_to_json(body) for name, body in step.bodies.items()}
            label = plan.graph.nodes[step.node].label
            return {"kind": "control", "name": step.name, "node": label, "bodies": bodies, **times}


def _node(plan: Plan, index: int) -> Json:
    node, choice = plan.graph.nodes[index], plan.choices[index]
    return {
        "name": node.label,
        "operator": node.origin.op or node.op,
        "domain": node.origin.domain,
        "op": node.op,
        "outputs": {v.name: str(v.type) for v in node.outputs},
        "device": choice.device,
        "runs_as": EXECUTORS[choice.executor],
        "region": plan.region_of.get(index, ""),
        "reason": choice.reason,
        "us": _us(choice.seconds),
        "alternatives": [
            {
                "device": a.device,
                "us": None if a.seconds is None else _us(a.seconds),
                "refusal": a.refusal,
            }
            for a in choice.alternatives
        ],
    }


def _edges(plan: Plan) -> list[Json]:
    """Return the values that pass between steps: from, to (step names, "" is outside), bytes."""
    graph, region = plan.graph, plan.region_of
    maker = {v.name: region.get(i, "") for i, n in enumerate(graph.nodes) for v in n.outputs}
    maker.update((v.name, "input") for v in graph.inputs)
    copied = {(t.value, t.target): t for t in plan.transfers}
    found: dict[tuple[str, str, str], Json] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.used_inputs:
            source, target = maker.get(name), region.get(index, "")
            if source is not None and target and source != target:
                step = next((s for s in plan.regions if s.name == target), None)
                transfer = copied.get((name, step.memory)) if step else None
                found[source, target, name] = _edge(plan, source, target, name, transfer)
    for name in graph.outputs:
        if maker.get(name):
            transfer = copied.get((name, "host"))
            found[maker[name], "output", name] = _edge(plan, maker[name], "output", name, transfer)
    return list(found.values())


def _edge(plan: Plan, source: str, target: str, name: str, transfer: Transfer | None) -> Json:
    edge: Json = {"from": source, "to": target, "value": name, "type": str(plan.graph.types[name])}
    if transfer is not None:
        edge["copy_us"] = _us(transfer.end - transfer.start)
        edge["bytes"] = transfer.bytes
    return edge
