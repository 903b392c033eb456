"""One node of ai.onnx.ml as a model: hcomp's reading of it, interpreted and compiled, against ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, helper
from onnx.helper import np_dtype_to_tensor_dtype

import hcomp
from hcomp.capture import capture_model
from hcomp.testing import assert_close, interpret

Array = NDArray[Any]


def ml_model(op: str, x: Array, outputs: int, *, symbolic: bool = True, opset: int = 3, **attrs: Any) -> ModelProto:
    """Return a model of one node of ai.onnx.ml that reads rows such as `x`."""
    shape: list[Any] = [*(["N"] if symbolic else x.shape[:1]), *x.shape[1:]]
    dtype = onnx.TensorProto.STRING if x.dtype == object else np_dtype_to_tensor_dtype(x.dtype)
    names = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, ["x"], names, "node", domain="ai.onnx.ml", **attrs)
    declared = [onnx.ValueInfoProto(name=n) for n in names]
    graph = helper.make_graph([node], "one", [helper.make_tensor_value_info("x", dtype, shape)], declared)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", opset)]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 8
    return model


def expected(model: ModelProto, x: Array) -> list[Any]:
    """Return ONNX Runtime's outputs."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def check(model: ModelProto, x: Array, *, compiled: bool = True) -> None:
    """Raise AssertionError unless the reference, and where `compiled` the kernels, give what ONNX Runtime gives."""
    wanted = expected(model, x)
    graph = capture_model(model).graph
    assert not any(node.op == "extern" for node in graph.walk())
    all_found = [interpret(graph, {"x": x})]
    if compiled:
        all_found.append(hcomp.compile(model, devices=["cpu"], threads=1, cache=False).run({"x": x}))
    for found in all_found:
        for mine, theirs in zip(found.values(), wanted, strict=True):
            if isinstance(theirs, list):
                assert [list(row) for row in mine] == [list(row) for row in theirs]  # the keys, in their order
                mine, theirs = (np.array([list(row.values()) for row in rows]) for rows in (mine, theirs))
            assert_close(mine, theirs, terms=256)
