"""Loop, and what control flow shares: subgraphs become closed graphs, types of carried values settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from onnx import GraphProto

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_graph import Scope, convert_subgraph, finish_subgraph
from hcomp.dims import Dim, DimLike, symbols_of
from hcomp.ir.graph import Graph
from hcomp.ir.types import OpaqueType, OptionalType, SequenceType, TensorType, Type

Convert: TypeAlias = Callable[[list[Type]], tuple[Scope, list[str]]]

MAX_ROUNDS = 8
"""Types only get looser, each dim once, so a loop's types settle in a few rounds."""


def close(scopes: dict[str, tuple[Scope, list[str]]]) -> tuple[dict[str, Graph], tuple[str, ...]]:
    """Finish several subgraphs so that all take the same captured values in the same order."""
    wanted: dict[str, None] = {}
    for scope, outputs in scopes.values():
        _, captures = finish_subgraph(scope, outputs)
        wanted.update(dict.fromkeys(captures))
    graphs = {}
    for name, (scope, outputs) in scopes.items():
        for value in wanted:
            scope.carry_in(value)
        graph, _ = finish_subgraph(scope, outputs)
        graphs[name] = _order_inputs(graph, [scope.captures[v] for v in wanted])
    return graphs, tuple(wanted)


def _order_inputs(graph: Graph, captured: Sequence[str]) -> Graph:
    """Return the graph with its captured inputs last, in the given order."""
    by_name = {v.name: v for v in graph.inputs}
    own = [v for v in graph.inputs if v.name not in set(captured)]
    return Graph(graph.name, (*own, *(by_name[n] for n in captured)), graph.constants, graph.nodes, graph.outputs)


def join(c: NodeContext, a: Type, b: Type) -> Type:
    """Return the type that covers both: dims that differ, or that only a body knows, become new symbols."""
    match a, b:
        case TensorType(), TensorType():
            if a.dtype != b.dtype:
                raise c.refuse(f"its branches give {a.dtype} and {b.dtype}")
            if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
                return TensorType(a.dtype, None)
            return TensorType(a.dtype, tuple(_join_dim(c, x, y) for x, y in zip(a.shape, b.shape, strict=True)))
        case SequenceType(element=x), SequenceType(element=y):
            return SequenceType(join(c, x, y))
        case OptionalType(element=x), OptionalType(element=y):
            return OptionalType(join(c, x, y))
        case OptionalType(element=element), _:
            return OptionalType(join(c, element, b))
        case _, OptionalType(element=element):
            return OptionalType(join(c, a, element))
    if a == b and isinstance(a, OpaqueType):
        return a
    raise c.refuse(f"its branches give values of the types {a} and {b}")


def _join_dim(c: NodeContext, a: DimLike, b: DimLike) -> DimLike:
    if a == b and all(c.scope.visible(s) for s in symbols_of(a)):
        return a
    return c.b.names.fresh_symbol("dim")


def _loop(c: NodeContext) -> Sequence[str]:
    body: GraphProto = c.required("body")
    carried = [c.input(i) for i in range(2, len(c.inputs))]
    names = [i.name for i in body.input]
    # Both may be declared with the shape [1], and are of it then.
    lists = [i.name for i in body.input[:2] if len(i.type.tensor_type.shape.dim) == 1]

    def convert(types: list[Type]) -> tuple[Scope, list[str]]:
        formals = [TensorType("int64", ()), TensorType("bool", ()), *types]
        return convert_subgraph(c.scope, body, list(zip(names, formals, strict=True)), lists=lists)

    settled = settle(c, [c.b.types[v] for v in carried], convert)
    trips = _trips(c, settled[0], settled[1][0], body)
    first = _scalar(c, c.optional(0)), _scalar(c, c.optional(1))
    return emit_loop(c, first, carried, settled, trips)


def _scalar(c: NodeContext, value: str) -> str:
    """Return a trip count or condition as a 0-D tensor (exporters also write [1])."""
    if value and c.b.types[value] != TensorType(c.dtype(value), ()) and c.ranked(value):
        return c.reshape(value, ())
    return value


def settle(c: NodeContext, types: list[Type], convert: Convert) -> tuple[Scope, list[str]]:
    """Return a body's scope and outputs, the types of carried values loosened until an iteration keeps them.

    `convert` makes the body for given types; its outputs are the condition, the carried values, the scans.
    """
    for _ in range(MAX_ROUNDS):
        scope, outputs = convert(types)
        made = [scope.builder.types[o] for o in outputs[1 : 1 + len(types)]]
        loosened = [_loosen(c, old, new) for old, new in zip(types, made, strict=True)]
        if loosened == types:
            return scope, outputs
        types = loosened
    raise c.refuse("the types of its carried values do not settle")


def emit_loop(
    c: NodeContext,
    first: tuple[str, str],
    carried: Sequence[str],
    body: tuple[Scope, list[str]],
    trips: DimLike,
) -> tuple[str, ...]:
    """Add a `loop` with a settled body; `first` are the trip count and the condition ("" absent)."""
    scope, outputs = body
    count = len(carried)
    inner = [scope.builder.types[o] for o in outputs]
    scan_types = [_stack(c, t, trips) for t in inner[1 + count :]]
    final = [join(c, c.b.types[v], t) for v, t in zip(carried, inner[1 : 1 + count], strict=True)]
    graphs, captures = close({"body": body})
    return c.b.emit_typed(
        "loop", (*first, *carried, *captures), [*final, *scan_types],
        attrs={"carried": count}, graphs=graphs,
    )  # fmt: skip


def _loosen(c: NodeContext, old: Type, new: Type) -> Type:
    """Return `old` where `new` fits it, else `old` with the dims that do not fit made symbols."""
    match old, new:
        case TensorType(), TensorType():
            if old.dtype != new.dtype:
                raise c.refuse(f"a carried value changes from {old.dtype} to {new.dtype}")
            if old.shape is None:
                return old
            if new.shape is None or len(new.shape) != len(old.shape):
                return TensorType(old.dtype, None)
            dims = (
                a if a == b or _is_loose(c, a) else c.b.names.fresh_symbol("carried")
                for a, b in zip(old.shape, new.shape, strict=True)
            )
            return TensorType(old.dtype, tuple(dims))
        case SequenceType(), SequenceType():
            return SequenceType(_loosen(c, old.element, new.element))
        case OptionalType(), _:
            return old
    if type(old) is not type(new):
        raise c.refuse(f"a carried value changes from {old} to {new}")
    return old


def _is_loose(c: NodeContext, dim: DimLike) -> bool:
    """Say whether a dim is a symbol of the body's own: it takes any size."""
    return isinstance(dim, Dim) and not all(c.scope.visible(s) for s in symbols_of(dim))


def _trips(c: NodeContext, scope: Scope, condition: str, body: GraphProto) -> DimLike:
    """Return how often the body runs: the trip count where nothing else can end the loop."""
    known = c.known(0) if c.has(0) else None
    goes_on = scope.builder.const_value(condition)
    passed_on = condition == scope.values[body.input[1].name]
    started = not c.has(1) or (c.const(1) is not None and bool(np.all(c.const(1))))
    endless = (goes_on is not None and bool(np.all(goes_on))) or passed_on
    if known is not None and started and endless:
        trips = known[0]
        if isinstance(trips, Dim) or trips >= 0:
            return trips
    return c.b.names.fresh_symbol("trips")


def _stack(c: NodeContext, element: Type, trips: DimLike) -> Type:
    """Return the type of a scan output: its elements stacked, one an iteration."""
    if not isinstance(element, TensorType):
        raise c.refuse(f"its scan output holds {element}, which does not stack")
    if element.shape is None:
        return TensorType(element.dtype, None)
    return TensorType(element.dtype, (trips, *(_join_dim(c, d, d) for d in element.shape)))


CONTROL: dict[str, Converter] = {"Loop": _loop}
