"""Computes once what a graph computes several times, and keeps equal constants once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.ir.graph import Constant, Graph, Node
from hcomp.ir.ops import OPS, host
from hcomp.ir.printer import attribute_text
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.passes.base import Pass

RANDOM = frozenset(name for name, row in OPS.items() if row.host_only == host.RANDOM)
"""Two draws are not one draw."""


def merge_duplicates(graph: Graph) -> Graph:
    """Return `graph` with equal nodes merged: same operator, inputs and attributes.

    Nodes with subgraphs and extern nodes are left alone: they may draw random numbers inside.
    """
    seen: dict[Editor, dict[Any, tuple[str, ...]]] = {}

    def rule(node: Node, edit: Editor) -> Sequence[str] | None:
        if node.graphs or node.payload or node.op in RANDOM or node.attrs.get("op") in RANDOM:
            return None
        own = seen.setdefault(edit, {})  # one table a graph
        attrs = tuple((k, attribute_text(v)) for k, v in node.attrs.items())
        key = (node.op, node.inputs, attrs, len(node.outputs))
        names = tuple(v.name for v in node.outputs)
        found = own.setdefault(key, names)
        return None if found == names else found

    return rewrite(_merge_constants(graph), rule)


def _merge_constants(graph: Graph) -> Graph:
    """Return `graph` with constants of equal contents merged, in each graph by itself."""
    first: dict[Any, str] = {}
    merged: dict[str, str] = {}
    candidates: dict[Any, list[Constant]] = {}
    for constant in graph.constants:
        candidates.setdefault(_sample(constant.array), []).append(constant)
    for group in candidates.values():
        # Hashing hundreds of megabytes takes a second: only what could be equal is hashed.
        for constant in group if len(group) > 1 else ():
            name = first.setdefault(constant.digest, constant.name)
            if name != constant.name:
                merged[constant.name] = name
    nodes = tuple(_renamed(node, merged) for node in graph.nodes)
    outputs = tuple(merged.get(name, name) for name in graph.outputs)
    if outputs == graph.outputs and all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    constants = tuple(c for c in graph.constants if c.name not in merged)
    return replace(graph, constants=constants, nodes=nodes, outputs=outputs)


def _renamed(node: Node, merged: dict[str, str]) -> Node:
    graphs = {k: _merge_constants(g) for k, g in node.graphs.items()}
    inputs = tuple(merged.get(name, name) for name in node.inputs)
    if inputs == node.inputs and all(graphs[k] is g for k, g in node.graphs.items()):
        return node
    return replace(node, inputs=inputs, graphs=graphs)


def _sample(array: NDArray[np.generic]) -> tuple[Any, ...]:
    """Return what equal arrays share and most others do not: type, shape, a few elements."""
    flat = array.reshape(-1)
    picked = flat[:: max(1, flat.size // 16)]
    contents = tuple(picked.tolist()) if array.dtype.kind in "OUST" else picked.tobytes()
    return array.dtype.name, array.shape, contents


MERGE_DUPLICATES = Pass("merge_duplicates", merge_duplicates)
