"""Which loops are one region: native code repeats their bodies, without the runtime in between."""

from __future__ import annotations

from hcomp.dims import is_symbol, symbols_of
from hcomp.ir.graph import Graph, Node
from hcomp.ir.needs import axis_needs
from hcomp.ir.types import Shape, TensorType, Type
from hcomp.partition.plan import VM, Choice, Plan, Region


def compiled_loop(graph: Graph, node: Node, body: Plan) -> Choice | None:
    """Return the choice for a loop of `graph` that can be one region, None for one that the runtime runs.

    Args:
        body: the plan of its body; a loop within stays a region of its own, which the runtime calls.
    """
    if len(body.steps) != 1 or not isinstance(region := body.steps[0], Region) or region.executor != VM:
        return None
    if region.bodies or not _types_stay(graph, node) or axis_needs(body.graph):
        return None
    reason = f"all of its body runs on {region.device}, so its code repeats it"
    return Choice(region.device, VM, reason, body.seconds)


def _types_stay(graph: Graph, node: Node) -> bool:
    """Say whether what goes round has one type in all trips, of sizes that the loop's inputs have."""
    body, carried = node.graphs["body"], node.attrs["carried"]
    assert isinstance(carried, int)
    given = [graph.types[name] for name in node.inputs[2:]]
    taken = [v.type for v in body.inputs[2:]]
    states = [body.types[name] for name in body.outputs[1 : 1 + carried]]
    if given != taken or states != taken[:carried]:
        return False
    controls = [graph.types[name] for name in node.inputs[:2] if name]
    controls += [body.inputs[1].type, body.types[body.outputs[0]]]
    if not all(isinstance(t, TensorType) and t.shape is not None and set(t.shape) <= {1} for t in controls):
        return False
    known = {str(d) for t in given for d in _shape(t) if is_symbol(d)}
    return _has_ranks(body) and _symbols(body) <= known


def _has_ranks(body: Graph) -> bool:
    return all(isinstance(t, TensorType) and t.shape is not None for t in body.types.values())


def _symbols(body: Graph) -> set[str]:
    found = {s for t in body.types.values() for s in symbols_of(_shape(t))}
    return found.union(*(symbols_of(tuple(node.attrs.values())) for node in body.nodes))


def _shape(value: Type) -> Shape:
    return value.shape or () if isinstance(value, TensorType) else ()
