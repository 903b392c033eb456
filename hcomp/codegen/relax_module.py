"""A region as a Relax module: the table walk from our operators to kernels and calls.

The function is `main(*inputs, *constants, [shape])`. Constants of at most SMALL bytes are part of
the module; larger ones are parameters, so that the artifact can map them. `shape` carries the
symbols that no parameter's dimension binds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax

from hcomp.codegen.kernel_nodes import Origins
from hcomp.codegen.loop import TRIP, carried_count, lower_loop
from hcomp.codegen.lowering import Array, Expr, Lowering, Rule, bind_inputs, lower_nodes
from hcomp.codegen.sizes import name_sizes
from hcomp.dims import DimLike, symbol
from hcomp.ir.graph import Graph, Node

VIEWS = ("reshape", "expand_dims", "squeeze", "require")
"""Operators whose result shares its input's memory."""


@dataclass(frozen=True)
class LoweredRegion:
    """A Relax module of one region and what its caller must know.

    Attributes:
        module: the Relax module; its function is `main`.
        constants: the parameters behind the inputs, in order.
        symbols: the sizes of the trailing shape parameter; without any there is none.
        fresh_outputs: for each output, whether it has memory of its own.
        origins: variables of the region's function to the labels of the nodes that they belong to.
    """

    module: Any
    constants: tuple[tuple[str, Array], ...]
    symbols: tuple[str, ...]
    fresh_outputs: tuple[bool, ...]
    origins: Origins = field(default_factory=dict)


def lower_region(graph: Graph, rules: Mapping[str, Rule] | None = None) -> LoweredRegion:
    """Return the Relax module of a region.

    Args:
        graph: the region as a closed graph: tensors of known rank, no extern nodes; no subgraphs but
            that of a loop, which is a region alone.
        rules: rows that replace those of the table, for a target with kernels of its own.

    Raises:
        CodegenError: an operator has no lowering, or TVM refuses the node; names it.
    """
    from hcomp.codegen.relax_table import LOWER

    table = {**LOWER, **(rules or {})}
    if any(node.op == "loop" for node in graph.nodes):
        lowering, symbols, made = lower_loop(graph, table)
        return _lowered(lowering, symbols, graph, _origins(lowering.builder.get()[TRIP], made))
    named, computed = name_sizes(graph)
    lowering = Lowering(named, table, sizes=computed)
    inputs = bind_inputs(lowering)
    builder = lowering.builder
    # Which constants and sizes become parameters is known only when all nodes are lowered.
    with builder.function("region"):
        with builder.dataflow():
            made = lower_nodes(lowering)
            results = [builder.emit_output(lowering.expr(name)) for name in graph.outputs]
        sizes, shape = lowering.size_parameter()
        parameters = [*inputs, *(variable for variable, _ in lowering.packed.values()), *shape]
        result = results[0] if len(results) == 1 else relax.Tuple(results)
        builder.emit_func_output(result, parameters)
    origins = _origins(builder.get()["region"], made)
    symbols = _entry(lowering, graph, [(s, computed.get(s, symbol(s))) for s in sizes])
    return _lowered(lowering, symbols, graph, origins)


def _lowered(lowering: Lowering, symbols: tuple[str, ...], graph: Graph, origins: Origins) -> LoweredRegion:
    return LoweredRegion(
        module=lowering.builder.get(),
        constants=tuple((name, array) for name, (_, array) in lowering.packed.items()),
        symbols=symbols,
        fresh_outputs=_fresh(graph),
        origins=origins,
    )


def _origins(function: Any, made: Sequence[tuple[tuple[str, ...], Sequence[Expr]]]) -> dict[Any, tuple[str, ...]]:
    """Return the node of each binding: bindings stand in the order of nodes, a node's results behind the rest."""
    variables = [binding.var for block in function.body.blocks for binding in block.bindings]
    place = {variable: number for number, variable in enumerate(variables)}
    found: dict[Any, tuple[str, ...]] = {}
    for labels, results in made:
        last = max((place[r] for r in results if r in place), default=-1)
        found.update((v, labels) for v in variables[len(found) : last + 1])
    return found


def _entry(lowering: Lowering, graph: Graph, sizes: Sequence[tuple[str, DimLike]]) -> tuple[str, ...]:
    """Make `main`, and return the symbols of its trailing shape.

    Without computed sizes the region's function is `main` itself. Otherwise `main` computes them
    and calls it: a function's parameters are the only place that binds a name to a size for good
    (passes drop match_casts that nobody reads).
    """
    module = lowering.builder.get()
    region = module.get_global_var("region")
    if all(name == str(dim) for name, dim in sizes):
        function = module[region]
        del module[region]
        module["main"] = function.with_attr("global_symbol", "main")
        return tuple(name for name, _ in sizes)
    outer = Lowering(graph, {}, lowering.builder)
    arguments = bind_inputs(outer)
    arguments += [outer.pack(name, array) for name, (_, array) in lowering.packed.items()]
    shape = relax.ShapeExpr([outer.dim(dim) for _, dim in sizes])
    symbols, parameter = outer.size_parameter()
    builder = lowering.builder
    with builder.function("main", [*arguments, *parameter]):
        builder.emit_func_output(builder.emit(relax.Call(region, [*arguments, shape])))
    # The region's function stays public: of a private one, FuseTIR replaces the shape parameter by its
    # sizes in the order of a hash table of addresses, and the artifact's bytes change from run to run.
    return symbols


def _fresh(graph: Graph) -> tuple[bool, ...]:
    """Say for each output whether it owns its memory: it is no view of an input or of another."""
    taken: set[str] = set()
    found = []
    for name in graph.outputs:
        root = name
        while (node := graph.producer.get(root)) is not None and node.op in VIEWS:
            root = node.inputs[0]
        # A loop's states may be what it was given: zero trips change nothing.
        loop = graph.producer.get(root)
        is_state = loop is not None and loop.op == "loop" and root not in _scans(loop)
        found.append(root in graph.producer and root not in taken and not is_state)
        taken.add(root)
    return tuple(found)


def _scans(loop: Node) -> set[str]:
    return {v.name for v in loop.outputs[carried_count(loop) :]}
