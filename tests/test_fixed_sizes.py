"""Sizes that are declared free, and that the weights decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import hcomp
from hcomp.capture import capture_model
from hcomp.errors import RunError

F32 = TensorProto.FLOAT


def model(nodes: list[NodeProto], shape: list[Any], *weights: tuple[int, ...]) -> ModelProto:
    """Nodes from x to y, with weights w0, w1, ... of ones."""
    given = [numpy_helper.from_array(np.ones(w, np.float32), f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", F32, shape)],
        [helper.make_tensor_value_info("y", F32, None)], given,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def one(op: str, inputs: str = "x w0", **attributes: Any) -> list[NodeProto]:
    return [helper.make_node(op, inputs.split(), ["y"], name="the node", **attributes)]


CASES: dict[str, tuple[Callable[[], ModelProto], tuple[Any, ...]]] = {
    "matmul": (lambda: model(one("MatMul"), ["N", "K"], (5, 2)), ("N", 5)),
    "gemm": (lambda: model(one("Gemm", transB=1), ["N", "K"], (2, 5)), ("N", 5)),
    "conv": (lambda: model(one("Conv", group=2), ["N", "C", "L"], (4, 3, 3)), ("N", 6, "L")),
    "conv_transpose": (lambda: model(one("ConvTranspose"), ["N", "C", "L"], (6, 3, 3)), ("N", 6, "L")),
    "lstm": (
        lambda: model(one("LSTM", "x w0 w1", hidden_size=3), ["T", "B", "I"], (1, 12, 7), (1, 12, 3)),
        ("T", "B", 7),
    ),
    "unnamed": (lambda: model(one("MatMul"), ["N", None], (5, 2)), ("N", 5)),
    "one symbol, two axes": (lambda: model(one("MatMul"), ["K", "K"], (5, 2)), (5, 5)),
    "behind other nodes": (
        lambda: model([helper.make_node("Relu", ["x"], ["r"]), *one("MatMul", "r w0")], ["N", "K"], (5, 2)),
        ("N", 5),
    ),
    "two nodes": (
        lambda: model(
            [
                helper.make_node("MatMul", ["x", "w0"], ["m"]),
                helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
                helper.make_node("MatMul", ["t", "w1"], ["n"]),
                helper.make_node("ReduceSum", ["n"], ["s"], keepdims=0),
                helper.make_node("Add", ["m", "s"], ["y"]),
            ],
            [2, "K", "L"], (4, 3), (7, 3),
        ),
        (2, 7, 4),
    ),
    "two that disagree": (
        lambda: model(
            [
                helper.make_node("MatMul", ["x", "w0"], ["a"]),
                helper.make_node("MatMul", ["x", "w1"], ["b"]),
                helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
            ],
            ["N", "K"], (5, 2), (4, 2),
        ),
        ("N", "K"),
    ),
    "a dead node": (
        lambda: model([helper.make_node("MatMul", ["x", "w0"], ["a"]), *one("Relu", "x")], ["N", "K"], (5, 2)),
        ("N", "K"),
    ),
    "a broadcast": (lambda: model(one("Add"), ["N", "K"], (5,)), ("N", "K")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_size_that_a_weight_decides_is_known(name: str) -> None:
    make, expected = CASES[name]
    captured = capture_model(make())
    shape = captured.graph.inputs[0].type.shape  # type: ignore[union-attr]
    found = tuple(d if isinstance(d, int) else str(d) for d in shape)  # type: ignore[union-attr]
    assert [isinstance(d, int) for d in found] == [isinstance(d, int) for d in expected]
    assert [d for d in found if isinstance(d, int)] == [d for d in expected if isinstance(d, int)]


def test_a_branch_decides_nothing() -> None:
    """Its matmul may never run."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w0"], ["a"]), helper.make_node("ReduceSum", ["a"], ["b"])],
        "then", [], [helper.make_tensor_value_info("b", F32, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["c"])], "else", [], [helper.make_tensor_value_info("c", F32, None)]
    )
    source = model(
        [
            helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
            helper.make_node("Cast", ["top"], ["flag"], to=TensorProto.BOOL),
            helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=other),
        ],
        ["N", "K"], (5, 2),
    )  # fmt: skip
    program = hcomp.compile(source, devices=["null"])
    assert program.run({"x": np.zeros((2, 3), np.float32)})["y"].ravel() == 0
    assert program.run({"x": np.ones((2, 5), np.float32)})["y"].ravel() == 20


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_another_size_is_refused_at_the_input(device: str) -> None:
    program = hcomp.compile(CASES["matmul"][0](), devices=[device])
    for rows in (1, 3):
        assert (program.run({"x": np.ones((rows, 5), np.float32)})["y"] == 5).all()
    with pytest.raises(RunError, match=r"input 'x': .*axis 1 is 4, not 5"):
        program.run({"x": np.ones((3, 4), np.float32)})
