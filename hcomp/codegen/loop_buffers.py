"""The buffers that a compiled loop's scans fill, an element a row.

They have rows for the trip limit, as far as those take little memory; beyond, they double when they are
full. What a loop returns of one are its filled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax, tirx

from hcomp.codegen.kernel import OPAQUE, Kernel, dim_expr
from hcomp.codegen.lowering import Expr, Lowering, bind_inputs, tensor_type
from hcomp.dims import DimLike, is_symbol, symbol, symbols_of
from hcomp.dtypes import item_bytes
from hcomp.ir.graph import Graph, Value
from hcomp.ir.types import TensorType

ROWS = "loop_rows"
"""The symbol of how many rows the buffers have."""
FIRST_BYTES = 1 << 20
"""A buffer takes at most so much memory, or one row, before trips have shown that they need more."""

_NUMBER = "\0number"
"""The name of a value that no graph can have."""


class Buffers:
    """The buffers of one loop, and the functions that make them; `values` are as `trip` and `grow` take them."""

    ALLOT = "allot"
    GROW = "grow"

    def __init__(self, rows: Sequence[TensorType], builder: Any) -> None:
        self.types = [TensorType(t.dtype, (symbol(ROWS), *(t.shape or ()))) for t in rows]
        self.values = tuple(Value(f"\0buffer{i}", t) for i, t in enumerate(self.types))
        self.builder = builder
        found = symbols_of(tuple(t.shape or () for t in rows))
        self.symbols = sorted(found)
        if rows:
            self._make_allot()
            self._make_grow()

    def sizes(self, lowering: Lowering) -> list[Expr]:
        """Return what ALLOT and GROW take of sizes, those of the rows alone: a shape, or nothing."""
        return [relax.ShapeExpr([lowering.variable(s) for s in self.symbols])] if self.symbols else []

    def _make_allot(self) -> None:
        lowering = Lowering(Graph(self.ALLOT, (), (), (), ()), {}, self.builder)
        sizes = [lowering.variable(s) for s in (ROWS, *self.symbols)]
        with self.builder.function(self.ALLOT, [relax.Var("sizes", relax.ShapeType(values=sizes))]):
            made = [_made(lowering, "allot_rows", (), t, lambda rows: tirx.Evaluate(0)) for t in self.types]
            self.builder.emit_func_output(relax.Tuple(made))

    def _make_grow(self) -> None:
        """Make the function that returns buffers twice as long with the same rows."""
        lowering = Lowering(Graph(self.GROW, self.values, (), (), ()), {}, self.builder)
        parameters = bind_inputs(lowering)
        if self.symbols:
            sizes = [lowering.variable(s) for s in self.symbols]
            parameters.append(relax.Var("sizes", relax.ShapeType(values=sizes)))
        with self.builder.function(self.GROW, parameters):
            made = []
            for name, kind in ((v.name, tensor_type(v.type)) for v in self.values):
                longer = TensorType(kind.dtype, (2 * symbol(ROWS), *_row(kind)))
                made.append(_made(lowering, "grow_rows", (name,), longer, _copy_rows))
            self.builder.emit_func_output(relax.Tuple(made))

    def allotted(self, main: Lowering, limit: str) -> list[Expr]:
        """Emit the first buffers of an entry; `limit` names the trip limit."""
        if not self.values:
            return []

        def sizes(kernel: Kernel) -> Any:
            one = most = tirx.IntImm("int64", 1)
            for kind in self.types:
                most = tirx.max(most, kernel.dim(prod(_row(kind), start=item_bytes(kind.dtype))))
            few = tirx.max(one, tirx.min(kernel.read(0, []), tirx.floordiv(tirx.IntImm("int64", FIRST_BYTES), most)))
            return kernel.compute(_listed([few, *(kernel.variable(s) for s in self.symbols)]))

        found = main.call("first_rows", (limit,), {}, (_list_type(1 + len(self.symbols)),), sizes)
        function = self.builder.get().get_global_var(self.ALLOT)
        called = self.builder.emit(relax.Call(function, [self._as_shape(found)]))
        return [self.builder.emit(relax.TupleGetItem(called, i)) for i in range(len(self.types))]

    def store(self, trip: Lowering, buffer: str, row: str, number: str) -> Expr:
        """Emit that a value becomes the row `number` of its buffer, in place."""
        kind = trip.type(buffer)
        function, symbols = _plain_loops((kind, TensorType(kind.dtype, _row(kind)), trip.type(number)), 0, _store_row)
        variable = self.builder.add_func(function, "store_row")
        given = [*map(trip.expr, (buffer, row, number)), *map(trip.variable, symbols)]
        return self.builder.emit(relax.call_tir_inplace(variable, relax.Tuple(given), [0], trip.relax_type(kind)))

    def filled(self, main: Lowering, number: Expr, buffers: Sequence[Expr]) -> list[Expr]:
        """Emit the views of the buffers' first `number` rows."""
        main.bind(_NUMBER, TensorType("int64", ()), number)
        return [self._filled(main, kind, buffer) for kind, buffer in zip(self.types, buffers, strict=True)]

    def _filled(self, main: Lowering, kind: TensorType, buffer: Expr) -> Expr:
        def sizes(kernel: Kernel) -> Any:
            return kernel.compute(_listed([kernel.read(0, []), *kernel.dims(_row(kind))]))

        rank = 1 + len(_row(kind))
        shape = self._as_shape(main.call("filled", (_NUMBER,), {}, (_list_type(rank),), sizes))
        result = relax.TensorType(dtype=kind.dtype, ndim=rank)
        return self.builder.emit(relax.call_pure_packed("vm.builtin.reshape", buffer, shape, ty_args=[result]))

    def _as_shape(self, sizes: Expr) -> Expr:
        kind = relax.ShapeType(ndim=int(sizes.ty.shape[0]))
        return self.builder.emit(relax.call_pure_packed("vm.builtin.tensor_to_shape", sizes, ty_args=[kind]))


def _row(buffer: TensorType) -> tuple[DimLike, ...]:
    return (buffer.shape or ())[1:]


def _list_type(length: int) -> TensorType:
    return TensorType("int64", (length,))


def _listed(values: Sequence[Expr]) -> Callable[[Expr], Expr]:
    """Return the function of an index that gives one of some values."""

    def at(index: Expr) -> Expr:
        found = values[-1]
        for i, value in reversed(list(enumerate(values[:-1]))):
            found = tirx.Select(tirx.EQ(index, tirx.IntImm("int64", i)), value, found)
        return found

    return at


def _made(lowering: Lowering, name: str, given: Sequence[str], kind: TensorType, body: Callable[..., Any]) -> Expr:
    """Emit a call of a function of given loops that makes a buffer."""
    function, symbols = _plain_loops((*map(lowering.type, given), kind), 1, body)
    variable = lowering.builder.add_func(function, name)
    arguments = [*map(lowering.expr, given), *map(lowering.variable, symbols)]
    return lowering.builder.emit(relax.call_tir(variable, relax.Tuple(arguments), lowering.relax_type(kind)))


def _plain_loops(tensors: Sequence[TensorType], results: int, body: Callable[..., Any]) -> tuple[Any, tuple[str, ...]]:
    """Return a function whose loops are given, and the symbols that it takes behind its inputs.

    Args:
        tensors: the types of its parameters, the last `results` of which it makes.
        body: makes the statement of the parameters' buffers.
    """
    variables: dict[str, Any] = {}

    def variable(name: str) -> Any:
        return variables.setdefault(name, tirx.Var(name, "int64"))

    buffers = [
        tirx.decl_buffer([dim_expr(d, variable) for d in t.shape or ()], t.dtype, f"t{i}", layout=None)
        for i, t in enumerate(tensors)
    ]
    bound = {str(d) for t in tensors for d in t.shape or () if is_symbol(d)}
    extra = tuple(sorted(variables.keys() - bound))
    inputs = len(tensors) - results
    parameters = [*buffers[:inputs], *(variables[n] for n in extra), *buffers[inputs:]]
    function = tirx.PrimFunc(parameters, body(*buffers))
    return function.with_attr("op_pattern", OPAQUE).with_attr("tirx.is_scheduled", True), extra


def _store_row(rows: Any, row: Any, number: Any) -> Any:
    def store(place: list[Any]) -> Any:
        return tirx.BufferStore(rows, tirx.BufferLoad(row, place), [tirx.BufferLoad(number, []), *place])

    return _each_element(row, store)


def _copy_rows(old: Any, new: Any) -> Any:
    return _each_element(old, lambda place: tirx.BufferStore(new, tirx.BufferLoad(old, place), place))


def _each_element(buffer: Any, statement: Callable[[list[Any]], Any]) -> Any:
    """Return loops over a buffer's elements; `statement` makes the innermost statement of the position."""
    places = [tirx.Var(f"i{k}", "int64") for k in range(len(buffer.shape))]
    made = statement(places)
    for place, size in zip(reversed(places), reversed(buffer.shape), strict=True):
        made = tirx.For(place, tirx.IntImm("int64", 0), size, tirx.ForKind.SERIAL, made)
    return made
