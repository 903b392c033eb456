"""A plan as users meet it: read from its JSON form, so a saved artifact answers as a fresh one does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hcomp.partition import dot, explain, plan_text, svg
from hcomp.partition.diff import diff_plans

Json = Mapping[str, Any]


class PlanReport:
    """Reads the JSON form of a plan; every answer names nodes in the user's words."""

    def __init__(self, plan: Json) -> None:
        self.json = plan

    def to_json(self) -> Json:
        """Return the plan as plain data."""
        return self.json

    def to_text(self) -> str:
        """Return the plan as text: steps with their times, placement by device."""
        return plan_text.render(self.json)

    def to_dot(self) -> str:
        """Return the plan as a Graphviz graph: devices coloured, regions as clusters, copies labelled."""
        return dot.render(self.json)

    def to_svg(self) -> str:
        """Return a picture of the plan: a time line for each device and for the copies."""
        return svg.render(self.json)

    def explain(self, name: str) -> str:
        """Return why the nodes that `name` means run where they do; see `find`."""
        return "\n".join(explain.render(node, self.json) for node in self.find(name))

    def find(self, name: str) -> list[Json]:
        """Return the entries of the nodes that `name` means: a node, a pattern, or a value that it makes.

        Raises:
            UsageError: there are none.
        """
        return explain.find(self.nodes(), self.json.get("values", {}), name)

    def diff(self, other: PlanReport) -> str:
        """Return how `other` differs from this plan, as lines; empty where it does not."""
        return diff_plans(self.json, other.json)

    def nodes(self) -> Iterator[Json]:
        """Yield every node's entry, those of bodies included."""
        yield from _nodes(self.json)

    def summary(self) -> dict[str, Any]:
        """Return counts and lists for reports and checks."""
        nodes = list(self.nodes())
        extern = [n for n in nodes if n["runs_as"] == "ONNX Runtime"]
        host = [n for n in nodes if n["runs_as"] == "numpy" and _on_host(self.json, n)]
        total = sum(n["us"] for n in nodes) or 1.0
        steps = list(_steps(self.json))
        return {
            "nodes": len(nodes),
            "regions": sum(s["kind"] == "region" for s in steps),
            "copies": sum(s["kind"] == "copy" for s in steps),
            "devices": [d["name"] for d in self.json["devices"]],
            "predicted_us": self.json["predicted_us"],
            "sizes": self.json["sizes"],
            "extern_nodes": [_listed(n) for n in extern],
            "extern_share": sum(n["us"] for n in extern) / total,
            "host_nodes": [_listed(n) for n in host],
            "host_share": sum(n["us"] for n in host) / total,
        }


def _on_host(plan: Json, node: Json) -> bool:
    memory = {d["name"]: d["memory"] for d in plan["devices"]}
    found: str = memory.get(node["device"], "host")
    return found == "host"


def _listed(node: Json) -> dict[str, str]:
    operator = f"{node['domain']}::{node['operator']}" if node["domain"] else node["operator"]
    return {"name": node["name"], "operator": operator, "reason": node["reason"]}


def _nodes(plan: Json) -> Iterator[Json]:
    yield from plan["nodes"]
    for body in _bodies(plan):
        yield from _nodes(body)


def _steps(plan: Json) -> Iterator[Json]:
    yield from plan["steps"]
    for body in _bodies(plan):
        yield from _steps(body)


def _bodies(plan: Json) -> Iterator[Json]:
    for step in plan["steps"]:
        yield from step.get("bodies", {}).values()
