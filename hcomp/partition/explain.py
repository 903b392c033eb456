"""Why a node runs where it does: every device with its time, or the rule that refuses the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from hcomp.errors import UsageError
from hcomp.partition.plan_text import sizes_text, time_text

Json = Mapping[str, Any]


def find(nodes: Iterable[Json], values: Mapping[str, str], name: str) -> list[Json]:
    """Return the nodes that `name` means: a node's name, a pattern, or a value's name.

    `values` gives the model's values and the nodes that make them; nodes of hcomp's own graph are
    found by the values of that graph too.

    Raises:
        UsageError: there are none; says whether the model has such a node or value.
    """
    every = list(nodes)
    for wanted in (name, values.get(name)):
        found = [n for n in every if wanted is not None and (n["name"] == wanted or fnmatchcase(n["name"], wanted))]
        if found:
            return found
    if found := [node for node in every if name in node["outputs"]]:
        return found
    maker = values.get(name, name)
    if maker in values.values():
        what = f"the node {name!r}" if maker == name else f"the node {maker!r}, which makes {name!r},"
        raise UsageError(f"{what} is not in the plan: it is a constant now, part of another node, or not read")
    near = nearest(name, [*(node["name"] for node in every), *values])
    raise UsageError(f"the plan has no node {name!r}{f'; did you mean {near!r}?' if near else ''}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the existing name closest to `name`, or ""."""
    found = get_close_matches(name, list(names), 1, 0.5)
    return found[0] if found else ""


def render(node: Json, plan: Json) -> str:
    """Return the explanation of one node's entry in a plan."""
    operator = f"{node['domain']}::{node['operator']}" if node["domain"] else node["operator"]
    made = [value for value, maker in plan.get("values", {}).items() if maker == node["name"] != value]
    lines = [f"{node['name']} ({operator}){', which makes ' + ', '.join(made) if made else ''}"]
    # One node of the model can become several, whose values have names that the user never gave.
    lines += [f"  its {node['op']} gives {name}: {text}" for name, text in node["outputs"].items()]
    lines.append(f"  runs on {node['device']} ({node['runs_as']}), region {node['region']}")
    lines.append(f"  because: {node['reason']}")
    for other in node["alternatives"]:
        if other["refusal"]:
            lines.append(f"  {other['device']}: cannot, {other['refusal']}")
        else:
            lines.append(f"  {other['device']}: {time_text(other['us'])} predicted{sizes_text(plan)}")
    return "\n".join(lines)
