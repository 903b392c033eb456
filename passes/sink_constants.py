"""Gives subgraphs their own constants instead of handing them in, so that rules see the contents.

The contents are shared: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hcomp.ir.graph import Constant, Graph, Node
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.passes.base import Pass


def sink_constants(graph: Graph) -> Graph:
    """Return `graph` with captured constants defined inside the subgraphs that capture them."""
    return rewrite(graph, _rule)


def _rule(node: Node, edit: Editor) -> Sequence[str] | None:
    if not node.graphs:
        return None
    carried = node.attrs.get("carried", 0)
    own = 2 + carried if node.op == "loop" and isinstance(carried, int) else 1
    values = {i: edit.constant_value(node.inputs[i]) for i in range(own, len(node.inputs))}
    sunk = {i: array for i, array in values.items() if array is not None}
    if not sunk:
        return None
    offset = 0 if node.op == "loop" else 1  # the condition of an `if` is not handed in
    graphs = {}
    for name, body in node.graphs.items():
        constants = tuple(Constant(body.inputs[i - offset].name, a) for i, a in sunk.items())
        kept = tuple(v for i, v in enumerate(body.inputs, start=offset) if i not in sunk)
        graphs[name] = replace(body, inputs=kept, constants=(*body.constants, *constants))
    inputs = tuple(name for i, name in enumerate(node.inputs) if i not in sunk)
    return edit.put(replace(node, inputs=inputs, graphs=graphs))


SINK_CONSTANTS = Pass("sink_constants", sink_constants)
