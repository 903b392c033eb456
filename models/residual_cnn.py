"""A small ResNet: stem, three stages of residual blocks, pooled classifier; the batch is free."""

from onnx import ModelProto, NodeProto
from onnx.helper import make_node

from models.build import Inputs, Weights, finish, tensor

CLASSES = 10
STAGES = ((16, 1), (32, 2), (64, 2))  # channels, stride of the first block


def _conv(
    weights: Weights, scope: str, source: str, channels: tuple[int, int], kernel: int, stride: int
) -> tuple[list[NodeProto], str]:
    """Return a convolution with batch normalisation, and the name of its result."""
    name = scope.strip("/").replace("/", ".")
    channels_in, channels_out = channels
    w = weights.normal(f"{name}.weight", channels_out, channels_in, kernel, kernel)
    statistics = [
        weights.near_one(f"{name}.bn.scale", channels_out),
        weights.normal(f"{name}.bn.bias", channels_out),
        weights.normal(f"{name}.bn.mean", channels_out),
        weights.near_one(f"{name}.bn.var", channels_out),
    ]
    raw, result = f"{name}.raw", f"{name}.out"
    nodes = [
        make_node(
            "Conv",
            [source, w],
            [raw],
            name=f"{scope}/Conv",
            pads=[kernel // 2] * 4,
            strides=[stride, stride],
        ),
        make_node("BatchNormalization", [raw, *statistics], [result], name=f"{scope}/BatchNormalization"),
    ]
    return nodes, result


def _block(
    weights: Weights, scope: str, source: str, channels: tuple[int, int], stride: int
) -> tuple[list[NodeProto], str]:
    """Return two convolutions around which the input is added again."""
    channels_out = channels[1]
    result = f"{scope.strip('/').replace('/', '.')}.out"
    nodes, first = _conv(weights, f"{scope}/conv1", source, channels, 3, stride)
    nodes.append(make_node("Relu", [first], [f"{first}.act"], name=f"{scope}/Relu"))
    more, second = _conv(weights, f"{scope}/conv2", f"{first}.act", (channels_out, channels_out), 3, 1)
    nodes += more
    shortcut = source
    if channels[0] != channels_out or stride != 1:
        more, shortcut = _conv(weights, f"{scope}/shortcut", source, channels, 1, stride)
        nodes += more
    nodes += [
        make_node("Add", [second, shortcut], [f"{result}.sum"], name=f"{scope}/Add"),
        make_node("Relu", [f"{result}.sum"], [result], name=f"{scope}/Relu_1"),
    ]
    return nodes, result


def build() -> tuple[ModelProto, Inputs]:
    """Return the model and `image: float32[1,3,32,32]`; output `logits: float32[batch,10]`."""
    weights = Weights(seed=9)
    nodes, current = _conv(weights, "/stem", "image", (3, 16), 3, 1)
    nodes.append(make_node("Relu", [current], ["stem.act"], name="/stem/Relu"))
    current, width = "stem.act", 16
    for stage, (channels, stride) in enumerate(STAGES):
        for block in range(2):
            more, current = _block(
                weights,
                f"/stage{stage}/block{block}",
                current,
                (width, channels),
                stride if block == 0 else 1,
            )
            nodes += more
            width = channels
    w, b = weights.normal("head.weight", CLASSES, width), weights.normal("head.bias", CLASSES)
    nodes += [
        make_node("GlobalAveragePool", [current], ["pooled"], name="/head/GlobalAveragePool"),
        make_node("Flatten", ["pooled"], ["flat"], name="/head/Flatten"),
        make_node("Gemm", ["flat", w, b], ["logits"], name="/head/Gemm", transB=1),
    ]
    model = finish(
        "residual_cnn",
        nodes,
        [tensor("image", ("batch", 3, 32, 32))],
        [tensor("logits", ("batch", CLASSES))],
        weights,
    )
    return model, {"image": weights.input(1, 3, 32, 32)}
