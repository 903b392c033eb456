"""If: one branch where the condition is known, else two closed subgraphs.

Scripted models squeeze an axis only if its size is 1, so that the rank of all that follows depends
on a size. What follows such an `If` is converted once in each branch, where the rank is known:
with an unknown rank it would run node by node on the host. A branch in which it makes no sense (a
recurrent layer gets four dimensions) can only fail, so where the condition is about sizes the model
becomes its other branch, which then requires these sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from onnx import GraphProto

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_graph import Fact, Pending, Scope, convert_body, convert_nodes, convert_subgraph
from hcomp.capture.onnx_ops.control import close, join
from hcomp.capture.order import names_read
from hcomp.dims import Dim
from hcomp.errors import CaptureError
from hcomp.ir.types import TensorType, Type

MAX_FORKS = 3
"""So deep may branches that hold what follows them be nested: each level doubles what follows."""

Branches = Mapping[bool, GraphProto]
Converted = dict[bool, tuple[Scope, list[str]]]


def _if(c: NodeContext) -> Sequence[str]:
    branches: Branches = {True: c.required("then_branch"), False: c.required("else_branch")}
    condition = c.const(0)
    if condition is not None and condition.size == 1:
        return _inline(c, branches[bool(condition.reshape(()))])
    ways = {way: convert_subgraph(c.scope, graph, (), _facts(c, way)) for way, graph in branches.items()}
    fact = c.scope.fact(_about_sizes(c))
    if fact is None and c.scope.rest and c.scope.forks < MAX_FORKS and _ranks_differ(ways):
        found = _with_what_follows(c, branches)
        if found is not None:
            return found
        fact = c.scope.fact(_about_sizes(c))
    if fact is not None and all(isinstance(t, TensorType) for t in _types(ways[fact.truth])):
        return _required(c, branches[fact.truth], fact)
    return _emit(c, ways)


def _about_sizes(c: NodeContext) -> Dim | None:
    """Return the condition as a dimension that is 0 or 1, where sizes alone decide it."""
    known = c.known(0)
    return known[0] if known is not None and len(known) == 1 and isinstance(known[0], Dim) else None


def _facts(c: NodeContext, way: bool) -> dict[Dim, Fact]:
    """Return what is known inside of a branch."""
    condition = _about_sizes(c)
    return {} if condition is None else {condition: Fact(way)}


def _ranks_differ(ways: Converted) -> bool:
    ranks = [(_rank(a), _rank(b)) for a, b in zip(*map(_types, ways.values()), strict=True)]
    return any(a != b and a is not None and b is not None for a, b in ranks)


def _types(converted: tuple[Scope, list[str]]) -> list[Type]:
    scope, outputs = converted
    return [scope.builder.types[o] for o in outputs]


def _rank(kind: Type) -> int | None:
    return len(kind.shape) if isinstance(kind, TensorType) and kind.shape is not None else None


def _inline(c: NodeContext, graph: GraphProto) -> list[str]:
    """Convert a branch that is always taken into the surrounding graph."""
    inner = Scope(c.scope.model, c.b, c.scope.symbols, c.scope.parent)
    inner.values = dict(c.scope.values)
    inner.captures = c.scope.captures
    inner.facts, inner.forks = c.scope.facts, c.scope.forks
    convert_body(inner, graph)
    return [inner.find(o.name) for o in graph.output]


def _required(c: NodeContext, graph: GraphProto, fact: Fact) -> list[str]:
    """Return the results of the branch that a fact decides on; they need what the fact needs."""
    outputs = _inline(c, graph)
    condition = _about_sizes(c)
    if not fact.problem or condition is None:
        return outputs
    least = condition - 1 if fact.truth else -condition
    return [c.emit("require", value, least=least, problem=fact.problem) for value in outputs]


def _with_what_follows(c: NodeContext, branches: Branches) -> Sequence[str] | None:
    """Convert what follows the node in each branch and return the node's results.

    Returns None where a branch cannot be followed so. Where sizes decide that this branch is not
    taken, it is a fact of the scope from then on.
    """
    others, tail = _split(c)
    c.scope.rest = deque()
    convert_nodes(c.scope, others)
    made = {name for _, node in tail for name in node.output} | set(c.node.output)
    results = [name for name in c.scope.results if name in made]
    ways: Converted = {}
    problems: dict[bool, str] = {}
    for way, graph in branches.items():
        try:
            ways[way] = _branch(c, way, graph, tail, results)
        except CaptureError as error:
            problems[way] = str(error)
    if not problems:
        c.scope.values.update(zip(results, _emit(c, ways), strict=True))
        return [""] * len(c.node.output)
    c.scope.rest = deque(tail)
    condition = _about_sizes(c)
    if ways and condition is not None:
        (way,) = ways
        reason = problems[not way].replace("{", "(").replace("}", ")")
        problem = f"its condition must be {str(way).lower()} for these sizes: if not, {reason}"
        c.scope.facts[condition] = Fact(way, problem)
    return None


def _split(c: NodeContext) -> tuple[list[Pending], list[Pending]]:
    """Split what follows the node into what can come before it, and what needs it.

    Any other `If` counts as the latter, because it may divide what follows as well.
    """
    made = set(c.node.output)
    others: list[Pending] = []
    tail: list[Pending] = []
    for pending in c.scope.rest:
        node = pending[1]
        if node.op_type == "If" or not made.isdisjoint(names_read(node)):
            made.update(node.output)
            tail.append(pending)
        else:
            others.append(pending)
    made.discard("")
    return others, tail


def _branch(
    c: NodeContext, way: bool, graph: GraphProto, tail: Sequence[Pending], results: Sequence[str]
) -> tuple[Scope, list[str]]:
    """Convert a branch and what follows it; the results are values of the graph around."""
    scope, outputs = convert_subgraph(c.scope, graph, (), _facts(c, way))
    # What follows sees the node's results, and none of the names inside of the branch.
    scope.values = {"": "", **dict(zip(c.node.output, outputs, strict=False))}
    scope.results = tuple(results)
    scope.forks = c.scope.forks + 1
    convert_nodes(scope, tail)
    return scope, [scope.find(name) for name in results]


def _emit(c: NodeContext, ways: Converted) -> Sequence[str]:
    types = [join(c, a, b) for a, b in zip(*map(_types, ways.values()), strict=True)]
    graphs, captures = close({"then": ways[True], "else": ways[False]})
    return c.b.emit_typed("if", (c.input(0), *captures), types, graphs=graphs)


BRANCHES: dict[str, Converter] = {"If": _if}
