"""ONNX to ONNX, before conversion: functions inlined, sparse tensors dense, names checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from hcomp.capture.order import sort_nodes, subgraphs
from hcomp.errors import CaptureError

MAX_ROUNDS = 8
"""Function bodies call functions; deeper chains than this do not occur."""


def normalize(model: ModelProto) -> ModelProto:
    """Return the model with its functions, and the schema functions that hcomp lacks, inlined.

    Raises:
        CaptureError: functions call each other in a circle, nodes form a cycle, or a value is
            defined twice.
    """
    if model.functions:
        _refuse_recursion(model)
        model = _inline(lambda: onnx.inliner.inline_local_functions(model))
    model = _expand_schema_functions(model)
    _densify(model.graph)
    _check_names(model.graph)
    _check_outputs(model.graph)
    sort_nodes(model.graph)
    return model


def _inline(call: object) -> ModelProto:
    try:
        inlined: ModelProto = call()  # type: ignore[operator]
    except Exception as error:  # the inliner raises what its C++ side throws
        raise CaptureError(f"the model's functions cannot be inlined: {str(error).strip()}") from None
    return inlined


def _refuse_recursion(model: ModelProto) -> None:
    calls = {(f.domain, f.name): {(n.domain, n.op_type) for n in _nodes(f.node)} for f in model.functions}
    state: dict[tuple[str, str], int] = {}

    def visit(key: tuple[str, str]) -> None:
        if state.get(key) == 1:
            raise CaptureError(f"the function {key[0]}::{key[1]} calls itself")
        if key not in calls or state.get(key) == 2:
            return
        state[key] = 1
        for other in calls[key]:
            visit(other)
        state[key] = 2

    for key in calls:
        visit(key)


def _nodes(nodes: object) -> Iterator[NodeProto]:
    for node in nodes:  # type: ignore[attr-defined]  # protobuf's containers have no stubs
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g.node)
            for graph in attribute.graphs:
                yield from _nodes(graph.node)


def _expand_schema_functions(model: ModelProto) -> ModelProto:
    """Replace operators without a converter by the function body that the standard gives them."""
    from hcomp.capture.onnx_ops import CONVERTERS

    for _ in range(MAX_ROUNDS):
        versions = {e.domain: e.version for e in model.opset_import}
        wanted = sorted(
            {
                (n.domain, n.op_type)
                for n in _nodes(model.graph.node)
                if (_domain(n.domain), n.op_type) not in CONVERTERS and _has_body(n, versions)
            }
        )
        if not wanted:
            return model
        expanded = _inline_schema(model, wanted)
        if expanded.SerializeToString() == model.SerializeToString():
            return model
        model = expanded
    return model


def _inline_schema(model: ModelProto, wanted: list[tuple[str, str]]) -> ModelProto:
    return _inline(
        lambda: onnx.inliner.inline_selected_functions(model, wanted, exclude=False, inline_schema_functions=True)
    )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _has_body(node: NodeProto, versions: dict[str, int]) -> bool:
    domain = _domain(node.domain)
    version = versions.get(node.domain, versions.get(domain, 1))
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, domain)  # its stubs lack both
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _densify(graph: GraphProto) -> None:
    """Turn sparse initializers into ordinary ones."""
    for sparse in graph.sparse_initializer:
        values = onnx.numpy_helper.to_array(sparse.values)
        indices = onnx.numpy_helper.to_array(sparse.indices)
        shape = tuple(sparse.dims)
        total = int(np.prod(shape, dtype=np.float64)) * values.dtype.itemsize
        if total > 1 << 32:
            raise CaptureError(f"the sparse tensor {sparse.values.name!r} of shape {list(shape)} is too large")
        dense = np.zeros(shape, values.dtype)
        try:
            if indices.ndim == 1:
                dense.reshape(-1)[indices] = values
            else:
                dense[tuple(indices.T)] = values
        except IndexError as error:
            raise CaptureError(f"the sparse tensor {sparse.values.name!r}: {error}") from None
        graph.initializer.append(onnx.numpy_helper.from_array(dense, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _densify(attribute.g)


def _check_names(graph: GraphProto) -> None:
    """Refuse a value that is defined twice: which one is meant would depend on the reader."""
    given = {t.name for t in graph.initializer}
    defined: set[str] = set()
    for name in [i.name for i in graph.input if i.name not in given] + [t.name for t in graph.initializer]:
        if name in defined:
            raise CaptureError(f"the input or initializer {name!r} is defined twice")
        defined.add(name)
    for node in graph.node:
        for name in node.output:
            if name and name in defined:
                raise CaptureError(f"the value {name!r} is defined twice, again by node {node.name or node.op_type!r}")
            defined.add(name)
        for inner in subgraphs(node):
            _check_names(inner)


def _check_outputs(graph: GraphProto) -> None:
    seen: set[str] = set()
    for output in graph.output:
        if not output.name:
            raise CaptureError("an output of the graph has no name")
        if output.name in seen:
            raise CaptureError(f"the output {output.name!r} is listed twice")
        seen.add(output.name)
