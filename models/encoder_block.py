"""One transformer encoder layer: attention, layer normalisation, GELU; batch and sequence free."""

import numpy as np
from onnx import ModelProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor
from models.transformer import attention, linear

WIDTH, HEADS, INNER = 64, 4, 256


def build() -> tuple[ModelProto, Inputs]:
    """Return the model, `x: float32[2,10,64]` and `mask: float32[2,1,1,10]`.

    Batch and sequence are symbolic; the output `y` has the type of `x`. The mask hides the last
    three positions of the second sequence.
    """
    weights = Weights(seed=4)
    nodes, attended = attention(weights, "/attention", "x", WIDTH, HEADS, "mask")
    first = [weights.near_one("norm1.scale", WIDTH), weights.normal("norm1.bias", WIDTH)]
    second = [weights.near_one("norm2.scale", WIDTH), weights.normal("norm2.bias", WIDTH)]
    up, widened = linear(weights, "/mlp/up", "norm1", WIDTH, INNER)
    down, narrowed = linear(weights, "/mlp/down", "gelu", INNER, WIDTH)
    nodes += [
        make_node("Add", ["x", attended], ["sum1"], name="/residual1/Add"),
        make_node("LayerNormalization", ["sum1", *first], ["norm1"], name="/norm1/LayerNorm"),
        *up,
        make_node("Gelu", [widened], ["gelu"], name="/mlp/Gelu"),
        *down,
        make_node("Add", ["norm1", narrowed], ["sum2"], name="/residual2/Add"),
        make_node("LayerNormalization", ["sum2", *second], ["y"], name="/norm2/LayerNorm"),
    ]
    free = ("batch", "sequence", WIDTH)
    model = finish(
        "encoder_block",
        nodes,
        [tensor("x", free), tensor("mask", ("batch", 1, 1, "sequence"))],
        [tensor("y", free)],
        weights,
        opset=20,
    )
    mask = np.zeros((2, 1, 1, 10), np.float32)
    mask[1, ..., 7:] = -1e9
    return model, {"x": weights.input(2, 10, WIDTH), "mask": mask}
