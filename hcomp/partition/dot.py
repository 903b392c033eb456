"""A plan as a Graphviz graph: regions as clusters in their device's colour, copies as labelled edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hcomp.partition.plan_text import bytes_text, time_text

Json = Mapping[str, Any]

COLOURS = ("#cfe2f3", "#d9ead3", "#fce5cd", "#ead1dc", "#fff2cc", "#d9d2e9")
"""One a device, in the plan's order; light, so that black text reads."""


def device_colours(plan: Json) -> dict[str, str]:
    """Return each device's colour."""
    return {d["name"]: COLOURS[i % len(COLOURS)] for i, d in enumerate(plan["devices"])}


def render(plan: Json) -> str:
    """Return the DOT text of a plan; nodes carry the user's names."""
    lines = [
        "digraph plan {",
        "  rankdir=TB;",
        '  node [shape=box, style=filled, fillcolor=white, fontname="sans-serif"];',
    ]
    lines += _graph(plan, "")
    return "\n".join([*lines, "}"]) + "\n"


def _graph(plan: Json, prefix: str) -> list[str]:
    colours = device_colours(plan)
    lines: list[str] = []
    for step in plan["steps"]:
        if step["kind"] == "copy":
            continue
        name = prefix + step["name"]
        colour = colours.get(step.get("device", ""), "#eeeeee")
        title = f"{step['name']} on {step['device']}" if "device" in step else f"{step['name']}: {step['node']}"
        span = f"{time_text(step['start_us'])} to {time_text(step['end_us'])}"
        lines += [
            f"  subgraph {_quote('cluster_' + name)} {{",
            f"    label={_quote(f'{title}, {span}')}; style=filled; color={_quote(colour)};",
        ]
        for index, node in enumerate(plan["nodes"]):
            if node["region"] == step["name"]:
                lines.append(f"    {_quote(f'{prefix}n{index}')} [label={_quote(_label(node))}];")
        for body_name, body in step.get("bodies", {}).items():
            lines += _graph(body, f"{name}.{body_name}.")
        lines.append("  }")
    return lines + _edges(plan, prefix)


def _label(node: Json) -> str:
    return f"{node['name']}\n{node['operator']}, {time_text(node['us'])}"


def _edges(plan: Json, prefix: str) -> list[str]:
    """Draw values that pass between steps, from the node that makes each to the nodes that read it."""
    maker = {v: i for i, node in enumerate(plan["nodes"]) for v in node["outputs"]}
    lines = []
    for edge in plan["edges"]:
        source = f"{prefix}n{maker[edge['value']]}" if edge["value"] in maker else f"{prefix}in.{edge['value']}"
        first = next((i for i, n in enumerate(plan["nodes"]) if n["region"] == edge["to"]), None)
        target = f"{prefix}out" if first is None else f"{prefix}n{first}"
        label = edge["type"]
        if "bytes" in edge:
            label = f"copy {bytes_text(edge['bytes'])}, {time_text(edge['copy_us'])}\n{label}"
        style = ", style=bold, color=red" if "bytes" in edge else ""
        lines.append(f"  {_quote(source)} -> {_quote(target)} [label={_quote(label)}{style}];")
    return lines


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
