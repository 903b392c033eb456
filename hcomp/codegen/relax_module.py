"""A region as a Relax module: the table walk from our operators to kernels and calls.

The function is `main(*inputs, *constants, [shape])`. Constants of at most SMALL bytes are part of
the module; larger ones are parameters, so that the artifact can map them. `shape` carries the
symbols that no parameter's dimension binds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, tirx

from hcomp.codegen.kernel import FLAG, Kernel, KernelBody, checked, dim_expr, inline_scalar
from hcomp.dims import DimLike, is_symbol
from hcomp.dtypes import dtype_name
from hcomp.errors import CodegenError
from hcomp.ir.graph import Graph, Node
from hcomp.ir.types import TensorType

Expr: TypeAlias = Any
"""A relax.Expr."""
Array: TypeAlias = NDArray[np.generic]
Rule: TypeAlias = Callable[["Lowering", Node], "Expr | tuple[Expr, ...]"]
"""A row of the table: emits a node and returns the expressions of its outputs."""

SMALL = 1024
"""Constants of at most so many bytes stand in the module itself."""

VIEWS = ("reshape", "expand_dims", "squeeze")
"""Operators whose result shares its input's memory."""


@dataclass(frozen=True)
class LoweredRegion:
    """A Relax module of one region and what its caller must know.

    Attributes:
        module: the Relax module; its function is `main`.
        constants: the parameters behind the inputs, in order.
        symbols: the sizes of the trailing shape parameter; without any there is none.
        fresh_outputs: for each output, whether it has memory of its own.
    """

    module: Any
    constants: tuple[tuple[str, Array], ...]
    symbols: tuple[str, ...]
    fresh_outputs: tuple[bool, ...]


@dataclass
class Value:
    """What a name stands for while lowering: its type, and its array where it is constant."""

    type: TensorType
    expr: Expr = None
    array: Array | None = None


@dataclass
class Lowering:
    """The state of one region's lowering."""

    graph: Graph
    rules: Mapping[str, Rule]
    builder: Any = field(default_factory=relax.BlockBuilder)
    values: dict[str, Value] = field(default_factory=dict)
    packed: dict[str, tuple[Expr, Array]] = field(default_factory=dict)
    _variables: dict[str, Any] = field(default_factory=dict)
    _functions: dict[Any, tuple[Any, tuple[int, ...], tuple[str, ...]]] = field(default_factory=dict)

    def dim(self, dim: DimLike) -> Any:
        """Return a dimension over the module's own variables."""
        return dim_expr(dim, self.variable)

    def variable(self, name: str) -> Any:
        """Return the module's variable for the symbol `name`."""
        if name not in self._variables:
            self._variables[name] = tirx.Var(name, "int64")
        return self._variables[name]

    def relax_type(self, value_type: TensorType) -> Any:
        """Return a tensor type as Relax writes it."""
        if value_type.shape is None:
            raise CodegenError("a tensor without a rank cannot be compiled")
        return relax.TensorType([self.dim(d) for d in value_type.shape], value_type.dtype)

    def unbound(self) -> tuple[str, ...]:
        """Return the symbols in use that no input's dimension is."""
        types = (_tensor_type(v.type) for v in self.graph.inputs)
        bound = {str(d) for t in types for d in t.shape or () if is_symbol(d)}
        return tuple(sorted(self._variables.keys() - bound))

    def expr(self, name: str) -> Expr:
        """Return the Relax expression of a value; a constant gets one when it is first used."""
        value = self.values[name]
        if value.expr is None:
            assert value.array is not None
            if value.array.nbytes <= SMALL:
                value.expr = relax.const(tensor(value.array), self.relax_type(value.type))
            else:
                value.expr = self.pack(name, value.array)
        return value.expr

    def pack(self, hint: str, array: Array) -> Expr:
        """Return an expression for a constant that becomes a parameter of the region.

        One hint stands for one constant: it is made once.
        """
        if hint not in self.packed:
            own = TensorType(dtype_name(array.dtype), tuple(array.shape))
            variable = relax.Var(identifier(hint), self.relax_type(own))
            self.packed[hint] = (variable, array)
        return self.packed[hint][0]

    def typed(self, made: Expr, value_type: TensorType) -> Expr:
        """Return a kernel's result with our own type, where its shape is written differently.

        A match_cast would say the same, but FuseOps crashes on some of those.
        """
        wanted = self.relax_type(value_type)
        if tvm_ffi.structural_equal(made.ty, wanted):
            return made
        call = self.builder.lookup_binding(made)
        return self.builder.emit(relax.call_tir(call.args[0], call.args[1], wanted))

    def bind(self, name: str, value_type: TensorType, expr: Expr) -> None:
        """Give a name to an intermediate value, so that kernels can read it."""
        self.values[name] = Value(value_type, expr)

    def bind_constant(self, name: str, array: Array) -> None:
        """Give a name to a constant that lowering has made, such as a turned weight."""
        own = TensorType(dtype_name(array.dtype), tuple(array.shape))
        self.values.setdefault(name, Value(own, array=array))

    def type(self, name: str) -> TensorType:
        """Return the type of a value."""
        return self.values[name].type

    def array(self, name: str) -> Array | None:
        """Return the contents of a value where they are constant."""
        value = self.values.get(name)
        return None if value is None else value.array

    def kernel(self, node: Node, body: KernelBody, *, after: Sequence[Expr] = ()) -> Any:
        """Emit one kernel that computes the node's outputs, and return them.

        `after` are guards that must have passed before the kernel runs.
        """
        outputs = tuple(_tensor_type(v.type) for v in node.outputs)
        guards = [*after, *self._broadcast_guards(node)]
        return self.call(node.op, node.inputs, node.attrs, outputs, body, guards)

    def call(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any],
        outputs: Sequence[TensorType],
        body: KernelBody,
        after: Sequence[Expr] = (),
    ) -> Any:
        """Emit a call of the kernel `body` on named inputs; equal kernels are made once."""
        types = tuple(self.values[i].type if i else None for i in inputs)
        scalars = self._scalars(inputs)
        attributes, numbers = tuple(attrs.items()), tuple(scalars.items())
        key = (op, types, tuple(outputs), attributes, numbers, body, len(after))
        if key not in self._functions:
            kernel = Kernel(attrs, types, outputs, scalars)
            made = body(kernel)
            function, used, extra = kernel.finish(made if isinstance(made, tuple) else (made,), len(after))
            variable = self.builder.add_func(function, identifier(op))
            self._functions[key] = (variable, used, extra)
        variable, used, extra = self._functions[key]
        arguments = [self.expr(inputs[i]) for i in used]
        arguments += [*after, *(self.variable(n) for n in extra)]
        out = [self.relax_type(t) for t in outputs]
        called = self.builder.emit(relax.call_tir(variable, relax.Tuple(arguments), out[0] if len(out) == 1 else out))
        if len(out) == 1:
            return called
        return tuple(self.builder.emit(relax.TupleGetItem(called, i)) for i in range(len(out)))

    def _scalars(self, inputs: Sequence[str]) -> dict[int, Any]:
        found = {}
        for i, name in enumerate(inputs):
            array = self.array(name)
            if array is not None and array.size == 1:
                number = inline_scalar(array)
                if number is not None:
                    found[i] = number
        return found

    def guard(self, node: Node, problem: str, inputs: Sequence[str], body: KernelBody) -> Expr:
        """Emit a check that stops the region with `problem` where the kernel's int32 is not 0.

        Pass what is returned as `after` to the kernel that must not run then.
        """
        types = tuple(self.values[i].type for i in inputs)
        kernel = Kernel(node.attrs, types, (FLAG,), self._scalars(inputs))
        made = body(kernel)
        function, used, extra = kernel.finish((made,), 0)
        function = checked(function, f"{node.label}: {problem}")
        variable = self.builder.add_func(function, "guard")
        arguments = [self.expr(inputs[i]) for i in used] + [self.variable(n) for n in extra]
        return self.builder.emit(relax.call_tir(variable, relax.Tuple(arguments), self.relax_type(FLAG)))

    def _broadcast_guards(self, node: Node) -> list[Expr]:
        """Return checks that sizes broadcast, where only run time can tell."""
        return []


def tensor(array: Array) -> Any:
    """Return a numpy array as a TVM tensor; bfloat16 goes by its bytes."""
    return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))


def identifier(name: str) -> str:
    """Return `name` as TVM accepts it for variables and functions."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return plain if plain and not plain[0].isdigit() else f"v_{plain}"


def _tensor_type(value_type: Any) -> TensorType:
    if not isinstance(value_type, TensorType):
        raise CodegenError(f"a value of type {value_type} cannot be compiled")
    return value_type


def lower_region(graph: Graph, rules: Mapping[str, Rule] | None = None) -> LoweredRegion:
    """Return the Relax module of a region.

    Args:
        graph: the region as a closed graph: tensors of known rank, no subgraphs, no extern nodes.
        rules: rows that replace those of the table, for a target with kernels of its own.

    Raises:
        CodegenError: an operator has no lowering, or TVM refuses the node; names it.
    """
    from hcomp.codegen.relax_table import LOWER

    lowering = Lowering(graph, {**LOWER, **(rules or {})})
    inputs = _inputs(lowering)
    for constant in graph.constants:
        lowering.values[constant.name] = Value(constant.type, array=constant.array)
    builder = lowering.builder
    # Which constants and sizes become parameters is known only when all nodes are lowered.
    with builder.function("main"):
        with builder.dataflow():
            for node in graph.nodes:
                _lower_node(lowering, node)
            results = [builder.emit_output(lowering.expr(name)) for name in graph.outputs]
        symbols = lowering.unbound()
        parameters = [*inputs, *(variable for variable, _ in lowering.packed.values())]
        if symbols:
            sizes = [lowering.variable(s) for s in symbols]
            parameters.append(relax.Var("sizes", relax.ShapeType(values=sizes)))
        result = results[0] if len(results) == 1 else relax.Tuple(results)
        builder.emit_func_output(result, parameters)
    return LoweredRegion(
        module=builder.get(),
        constants=tuple((name, array) for name, (_, array) in lowering.packed.items()),
        symbols=symbols,
        fresh_outputs=_fresh(graph),
    )


def _inputs(lowering: Lowering) -> list[Expr]:
    """Bind the region's inputs and return their variables."""
    variables = []
    for value in lowering.graph.inputs:
        own = _tensor_type(value.type)
        variable = relax.Var(identifier(value.name), lowering.relax_type(own))
        lowering.values[value.name] = Value(own, variable)
        variables.append(variable)
    return variables


def _lower_node(lowering: Lowering, node: Node) -> None:
    rule = lowering.rules.get(node.op)
    if rule is None:
        raise CodegenError(f"{node.label}: {node.op} has no lowering")
    made = rule(lowering, node)
    exprs = made if isinstance(made, tuple) else (made,)
    for value, expr in zip(node.outputs, exprs, strict=True):
        lowering.values[value.name] = Value(_tensor_type(value.type), expr)


def _fresh(graph: Graph) -> tuple[bool, ...]:
    """Say for each output whether it owns its memory: it is no view of an input or of another."""
    taken: set[str] = set()
    found = []
    for name in graph.outputs:
        root = name
        while (node := graph.producer.get(root)) is not None and node.op in VIEWS:
            root = node.inputs[0]
        found.append(root in graph.producer and root not in taken)
        taken.add(root)
    return tuple(found)
