"""Masked multi-head self-attention with a residual connection, all shapes static."""

import numpy as np
from onnx import ModelProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor
from models.transformer import attention

BATCH, SEQUENCE, WIDTH, HEADS = 1, 16, 64, 4


def build() -> tuple[ModelProto, Inputs]:
    """Return the model, `x: float32[1,16,64]` and a causal `mask: float32[1,1,16,16]`.

    The output is `y: float32[1,16,64]`.
    """
    weights = Weights(seed=3)
    nodes, attended = attention(weights, "/attention", "x", WIDTH, HEADS, "mask")
    nodes.append(make_node("Add", ["x", attended], ["y"], name="/residual/Add"))
    shape = (BATCH, SEQUENCE, WIDTH)
    model = finish(
        "attention_block",
        nodes,
        [tensor("x", shape), tensor("mask", (1, 1, SEQUENCE, SEQUENCE))],
        [tensor("y", shape)],
        weights,
    )
    causal = np.triu(np.full((1, 1, SEQUENCE, SEQUENCE), -1e9, np.float32), k=1)
    return model, {"x": weights.input(*shape), "mask": causal}
