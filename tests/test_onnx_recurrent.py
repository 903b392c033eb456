"""ONNX LSTM, GRU and RNN: hcomp's converters against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from hcomp.capture import capture_model
from hcomp.testing import assert_close, interpret, random_array
from tests.onnx_case import Case, case, check, params_of
from tests.ort_node import run_node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
T, B, X, H = 5, 3, 4, 6
EVERY = {
    "LSTM": ("HardSigmoid", "LeakyRelu", "Softsign"),
    "GRU": ("HardSigmoid", "Affine"),
    "RNN": ("ScaledTanh",),
}
NUMBERS = {"LSTM": ([0.3, 0.1], [0.4]), "GRU": ([0.3, 0.7], [0.4, 0.1]), "RNN": ([0.9], [0.8])}


def f32(*shape: int) -> np.ndarray:
    return random_array("float32", shape, "recurrent") * np.float32(0.4)


def layer(op: str, *, full: bool = True, opset: int = 14, **attrs: Any) -> Case:
    """A layer with all of its inputs (`full`), or with its weights alone."""
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    gates = GATES[op] * H
    inputs: list[Any] = [f32(T, B, X), f32(directions, gates, X), f32(directions, gates, H)]
    if full:
        state = f32(directions, B, H)
        inputs += [f32(directions, 2 * gates), np.array([T, 2, 3], np.int32), state]
        inputs += [state + np.float32(0.1), f32(directions, 3 * H)] if op == "LSTM" else []
    outputs = 3 if op == "LSTM" else 2
    return case(
        op, *inputs, params=range(1, len(inputs)), outputs=outputs, opset=opset,
        forms=["static", "symbolic", "late"], hidden_size=H, **attrs,
    )  # fmt: skip


def with_activations(op: str, direction: str) -> Case:
    directions = 2 if direction == "bidirectional" else 1
    alpha, beta = NUMBERS[op]
    return layer(
        op, direction=direction, activations=EVERY[op] * directions,
        activation_alpha=alpha * directions, activation_beta=beta * directions,
    )  # fmt: skip


DIRECTIONS = ("forward", "reverse", "bidirectional")
LAYERS = [
    *(layer(op, direction=d, opset=o) for op in GATES for d in DIRECTIONS for o in (7, 14)),
    *(layer(op, full=False, opset=o) for op in GATES for o in (7, 11, 22)),
    *(layer(op, direction="bidirectional", clip=0.3) for op in GATES),
    *(with_activations(op, d) for op in GATES for d in DIRECTIONS),
    *(layer("GRU", direction=d, linear_before_reset=1) for d in DIRECTIONS),
    *(layer("LSTM", direction=d, input_forget=1) for d in DIRECTIONS),
]


@pytest.mark.parametrize(**params_of(LAYERS))
def test_a_layer_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("op", GATES)
def test_layout_1_is_layout_0_with_the_batch_first(op: str) -> None:
    first = layer(op, direction="bidirectional")
    y, *states = run_node(op, first.inputs, outputs=first.outputs, opset=14, **first.attrs)
    moved = list(first.inputs)
    for index in (0, 5, 6)[: 3 if op == "LSTM" else 2]:
        moved[index] = np.ascontiguousarray(np.swapaxes(moved[index], 0, 1))
    expected = [np.transpose(y, (2, 0, 1, 3)), *(np.swapaxes(s, 0, 1) for s in states)]
    check(case(op, *moved, params=first.params, outputs=first.outputs, opset=14,
               expected=expected, layout=1, **first.attrs), "symbolic")  # fmt: skip


def test_a_state_out_of_an_if_may_have_a_rank_that_only_the_run_knows() -> None:
    """The two branches give different ranks, as TorchScript's unbatched layers do."""
    squeeze = helper.make_node("Squeeze", ["x", "zero"], ["flat"])
    identity = helper.make_node("Identity", ["x"], ["same"])
    branches = {
        "then_branch": helper.make_graph([identity], "t", [], [_untyped("same")]),
        "else_branch": helper.make_graph([squeeze], "e", [], [_untyped("flat")]),
    }
    nodes = [
        helper.make_node("If", ["flag"], ["picked"], **branches),
        helper.make_node("GRU", ["picked", "w", "r"], ["y"], hidden_size=H),
    ]
    x, w, r = f32(T, 1, X), f32(1, 3 * H, X), f32(1, 3 * H, H)
    constants = {"w": w, "r": r, "zero": np.array([1])}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("flag", 9, []), helper.make_tensor_value_info("x", 1, [T, 1, X])],
        [_untyped("y")], [helper.make_tensor(k, 1 if v.dtype == np.float32 else 7, v.shape, v.ravel())
                          for k, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    captured = capture_model(model).graph
    assert not [n for n in captured.walk() if n.op == "extern"]
    found = interpret(captured, {"flag": np.array(True), "x": x})
    expected = run_node("GRU", [x, w, r], opset=17, hidden_size=H)
    assert_close(next(iter(found.values())), expected[0], terms=64)


def _untyped(name: str) -> Any:
    from onnx import ValueInfoProto

    return ValueInfoProto(name=name)


def quantized(direction: str, dtype: str, *, full: bool, per_column: bool) -> Case:
    """com.microsoft.DynamicQuantizeLSTM, with weights so small that no 16-bit sum saturates.

    ONNX Runtime's products of bytes saturate on processors without byte-product instructions.
    """
    d = 2 if direction == "bidirectional" else 1
    per = (d, 4 * H) if per_column else (d,)
    zero = np.zeros(per, dtype) if dtype == "int8" else random_array(dtype, per, "z", low=0, high=40)
    inputs: list[Any] = [
        f32(T, B, X), random_array(dtype, (d, X, 4 * H), "w", low=0, high=60),
        random_array(dtype, (d, H, 4 * H), "r", low=0, high=60), None, None, None, None, None,
        np.abs(f32(*per)) * np.float32(0.02) + np.float32(0.01), zero,
        np.abs(f32(*per)) * np.float32(0.02) + np.float32(0.01), zero,
    ]  # fmt: skip
    if full:
        inputs[3:8] = [
            f32(d, 8 * H), np.array([T, 2, 3], np.int32), f32(d, B, H), f32(d, B, H), f32(d, 3 * H),
        ]  # fmt: skip
    params = [i for i in range(1, 12) if inputs[i] is not None]
    return case(
        "DynamicQuantizeLSTM", *inputs, domain="com.microsoft", params=params, outputs=3,
        forms=["static", "symbolic"], hidden_size=H, direction=direction,
    )  # fmt: skip


QUANTIZED = [
    quantized(direction, dtype, full=full, per_column=per_column)
    for direction in DIRECTIONS
    for full in (True, False)
    for dtype, per_column in (("int8", True), ("int8", False), ("uint8", False))
]


@pytest.mark.parametrize(**params_of(QUANTIZED))
def test_a_dynamically_quantised_lstm_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)
