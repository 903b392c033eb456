"""The reference of matmul, convolution, pooling and recurrent layers against ONNX Runtime."""

import math
from typing import Any

import numpy as np
import pytest

from hcomp.reference import REFERENCE
from hcomp.testing import assert_close, random_array
from tests.ort_node import Array, run_node

F32 = "float32"


# -- matmul, convolution, pooling -----------------------------------------------------------------
@pytest.mark.parametrize(("a", "b"), [((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)), ((4,), (2, 4, 3))])
def test_matmul(a: Any, b: Any) -> None:
    x, y = random_array(F32, a, "a"), random_array(F32, b, "b")
    assert_close(REFERENCE["matmul"](x, y), run_node("MatMul", [x, y])[0], terms=4)


def test_integer_matmul_is_exact() -> None:
    x = random_array("uint8", (5, 3000), "x", low=0, high=255)
    y = random_array("int8", (3000, 4), "y", low=-128, high=127)
    # ONNX Runtime saturates pairs of products at 16 bits on some processors: numpy it is.
    expected = x.astype(np.int64) @ y.astype(np.int64)
    assert_close(REFERENCE["matmul"](x, y, out_dtype="int32"), expected.astype(np.int32))
    big = np.array([[2**40, 3]])
    assert REFERENCE["matmul"](big, big.T).item() == 9  # 2**80 wraps to 0
    wraps = np.full((1, 300), 127, np.int8)
    assert REFERENCE["matmul"](wraps, wraps.T).dtype == np.int8


CONVS: list[tuple[Any, Any, dict[str, Any], int]] = [
    ((2, 3, 8), (4, 3, 3), {"strides": (2,), "padding": (1, 2), "dilation": (2,)}, 1),
    ((1, 4, 9, 7), (6, 2, 3, 2), {"strides": (2, 1), "padding": (1, 0, 2, 1),
                                  "dilation": (1, 2)}, 2),
    ((2, 6, 7, 7), (12, 1, 3, 3), {"strides": (1, 1), "padding": (1,) * 4,
                                   "dilation": (2, 1)}, 6),
    ((1, 5, 6, 6), (3, 5, 1, 1), {"strides": (2, 2), "padding": (0,) * 4, "dilation": (1, 1)}, 1),
    ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"strides": (1, 2, 1), "padding": (0, 1, 1, 1, 0, 0),
                                        "dilation": (2, 1, 1)}, 1),
]  # fmt: skip


def _conv_attrs(attrs: dict[str, Any], groups: int) -> dict[str, Any]:
    return {
        "strides": attrs["strides"],
        "pads": attrs["padding"],
        "dilations": attrs["dilation"],
        "group": groups,
    }


@pytest.mark.parametrize(("x_shape", "w_shape", "attrs", "groups"), CONVS)
def test_conv(x_shape: Any, w_shape: Any, attrs: dict[str, Any], groups: int) -> None:
    x, w = random_array(F32, x_shape, "x"), random_array(F32, w_shape, "w")
    (expected,) = run_node("Conv", [x, w], **_conv_attrs(attrs, groups))
    terms = math.prod(w_shape[1:])
    assert_close(REFERENCE["conv"](x, w, groups=groups, **attrs), expected, terms=terms)


def test_conv_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = random_array(F32, (1, 3, 20, 20), "x"), random_array(F32, (4, 3, 3, 3), "w")
    attrs = {"strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    whole = REFERENCE["conv"](x, w, **attrs)
    monkeypatch.setattr("hcomp.reference.linear._BUFFER", 1000)
    assert_close(REFERENCE["conv"](x, w, **attrs), whole, terms=27)


def test_integer_conv() -> None:
    x = random_array("uint8", (1, 3, 6, 6), "x", low=0, high=255)
    w = random_array("int8", (4, 3, 3, 3), "w", low=-60, high=60)
    (expected,) = run_node("ConvInteger", [x, w], pads=(1, 1, 1, 1))
    attrs = {"strides": (1, 1), "padding": (1,) * 4, "dilation": (1, 1)}
    assert_close(REFERENCE["conv"](x, w, out_dtype="int32", **attrs), expected)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attrs", "groups"),
    [
        ((2, 3, 5), (3, 2, 3), {"strides": (2,), "padding": (1, 0), "dilation": (2,),
                                "output_padding": (1,)}, 1),
        ((1, 4, 4, 5), (4, 3, 3, 2), {"strides": (2, 3), "padding": (1, 0, 0, 1),
                                      "dilation": (1, 2), "output_padding": (1, 2)}, 2),
        ((1, 2, 3, 3, 2), (2, 2, 2, 2, 2), {"strides": (1, 2, 2), "padding": (0,) * 6,
                                            "dilation": (1, 1, 1), "output_padding": (0,) * 3}, 1),
    ],
)  # fmt: skip
def test_conv_transpose(x_shape: Any, w_shape: Any, attrs: dict[str, Any], groups: int) -> None:
    x, w = random_array(F32, x_shape, "x"), random_array(F32, w_shape, "w")
    extra = {**_conv_attrs(attrs, groups), "output_padding": attrs["output_padding"]}
    (expected,) = run_node("ConvTranspose", [x, w], **extra)
    ours = REFERENCE["conv_transpose"](x, w, groups=groups, **attrs)
    assert_close(ours, expected, terms=x_shape[1] * math.prod(w_shape[2:]))


POOLS: list[tuple[Any, dict[str, Any]]] = [
    ((2, 3, 9), {"pool_size": (3,), "strides": (2,), "padding": (1, 1), "dilation": (1,)}),
    ((1, 2, 10, 9), {"pool_size": (3, 2), "strides": (2, 3), "padding": (1, 0, 1, 1),
                     "dilation": (2, 1)}),
    ((1, 2, 6, 7, 5), {"pool_size": (2, 3, 2), "strides": (2, 2, 1), "padding": (0,) * 6,
                       "dilation": (1, 1, 1)}),
    ((1, 1, 7, 7), {"pool_size": (3, 3), "strides": (3, 3), "padding": (1, 1, 1, 1),
                    "dilation": (1, 1)}),
]  # fmt: skip


def _pool_attrs(attrs: dict[str, Any], ceil: int) -> dict[str, Any]:
    return {
        "kernel_shape": attrs["pool_size"],
        "strides": attrs["strides"],
        "pads": attrs["padding"],
        "dilations": attrs["dilation"],
        "ceil_mode": ceil,
    }


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), POOLS)
def test_max_pool(shape: Any, attrs: dict[str, Any], ceil: int) -> None:
    x = random_array(F32, shape, "pool") - np.float32(5)
    (expected,) = run_node("MaxPool", [x], **_pool_attrs(attrs, ceil))
    assert_close(REFERENCE["max_pool"](x, ceil_mode=bool(ceil), **attrs), expected)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), POOLS)
def test_avg_pool(shape: Any, attrs: dict[str, Any], ceil: int, pad: int) -> None:
    x = random_array(F32, shape, "pool")
    (expected,) = run_node("AveragePool", [x], count_include_pad=pad, **_pool_attrs(attrs, ceil))
    ours = REFERENCE["avg_pool"](x, ceil_mode=bool(ceil), count_include_pad=bool(pad), **attrs)
    assert_close(ours, expected, terms=math.prod(attrs["pool_size"]))


# -- recurrent layers -----------------------------------------------------------------------------
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6
CELLS = {"lstm": ("LSTM", 4, 3, 2), "gru": ("GRU", 3, 2, 1), "rnn": ("RNN", 1, 1, 1)}
"""operator -> ONNX's operator, gates, activations of one direction, states."""


def _layer_inputs(op: str, directions: int, full: bool) -> list[Array | None]:
    _, gates, _, states = CELLS[op]
    found: list[Array | None] = [
        random_array(F32, (STEPS, BATCH, INPUTS), "x"),
        random_array(F32, (directions, gates * HIDDEN, INPUTS), "w", low=-0.5, high=0.5),
        random_array(F32, (directions, gates * HIDDEN, HIDDEN), "r", low=-0.5, high=0.5),
    ]
    if full:
        found.append(random_array(F32, (directions, 2 * gates * HIDDEN), "b"))
        found.append(np.array([5, 2, 3], np.int32))
        shape = (directions, BATCH, HIDDEN)
        found += [random_array(F32, shape, f"state {i}") for i in range(states)]
        if op == "lstm":
            found.append(random_array(F32, (directions, 3 * HIDDEN), "p"))
    return found


def _compare_layer(op: str, inputs: list[Array | None], activations: list[str], **attrs: Any) -> None:
    onnx, _, _, states = CELLS[op]
    extra = {k: v for k, v in attrs.items() if k not in ("alpha", "beta", "input_forget")}
    if "input_forget" in attrs:
        extra["input_forget"] = int(attrs["input_forget"])
    if "linear_before_reset" in attrs:
        extra["linear_before_reset"] = int(attrs["linear_before_reset"])
    if "alpha" in attrs:
        needing = ("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu", "Affine", "ScaledTanh")
        two = ("HardSigmoid", "Affine", "ScaledTanh")
        pairs = list(zip(activations, attrs["alpha"], attrs["beta"], strict=True))
        numbers = {
            "activation_alpha": [a for name, a, _ in pairs if name in needing],
            "activation_beta": [b for name, _, b in pairs if name in two],
        }
        extra |= {key: values for key, values in numbers.items() if values}
    expected = run_node(
        onnx, inputs, outputs=1 + states, hidden_size=HIDDEN, activations=activations, opset=14,
        **extra,
    )  # fmt: skip
    names = tuple(name.lower() for name in activations)
    ours = REFERENCE[op](*inputs, activations=names, **attrs)
    assert_close(list(ours), expected, terms=STEPS * (INPUTS + HIDDEN), context=op)


DEFAULT = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", CELLS)
def test_recurrent_layers(op: str, direction: str, full: bool) -> None:
    directions = 2 if direction == "bidirectional" else 1
    inputs = _layer_inputs(op, directions, full)
    _compare_layer(op, inputs, DEFAULT[op] * directions, direction=direction)


@pytest.mark.parametrize("op", CELLS)
def test_recurrent_clip(op: str) -> None:
    _compare_layer(op, _layer_inputs(op, 1, True), DEFAULT[op], clip=0.3)


def test_gru_linear_before_reset() -> None:
    inputs = _layer_inputs("gru", 2, True)
    attrs: dict[str, Any] = {"linear_before_reset": True, "direction": "bidirectional"}
    _compare_layer("gru", inputs, DEFAULT["gru"] * 2, **attrs)


def test_lstm_input_forget() -> None:
    _compare_layer("lstm", _layer_inputs("lstm", 1, False), DEFAULT["lstm"], input_forget=True)


@pytest.mark.parametrize(
    "name",
    ["Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu",
     "Softsign", "Softplus", "Sigmoid"],
)  # fmt: skip
def test_rnn_activations(name: str) -> None:
    inputs = _layer_inputs("rnn", 1, True)
    _compare_layer("rnn", inputs, [name], alpha=(0.3,), beta=(0.4,))


def test_lstm_with_other_activations_in_each_direction() -> None:
    names = ["HardSigmoid", "Elu", "Softsign", "Sigmoid", "LeakyRelu", "Tanh"]
    numbers = {"alpha": (0.3, 0.7, 0, 0, 0.2, 0), "beta": (0.4, 0, 0, 0, 0, 0)}
    _compare_layer("lstm", _layer_inputs("lstm", 2, True), names, direction="bidirectional",
                   **numbers)  # fmt: skip
