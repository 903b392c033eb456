"""`Loop` with a carried tensor, a scan output, a captured weight and an early end."""

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.helper import make_graph, make_node

from models.build import Inputs, Weights, finish, tensor

WIDTH = 8


def build() -> tuple[ModelProto, Inputs]:
    """Return the model, `x: float32[2,8]` and `steps: int64[]`.

    Each step takes `state = tanh(state @ weight) * decay` and ends the loop early once the state
    has become small. The outputs are the last `state` and its `norms: float32[taken]`, whose length
    is known only at run time.
    """
    weights = Weights(seed=7)
    w = weights.normal("weight", WIDTH, WIDTH)
    small = weights.constant("small", np.array(0.25, np.float32))
    decay = weights.constant("decay", np.array(0.6, np.float32))
    always = weights.constant("always", np.array(True))
    body = make_graph(
        [
            make_node("MatMul", ["state_in", w], ["product"], name="/body/MatMul"),
            make_node("Tanh", ["product"], ["bounded"], name="/body/Tanh"),
            make_node("Mul", ["bounded", decay], ["state_next"], name="/body/Mul"),
            make_node("ReduceL2", ["state_next"], ["norm"], name="/body/ReduceL2", keepdims=0),
            make_node("Greater", ["norm", small], ["go_on"], name="/body/Greater"),
        ],
        "body",
        [
            tensor("step", (), TensorProto.INT64),
            tensor("go_on_in", (), TensorProto.BOOL),
            tensor("state_in", (2, WIDTH)),
        ],
        [
            tensor("go_on", (), TensorProto.BOOL),
            tensor("state_next", (2, WIDTH)),
            tensor("norm", ()),
        ],
    )
    nodes = [
        make_node("Loop", ["steps", always, "x"], ["state", "norms"], name="/Loop", body=body),
    ]
    model = finish(
        "loop",
        nodes,
        [tensor("x", (2, WIDTH)), tensor("steps", (), TensorProto.INT64)],
        [tensor("state", (2, WIDTH)), tensor("norms", ("taken",))],
        weights,
    )
    return model, {"x": weights.input(2, WIDTH), "steps": np.array(20, np.int64)}
