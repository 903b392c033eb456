"""A plan as a picture that any browser shows: one lane a device and one for copies, time to the right."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from hcomp.partition.dot import device_colours
from hcomp.partition.plan_text import bytes_text, sizes_text, time_text

Json = Mapping[str, Any]

WIDTH = 1000
LABEL = 110
LANE = 54
TOP = 56
BAR = 34


def render(plan: Json) -> str:
    """Return the SVG text of a plan; hovering a bar shows its region's nodes."""
    lanes = [d["name"] for d in plan["devices"]]
    if any(s["kind"] == "control" for s in plan["steps"]):
        lanes.append("control")
    if any(s["kind"] == "copy" for s in plan["steps"]):
        lanes.append("copies")
    total = max(plan["predicted_us"], 1e-3)
    height = TOP + LANE * len(lanes) + 40
    title = (
        f"{plan['graph']}: {len(plan['nodes'])} nodes, predicted {time_text(plan['predicted_us'])}{sizes_text(plan)}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="26" font-size="16">{escape(title)}</text>',
    ]
    for row, lane in enumerate(lanes):
        y = TOP + LANE * row
        parts.append(f'<text x="12" y="{y + BAR / 2 + 4}">{escape(lane)}</text>')
        parts.append(f'<line x1="{LABEL}" y1="{y + BAR + 6}" x2="{WIDTH - 12}" y2="{y + BAR + 6}" stroke="#cccccc"/>')
    parts += [_bar(plan, step, lanes, total) for step in plan["steps"]]
    parts += _scale(total, TOP + LANE * len(lanes))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(plan: Json, step: Json, lanes: list[str], total: float) -> str:
    lane = {"copy": "copies", "control": "control"}.get(step["kind"]) or step["device"]
    y = TOP + LANE * lanes.index(lane)
    scale = (WIDTH - LABEL - 12) / total
    x, width = (
        LABEL + step["start_us"] * scale,
        max((step["end_us"] - step["start_us"]) * scale, 1.5),
    )
    colour = device_colours(plan).get(step.get("device", ""), "#f4cccc" if lane == "copies" else "#eeeeee")
    label, detail = _texts(plan, step)
    text = ""
    if width > 7 * len(label):
        text = f'<text x="{x + 5:.1f}" y="{y + BAR / 2 + 4}">{escape(label)}</text>'
    return (
        f'<g><title>{escape(detail)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"'
        f' fill="{colour}" stroke="#666666" stroke-width="0.6"/>{text}</g>'
    )


def _texts(plan: Json, step: Json) -> tuple[str, str]:
    span = f"{time_text(step['start_us'])} to {time_text(step['end_us'])}"
    if step["kind"] == "copy":
        return step["value"], f"copy {step['value']} to {step['to']}, {bytes_text(step['bytes'])}, {span}"
    nodes = [n for n in plan["nodes"] if n["region"] == step["name"]]
    listed = "\n".join(f"{n['name']} ({n['operator']}) {time_text(n['us'])}" for n in nodes[:40])
    rest = f"\nand {len(nodes) - 40} more" if len(nodes) > 40 else ""
    return f"{step['name']}: {len(nodes)} nodes", f"{step['name']}, {span}\n{listed}{rest}"


def _scale(total: float, y: int) -> list[str]:
    marks = []
    for part in range(5):
        x = LABEL + (WIDTH - LABEL - 12) * part / 4
        anchor = "end" if part == 4 else "middle"
        marks.append(
            f'<text x="{x:.1f}" y="{y + 14}" text-anchor="{anchor}" fill="#666666">{time_text(total * part / 4)}</text>'
        )
    return marks
