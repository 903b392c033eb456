"""Three fully connected layers: the smallest model with real work in it."""

from itertools import pairwise

from onnx import ModelProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor


def build() -> tuple[ModelProto, Inputs]:
    """Return the model and `x: float32[4,64]`; output `y: float32[4,10]`, a softmax."""
    weights = Weights(seed=1)
    widths = (64, 128, 64, 10)
    nodes, current = [], "x"
    for layer, (width_in, width_out) in enumerate(pairwise(widths)):
        w = weights.normal(f"fc{layer}.weight", width_out, width_in)
        b = weights.normal(f"fc{layer}.bias", width_out)
        nodes.append(make_node("Gemm", [current, w, b], [f"h{layer}"], name=f"/fc{layer}/Gemm", transB=1))
        current = f"h{layer}"
        if width_out != widths[-1]:
            nodes.append(make_node("Relu", [current], [f"r{layer}"], name=f"/fc{layer}/Relu"))
            current = f"r{layer}"
    nodes.append(make_node("Softmax", [current], ["y"], name="/Softmax", axis=-1))
    model = finish("mlp", nodes, [tensor("x", (4, 64))], [tensor("y", (4, 10))], weights)
    return model, {"x": weights.input(4, 64)}
