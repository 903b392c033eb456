"""Which nodes the processor's compiler takes, and the sentence why not.

Nodes that it does not take still run on the processor: by their numpy reference ("host"), or as
ONNX ("extern"). `placement_kind` says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from hcomp.dtypes import FLOATS
from hcomp.errors import HcompError
from hcomp.ir.graph import Graph, Node, Value
from hcomp.ir.ops import CONTROL, OPS
from hcomp.ir.types import TensorType, Type
from hcomp.targets.base import Rule

WHOLE = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
Kind: TypeAlias = Literal["compiled", "host", "extern", "control"]

DTYPES = frozenset(("bool", *FLOATS, *WHOLE))
"""Element types that the kernels compute with."""


def _types(graph: Graph, node: Node) -> Iterator[Type]:
    yield from (graph.types[name] for name in node.used_inputs)
    yield from (v.type for v in node.outputs)


def _all_tensors(graph: Graph, node: Node) -> bool:
    return all(isinstance(t, TensorType) for t in _types(graph, node))


def _dtypes_are_compiled(graph: Graph, node: Node) -> bool:
    return all(t.dtype in DTYPES for t in _types(graph, node) if isinstance(t, TensorType))


def _ranks_are_known(graph: Graph, node: Node) -> bool:
    return all(t.shape is not None for t in _types(graph, node) if isinstance(t, TensorType))


def host_only(node: Node) -> str:
    """Return why the operator has no compiled form, or ""."""
    return OPS[node.op].host_only if node.op in OPS else ""


def _host_rule(text: str) -> Rule:
    return Rule(text, lambda graph, node: host_only(node) != text)


_HOST_TEXTS = dict.fromkeys(op.host_only for op in OPS.values() if op.host_only)


RULES = (
    Rule("it is control flow, which the session runs", lambda graph, node: node.op not in CONTROL),
    Rule("it has no lowering of ours", lambda graph, node: node.op != "extern"),
    *(_host_rule(text) for text in _HOST_TEXTS),
    Rule("it works on something that is no tensor", _all_tensors),
    Rule(f"the element type must be one of {', '.join(sorted(DTYPES))}", _dtypes_are_compiled),
    Rule("its rank is known only at run time", _ranks_are_known),
)

_TRIED: dict[object, str] = {}


def trial(graph: Graph, node: Node) -> str:
    """Return what the lowering or TVM says against the node, or "": it is lowered alone, once."""
    key = (
        node.op,
        tuple(node.attrs.items()),
        tuple(graph.types[i] if i else None for i in node.inputs),
        tuple(v.type for v in node.outputs),
    )
    if key not in _TRIED:
        _TRIED[key] = _try(graph, node)
    return _TRIED[key]


def _try(graph: Graph, node: Node) -> str:
    from hcomp.codegen.relax_module import lower_region

    inputs = tuple(Value(i, graph.types[i]) for i in dict.fromkeys(node.used_inputs))
    outputs = tuple(v.name for v in node.outputs)
    try:
        lower_region(Graph("trial", inputs, (), (node,), outputs))
    except HcompError as error:
        return f"it cannot be compiled: {error}"
    return ""


def placement_kind(graph: Graph, node: Node) -> Kind:
    """Return how the processor runs a node.

    "compiled": a kernel of its own; "host": its numpy reference; "extern": ONNX Runtime;
    "control": the session itself.
    """
    from hcomp.targets.cpu import CPU

    if node.op in CONTROL:
        return "control"
    if node.op == "extern":
        return "extern"
    return "host" if CPU.why_not(graph, node) else "compiled"
