"""Extern nodes: an operator without a lowering of ours keeps its ONNX form and runs in ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto

from hcomp.capture.context import NodeContext
from hcomp.capture.onnx_types import to_type_proto
from hcomp.dtypes import DTYPES
from hcomp.errors import CaptureError
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Origin
from hcomp.ir.types import OpaqueType, OptionalType, SequenceType, TensorType, Type


@dataclass(frozen=True)
class ExternContext:
    """What an extern node needs of its surroundings."""

    model: ModelProto
    builder: GraphBuilder


def emit_extern(around: ExternContext, context: NodeContext, origin: Origin, reason: str) -> tuple[str, ...]:
    """Add an extern node for an ONNX node and return its outputs' values.

    Constants among its inputs travel inside the payload.

    Raises:
        CaptureError: ONNX Runtime refuses the node too.
    """
    node = onnx.NodeProto()
    node.CopyFrom(context.node)
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        raise CaptureError(f"node {origin}: {reason}, and its subgraphs cannot run apart from the model")
    inputs, infos, initializers = [], [], []
    for position, value in enumerate(context.inputs):
        if not value:
            continue
        node.input[position] = name = f"i{position}"
        constant = around.builder.const_value(value)
        if constant is not None:
            initializers.append(_tensor(constant, name))
        else:
            inputs.append(value)
            value_type = around.builder.types[value]
            infos.append(onnx.ValueInfoProto(name=name, type=to_type_proto(value_type)))
    wanted = [i for i, name in enumerate(node.output) if name]
    for position in wanted:
        node.output[position] = f"o{position}"
    outputs = [onnx.ValueInfoProto(name=f"o{i}") for i in wanted]
    graph = onnx.helper.make_graph([node], "extern", infos, outputs, initializers)
    model = _model(graph, around.model)
    payload = model.SerializeToString()
    ranks = _ranks(model)
    told = _output_types(payload, origin, reason)
    types = [_ranked(t, ranks.get(f"o{i}")) for i, t in zip(wanted, told, strict=True)]
    made = around.builder.emit_typed(
        "extern", inputs, [_fresh(t, around.builder) for t in types], payload=payload,
        attrs={"reason": reason}, hints=[context.node.output[i] for i in wanted],
    )  # fmt: skip
    result = [""] * len(node.output)
    for position, value in zip(wanted, made, strict=True):
        result[position] = value
    return tuple(result)


def _tensor(array: object, name: str) -> onnx.TensorProto:
    import numpy as np

    value = np.asarray(array)
    if value.dtype.kind in "OUST":
        flat = [str(s).encode("utf-8", "surrogateescape") for s in value.ravel()]
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.STRING, dims=value.shape)
        tensor.string_data.extend(flat)
        return tensor
    return onnx.numpy_helper.from_array(value, name)


def _model(graph: onnx.GraphProto, around: ModelProto) -> ModelProto:
    model = onnx.helper.make_model(graph, opset_imports=list(around.opset_import))
    model.ir_version = max(around.ir_version, 8)
    model.functions.extend(around.functions)
    return model


def _output_types(payload: bytes, origin: Origin, reason: str) -> list[Type]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises many kinds; each means that it refuses the node
        cause = runtime_error_text(error)
        domain = origin.domain or "ai.onnx"
        raise CaptureError(
            f"node {origin.name!r}: no engine runs the operator {origin.op!r} of the domain {domain!r}:"
            f" {reason}, and ONNX Runtime refuses it ({cause})"
        ) from None
    return [_type_from_text(o.type, o.shape) for o in session.get_outputs()]


def _ranks(model: ModelProto) -> dict[str, int]:
    """Return the ranks of the outputs that ONNX's own inference knows; ONNX Runtime does not say them."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # it raises many kinds, and knows less than ONNX Runtime: nothing is lost
        return {}
    tensors = {o.name: o.type.tensor_type for o in inferred.graph.output}
    return {name: len(t.shape.dim) for name, t in tensors.items() if t.HasField("shape") and len(t.shape.dim)}


def _ranked(value: Type, rank: int | None) -> Type:
    """Return a tensor type of unknown rank with the rank that is known from elsewhere."""
    if not rank or not isinstance(value, TensorType) or value.shape is not None:
        return value
    return TensorType(value.dtype, (-1,) * rank)


def runtime_error_text(error: Exception) -> str:
    """Return what ONNX Runtime says in one line, without its codes and source positions."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |This is an invalid model\. (In Node, )?", "", text)
    text = re.sub(r"/\S+\.(cc|h):\d+ ", "", text)
    return text if len(text) <= 240 else f"{text[:237]}..."


_RUNTIME_NAMES = {
    "float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz",
}  # fmt: skip


def _type_from_text(text: str, shape: Sequence[object]) -> Type:
    """Return the type that ONNX Runtime spells as `tensor(float)`, `seq(tensor(string))`, `map(...)`."""
    kind, _, inner = text.partition("(")
    inner = inner.removesuffix(")")
    if kind == "tensor":
        dtype = _RUNTIME_NAMES.get(inner, inner)
        if dtype not in DTYPES:
            return OpaqueType(text)
        sizes = tuple(d if isinstance(d, int) else -1 for d in shape)
        # ONNX Runtime reports an unknown rank as an empty shape, so "[]" tells nothing.
        return TensorType(dtype, sizes if sizes else None)
    if kind == "seq":
        return SequenceType(_type_from_text(inner, ()))
    if kind == "optional":
        return OptionalType(_type_from_text(inner, ()))
    return OpaqueType(text)


def _fresh(value: Type, builder: GraphBuilder) -> Type:
    if isinstance(value, TensorType) and value.shape is not None:
        dims = (d if isinstance(d, int) and d >= 0 else builder.names.fresh_symbol("ext") for d in value.shape)
        return TensorType(value.dtype, tuple(dims))
    return value
