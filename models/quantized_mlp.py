"""Two linear layers in the QDQ form: int8 weights per column, uint8 activations per tensor."""

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor


def _round_trip(weights: Weights, source: str, scale: float, zero: int) -> list[NodeProto]:
    """Return the nodes that quantize `source` to uint8 and back to `source.dq`."""
    parameters = [
        weights.constant(f"{source}.scale", np.array(scale, np.float32)),
        weights.constant(f"{source}.zero", np.array(zero, np.uint8)),
    ]
    return [
        make_node("QuantizeLinear", [source, *parameters], [f"{source}.q"], name=f"/{source}/Quantize"),
        make_node(
            "DequantizeLinear",
            [f"{source}.q", *parameters],
            [f"{source}.dq"],
            name=f"/{source}/Dequantize",
        ),
    ]


def _layer(weights: Weights, name: str, source: str, result: str, widths: tuple[int, int]) -> list[NodeProto]:
    """Return the nodes of one linear layer over dequantized `source`."""
    generator = np.random.default_rng(widths)
    column = generator.uniform(0.002, 0.01, widths[1]).astype(np.float32)
    parameters = [
        weights.constant(f"{name}.weight", generator.integers(-127, 128, widths, np.int8)),
        weights.constant(f"{name}.scale", column),
        weights.constant(f"{name}.zero", np.zeros(widths[1], np.int8)),
    ]
    b = weights.normal(f"{name}.bias", widths[1])
    return [
        make_node("DequantizeLinear", parameters, [f"{name}.dq"], name=f"/{name}/Dequantize", axis=1),
        make_node("MatMul", [source, f"{name}.dq"], [f"{name}.product"], name=f"/{name}/MatMul"),
        make_node("Add", [f"{name}.product", b], [result], name=f"/{name}/Add"),
    ]


def build() -> tuple[ModelProto, Inputs]:
    """Return the model and `x: float32[4,32]`; output `y: float32[4,10]`."""
    weights = Weights(seed=10)
    nodes = [
        *_round_trip(weights, "x", 0.03, 128),
        *_layer(weights, "fc0", "x.dq", "h", (32, 48)),
        make_node("Relu", ["h"], ["r"], name="/fc0/Relu"),
        *_round_trip(weights, "r", 0.08, 0),
        *_layer(weights, "fc1", "r.dq", "y", (48, 10)),
    ]
    model = finish("quantized_mlp", nodes, [tensor("x", (4, 32))], [tensor("y", (4, 10))], weights)
    return model, {"x": weights.input(4, 32)}
