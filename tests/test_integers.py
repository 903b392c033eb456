"""Integers are exact beyond what a double holds, on every device; what overflows wraps."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import hcomp

BASES = np.array([3, 7, 2**31, -3, 2, -1, 0, 5], np.int64)
POWERS = np.array([39, 20, 2, 39, 64, -3, 0, -1], np.int64)
WANTED = np.array([3**39, 7**20, 2**62, -(3**39), 0, -1, 1, 0], np.int64)
LARGE = 2**53 + 1


def run(op: str, device: str, *arrays: np.ndarray, **attrs: object) -> np.ndarray:
    """Run one ONNX operator, its inputs dynamic."""
    values = [
        helper.make_tensor_value_info(
            f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), [f"n{i}{k}" for k in range(a.ndim)]
        )
        for i, a in enumerate(arrays)
    ]
    out = helper.make_tensor_value_info("y", values[0].type.tensor_type.elem_type, None)
    node = helper.make_node(op, [v.name for v in values], ["y"], **attrs)
    graph = helper.make_graph([node], "g", values, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return hcomp.compile(model, devices=[device]).run({f"x{i}": a for i, a in enumerate(arrays)})["y"]


@pytest.mark.parametrize("device", ["cpu", "null"])
class TestExact:
    def test_power(self, device: str) -> None:
        np.testing.assert_array_equal(run("Pow", device, BASES, POWERS), WANTED)

    def test_power_wraps_in_the_type_of_the_base(self, device: str) -> None:
        found = run("Pow", device, np.array([3, 2], np.int32), np.array([39, 31], np.int64))
        np.testing.assert_array_equal(found, np.array([3**39, 2**31], np.int64).astype(np.int32))

    @pytest.mark.parametrize(
        ("values", "wanted"),
        [([LARGE, LARGE], LARGE), ([-LARGE, -LARGE], -LARGE), ([-7, 2, 2], -1), ([7, -2, 0], 1), ([], 0)],
    )
    def test_mean(self, device: str, values: list[int], wanted: int) -> None:
        assert run("ReduceMean", device, np.array(values, np.int64), axes=[0], keepdims=0) == wanted

    def test_mean_of_large_unsigned(self, device: str) -> None:
        assert run("ReduceMean", device, np.array([2**64 - 1], np.uint64), axes=[0], keepdims=0) == 2**64 - 1
