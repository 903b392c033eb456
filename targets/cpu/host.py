"""Nodes that run on the processor without being compiled: their numpy reference, in host memory."""

from __future__ import annotations

from hcomp.codegen.reference_region import emit_reference
from hcomp.ir.graph import Graph
from hcomp.targets.base import EmittedRegion


def emit_host(graph: Graph) -> EmittedRegion:
    """Return a region of host nodes; it shares the processor's memory, so nothing is copied."""
    return emit_reference(graph)
