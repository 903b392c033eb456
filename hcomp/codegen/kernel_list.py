"""The list of a region's kernels in its artifact, for `hcomp profile --kernels`: a small JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel_work import KernelWork, kernel_work

KERNELS = "kernels.json"
RULE = "hcomp.rule"
"""Attribute of a scheduled function: the name of the rule that scheduled it."""
GIVEN = "given"
"""The rule of functions that came as loops."""

Calls = Sequence[tuple[str, tuple[str, ...]]]


def works_of(module: Any) -> dict[str, KernelWork]:
    """Return the work of every TIR function of a fused module, before it is scheduled."""
    return {str(v.name_hint): kernel_work(f) for v, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}


def rules_of(module: Any) -> dict[str, str]:
    """Return the rule of every TIR function of a scheduled module."""
    functions = {str(v.name_hint): f for v, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    return {name: str((f.attrs or {}).get(RULE, GIVEN)) for name, f in functions.items()}


def kernel_list(works: Mapping[str, KernelWork], rules: Mapping[str, str], calls: Calls) -> bytes:
    """Return the list: each kernel's rule, work, and the nodes of its calls, in order of first call."""
    nodes: dict[str, dict[str, None]] = {}
    for name, labels in calls:
        nodes.setdefault(name, {}).update(dict.fromkeys(labels))
    rows = {
        name: {
            "rule": rules.get(name, GIVEN),
            "nodes": list(nodes[name]),
            "parameters": [
                own if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
                for shape, own in zip(work.parameters, work.names, strict=True)
            ],
            "operations": None if work.operations is None else str(work.operations),
            "bytes": None if work.bytes is None else str(work.bytes),
        }
        for name in nodes
        if (work := works.get(name)) is not None
    }
    return (json.dumps({"kernels": rows}, separators=(",", ":")) + "\n").encode()
