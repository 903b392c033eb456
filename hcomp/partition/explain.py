"""Why a node runs where it does: every device with its time, or the rule that refuses the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any


def matches(node: Mapping[str, Any], name: str) -> bool:
    """Say whether `name` is the node's name, a pattern for it, or one of its outputs."""
    return node["name"] == name or name in node["outputs"] or fnmatchcase(node["name"], name)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the existing name closest to `name`, or ""."""
    found = get_close_matches(name, list(names), 1, 0.5)
    return found[0] if found else ""


def render(node: Mapping[str, Any]) -> str:
    """Return the explanation of one node's entry in a plan."""
    operator = f"{node['domain']}::{node['operator']}" if node["domain"] else node["operator"]
    lines = [f"{node['name']} ({operator})"]
    lines += [f"  makes {name}: {text}" for name, text in node["outputs"].items()]
    lines.append(f"  runs on {node['device']} ({node['runs_as']}), region {node['region']}")
    lines.append(f"  because: {node['reason']}")
    for other in node["alternatives"]:
        if other["refusal"]:
            lines.append(f"  {other['device']}: cannot, {other['refusal']}")
        else:
            lines.append(f"  {other['device']}: {other['us']:.1f} us predicted")
    return "\n".join(lines)
