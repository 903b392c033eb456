"""The state of one region's lowering: names to Relax expressions, kernels made once, guards.

A rule of the table is given this and a node, and emits what computes the node's outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax, tirx

from hcomp.codegen.kernel import (
    FLAG,
    OPAQUE,
    Kernel,
    KernelBody,
    Requirement,
    checked,
    dim_expr,
    inline_scalar,
    with_flags,
    with_output_shape,
)
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


@dataclass
class Value:
    """What a name stands for while lowering: its type, and its array where it is constant."""

    type: TensorType
    expr: Expr = None
    array: Array | None = None


@dataclass(frozen=True)
class Made:
    """A kernel that exists: its function, the inputs and symbols it takes, what it needs of sizes."""

    function: Any
    used: tuple[int, ...]
    symbols: tuple[str, ...]
    needed: tuple[Requirement, ...]


@dataclass
class Lowering:
    """The state of one region's lowering; `sizes` says what the names of computed sizes stand for."""

    graph: Graph
    rules: Mapping[str, Rule]
    builder: Any = field(default_factory=relax.BlockBuilder)
    sizes: Mapping[str, DimLike] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    packed: dict[str, tuple[Expr, Array]] = field(default_factory=dict)
    _variables: dict[str, Any] = field(default_factory=dict)
    _functions: dict[Any, Made] = field(default_factory=dict)
    _size_guards: dict[tuple[str, str], Expr] = field(default_factory=dict)

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
        types = (tensor_type(v.type) for v in self.graph.inputs)
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

        Equal arrays under one hint are one constant. Different ones are not: nodes may share a weight
        and pack it in different ways.
        """
        name, number = hint, 1
        while name in self.packed and not _equal(self.packed[name][1], array):
            number += 1
            name = f"{hint}_{number}"
        if name not in self.packed:
            own = TensorType(dtype_name(array.dtype), tuple(array.shape))
            variable = relax.Var(identifier(name), self.relax_type(own))
            self.packed[name] = (variable, array)
        return self.packed[name][0]

    def typed(self, made: Expr, value_type: TensorType) -> Expr:
        """Return a foreign kernel's result with our own type.

        Where the kernel writes a symbolic size in another way than we do, its output buffer is
        declared anew: FuseTIR wants one spelling, and FuseOps crashes on some match_casts.
        """
        wanted = self.relax_type(value_type)
        if tvm_ffi.structural_equal(made.ty, wanted):
            return made
        call = self.builder.lookup_binding(made)
        function, symbols = with_output_shape(self.builder.get()[call.args[0]], value_type.shape or ())
        variable = self.builder.add_func(function, str(call.args[0].name_hint))
        arguments = relax.Tuple([*call.args[1].fields, *(self.variable(s) for s in symbols)])
        return self.builder.emit(relax.call_tir(variable, arguments, wanted))

    def bind(self, name: str, value_type: TensorType, expr: Expr) -> None:
        """Give a name to an intermediate value, so that kernels can read it."""
        self.values[name] = Value(value_type, expr)

    def bind_constant(self, name: str, array: Array) -> None:
        """Give a name to a constant that lowering has made, such as a turned weight."""
        own = TensorType(dtype_name(array.dtype), tuple(array.shape))
        self.values.setdefault(name, Value(own, array=array))

    def anew(self) -> Lowering:
        """Return the lowering of another function of the same module: it shares nothing but the kernels."""
        found = Lowering(self.graph, self.rules, self.builder, self.sizes)
        found._functions = self._functions
        return found

    def size_parameter(self) -> tuple[tuple[str, ...], list[Any]]:
        """Return the symbols that a function takes as one shape behind its other parameters, and that parameter."""
        symbols = self.unbound()
        variables = [self.variable(s) for s in symbols]
        return symbols, [relax.Var("sizes", relax.ShapeType(values=variables))] if symbols else []

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
        outputs = tuple(tensor_type(v.type) for v in node.outputs)
        return self.call(node.op, node.inputs, node.attrs, outputs, body, after, node.label)

    def call(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Any],
        outputs: Sequence[TensorType],
        body: KernelBody,
        after: Sequence[Expr] = (),
        label: str = "",
    ) -> Any:
        """Emit a call of the kernel `body` on named inputs; equal kernels are made once."""
        types = tuple(self.values[i].type if i else None for i in inputs)
        scalars = self._scalars(inputs)
        attributes, numbers = tuple(attrs.items()), tuple(scalars.items())
        key = (op, types, tuple(outputs), attributes, numbers, body, len(after))
        if key not in self._functions:
            kernel = Kernel(attrs, types, outputs, scalars)
            made = body(kernel)
            needed = tuple(kernel.requirements.values())
            function, used, extra = kernel.finish(
                made if isinstance(made, tuple) else (made,), len(after) + bool(needed)
            )
            if extra and not used:
                # Two of them in one group, each with a size of its own, are more than FuseTIR can carry.
                function = function.with_attr("op_pattern", OPAQUE)
            variable = self.builder.add_func(function, identifier(op))
            self._functions[key] = Made(variable, used, extra, needed)
        found = self._functions[key]
        guards = [*after, *self.size_guard(label or op, found.needed)]
        arguments = [self.expr(inputs[i]) for i in found.used]
        arguments += [*guards, *(self.variable(n) for n in found.symbols)]
        out = [self.relax_type(t) for t in outputs]
        called = self.builder.emit(
            relax.call_tir(found.function, relax.Tuple(arguments), out[0] if len(out) == 1 else out)
        )
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

    def guard(self, label: str, problem: str, inputs: Sequence[str], body: KernelBody) -> Expr:
        """Emit a check that stops the region with `problem` where the kernel's int32 is not 0.

        Pass what is returned as `after` to the kernel that must not run then.
        """
        types = tuple(self.values[i].type for i in inputs)
        kernel = Kernel({}, types, (FLAG,), self._scalars(inputs))
        function, used, extra = kernel.finish((body(kernel),), 0)
        text = re.sub(r"\w+", lambda word: str(self.sizes.get(word[0], word[0])), problem)
        variable = self.builder.add_func(checked(function, f"{label}: {text}"), "guard")
        arguments = [self.expr(inputs[i]) for i in used] + [self.variable(n) for n in extra]
        called = relax.call_tir(variable, relax.Tuple(arguments), self.relax_type(FLAG))
        return self.builder.emit(called)

    def size_guard(self, label: str, needed: Sequence[Requirement]) -> list[Expr]:
        """Return the check of conditions on sizes that only run time can tell; none needs none."""
        if not needed:
            return []
        problem = " or ".join(r.problem for r in needed)
        if (label, problem) not in self._size_guards:

            def body(kernel: Kernel) -> Any:
                holds = tirx.all(*(r.holds(kernel) for r in needed))
                zero, one = tirx.const(0, FLAG.dtype), tirx.const(1, FLAG.dtype)
                return kernel.compute(lambda: tirx.Select(holds, zero, one))

            self._size_guards[label, problem] = self.guard(label, problem, (), body)
        return [self._size_guards[label, problem]]

    def guarded(self, made: Expr, guards: Sequence[Expr]) -> Expr:
        """Return a foreign kernel's result, computed only after `guards` have passed."""
        if not guards:
            return made
        call = self.builder.lookup_binding(made)
        function = with_flags(self.builder.get()[call.args[0]], len(guards))
        variable = self.builder.add_func(function, str(call.args[0].name_hint))
        arguments = relax.Tuple([*guards, *call.args[1].fields])
        return self.builder.emit(relax.call_tir(variable, arguments, made.ty))


def bind_inputs(lowering: Lowering) -> list[Expr]:
    """Bind the graph's inputs to variables, and its constants to their arrays; return the variables."""
    variables = []
    for value in lowering.graph.inputs:
        own = tensor_type(value.type)
        variable = relax.Var(identifier(value.name), lowering.relax_type(own))
        lowering.values[value.name] = Value(own, variable)
        variables.append(variable)
    lowering.values.update((c.name, Value(c.type, array=c.array)) for c in lowering.graph.constants)
    return variables


def lower_nodes(lowering: Lowering) -> list[tuple[tuple[str, ...], list[Expr]]]:
    """Emit all nodes of the graph, in order, and return the labels and the results of each.

    Raises:
        CodegenError: one has no rule.
    """
    found = []
    for node in lowering.graph.nodes:
        rule = lowering.rules.get(node.op)
        if rule is None:
            raise CodegenError(f"{node.label}: {node.op} has no lowering")
        made = rule(lowering, node)
        exprs = made if isinstance(made, tuple) else (made,)
        for value, expr in zip(node.outputs, exprs, strict=True):
            lowering.values[value.name] = Value(tensor_type(value.type), expr)
        found.append((node.labels, [lowering.values[v.name].expr for v in node.outputs]))
    return found


def _equal(a: Array, b: Array) -> bool:
    """Say whether two arrays hold the same bytes."""
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def tensor(array: Array) -> Any:
    """Return a numpy array as a TVM tensor; bfloat16 goes by its bytes."""
    return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))


def identifier(name: str) -> str:
    """Return `name` as TVM accepts it for variables and functions."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return plain if plain and not plain[0].isdigit() else f"v_{plain}"


def tensor_type(value_type: Any) -> TensorType:
    """Return a type as a tensor's, which every compiled value has."""
    if not isinstance(value_type, TensorType):
        raise CodegenError(f"a value of type {value_type} cannot be compiled")
    return value_type
