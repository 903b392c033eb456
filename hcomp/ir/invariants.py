"""What holds for every graph: seven invariants, together WELL_FORMED.

A check never fails on a graph that another check refuses: all that is wrong is reported at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from hcomp.dims import Dim, DimLike, is_symbol, substitute, symbol, symbols_of
from hcomp.ir.graph import Graph, Node, Value
from hcomp.ir.liveness import introduced_symbols
from hcomp.ir.ops import OPS, UNTYPED, Infer, TypeRuleError
from hcomp.ir.types import OptionalType, SequenceType, TensorType, Type
from hcomp.ir.verifier import Check, Invariant, Violation

_RULE_FAULTS = (
    TypeRuleError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    ZeroDivisionError,
)
"""What a typing rule may raise on a node that does not fit it."""


def everywhere(check: Check) -> Check:
    """Return the check that looks at a graph and all its subgraphs, each by itself."""

    def checked(graph: Graph) -> list[Violation]:
        return [v for g in all_graphs(graph) for v in check(g)]

    return checked


def all_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield `graph` and every graph inside it."""
    yield graph
    for node in graph.nodes:
        for body in node.graphs.values():
            yield from all_graphs(body)


def _ssa(graph: Graph) -> list[Violation]:
    """Each value has a name of its own and is defined before it is read."""
    found = []
    defined: set[str] = set()
    everything = _defined_names(graph)

    def define(name: str, subject: Any) -> None:
        if not name:
            found.append(Violation("a value has no name", subject))
        elif name in defined:
            found.append(Violation(f"%{name} is defined a second time", subject, name))
        defined.add(name)

    for value in graph.inputs:
        define(value.name, value)
    for constant in graph.constants:
        define(constant.name, constant)
    for node in graph.nodes:
        for name in dict.fromkeys(node.used_inputs):
            if name not in defined:
                how = "before it is defined" if name in everything else "and never defined"
                found.append(Violation(f"%{name} is read {how}", node, name))
        for value in node.outputs:
            define(value.name, node)
    return found


def _defined_names(graph: Graph) -> set[str]:
    outputs = (v.name for node in graph.nodes for v in node.outputs)
    return {*(v.name for v in graph.inputs), *(c.name for c in graph.constants), *outputs}


def _acyclic(graph: Graph) -> list[Violation]:
    """No node depends on its own result."""
    sorter: TopologicalSorter[int] = TopologicalSorter()
    position = {id(node): i for i, node in enumerate(graph.nodes)}
    for i, node in enumerate(graph.nodes):
        makers = (graph.producer.get(name) for name in node.used_inputs)
        sorter.add(i, *(position[id(maker)] for maker in makers if maker is not None))
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = sorted(set(error.args[1]))
        through = ", ".join(f"%{graph.nodes[i].output}" for i in cycle)
        node = graph.nodes[cycle[0]]
        return [Violation(f"%{node.output} depends on itself through {through}", node, node.output)]
    return []


def _outputs(graph: Graph) -> list[Violation]:
    """Each value that a graph returns exists."""
    return [
        Violation(f"%{name} is returned and never defined", graph, name)
        for name in dict.fromkeys(graph.outputs)
        if name not in graph.types
    ]


def _attributes(graph: Graph) -> list[Violation]:
    """Each node has exactly the attributes of its operator, and they are plain values."""
    found = []
    for node in graph.nodes:
        row = OPS.get(node.op)
        if row is None and node.op not in UNTYPED:
            found.append(Violation(f"there is no operator {node.op!r}", node))
        if row is not None:
            missing = sorted(row.attrs.keys() - node.attrs.keys())
            unknown = sorted(node.attrs.keys() - row.attrs.keys())
            found += [Violation(f"the attribute {n!r} is missing", node) for n in missing]
            found += [Violation(f"{node.op} has no attribute {n!r}", node) for n in unknown]
        for name, value in node.attrs.items():
            if not _is_plain(value):
                message = f"the attribute {name!r} holds a {type(value).__name__}, no plain value"
                found.append(Violation(message, node))
        if bool(node.payload) != (node.op == "extern"):
            found.append(Violation("extern nodes have a payload, others none", node))
    return found


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(_is_plain(v) for v in value)
    # Not isinstance: numpy's float64 is a float, and True an int, to it.
    return value is None or type(value) in (int, float, str, bool, Dim)


def _closed(graph: Graph) -> list[Violation]:
    """Subgraphs take what their node hands in and return what their node gives out."""
    found: list[Violation] = []
    for node in graph.nodes:
        wanted = {"if": {"then", "else"}, "loop": {"body"}}.get(node.op, set())
        if node.graphs.keys() != wanted:
            message = f"{node.op} needs the subgraphs {sorted(wanted)}, has {sorted(node.graphs)}"
            found.append(Violation(message, node))
        elif node.op == "if":
            found += _closed_if(graph, node)
        elif node.op == "loop":
            found += _closed_loop(graph, node)
    return found


def _closed_if(graph: Graph, node: Node) -> Iterator[Violation]:
    for name, body in node.graphs.items():
        yield from _captures(graph, node, body, node.inputs[1:], body.inputs, name)
        if len(body.outputs) != len(node.outputs):
            yield Violation(
                f"{name!r} returns {len(body.outputs)} values, the node gives {len(node.outputs)}",
                body,
            )
            continue
        for inner, outer in zip(body.outputs, node.outputs, strict=True):
            yield from _admitted(node, body, outer.type, inner, f"the node's %{outer.name}")


def _closed_loop(graph: Graph, node: Node) -> Iterator[Violation]:
    body, carried = node.graphs["body"], node.attrs.get("carried")
    if type(carried) is not int or not 0 <= carried <= min(len(node.inputs) - 2, len(node.outputs)):
        yield Violation(f"the attribute 'carried' is {carried}, which does not fit the node", node)
        return
    yield from _captures(graph, node, body, node.inputs[2 + carried :], body.inputs[2 + carried :], "body")
    if len(body.inputs) < 2 + carried or len(body.outputs) != 1 + len(node.outputs):
        yield Violation(
            f"the body has {len(body.inputs)} inputs and {len(body.outputs)} outputs, which does "
            f"not fit {carried} carried values and {len(node.outputs)} results",
            body,
        )
        return
    start = (TensorType("int64", ()), TensorType("bool", ()))
    if tuple(v.type for v in body.inputs[:2]) != start:
        yield Violation("the body starts with iteration int64[] and condition bool[]", body)
    for i, value in enumerate(body.inputs[2 : 2 + carried]):
        outer = graph.types.get(node.inputs[2 + i])
        if outer is not None and not admits(value.type, outer):
            yield Violation(f"%{value.name} starts as {outer}, found {value.type}", body, value.name)
        what = f"the carried %{value.name}"
        yield from _admitted(node, body, value.type, body.outputs[1 + i], what)


def _captures(
    graph: Graph,
    node: Node,
    body: Graph,
    outer: tuple[str, ...],
    inner: tuple[Value, ...],
    name: str,
) -> Iterator[Violation]:
    if len(outer) != len(inner):
        yield Violation(f"{name!r} takes {len(inner)} captured values, the node hands in {len(outer)}", body)
        return
    for captured, value in zip(outer, inner, strict=True):
        found = graph.types.get(captured)
        if found is not None and found != value.type:
            message = f"%{value.name} captures %{captured}, which is {found}"
            yield Violation(message, value, value.name)


def _admitted(node: Node, body: Graph, wanted: Type, name: str, what: str) -> Iterator[Violation]:
    found = body.types.get(name)
    if found is not None and not admits(wanted, found):
        yield Violation(f"%{name} is {found}, {what} is {wanted}", body, name)


def admits(wanted: Type, found: Type) -> bool:
    """Say whether a value of type `found` may stand where `wanted` is declared.

    A declared symbol stands for any size, a declared number only for itself (or for a size that
    is not known yet).
    """
    if isinstance(wanted, TensorType) and isinstance(found, TensorType):
        if wanted.dtype != found.dtype:
            return False
        if wanted.shape is None or found.shape is None:
            return True
        return len(wanted.shape) == len(found.shape) and not any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(wanted.shape, found.shape, strict=True)
        )
    if isinstance(wanted, SequenceType) and isinstance(found, SequenceType):
        return admits(wanted.element, found.element)
    if isinstance(wanted, OptionalType):
        held = found.element if isinstance(found, OptionalType) else found
        return admits(wanted.element, held)
    return wanted == found


def _typed(graph: Graph) -> list[Violation]:
    """Each node's output types are those that its operator's rule infers."""
    found = []
    for node in graph.nodes:
        row = OPS.get(node.op)
        known = all(name in graph.types for name in node.used_inputs)
        if row is None or not known or row.attrs.keys() != node.attrs.keys():
            continue
        try:
            inferred, fresh = infer_types(node, graph.types)
        except _RULE_FAULTS as error:
            found.append(Violation(f"{error or type(error).__name__}", node))
            continue
        if len(inferred) != len(node.outputs):
            message = f"{node.op} has {len(inferred)} outputs, found {len(node.outputs)}"
            found.append(Violation(message, node))
            continue
        bound: dict[str, DimLike] = {}
        for wanted, value in zip(inferred, node.outputs, strict=True):
            if not _same_type(wanted, value.type, fresh, bound):
                message = f"%{value.name} must be {wanted}, found {value.type}"
                found.append(Violation(message, node, value.name))
    return found


def infer_types(node: Node, types: Mapping[str, Type]) -> tuple[tuple[Type, ...], frozenset[str]]:
    """Return what the operator's rule says of a node, and the symbols that it made up for it."""
    made: list[str] = []

    def fresh(hint: str) -> Dim:
        made.append(f"_new_{hint}_{len(made)}")
        return symbol(made[-1])

    inputs = tuple(types[name] if name else None for name in node.inputs)
    return OPS[node.op].infer(Infer(node.op, inputs, node.attrs, fresh)), frozenset(made)


def _same_type(wanted: Type, found: Type, fresh: frozenset[str], bound: dict[str, DimLike]) -> bool:
    """Compare types; a fresh symbol of `wanted` is whatever `found` has in its first place."""
    if not isinstance(wanted, TensorType) or not isinstance(found, TensorType):
        return wanted == found
    if wanted.dtype != found.dtype or wanted.rank != found.rank:
        return False
    for a, b in zip(wanted.shape or (), found.shape or (), strict=True):
        if is_symbol(a) and str(a) in fresh:
            a = bound.setdefault(str(a), b)
        if (substitute(a, bound) if bound else a) != b:
            return False
    return True


def _symbols(graph: Graph) -> list[Violation]:
    """Each symbol stands alone as a dimension of an input, or of a result, before it is used."""
    return list(_unbound(graph, set()))


def _unbound(graph: Graph, outer: set[str]) -> Iterator[Violation]:
    bound = outer.union(*(introduced_symbols(v.type) for v in graph.inputs))
    for value in graph.inputs:
        yield from _unknown(bound, _used(value.type), value, value.name)
    for node in graph.nodes:
        yield from _unknown(bound, symbols_of(tuple(node.attrs.values())), node, "")
        for body in node.graphs.values():
            yield from _unbound(body, bound)
        bound.update(*(introduced_symbols(v.type) for v in node.outputs))
        for value in node.outputs:
            yield from _unknown(bound, _used(value.type), node, value.name)


def _unknown(bound: set[str], used: Iterable[str], subject: Any, name: str) -> Iterator[Violation]:
    for missing in sorted(set(used) - bound):
        bound.add(missing)  # one message a symbol is enough
        yield Violation(f"nothing before this has the size {missing}", subject, name)


def _used(value_type: Type) -> frozenset[str]:
    # The elements of a sequence differ in size: what their type says binds and needs nothing.
    if not isinstance(value_type, TensorType) or value_type.shape is None:
        return frozenset()
    return symbols_of(value_type.shape)


SSA = Invariant("ssa", everywhere(_ssa))
ACYCLIC = Invariant("acyclic", everywhere(_acyclic))
OUTPUTS = Invariant("outputs", everywhere(_outputs))
ATTRIBUTES = Invariant("attributes", everywhere(_attributes))
CLOSED = Invariant("closed", everywhere(_closed))
TYPED = Invariant("typed", everywhere(_typed))
SYMBOLS = Invariant("symbols", _symbols)

WELL_FORMED = (SSA, ACYCLIC, OUTPUTS, ATTRIBUTES, CLOSED, TYPED, SYMBOLS)
"""What the verifier checks between all passes."""
