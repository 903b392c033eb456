"""Makes captured values of those that a loop carries and never changes.

Exporters of `while` loops carry everything that the body reads, weights too. As a captured value a constant
can go into the body (`sink_constants`), and what the loop hands on is what it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hcomp.ir.graph import Graph, Node
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.passes.base import Pass


def loop_invariants(graph: Graph) -> Graph:
    """Return `graph` with loops that carry only what their body changes."""
    return rewrite(graph, _rule)


def _rule(node: Node, edit: Editor) -> Sequence[str] | None:
    if node.op != "loop":
        return None
    body, carried = node.graphs["body"], node.attrs["carried"]
    assert isinstance(carried, int)
    fixed = [i for i in range(carried) if body.outputs[1 + i] == body.inputs[2 + i].name]
    if not fixed:
        return None
    kept = [i for i in range(carried) if i not in fixed]
    # Trip count (counter) and condition, what is carried, what is captured: the order of a loop's inputs.
    places = [0, 1, *(2 + i for i in kept), *range(2 + carried, len(node.inputs)), *(2 + i for i in fixed)]
    results = [*kept, *range(carried, len(node.outputs))]
    new_body = replace(
        body,
        inputs=tuple(body.inputs[place] for place in places),
        outputs=(body.outputs[0], *(body.outputs[1 + i] for i in results)),
    )
    made = replace(
        node,
        inputs=tuple(node.inputs[place] for place in places),
        outputs=tuple(node.outputs[i] for i in results),
        attrs={**node.attrs, "carried": len(kept)},
        graphs={"body": new_body},
    )
    found = dict(zip(results, edit.put(made), strict=True))
    return [found[i] if i in found else node.inputs[2 + i] for i in range(len(node.outputs))]


LOOP_INVARIANTS = Pass("loop_invariants", loop_invariants)
