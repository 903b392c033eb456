"""The text form of a plan: devices, steps with times, and how the nodes are spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
MAX_SIZES = 8
"""Sizes that a line shows."""


def render(plan: Json, indent: str = "") -> str:
    """Return a plan as text, bodies of control flow indented below their step."""
    lines = [
        f"{indent}plan of {plan['graph']!r}: {len(plan['nodes'])} nodes, objective {plan['objective']},"
        f" predicted {time_text(plan['predicted_us'])}{sizes_text(plan)}"
    ]
    for name, us in plan["single_device_us"].items():
        lines.append(f"{indent}  {name} alone: {time_text(us)}")
    for step in plan["steps"]:
        lines.append(f"{indent}  {_step(step)}")
        for name, body in step.get("bodies", {}).items():
            lines.append(f"{indent}    {name}:")
            lines.append(render(body, indent + "      "))
    spread = Counter((n["device"], n["runs_as"]) for n in plan["nodes"])
    for (device, kind), count in sorted(spread.items()):
        lines.append(f"{indent}  {count} node(s) on {device}, {kind}")
    return "\n".join(lines)


def _step(step: Json) -> str:
    span = f"{time_text(step['start_us']):>10} .. {time_text(step['end_us']):>10}"
    match step["kind"]:
        case "region":
            what = f"{step['name']} on {step['device']}, {step['nodes']} node(s), {step['executor']}"
        case "copy":
            what = f"copy {step['value']} from {step['from']} to {step['to']}, {bytes_text(step['bytes'])}"
        case _:
            what = f"{step['name']} control flow of {step['node']}"
    return f"{span}  {what}"


def sizes_text(plan: Json) -> str:
    """Return for which sizes of its free dimensions a plan's predictions hold; "" where it has none."""
    shown = [f"{name}={size}" for name, size in plan["sizes"].items()]
    more = f" and {len(shown) - MAX_SIZES} more" if len(shown) > MAX_SIZES else ""
    return f" for {', '.join(shown[:MAX_SIZES])}{more}" if shown else ""


def time_text(us: float) -> str:
    """Return a time in microseconds in its best unit."""
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms"


def bytes_text(size: int) -> str:
    """Return a size in its best unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"
