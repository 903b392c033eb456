"""`If` with a condition computed from the input and values captured from the outer graph."""

import numpy as np
from onnx import ModelProto
from onnx.helper import make_graph, make_node

from models.build import Inputs, Weights, finish, tensor

SHAPE = (4, 16)


def build() -> tuple[ModelProto, Inputs]:
    """Return the model and `x: float32[4,16]`, whose mean is positive; output `y` of its type.

    A positive mean takes the matrix product, any other negates; both branches read `x`.
    """
    weights = Weights(seed=6)
    w = weights.normal("weight", 16, 16)
    zero = weights.constant("zero", np.array(0, np.float32))
    positive = make_graph(
        [
            make_node("MatMul", ["x", w], ["product"], name="/then/MatMul"),
            make_node("Tanh", ["product"], ["then_y"], name="/then/Tanh"),
        ],
        "then",
        [],
        [tensor("then_y", SHAPE)],
    )
    otherwise = make_graph(
        [make_node("Neg", ["x"], ["else_y"], name="/else/Neg")],
        "else",
        [],
        [tensor("else_y", SHAPE)],
    )
    nodes = [
        make_node("ReduceMean", ["x"], ["mean"], name="/ReduceMean", keepdims=0),
        make_node("Greater", ["mean", zero], ["positive"], name="/Greater"),
        make_node("If", ["positive"], ["chosen"], name="/If", then_branch=positive, else_branch=otherwise),
        make_node("Add", ["chosen", "x"], ["y"], name="/Add"),
    ]
    model = finish("if_branch", nodes, [tensor("x", SHAPE)], [tensor("y", SHAPE)], weights)
    return model, {"x": np.abs(weights.input(*SHAPE))}
