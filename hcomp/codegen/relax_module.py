"""A region as a Relax module: the table walk from our operators to kernels and calls.

The function is `main(*inputs, *constants, [shape])`. Constants of at most SMALL bytes are part of
the module; larger ones are parameters, so that the artifact can map them. `shape` carries the
symbols that no parameter's dimension binds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from hcomp.codegen.lowering import Array, Expr, Lowering, Rule, Value, identifier, tensor_type
from hcomp.errors import CodegenError
from hcomp.ir.graph import Graph, Node

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
        own = tensor_type(value.type)
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
        lowering.values[value.name] = Value(tensor_type(value.type), expr)


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
