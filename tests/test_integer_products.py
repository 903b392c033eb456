"""Products of dequantised tensors are done in integers, with the same meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import hcomp
from hcomp.compiler import captured_graph
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType
from hcomp.passes.integer_products import integer_products
from hcomp.targets.cpu.codegen import processor
from hcomp.targets.cpu.heavy.conv_int8 import conv_is_faster_in_bytes
from hcomp.targets.cpu.schedule.byte_panel import has_pair_products
from hcomp.testing import interpret

RNG = np.random.default_rng(5)
TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


@dataclass(frozen=True)
class Case:
    """One product: the shapes of data and weight, its attributes, and how both are quantised."""

    op: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    zero: int = 0
    weight_zero: int = 0
    channels: bool = False
    types: tuple[str, str] = ("uint8", "int8")
    integers: bool = True


CASES = {
    "1x1": Case("Conv", (1, 16, 9, 7), (24, 16, 1, 1)),
    "one scale a channel": Case("Conv", (1, 16, 9, 7), (24, 16, 1, 1), channels=True),
    "padding is the zero point": Case("Conv", (2, 3, 15, 15), (16, 3, 7, 7), {"pads": [3, 2, 1, 3]}, zero=114),
    "strides": Case("Conv", (1, 8, 9, 9), (8, 8, 3, 3), {"strides": [2, 2], "pads": [1] * 4}, zero=3, channels=True),
    "groups": Case("Conv", (1, 24, 9, 9), (16, 12, 3, 3), {"group": 2, "dilations": [2, 2]}, zero=255),
    "depthwise": Case("Conv", (1, 16, 9, 9), (16, 1, 3, 3), {"group": 16}, zero=9),
    "one axis": Case("Conv", (1, 12, 30), (9, 12, 5), {"pads": [2, 2]}, channels=True, types=("int8", "int8")),
    "matmul": Case("MatMul", (5, 33), (33, 17), zero=7),
    "one row": Case("MatMul", (1, 64), (64, 40), zero=131, channels=True),
    "batches": Case("MatMul", (2, 3, 32), (32, 16), channels=True, types=("int8", "int8"), zero=-5),
    "transposed weight": Case("Gemm", (5, 33), (17, 33), {"transB": 1}, zero=7, channels=True),
    # What is left after the zero point does not fit a byte.
    "weight with a zero point": Case("MatMul", (5, 33), (33, 17), weight_zero=128, types=("uint8", "uint8")),
    "no bytes": Case("MatMul", (5, 33), (33, 17), weight_zero=3, types=("uint8", "uint8"), integers=False),
}  # fmt: skip


def channel_axis(case: Case) -> int:
    """Return the axis of the weight that output channels run along."""
    return 0 if case.op == "Conv" or case.attrs.get("transB") else 1


def model(case: Case) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Return x -> quantised -> dequantised -> product with a dequantised weight -> quantised, and its numbers."""
    axis = channel_axis(case)
    data, weights = case.types
    info = np.iinfo(weights)
    w = RNG.choice([info.min, info.max, *range(info.min + 1, info.max, 7)], case.weight).astype(weights)
    if case.weight_zero == 128:
        w = np.maximum(w, 1)
    count = case.weight[axis] if case.channels else None
    w_scale = np.asarray(RNG.uniform(0.005, 0.015, count), np.float32)
    numbers = {
        "w": w, "w_scale": w_scale, "w_zero": np.full(w_scale.shape, case.weight_zero, weights),
        "x_scale": np.array(0.05, np.float32), "x_zero": np.array(case.zero, data),
        "y_scale": np.array(1.7, np.float32), "y_zero": np.array(3, data),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zero"], ["x_d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_d"], axis=axis),
        helper.make_node(case.op, ["x_d", "w_d"], ["p"], name="product", **case.attrs),
        helper.make_node("QuantizeLinear", ["p", "y_scale", "y_zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.data)],
        [
            helper.make_tensor_value_info("y", TYPES[data], None),
            helper.make_tensor_value_info("p", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), numbers


def exact(case: Case, numbers: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Return the product of the dequantised operands in float64."""
    info = np.iinfo(case.types[0])
    x_q = np.clip(np.rint(x / numbers["x_scale"]) + case.zero, info.min, info.max)
    left = (x_q.astype(np.float64) - case.zero) * numbers["x_scale"]
    shape = [1] * len(case.weight)
    if case.channels:
        shape[channel_axis(case)] = -1
    right = (numbers["w"].astype(np.float64) - case.weight_zero) * numbers["w_scale"].reshape(shape)
    if case.op != "Conv":
        return left @ (right.T if case.attrs.get("transB") else right)
    from hcomp.reference import REFERENCE

    n = len(case.weight) - 2
    pads = case.attrs.get("pads", [0] * 2 * n)
    return REFERENCE["conv"](
        left, right, strides=case.attrs.get("strides", [1] * n), padding=pads,
        dilation=case.attrs.get("dilations", [1] * n), groups=case.attrs.get("group", 1),
        out_dtype="", channels_last=False,
    )  # fmt: skip


def integer_sums(graph: Graph) -> int:
    """Return how many products of a graph have int32 sums."""
    types = (node.outputs[0].type for node in graph.nodes if node.op in ("conv", "matmul"))
    return sum(isinstance(kind, TensorType) and kind.dtype == "int32" for kind in types)


@pytest.mark.parametrize("name", CASES)
def test_dequantised_products(name: str) -> None:
    case = CASES[name]
    made, numbers = model(case)
    x = RNG.normal(0, 3, case.data).astype(np.float32)
    graph = captured_graph(made)
    changed = integer_products(graph)
    assert integer_sums(graph) == 0
    assert integer_sums(changed) == int(case.integers)
    wanted = exact(case, numbers, x)
    program = hcomp.compile(made, devices=["cpu"], threads=1, cache=False)
    for found in (interpret(changed, {"x": x}), program.run({"x": x})):
        *_, product = found.values()
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(product, wanted, rtol=1e-5, atol=2e-6 * scale)
        quantised = next(iter(found.values())).astype(np.float64)
        info = np.iinfo(case.types[0])
        inside = np.clip(wanted / numbers["y_scale"] + 3, info.min, info.max)
        assert np.abs(quantised - inside).max() <= 0.5 + 1e-4


def test_sums_that_may_leave_int32_stay_floats() -> None:
    case = Case("MatMul", (1, 34_000), (34_000, 2))
    made, _ = model(case)
    weight = numpy_helper.from_array(np.full(case.weight, 127, np.int8), "w")
    made.graph.initializer[0].CopyFrom(weight)
    assert integer_sums(integer_products(captured_graph(made))) == 0


def test_wide_filters_of_few_steps_stay_with_winograd() -> None:
    cpu, _ = processor()
    attrs = {"groups": 1, "strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    wide, shallow = np.ones((256, 256, 3, 3), np.int8), np.ones((256, 256, 1, 1), np.int8)
    assert not conv_is_faster_in_bytes(wide, attrs, (28, 28), cpu)
    shallow_is_faster = conv_is_faster_in_bytes(shallow, {**attrs, "padding": (0, 0, 0, 0)}, (28, 28), cpu)
    assert shallow_is_faster == has_pair_products(cpu)
