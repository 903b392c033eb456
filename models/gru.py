"""A bidirectional GRU with the reset gate after the matrix product, as PyTorch exports it."""

import numpy as np
from onnx import ModelProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor

STEPS, BATCH, WIDTH, HIDDEN = 12, 2, 16, 24


def build() -> tuple[ModelProto, Inputs]:
    """Return the model, `x: float32[12,2,16]` and `state: float32[2,2,24]`.

    The outputs are `y: float32[12,2,48]`, both directions side by side, and the last `state_out`.
    """
    weights = Weights(seed=5)
    merged = weights.constant("merged_shape", np.array([0, 0, -1], np.int64))
    inputs = [
        "x",
        weights.normal("gru.weight_ih", 2, 3 * HIDDEN, WIDTH),
        weights.normal("gru.weight_hh", 2, 3 * HIDDEN, HIDDEN),
        weights.normal("gru.bias", 2, 6 * HIDDEN),
        "",
        "state",
    ]
    nodes = [
        make_node(
            "GRU",
            inputs,
            ["directions", "state_out"],
            name="/gru/GRU",
            hidden_size=HIDDEN,
            direction="bidirectional",
            linear_before_reset=1,
        ),
        # [step, direction, batch, hidden] to [step, batch, direction * hidden]
        make_node("Transpose", ["directions"], ["turned"], name="/Transpose", perm=[0, 2, 1, 3]),
        make_node("Reshape", ["turned", merged], ["y"], name="/Reshape"),
    ]
    state = (2, BATCH, HIDDEN)
    model = finish(
        "gru",
        nodes,
        [tensor("x", (STEPS, BATCH, WIDTH)), tensor("state", state)],
        [tensor("y", (STEPS, BATCH, 2 * HIDDEN)), tensor("state_out", state)],
        weights,
    )
    return model, {"x": weights.input(STEPS, BATCH, WIDTH), "state": weights.input(*state)}
