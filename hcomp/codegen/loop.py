"""A loop as one region: a Relax function a trip, and entries that repeat it.

The function `trip` is the body with what ends a trip behind it: each scan's element goes into its row
of a buffer, and the next trip's number and whether there is one are computed. `main` calls it between
markers that `hcomp.codegen.vm_loops` turns into loops when calls have become statements:

    while going:
        do:
            number, going, fits, states, buffers = trip(number, states, captured, limit, buffers)
        while fits
        while going:                    # once: the buffers are full
            buffers = grow(buffers); going = false, for this loop alone

A loop without scans is the innermost one alone, entered if `going`. The VM's interpreter has no loops:
its entry hands both functions to the runtime, which calls them for a profile
(`hcomp.runtime.profiled_loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from tvm import relax, tirx

from hcomp.codegen.interpreted import ENTRY, INTERPRETED_ENTRY
from hcomp.codegen.kernel import Kernel
from hcomp.codegen.loop_buffers import ROWS, Buffers
from hcomp.codegen.lowering import Expr, Lowering, Rule, bind_inputs, lower_nodes, tensor_type
from hcomp.codegen.sizes import name_sizes
from hcomp.codegen.vm_loops import BEGIN, END
from hcomp.dims import DimLike, symbol
from hcomp.ir.graph import Constant, Graph, Node
from hcomp.ir.graph import Value as GraphValue
from hcomp.ir.types import TensorType

TRIP = "trip"
REPEAT = "hcomp.loop.repeat"
"""The runtime's function for a profile. Arguments: the VM's context; `trip`; `grow`, which is `trip` where there
are no buffers; how many states, captured values (the limit too), buffers, weights and sizes of `trip`; whether
there is a first trip; its number; all of these; the sizes of `grow`. Returns number, states, buffers."""
COUNT = TensorType("int64", ())
TRUTH = TensorType("bool", ())
ENDLESS = int(np.iinfo(np.int64).max)
LIMIT = "\0limit"
"""The name of a value that no graph can have."""

Labelled: TypeAlias = list[tuple[tuple[str, ...], list[Expr]]]


def lower_loop(graph: Graph, rules: Mapping[str, Rule]) -> tuple[Lowering, tuple[str, ...], Labelled]:
    """Make the module of a region that is one loop.

    Args:
        graph: the region: one `loop` whose body is compiled nodes, with states that keep their types.
        rules: the lowering table.

    Returns:
        What holds the module and the constants, the symbols of its entries, the nodes of `trip`.
    """
    loop = _Loop(graph, rules)
    trip = loop.trip()
    main = Lowering(graph, {}, loop.builder)
    symbols = loop.entry(ENTRY, main, trip, _natively)
    loop.entry(INTERPRETED_ENTRY, main.anew(), trip, _by_the_runtime)
    return main, symbols, trip.nodes


@dataclass(frozen=True)
class _Trip:
    """The function of a trip: what holds it, what its names of sizes stand for, its nodes."""

    lowering: Lowering
    sizes: Mapping[str, DimLike]
    nodes: Labelled


@dataclass(frozen=True)
class _Given:
    """What the first trip is given, as `trip` takes it: `fixed` are captured values and the limit.

    `weights` are behind the buffers, sizes too. `going` says whether there is a first trip at all, and
    `sizes` are what `grow` takes behind the buffers.
    """

    going: Expr
    states: list[Expr]
    fixed: list[Expr]
    buffers: list[Expr]
    weights: list[Expr]
    sizes: list[Expr]


Repeat: TypeAlias = Callable[[Any, _Given], tuple[Expr, list[Expr], list[Expr]]]
"""Emits all trips; returns their number, the states and the buffers."""


class _Loop:
    """One loop's functions."""

    def __init__(self, graph: Graph, rules: Mapping[str, Rule]) -> None:
        (self.node,) = graph.nodes
        self.graph, self.rules = graph, rules
        self.builder = relax.BlockBuilder()
        self.body = self.node.graphs["body"]
        self.carried = carried_count(self.node)
        rows = [tensor_type(self.body.types[name]) for name in self.body.outputs[1 + self.carried :]]
        self.buffers = Buffers(rows, self.builder)

    def trip(self) -> _Trip:
        """Make the function of a trip; its parameters are inputs, constants and sizes, as a region's."""
        body = self.body
        number, condition = body.inputs[:2]
        always = np.ones([1] * len(tensor_type(condition.type).shape or ()), bool)
        limit = GraphValue(LIMIT, COUNT)
        whole = replace(
            body,
            inputs=(number, *body.inputs[2:], limit, *self.buffers.values),
            constants=(*body.constants, Constant(condition.name, always)),
        )
        named, computed = name_sizes(whole)
        lowering = Lowering(named, self.rules, self.builder, sizes=computed)
        inputs = bind_inputs(lowering)
        with self.builder.function(TRIP):
            with self.builder.dataflow():
                nodes = lower_nodes(lowering)
                ends = self._ends(lowering, number.name)
                states = [lowering.expr(name) for name in body.outputs[1 : 1 + self.carried]]
                scans = zip(self.buffers.values, body.outputs[1 + self.carried :], strict=True)
                filled = [self.buffers.store(lowering, buffer.name, name, number.name) for buffer, name in scans]
                results = [*ends, *states, *filled]
                results = [e if e in inputs else self.builder.emit_output(e) for e in results]
            parameters = [*inputs, *(variable for variable, _ in lowering.packed.values())]
            self.builder.emit_func_output(relax.Tuple(results), [*parameters, *lowering.size_parameter()[1]])
        return _Trip(lowering, computed, nodes)

    def _ends(self, lowering: Lowering, number: str) -> Sequence[Expr]:
        """Emit the next trip's number, whether there is one, and whether it has a row."""
        condition = self.body.outputs[0]

        def ends(kernel: Kernel) -> Any:
            rank = len(kernel.shape(1))
            following = kernel.read(0, []) + tirx.IntImm("int64", 1)
            going = tirx.all(kernel.read(1, [tirx.IntImm("int64", 0)] * rank), following < kernel.read(2, []))
            fits = tirx.all(going, following < kernel.dim(symbol(ROWS))) if self.buffers.values else going
            kinds = ((following, COUNT), (going, TRUTH), (fits, TRUTH))
            return tuple(kernel.compute(lambda e=e: e, shape=(), dtype=t.dtype) for e, t in kinds)

        return lowering.call("trip_ends", (number, condition, LIMIT), {}, (COUNT, TRUTH, TRUTH), ends)  # type: ignore[no-any-return]

    def entry(self, name: str, main: Lowering, trip: _Trip, repeat: Repeat) -> tuple[str, ...]:
        """Make an entry of the region, and return its symbols."""
        inputs = bind_inputs(main)
        with self.builder.function(name, pure=False):
            number, states, buffers = repeat(self.builder, self._given(main, trip))
            results = [*states, *self.buffers.filled(main, number, buffers)]
            parameters = [*inputs, *(variable for variable, _ in main.packed.values())]
            symbols, sizes = main.size_parameter()
            found = dict(zip((v.name for v in self.node.outputs), results, strict=True))
            kept = [found[output] for output in self.graph.outputs]
            self.builder.emit_func_output(kept[0] if len(kept) == 1 else relax.Tuple(kept), [*parameters, *sizes])
        return symbols

    def _given(self, main: Lowering, trip: _Trip) -> _Given:
        inputs = self.node.inputs
        limit, going = self._enter(main)
        values = [main.expr(name) for name in inputs[2:]]
        buffers = self.buffers.allotted(main, LIMIT)
        weights = [main.pack(name, array) for name, (_, array) in trip.lowering.packed.items()]
        sizes = [main.dim(trip.sizes.get(s, symbol(s))) for s in trip.lowering.unbound()]
        shape = [relax.ShapeExpr(sizes)] if sizes else []
        return _Given(
            going,
            values[: self.carried],
            [*values[self.carried :], limit],
            buffers,
            [*weights, *shape],
            self.buffers.sizes(main),
        )

    def _enter(self, main: Lowering) -> tuple[Expr, Expr]:
        """Emit the limit of trips and whether there is a first one."""
        trips, condition = self.node.inputs[:2]
        zero = tirx.IntImm("int64", 0)

        def limit(kernel: Kernel) -> Any:
            if not kernel.inputs:
                return kernel.compute(lambda: tirx.IntImm("int64", ENDLESS))
            return kernel.compute(lambda: kernel.read(0, [zero] * len(kernel.shape(0))))

        def going(kernel: Kernel) -> Any:
            some = zero < kernel.read(0, [])
            if len(kernel.inputs) == 1:
                return kernel.compute(lambda: some)
            return kernel.compute(lambda: tirx.all(some, kernel.read(1, [zero] * len(kernel.shape(1)))))

        found = main.call("trip_limit", (trips,) if trips else (), {}, (COUNT,), limit)
        main.bind(LIMIT, COUNT, found)
        given = (LIMIT, condition) if condition else (LIMIT,)
        return found, main.call("is_entered", given, {}, (TRUTH,), going)


def carried_count(loop: Node) -> int:
    """Return how many values a loop carries."""
    carried = loop.attrs["carried"]
    assert isinstance(carried, int)
    return carried


def _natively(builder: Any, given: _Given) -> tuple[Expr, list[Expr], list[Expr]]:
    """Emit the calls of all trips between markers; what changes is in registers of its own."""
    number, going = _variable(builder, relax.const(0, "int64")), _variable(builder, given.going)
    states = [_variable(builder, e) for e in given.states]
    buffers = [_variable(builder, e) for e in given.buffers]
    kept = [*given.fixed, *(e for e in given.weights if isinstance(e, relax.Var))]
    _mark(builder, BEGIN, [going])
    if buffers:
        _mark(builder, BEGIN, [])
    arguments = [number, *states, *given.fixed, *buffers, *given.weights]
    following, more, fits, *changed = _called(builder, TRIP, arguments, 3 + len(states) + len(buffers))
    moves = [(following, number), (more, going), *zip(changed, [*states, *buffers], strict=True)]
    if buffers:
        _end(builder, fits, moves, kept)
        _mark(builder, BEGIN, [going])
        grown = _called(builder, Buffers.GROW, [*buffers, *given.sizes], len(buffers))
        _end(builder, relax.const(False, "bool"), list(zip(grown, buffers, strict=True)), [])
        # Another round reads all of it again, results or not.
        _end(builder, going, [], [*kept, number, *states, *buffers])
    else:
        _end(builder, more, moves, kept)
    return number, states, buffers


def _by_the_runtime(builder: Any, given: _Given) -> tuple[Expr, list[Expr], list[Expr]]:
    """Emit the call of REPEAT."""
    parts = (given.states, given.fixed, given.buffers, given.weights)
    functions = (TRIP, Buffers.GROW if given.buffers else TRIP)
    arguments = [builder.get().get_global_var(name) for name in functions]
    arguments += [relax.prim_value(len(part)) for part in parts]
    arguments += [given.going, relax.const(0, "int64"), *(e for part in parts for e in part), *given.sizes]
    kinds = [relax.TensorType(dtype=e.ty.dtype, ndim=e.ty.ndim) for e in given.buffers]
    whole = relax.TupleType([relax.TensorType([], COUNT.dtype), *(e.ty for e in given.states), *kinds])
    called = builder.emit(relax.op.call_builtin_with_ctx(REPEAT, arguments, ty_args=[whole]))
    number, *rest = (builder.emit(relax.TupleGetItem(called, i)) for i in range(len(whole.fields)))
    return number, rest[: len(given.states)], rest[len(given.states) :]


def _variable(builder: Any, initial: Expr) -> Expr:
    """Emit a register of its own that starts as `initial`."""
    return builder.emit(relax.call_pure_packed("vm.builtin.copy", initial, ty_args=[initial.ty]))


def _called(builder: Any, function: str, arguments: Sequence[Expr], count: int) -> list[Expr]:
    called = builder.emit(relax.Call(builder.get().get_global_var(function), list(arguments)))
    return [builder.emit(relax.TupleGetItem(called, i)) for i in range(count)]


def _end(builder: Any, condition: Expr, moves: Sequence[tuple[Expr, Expr]], kept: Sequence[Expr]) -> None:
    """Emit a loop's end: `moves` are (new, register); `kept` are values that the next trip reads too."""
    pairs = [e for move in moves for e in move]
    _mark(builder, END, [condition, relax.prim_value(len(moves)), *pairs, *kept])


def _mark(builder: Any, name: str, arguments: Sequence[Expr]) -> None:
    builder.emit(relax.Call(relax.ExternFunc(name), list(arguments), ty_args=[relax.TupleType([])]))
