"""A sentence embedder: token lookup, masked mean, with the shape arithmetic of exporters."""

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor

TOKENS, POSITIONS, WIDTH = 100, 64, 48


def build() -> tuple[ModelProto, Inputs]:
    """Return the model, `ids: int64[batch,sequence]` and `mask: int64[batch,sequence]`.

    The outputs are the unit vectors `embedding: float32[batch,48]` and `hidden:
    float32[batch,sequence,48]`. The examples have batch 2 and sequence 7;
    the longest sequence is 64.
    """
    weights = Weights(seed=8)
    tokens = weights.normal("tokens", TOKENS, WIDTH)
    positions = weights.normal("positions", 1, POSITIONS, WIDTH)
    zero = weights.constant("zero", np.array([0], np.int64))
    one = weights.constant("one", np.array([1], np.int64))
    last = weights.constant("last", np.array([-1], np.int64))
    w = weights.normal("weight", WIDTH, WIDTH)
    nodes = [
        make_node("Gather", [tokens, "ids"], ["looked_up"], name="/embed/Gather"),
        # positions[:, :sequence]
        make_node("Shape", ["ids"], ["shape"], name="/Shape"),
        make_node("Gather", ["shape", one], ["sequence"], name="/Gather"),
        make_node("Slice", [positions, zero, "sequence", one], ["places"], name="/Slice"),
        make_node("Add", ["looked_up", "places"], ["placed"], name="/embed/Add"),
        # One matrix product over batch * sequence rows, as exporters flatten it.
        make_node("Concat", [last, "width"], ["flat_shape"], name="/Concat", axis=0),
        make_node("Reshape", ["placed", "flat_shape"], ["flat"], name="/Reshape"),
        make_node("MatMul", ["flat", w], ["product"], name="/layer/MatMul"),
        make_node("Tanh", ["product"], ["active"], name="/layer/Tanh"),
        make_node("Concat", ["shape", "width"], ["full_shape"], name="/Concat_1", axis=0),
        make_node("Reshape", ["active", "full_shape"], ["hidden"], name="/Reshape_1"),
        # The mean over the positions that the mask keeps, scaled to length one.
        make_node("Cast", ["mask"], ["kept"], name="/pool/Cast", to=TensorProto.FLOAT),
        make_node("Unsqueeze", ["kept", last], ["column"], name="/pool/Unsqueeze"),
        make_node("Mul", ["hidden", "column"], ["masked"], name="/pool/Mul"),
        make_node("ReduceSum", ["masked", one], ["sum"], name="/pool/ReduceSum", keepdims=0),
        make_node("ReduceSum", ["kept", one], ["count"], name="/pool/ReduceSum_1", keepdims=1),
        make_node("Div", ["sum", "count"], ["mean"], name="/pool/Div"),
        make_node("LpNormalization", ["mean"], ["embedding"], name="/pool/LpNorm", axis=-1, p=2),
    ]
    weights.constant("width", np.array([WIDTH], np.int64))
    free = ("batch", "sequence")
    model = finish(
        "dynamic_shape",
        nodes,
        [tensor("ids", free, TensorProto.INT64), tensor("mask", free, TensorProto.INT64)],
        [tensor("embedding", ("batch", WIDTH)), tensor("hidden", (*free, WIDTH))],
        weights,
    )
    ids = np.arange(14, dtype=np.int64).reshape(2, 7) * 7
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int64)
    return model, {"ids": ids, "mask": mask}
