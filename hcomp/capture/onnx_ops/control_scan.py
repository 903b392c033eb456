"""Scan and SequenceMap: a loop whose body takes its own elements out of what it runs over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_graph import Scope, convert_body
from hcomp.capture.onnx_ops.control import emit_loop, settle
from hcomp.dims import DimLike
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.types import SequenceType, TensorType, Type


def _scan(c: NodeContext) -> Sequence[str]:
    body: GraphProto = c.required("body")
    count = c.required("num_scan_inputs")
    if c.opset < 9:
        return _scan_8(c, body, count)
    states = [c.input(i) for i in range(len(c.inputs) - count)]
    scanned = [c.input(i) for i in range(len(c.inputs) - count, len(c.inputs))]
    axes = c.attr("scan_input_axes") or (0,) * count
    backwards = c.attr("scan_input_directions") or (0,) * count
    normal = [c.axis(a, v) for a, v in zip(axes, scanned, strict=True)]
    made = _scan_loop(c, body, states, scanned, normal, backwards)
    scans = len(body.output) - len(states)
    out_axes = c.attr("scan_output_axes") or (0,) * scans
    out_backwards = c.attr("scan_output_directions") or (0,) * scans
    results = list(made[: len(states)])
    for value, axis, reverse in zip(made[len(states) :], out_axes, out_backwards, strict=True):
        results.append(_arrange(c, value, axis, bool(reverse)))
    return results


def _arrange(c: NodeContext, value: str, axis: int, reverse: bool) -> str:
    """Return a scan output, stacked on axis 0, turned round and its axis moved."""
    if reverse:
        value = c.emit("flip", value, axis=0)
    axis = c.axis(axis, value)
    if axis == 0:
        return value
    order = [*range(1, c.rank(value))]
    order.insert(axis, 0)
    return c.emit("permute_dims", value, axes=tuple(order))


def _scan_loop(
    c: NodeContext, body: GraphProto, states: Sequence[str], scanned: Sequence[str],
    axes: Sequence[int], backwards: Sequence[int],
) -> tuple[str, ...]:  # fmt: skip
    """Return the final states and the scan outputs stacked on axis 0."""
    if not scanned:
        raise c.refuse("it scans nothing")
    length = c.shape(scanned[0])[axes[0]]
    names = [i.name for i in body.input]

    def convert(types: list[Type]) -> tuple[Scope, list[str]]:
        scope, step = _open_body(c, body.name or "scan")
        for name, state in zip(names, types, strict=False):
            scope.values[name] = scope.builder.input(name, state)
        for name, value, axis, back in zip(names[len(types) :], scanned, axes, backwards, strict=True):
            index = _from_end(scope.builder, step, length) if back else step
            scope.values[name] = scope.builder.emit("take", scope.carry_in(value), index, axis=axis)
        return _convert(scope, body)

    settled = settle(c, [c.b.types[v] for v in states], convert)
    trips = c.b.shape_value([length], scalar=True)
    return emit_loop(c, (trips, ""), states, settled, length)


def _open_body(c: NodeContext, name: str) -> tuple[Scope, str]:
    """Return an empty loop body and its iteration number."""
    builder = GraphBuilder(name, c.b.names)
    builder.origin = c.b.origin
    scope = Scope(c.scope.model, builder, c.scope.symbols, c.scope)
    step = builder.input("step", TensorType("int64", ()))
    builder.input("go_on", TensorType("bool", ()))
    return scope, step


def _convert(scope: Scope, body: GraphProto) -> tuple[Scope, list[str]]:
    """Convert the ONNX body into an opened loop body that never ends by itself."""
    convert_body(scope, body)
    always = scope.builder.constant(np.array(True), "always")
    return scope, [always, *(scope.find(o.name) for o in body.output)]


def _from_end(builder: GraphBuilder, step: str, length: DimLike) -> str:
    last = builder.shape_value([length - 1], scalar=True)
    return builder.emit("subtract", last, step)


def _scan_8(c: NodeContext, body: GraphProto, count: int) -> Sequence[str]:
    """Scan of opset 8: a batch axis in front of everything, each example scanned by itself."""
    if c.has(0):
        raise c.refuse("its sequence lengths (opset 8) have no lowering")
    backwards = c.attr("directions") or (0,) * count
    states = [c.input(i) for i in range(1, len(c.inputs) - count)]
    scanned = [c.input(i) for i in range(len(c.inputs) - count, len(c.inputs))]
    batch = c.shape(scanned[0])[0]
    if not isinstance(batch, int):
        raise c.refuse("its batch size (opset 8) is known only at run time")
    rows = []
    for example in range(batch):
        index = c.scalar(example, "int64")
        ours = [c.emit("take", v, index, axis=0) for v in states]
        theirs = [c.emit("take", v, index, axis=0) for v in scanned]
        rows.append(_scan_loop(c, body, ours, theirs, [0] * count, backwards))
    return [_stack_rows(c, column) for column in zip(*rows, strict=True)]


def _stack_rows(c: NodeContext, values: Sequence[str]) -> str:
    expanded = [c.emit("expand_dims", v, axis=(0,)) for v in values]
    return expanded[0] if len(expanded) == 1 else c.emit("concat", *expanded, axis=0)


def _sequence_map(c: NodeContext) -> Sequence[str]:
    body: GraphProto = c.required("body")
    names = [i.name for i in body.input]
    over = c.input(0)
    values = [c.input(i) for i in range(len(c.inputs))]

    def convert(types: list[Type]) -> tuple[Scope, list[str]]:
        scope, step = _open_body(c, body.name or "map")
        lists = [scope.builder.input("mapped", t) for t in types]
        for name, value in zip(names, values, strict=True):
            inner = scope.carry_in(value)
            is_list = isinstance(c.b.types[value], SequenceType)
            scope.values[name] = scope.builder.emit("sequence_at", inner, step) if is_list else inner
        _, (always, *made) = _convert(scope, body)
        longer = [scope.builder.emit("sequence_insert", s, v, "") for s, v in zip(lists, made, strict=True)]
        return scope, [always, *longer]

    first = [_probe(c, body, names, values, o) for o in range(len(body.output))]
    empty = [c.emit("sequence_empty", dtype=dtype) for dtype in first]
    settled = settle(c, [c.b.types[v] for v in empty], convert)
    trips = c.emit("sequence_length", over)
    return emit_loop(c, (trips, ""), empty, settled, c.b.names.fresh_symbol("trips"))


def _probe(c: NodeContext, body: GraphProto, names: Sequence[str], values: Sequence[str], output: int) -> str:
    """Return the element type of a body's output, by converting the body once."""
    scope, step = _open_body(c, "probe")
    for name, value in zip(names, values, strict=True):
        inner = scope.carry_in(value)
        is_list = isinstance(c.b.types[value], SequenceType)
        scope.values[name] = scope.builder.emit("sequence_at", inner, step) if is_list else inner
    _, (_, *made) = _convert(scope, body)
    found = scope.builder.types[made[output]]
    if not isinstance(found, TensorType):
        raise c.refuse(f"its body makes {found}, which is no tensor")
    return found.dtype


SCANS: dict[str, Converter] = {"Scan": _scan, "SequenceMap": _sequence_map}
