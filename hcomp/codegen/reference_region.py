"""A region that the runtime interprets with numpy: the program file, and no kernels."""

from __future__ import annotations

import json

from hcomp.ir.flat import program_constants, to_program
from hcomp.ir.graph import Graph
from hcomp.targets.base import EmittedRegion

PROGRAM = "program.json"


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
        # A numpy operator may return its input or a view of it.
        fresh_outputs=(False,) * len(graph.outputs),
    )
