"""How two plans differ: predicted time, nodes that moved, nodes that came or went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hcomp.partition.plan_text import sizes_text, time_text

Json = Mapping[str, Any]


def diff_plans(before: Json, after: Json) -> str:
    """Return the differences as lines of text, or "" where the plans place everything alike."""
    lines: list[str] = []
    if before["sizes"] != after["sizes"]:
        was, now = (sizes_text(plan).removeprefix(" for ") or "none" for plan in (before, after))
        lines.append(f"sizes that predictions are for: {was} -> {now}")
    a, b = before["predicted_us"], after["predicted_us"]
    if a != b:
        change = f" ({100 * (b - a) / a:+.1f} %)" if a else ""
        lines.append(f"predicted: {time_text(a)} -> {time_text(b)}{change}")
    old, new = _by_name(before), _by_name(after)
    for name in sorted(old.keys() & new.keys()):
        was, now = _place(old[name]), _place(new[name])
        if was != now:
            lines.append(f"{name}: {was} -> {now}")
    lines += [f"{name}: gone (was on {_place(old[name])})" for name in sorted(old.keys() - new.keys())]
    lines += [f"{name}: new on {_place(new[name])}" for name in sorted(new.keys() - old.keys())]
    return "\n".join(lines)


def _by_name(plan: Json) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for node in plan["nodes"]:
        # One source node may become several: the first output tells them apart.
        found[f"{node['name']} [{node['op']} {next(iter(node['outputs']), '')}]"] = node
    for step in plan["steps"]:
        for body in step.get("bodies", {}).values():
            found.update(_by_name(body))
    return found


def _place(node: Json) -> str:
    return f"{node['device']} ({node['runs_as']})"
