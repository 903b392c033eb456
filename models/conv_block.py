"""Convolution, batch normalisation, a depthwise convolution and pooling."""

from onnx import ModelProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor


def build() -> tuple[ModelProto, Inputs]:
    """Return the model and `image: float32[1,3,32,32]`; output `features: float32[1,16,16,16]`."""
    weights = Weights(seed=2)
    statistics = [
        weights.near_one("bn.scale", 16),
        weights.normal("bn.bias", 16),
        weights.normal("bn.mean", 16),
        weights.near_one("bn.var", 16),
    ]
    full = ["image", weights.normal("conv.weight", 16, 3, 3, 3)]
    depthwise = ["act", weights.normal("depthwise.weight", 16, 1, 3, 3)]
    depthwise.append(weights.normal("depthwise.bias", 16))
    nodes = [
        make_node("Conv", full, ["conv"], name="/conv/Conv", pads=[1, 1, 1, 1]),
        make_node("BatchNormalization", ["conv", *statistics], ["bn"], name="/bn/BatchNorm"),
        make_node("Relu", ["bn"], ["act"], name="/act/Relu"),
        make_node("Conv", depthwise, ["dw"], name="/depthwise/Conv", group=16, pads=[1, 1, 1, 1]),
        make_node("HardSwish", ["dw"], ["swish"], name="/depthwise/HardSwish"),
        make_node(
            "MaxPool",
            ["swish"],
            ["features"],
            name="/pool/MaxPool",
            kernel_shape=[2, 2],
            strides=[2, 2],
        ),
    ]
    model = finish(
        "conv_block",
        nodes,
        [tensor("image", (1, 3, 32, 32))],
        [tensor("features", (1, 16, 16, 16))],
        weights,
    )
    return model, {"image": weights.input(1, 3, 32, 32)}
