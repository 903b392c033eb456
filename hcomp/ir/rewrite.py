"""Rewriting graphs: a pass gives a rule for one node, `rewrite` does the rest.

A rule sees the nodes in order, their inputs already renamed to what replaced them, and either
keeps a node or names the values that take the place of its outputs. It may make nodes through the
`Editor`. Nobody has to keep types in step: where a replacement's type says more (a number for a
size that was only known at run time), everything after it is inferred again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim, DimLike, is_symbol, substitute, symbols_of
from hcomp.errors import PassError
from hcomp.ir.builder import Names
from hcomp.ir.factors import Factors
from hcomp.ir.graph import Attribute, Constant, Graph, Node, Origin, Value
from hcomp.ir.liveness import without_dead
from hcomp.ir.ops import OPS, Infer
from hcomp.ir.types import (
    OpaqueType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    type_symbols,
)

Rule: TypeAlias = "Callable[[Node, Editor], Sequence[str] | None]"
"""Returns None to keep the node, or one value for each of its outputs."""


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Return `graph` with `rule` applied to every node, those of subgraphs first.

    Nodes and constants that nobody reads afterwards are left out. A graph in which the rule keeps
    everything comes back as the same object.

    Raises:
        PassError: a replacement has a type that the value's readers cannot take.
    """
    return Editor(graph, rule, _TakenNames(graph)).run()


def substitute_attribute(value: Any, sizes: Mapping[str, DimLike]) -> Any:
    """Return an attribute with symbols replaced in the dimensions that it holds."""
    if isinstance(value, Dim):
        return substitute(value, sizes)
    if isinstance(value, tuple):
        return tuple(substitute_attribute(v, sizes) for v in value)
    return value


def substitute_type(value_type: Type, sizes: Mapping[str, DimLike]) -> Type:
    """Return a type with symbols replaced in its dimensions."""
    match value_type:
        case TensorType(dtype=dtype, shape=shape) if shape is not None:
            return TensorType(dtype, tuple(substitute(d, sizes) for d in shape))
        case SequenceType(element=element):
            return SequenceType(substitute_type(element, sizes))
        case OptionalType(element=element):
            return OptionalType(substitute_type(element, sizes))
    return value_type


class _TakenNames(Names):
    """The names of a whole model; a node that goes away gives its names back."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._take(graph)

    def release(self, names: Iterable[str]) -> None:
        """Let `names` be used again."""
        self._used.difference_update(names)

    def reserve(self, names: Iterable[str]) -> None:
        """Let nobody else use `names`."""
        self._used.update(names)

    def _take(self, graph: Graph) -> None:
        self.reserve(graph.types)
        for value_type in graph.types.values():
            self.reserve(type_symbols(value_type))
        for node in graph.nodes:
            for body in node.graphs.values():
                self._take(body)


@dataclass
class _Scope:
    """What the names and symbols of one old graph have become, and its old types."""

    types: Mapping[str, Type]
    values: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, DimLike] = field(default_factory=dict)

    def resolve(self, name: str) -> str:
        return self.values.get(name, name)


class Editor:
    """The graph being made; what a rule sees and uses.

    Attributes:
        before: the old graph, for whose outputs and readers a rule may ask.
        types: the types of all values so far, by name.
        origin: given to the nodes that a rule makes; that of the node at hand.
    """

    def __init__(
        self,
        graph: Graph,
        rule: Rule,
        names: _TakenNames,
        inputs: Sequence[Type] | None = None,
        outer: tuple[Mapping[str, DimLike], Iterable[str]] = ({}, ()),
    ) -> None:
        self.before = graph
        self.origin = Origin("")
        self._rule = rule
        self._names = names
        self._scope = _Scope(graph.types, sizes=dict(outer[0]))
        types = [v.type for v in graph.inputs] if inputs is None else inputs
        self._inputs = tuple(
            value if kind == value.type else Value(value.name, kind)
            for value, kind in zip(graph.inputs, types, strict=True)
        )
        self._constants = {c.name: c for c in graph.constants}
        self._nodes: list[Node] = []
        self._producer: dict[str, Node] = {}
        self._reads: dict[str, int] = {}
        self._position = 0
        self._index: dict[int, int] = {}
        self._bound_before: frozenset[str] = frozenset()
        self.types: dict[str, Type] = {v.name: v.type for v in self._inputs}
        self.types.update((c.name, c.type) for c in graph.constants)
        self._bound = set(outer[1]).union(*(type_symbols(v.type) for v in self._inputs))
        self._aliases: dict[str, list[str]] = {}

    # -- what rules ask ----------------------------------------------------------------------
    def producer(self, name: str) -> Node | None:
        """Return the node that makes a value in the new graph; inputs and constants have none."""
        return self._producer.get(name)

    def constant_value(self, name: str) -> NDArray[np.generic] | None:
        """Return the contents of a value that is a constant, else None."""
        found = self._constants.get(name)
        return None if found is None else found.array

    def factors(self, name: str) -> Factors | None:
        """Return what a value that is a dequantised constant was multiplied from, else None."""
        found = self._constants.get(name)
        return None if found is None else found.factors

    def tensor(self, name: str) -> TensorType | None:
        """Return the type of a value that is a tensor of known rank, else None."""
        found = self.types[name]
        return found if isinstance(found, TensorType) and found.shape is not None else None

    def other_reads(self, name: str) -> int:
        """Return how often `name` is read besides by the node at hand; an output counts as read."""
        count = self._reads.get(name, 0)
        for old in {name, *self._aliases.get(name, ())}:
            count += old in self.before.outputs
            count += sum(self._index[id(node)] > self._position for node in self.before.users.get(old, ()))
        return count

    # -- what rules do -----------------------------------------------------------------------
    def constant(self, array: Any, hint: str, factors: Factors | None = None) -> str:
        """Add a constant and return its name."""
        constant = Constant(self._names.unique(hint), np.asarray(array), factors)
        self._constants[constant.name] = constant
        self.types[constant.name] = constant.type
        return constant.name

    def emit(self, op: str, *inputs: str, hint: str = "", **attrs: Attribute) -> str:
        """Add a node with one output, its type inferred, and return the output's name."""
        return self.emit_many(op, inputs, attrs, (hint,))[0]

    def emit_many(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attribute],
        hints: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add a node with as many outputs as its operator has, and return their names."""
        full = OPS[op].complete(attrs)
        types = tuple(self.types[name] if name else None for name in inputs)
        found = OPS[op].infer(Infer(op, types, full, self._names.fresh_symbol))
        names = [hints[i] if i < len(hints) and hints[i] else op for i in range(len(found))]
        outputs = tuple(Value(self._names.unique(n), t) for n, t in zip(names, found, strict=True))
        self._append(Node(op, tuple(inputs), outputs, full, origin=self.origin))
        return tuple(v.name for v in outputs)

    def put(self, node: Node) -> tuple[str, ...]:
        """Add a node that the rule has made itself, in place of the one at hand; its outputs' names.

        For nodes whose types are not inferred: `if`, `loop` and `extern`.
        """
        names = tuple(v.name for v in node.outputs)
        self._names.reserve(names)
        self._append(node)
        return names

    def inline(self, body: Graph, arguments: Sequence[str]) -> tuple[str, ...]:
        """Add the nodes of a subgraph with `arguments` as its inputs; return its outputs."""
        scope = _Scope(body.types, sizes=dict(self._scope.sizes))
        for value, argument in zip(body.inputs, arguments, strict=True):
            scope.values[value.name] = argument
            self._bind(value.type, self.types[argument], scope)
        for name in sorted(_own_symbols(body) - self._bound_before):
            # The second copy of a body needs symbols of its own.
            if name in self._bound:
                scope.sizes.setdefault(name, self._names.fresh_symbol(name))
        for constant in body.constants:
            name = self._names.unique(constant.name)
            new = constant if name == constant.name else replace(constant, name=name)
            self._constants[name] = new
            self.types[name] = new.type
            scope.values[constant.name] = name
        for node in body.nodes:
            adapted = self._adapt(node, scope, again=True)
            names = tuple(self._names.unique(v.name) for v in node.outputs)
            outputs = tuple(Value(n, v.type) for n, v in zip(names, adapted.outputs, strict=True))
            self._append(replace(adapted, outputs=outputs))
            scope.values.update(zip((v.name for v in node.outputs), names, strict=True))
        return tuple(scope.resolve(name) for name in body.outputs)

    # -- the walk ----------------------------------------------------------------------------
    def run(self) -> Graph:
        """Apply the rule to every node and return the new graph."""
        self._index = {id(node): i for i, node in enumerate(self.before.nodes)}
        for position, node in enumerate(self.before.nodes):
            self._position = position
            adapted = self._adapt(node, self._scope)
            names = tuple(v.name for v in node.outputs)
            self.origin = node.origin
            if node.graphs:
                self._bound_before = frozenset(self._bound)
            self._names.release(names)
            new = self._rule(adapted, self)
            if new is None:
                self._names.reserve(names)
                self._append(adapted)
            else:
                self._replace(adapted, tuple(new))
        return self._finish()

    def _finish(self) -> Graph:
        before = self.before
        outputs = tuple(self._scope.resolve(name) for name in before.outputs)
        unchanged = (
            outputs == before.outputs
            and all(a is b for a, b in zip(self._inputs, before.inputs, strict=True))
            and len(self._nodes) == len(before.nodes)
            and all(a is b for a, b in zip(self._nodes, before.nodes, strict=True))
        )
        if unchanged:
            return before
        constants = tuple(self._constants.values())
        return without_dead(Graph(before.name, self._inputs, constants, tuple(self._nodes), outputs))

    def _append(self, node: Node) -> None:
        self._nodes.append(node)
        for name in node.used_inputs:
            self._reads[name] = self._reads.get(name, 0) + 1
        for value in node.outputs:
            self._producer[value.name] = node
            self.types[value.name] = value.type
            self._bound |= type_symbols(value.type)

    def _replace(self, node: Node, new: tuple[str, ...]) -> None:
        for value, name in zip(node.outputs, new, strict=True):
            self._bind(value.type, self.types[name], self._scope)
            if not _fits(substitute_type(value.type, self._scope.sizes), self.types[name]):
                raise PassError(
                    f"{node.label}: %{value.name} is {value.type}, its replacement %{name} is {self.types[name]}"
                )
            self._scope.values[value.name] = name
            self._aliases.setdefault(name, []).append(value.name)

    def _bind(self, old: Type, new: Type, scope: _Scope) -> None:
        """Note what the symbols that the old type would have introduced are now."""
        if not isinstance(old, TensorType) or not isinstance(new, TensorType):
            return
        if old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
            return
        for a, b in zip(old.shape, new.shape, strict=True):
            if a != b and is_symbol(a) and str(a) not in self._bound:
                scope.sizes.setdefault(str(a), b)

    def _adapt(self, node: Node, scope: _Scope, *, again: bool = False) -> Node:
        """Return an old node in terms of the new graph; the same object where nothing changed."""
        inputs = tuple(scope.resolve(name) if name else "" for name in node.inputs)
        moved = again or any(
            self.types[new] != scope.types[old] for new, old in zip(inputs, node.inputs, strict=True) if new
        )
        if inputs == node.inputs and not moved and not scope.sizes and not node.graphs:
            return node
        attrs = dict(node.attrs)
        if scope.sizes and symbols_of(tuple(attrs.values())) & scope.sizes.keys():
            attrs = {k: substitute_attribute(v, scope.sizes) for k, v in attrs.items()}
        graphs = {k: self._adapt_body(node, g, inputs, scope) for k, g in node.graphs.items()}
        new = replace(node, inputs=inputs, attrs=attrs, graphs=graphs)
        if moved or scope.sizes:
            new = replace(new, outputs=self._retyped(new, scope, infer=moved))
        same = (
            inputs == node.inputs
            and not moved
            and new.outputs == node.outputs
            and new.attrs == node.attrs
            and all(graphs[k] is g for k, g in node.graphs.items())
        )
        return node if same else new

    def _adapt_body(self, node: Node, body: Graph, inputs: tuple[str, ...], scope: _Scope) -> Graph:
        """Return a subgraph, rewritten; the types of what it captures are those of now."""
        carried = node.attrs.get("carried")
        captured = inputs[2 + carried :] if isinstance(carried, int) else inputs[1:]
        own = len(body.inputs) - len(captured)
        types = [substitute_type(v.type, scope.sizes) for v in body.inputs[:own]]
        types += [self.types[name] for name in captured]
        return Editor(body, self._rule, self._names, types, (scope.sizes, self._bound)).run()

    def _retyped(self, node: Node, scope: _Scope, *, infer: bool) -> tuple[Value, ...]:
        """Return a node's outputs with their types of now."""
        old = tuple(substitute_type(v.type, scope.sizes) for v in node.outputs)
        if node.op not in OPS:
            return tuple(Value(v.name, t) for v, t in zip(node.outputs, old, strict=True))
        if not infer and not symbols_of(tuple(node.attrs.values())):
            return tuple(Value(v.name, t) for v, t in zip(node.outputs, old, strict=True))
        made: dict[str, str] = {}

        def fresh(hint: str) -> Dim:
            dim = self._names.fresh_symbol(hint)
            made[str(dim)] = hint
            return dim

        types = tuple(self.types[name] if name else None for name in node.inputs)
        new = OPS[node.op].infer(Infer(node.op, types, node.attrs, fresh))
        # Symbols that the rule made up keep their old names where these are still free.
        kept: dict[str, DimLike] = {}
        for a, b in zip(new, old, strict=True):
            for dim, was in _paired_dims(a, b):
                free = is_symbol(was) and str(was) not in self._bound
                if str(dim) in made and free:
                    kept.setdefault(str(dim), was)
        new = tuple(substitute_type(t, kept) for t in new)
        for a, b in zip(new, old, strict=True):
            self._bind(b, a, scope)
        return tuple(Value(v.name, t) for v, t in zip(node.outputs, new, strict=True))


def _own_symbols(body: Graph) -> frozenset[str]:
    """Return the symbols that a subgraph's values mention."""
    return frozenset().union(*(type_symbols(t) for t in body.types.values()))


def _paired_dims(a: Type, b: Type) -> Iterable[tuple[DimLike, DimLike]]:
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank == b.rank:
        return zip(a.shape or (), b.shape or (), strict=True)
    return ()


def _fits(old: Type, new: Type) -> bool:
    """Say whether readers of an `old` value can take a `new` one: equal, or says more."""
    match old, new:
        case TensorType(), TensorType():
            return old.dtype == new.dtype and old.shape in (None, new.shape)
        case SequenceType(), SequenceType():
            return _fits(old.element, new.element)
        case OptionalType(), _:
            return _fits(old.element, new.element if isinstance(new, OptionalType) else new)
        case OpaqueType(), OpaqueType():
            return old == new
    return False
