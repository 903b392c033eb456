"""One ONNX node run by ONNX Runtime: the independent side of comparisons."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, ValueInfoProto, helper
from onnx.helper import np_dtype_to_tensor_dtype

Array = NDArray[Any]


def run_node(
    op: str,
    inputs: Sequence[Array | None],
    *,
    outputs: int = 1,
    opset: int = 21,
    out_dtype: int = TensorProto.UNDEFINED,
    **attrs: Any,
) -> list[Array]:
    """Return what ONNX Runtime computes for one node (`domain` may be among `attrs`).

    `out_dtype` is the outputs' ONNX type where numpy cannot take them: they come back as bits.
    """
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    given = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in given.items()],
        [_output(r, out_dtype) for r in results],
    )
    opsets = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 10
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    if out_dtype == TensorProto.UNDEFINED:
        return list(session.run(results, given))
    found = session.run_with_ort_values(results, {n: ort.OrtValue.ortvalue_from_numpy(x) for n, x in given.items()})
    return [_bits(value) for value in found]


def _output(name: str, dtype: int) -> ValueInfoProto:
    """Return the declaration of an output: without a type where ONNX Runtime infers it."""
    if dtype == TensorProto.UNDEFINED:
        return ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, dtype, None)


def _bits(value: Any) -> Array:
    import ctypes

    count = int(np.prod(value.shape()))
    raw = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    return np.array(raw, np.uint8).reshape(value.shape())
