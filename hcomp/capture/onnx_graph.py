"""Walking an ONNX graph: scopes, names, provenance, and one converter call a node."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from onnx import GraphProto, ModelProto, NodeProto

from hcomp.capture.check_node import check_node, check_sizes
from hcomp.capture.context import NodeContext, Refused, RunTime
from hcomp.capture.extern import ExternContext, emit_extern
from hcomp.capture.onnx_types import Symbols, to_array, value_type
from hcomp.dims import Dim, symbols_of
from hcomp.errors import CaptureError, HcompError
from hcomp.ir.builder import GraphBuilder, Names
from hcomp.ir.fixed_sizes import fixed_sizes
from hcomp.ir.graph import Graph, Origin
from hcomp.ir.ops import TypeRuleError
from hcomp.ir.types import TensorType, Type, type_symbols

logger = logging.getLogger(__name__)


Pending: TypeAlias = tuple[int, NodeProto]
"""A node that is still to be converted, and its place in its graph."""


@dataclass(frozen=True)
class Fact:
    """Whether a condition about sizes holds; `problem` says why the model needs that, "" where it is sure."""

    truth: bool
    problem: str = ""


class Scope:
    """One ONNX graph being converted: its builder, its names, and the scope around it.

    Attributes:
        captures: for a subgraph, value of the scope around it -> the input that carries it in.
        rest: the nodes that are still to be converted.
        results: the names of the graph's outputs.
        facts: what is known here of conditions about sizes, in the scopes around it apart.
        forks: how many branches around this one hold what follows them.
    """

    def __init__(
        self,
        model: ModelProto,
        builder: GraphBuilder,
        symbols: Symbols,
        parent: Scope | None = None,
    ) -> None:
        self.model = model
        self.builder = builder
        self.symbols = symbols
        self.parent = parent
        self.values: dict[str, str] = {"": ""}
        self.captures: dict[str, str] = {}
        self.rest: deque[Pending] = deque()
        self.results: tuple[str, ...] = ()
        self.facts: dict[Dim, Fact] = {}
        self.forks: int = parent.forks if parent is not None else 0

    def find(self, name: str) -> str:
        """Return the value that an ONNX name stands for, captured from outside where needed.

        Raises:
            CaptureError: nothing defines the name.
        """
        found = self.lookup(name)
        if found is None:
            raise CaptureError(
                f"the value {name!r} is read before anything defines it: an input or initializer is"
                " missing, or the nodes form a cycle"
            )
        return found

    def lookup(self, name: str) -> str | None:
        """Return the value of an ONNX name, or None."""
        if name in self.values:
            return self.values[name]
        outer = self.parent.lookup(name) if self.parent is not None else None
        if outer is None:
            return None
        self.values[name] = self.carry_in(outer)
        return self.values[name]

    def carry_in(self, outer: str) -> str:
        """Return the value of this scope that holds the value `outer` of the scope around it."""
        assert self.parent is not None
        if outer in self.captures:
            return self.captures[outer]
        around = self.parent.builder
        constant = around.constant_array(outer)
        if constant is not None:
            # Constants are copied by reference, not passed: both graphs see the same memory.
            return self.builder.constant(constant, outer)
        name = self.builder.input(outer, around.types[outer])
        known = around.known(outer)
        if known is not None:
            self.builder.set_known(name, known)
        self.captures[outer] = name
        return name

    def carry_symbol(self, symbol: str) -> None:
        """Make sure that `symbol` is a plain size of some value that enters this subgraph."""
        if self.parent is None or self.builder.introduces(symbol) is not None:
            return
        source = self.parent.builder.introduces(symbol)
        if source is None:
            self.parent.carry_symbol(symbol)
            source = self.parent.builder.introduces(symbol)
        if source is not None:
            self.carry_in(source)

    def fact(self, condition: Dim | None) -> Fact | None:
        """Return what is known of a condition about sizes, here or in a scope around."""
        if condition is None:
            return None
        around = self.parent.fact(condition) if self.parent is not None else None
        return self.facts.get(condition, around)

    def visible(self, symbol: str) -> bool:
        """Say whether a symbol has a source in this scope or one around it."""
        if self.builder.introduces(symbol) is not None:
            return True
        return self.parent is not None and self.parent.visible(symbol)


@dataclass(frozen=True)
class Captured:
    """A model as a graph, with the model's own names of its inputs and outputs, in order.

    `values` gives the model's own names of all values that nodes make, and of those nodes.
    """

    graph: Graph
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)


def capture_graph(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> Captured:
    """Return the graph of a normalised ONNX model; `shapes` makes inputs static.

    So do nodes that only one size fits, and then all is captured again, because a known size decides more
    than a type: what is folded, which rank a Squeeze gives.

    Raises:
        CaptureError: the model is malformed, or has a node that no engine here can run.
    """
    fixed: dict[str, int] = {}
    while True:
        captured = _capture(model, shapes, fixed)
        found = fixed_sizes(captured.graph)
        if not found:
            return captured
        logger.info("sizes that only one value fits: %s", found)
        fixed |= found


def _capture(model: ModelProto, shapes: Mapping[str, Sequence[int]], fixed: Mapping[str, int]) -> Captured:
    names = Names()
    builder = GraphBuilder(model.graph.name or "main", names)
    scope = Scope(model, builder, Symbols(names, fixed))
    _bind_shapes(model.graph, scope.symbols, shapes)
    inputs: list[str] = []
    given = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    for info in model.graph.input:
        if info.name in given:
            continue  # an initializer that is listed as an input too (IR version 3): a constant
        if not info.type.WhichOneof("value"):
            raise CaptureError(f"the input {info.name!r} has no type")
        try:
            declared = value_type(info.type, scope.symbols)
            check_sizes([declared])
        except CaptureError as error:
            raise CaptureError(f"the input {info.name!r}: {error}") from None
        if info.name in shapes:
            declared = _with_shape(info.name, declared, shapes[info.name])
        scope.values[info.name] = builder.input(info.name, declared)
        inputs.append(info.name)
    convert_body(scope, model.graph)
    names_out = tuple(o.name for o in model.graph.output)
    graph = builder.finish([scope.find(name) for name in names_out])
    return Captured(graph, graph.name, tuple(inputs), names_out, dict(_made_values(model.graph)))


def _made_values(graph: GraphProto) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(graph.node):
        for value in filter(None, node.output):
            yield value, _node_name(node, index)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _made_values(body)


def _node_name(node: NodeProto, index: int) -> str:
    """Return what reports call a node: its name, or its first output where it has none."""
    return node.name or (node.output[0] if node.output else f"{node.op_type}_{index}")


def _bind_shapes(graph: GraphProto, symbols: Symbols, shapes: Mapping[str, Sequence[int]]) -> None:
    inputs = {i.name: i for i in graph.input}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise CaptureError(f"a shape is given for {name!r}, which is no input: {', '.join(inputs)}")
        for dim, size in zip(inputs[name].type.tensor_type.shape.dim, sizes, strict=False):
            if dim.dim_param:
                symbols.bind(dim.dim_param, size)


def _with_shape(name: str, declared: Type, sizes: Sequence[int]) -> Type:
    if not isinstance(declared, TensorType):
        raise CaptureError(f"a shape is given for {name!r}, which is no tensor")
    if declared.shape is not None:
        fits = len(declared.shape) == len(sizes) and all(
            not isinstance(d, int) or d == s for d, s in zip(declared.shape, sizes, strict=True)
        )
        if not fits:
            raise CaptureError(f"the shape {list(sizes)} does not fit the input {name!r} of type {declared}")
    return TensorType(declared.dtype, tuple(sizes))


def convert_body(scope: Scope, graph: GraphProto) -> None:
    """Convert the initializers and nodes of an ONNX graph into the scope's builder."""
    for tensor in graph.initializer:
        scope.values[tensor.name] = scope.builder.constant(to_array(tensor), tensor.name)
    if graph.sparse_initializer:
        raise CaptureError("sparse initializers must be made dense before the graph is converted")
    scope.results = tuple(o.name for o in graph.output)
    convert_nodes(scope, enumerate(graph.node))


def convert_nodes(scope: Scope, nodes: Iterable[Pending]) -> None:
    """Convert nodes in their order; a converter may take some of those that follow (`Scope.rest`)."""
    scope.rest = deque(nodes)
    while scope.rest:
        index, node = scope.rest.popleft()
        origin = Origin(_node_name(node, index), node.op_type, "" if node.domain == "ai.onnx" else node.domain)
        with scope.builder.at(origin):
            _convert_node(scope, node, origin)


def _convert_node(scope: Scope, node: NodeProto, origin: Origin) -> None:
    try:
        names = _node_outputs(scope, node, origin)
    except CaptureError as error:
        # Those of nodes inside of subgraphs name their node already.
        text = str(error)
        raise CaptureError(text if text.startswith("node ") else f"node {origin}: {text}") from error
    except MemoryError:
        raise CaptureError(f"node {origin}: its result does not fit into the memory") from None
    for onnx_name, value in zip(node.output, names, strict=False):
        if onnx_name and value:
            scope.values[onnx_name] = value
    missing = [o for o in node.output[len(names) :] if o]
    if missing:
        raise CaptureError(f"node {origin}: no value was made for its output {missing[0]!r}")


def _node_outputs(scope: Scope, node: NodeProto, origin: Origin) -> Sequence[str]:
    """Return the values that a node's converter gives, or those of an extern node where it refuses."""
    inputs = [scope.find(i) for i in node.input]
    opset = next((o.version for o in scope.model.opset_import if _domain(o.domain) == origin.domain), 1)
    check_node(node, [scope.builder.types[i] if i else None for i in inputs], opset, origin.domain)
    context = NodeContext(node, inputs, scope, opset)
    before = len(scope.builder.types)
    try:
        outputs = _call_converter(context, origin)
        check_sizes(islice(scope.builder.types.values(), before, None))
    except (Refused, RunTime, TypeRuleError) as refusal:
        reason = str(refusal)
    except (HcompError, MemoryError):
        raise
    except Exception as error:
        # What a converter did not foresee is a refusal like any other: ONNX Runtime judges whether
        # the node is sound, and reports name the reason.
        logger.debug("node %s: its converter failed", origin, exc_info=True)
        text = " ".join(str(error).split())[:200]
        reason = f"its converter failed with {type(error).__name__}: {text}"
    else:
        return (outputs,) if isinstance(outputs, str) else tuple(outputs)
    logger.debug("extern: %s: %s", origin, reason)
    before = len(scope.builder.types)
    made = emit_extern(ExternContext(scope.model, scope.builder), context, origin, reason)
    check_sizes(islice(scope.builder.types.values(), before, None))
    return made


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _call_converter(context: NodeContext, origin: Origin) -> str | Sequence[str]:
    from hcomp.capture.onnx_ops import (
        CONVERTERS,  # late: control flow converts subgraphs through here
    )

    converter = CONVERTERS.get((origin.domain, origin.op))
    if converter is None:
        raise context.refuse("hcomp has no lowering for this operator")
    outputs = converter(context)
    unread = context.unread()
    if unread:
        raise context.refuse(f"its attribute {unread[0]!r} has no lowering")
    return outputs


def convert_subgraph(
    parent: Scope,
    graph: GraphProto,
    inputs: Sequence[tuple[str, Type]],
    facts: Mapping[Dim, Fact] | None = None,
    lists: Collection[str] = (),
) -> tuple[Scope, list[str]]:
    """Convert a subgraph whose formal inputs have the given ONNX names and types; `facts` hold inside.

    Inputs in `lists` are scalars that the subgraph takes with the shape [1].
    Returns the subgraph's scope (its `captures` grow as it is finished) and its outputs' values.
    """
    builder = GraphBuilder(graph.name or "body", parent.builder.names)
    scope = Scope(parent.model, builder, parent.symbols, parent)
    scope.facts.update(facts or {})
    for name, formal in inputs:
        value = builder.input(name, formal)
        scope.values[name] = builder.emit("reshape", value, shape=(1,)) if name in lists else value
    convert_body(scope, graph)
    outputs = [scope.find(o.name) for o in graph.output]
    return scope, outputs


def finish_subgraph(scope: Scope, outputs: Sequence[str]) -> tuple[Graph, tuple[str, ...]]:
    """Return a converted subgraph, closed, and the outer values that it captures, in order."""
    used: set[str] = set()
    for node_type in scope.builder.types.values():
        used |= type_symbols(node_type)
    for attrs in scope.builder.all_attrs():
        used |= symbols_of(tuple(attrs.values()))
    for symbol in sorted(used):
        scope.carry_symbol(symbol)
    return scope.builder.finish(outputs), tuple(scope.captures)
