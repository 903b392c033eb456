"""A region of extern nodes as one ONNX model, which one ONNX Runtime session runs."""

from __future__ import annotations

import onnx

from hcomp.capture.onnx_types import to_type_proto
from hcomp.ir.graph import Graph


def extern_model(graph: Graph) -> bytes:
    """Return the serialized ONNX model of a region whose nodes are all `extern`.

    The model's inputs and outputs have the names of the region's values, in order.
    """
    nodes: list[onnx.NodeProto] = []
    initializers: list[onnx.TensorProto] = []
    functions: dict[tuple[str, str], onnx.FunctionProto] = {}
    base = onnx.ModelProto.FromString(graph.nodes[0].payload)
    for number, node in enumerate(graph.nodes):
        payload = onnx.ModelProto.FromString(node.payload)
        functions.update({(f.domain, f.name): f for f in payload.functions})
        names = dict(zip((i.name for i in payload.graph.input), node.inputs, strict=True))
        names.update(zip((o.name for o in payload.graph.output), (v.name for v in node.outputs), strict=True))
        for tensor in payload.graph.initializer:
            names[tensor.name] = f"{number}:{tensor.name}"
            tensor.name = names[tensor.name]
            initializers.append(tensor)
        for source in payload.graph.node:
            source.input[:] = [names[i] if i else "" for i in source.input]
            source.output[:] = [names[o] if o else "" for o in source.output]
            nodes.append(source)
    inputs = [onnx.ValueInfoProto(name=v.name, type=to_type_proto(v.type)) for v in graph.inputs]
    constants = [onnx.numpy_helper.from_array(c.array, c.name) for c in graph.constants]
    outputs = [onnx.ValueInfoProto(name=name) for name in graph.outputs]
    made = onnx.helper.make_graph(nodes, graph.name, inputs, outputs, initializers + constants)
    model = onnx.helper.make_model(made, opset_imports=list(base.opset_import))
    model.ir_version = base.ir_version
    model.functions.extend(functions.values())
    data: bytes = model.SerializeToString(deterministic=True)
    return data
