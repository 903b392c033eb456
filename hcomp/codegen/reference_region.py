"""A region that the runtime interprets with numpy: the program file, and no kernels."""

from __future__ import annotations

import json

from hcomp.ir.flat import program_constants, to_program
from hcomp.ir.graph import Graph
from hcomp.targets.base import EmittedRegion

PROGRAM = "program.json"

_ALWAYS_NEW = frozenset(["map_labels", "zip_map"])
"""Operators that return neither an input nor a part of one."""


def emit_reference(graph: Graph) -> EmittedRegion:
    """Return a region for the `reference` executor; its constants are arguments like any other."""
    program = to_program(graph)
    text = json.dumps(program, sort_keys=True, separators=(",", ":"))
    return EmittedRegion(
        executor="reference",
        files={PROGRAM: text.encode()},
        roles={"program": PROGRAM},
        constants=tuple(program_constants(graph).items()),
        symbols=tuple(program["symbols"]),
        fresh_outputs=tuple(_is_fresh(graph, name) for name in graph.outputs),
    )


def _is_fresh(graph: Graph, name: str) -> bool:
    """Say whether an output is nobody else's: a numpy operator may return its input or a view of it."""
    made = [n.op for n in graph.nodes for v in n.outputs if v.name == name]
    return bool(made) and made[0] in _ALWAYS_NEW and not graph.users.get(name) and graph.outputs.count(name) == 1
