"""Top-k on the processor, kept as a list and as a heap, against the reference."""

from typing import Any

import numpy as np
import pytest

from hcomp.dims import symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.types import TensorType
from hcomp.testing import interpret, random_array
from tests.test_lowering import runner

# Data, axis, k
CASES: list[tuple[tuple[int, ...], int, int]] = [
    ((3, 100), -1, 1),
    ((3, 100), -1, 7),
    ((2, 40, 3), 1, 40),
    ((2, 400), -1, 129),
    ((300, 3), 0, 200),
    ((2, 301), 1, 301),
]


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_topk(case: tuple[Any, ...], symbolic: bool, largest: bool, dtype: str) -> None:
    shape, axis, k = case
    names = tuple(symbol(f"S{i}") for i in range(len(shape))) if symbolic else shape
    b = GraphBuilder("g")
    x = b.input("x", TensorType(dtype, names))
    graph = b.finish(list(b.emit_many("topk", (x,), {"k": k, "axis": axis, "largest": largest})))
    data = random_array(dtype, shape, "topk")
    data.flat[::5] = data.flat[0]  # equal values come in the order of their indices
    if dtype.startswith("float"):
        data.flat[3::11] = np.nan
        data.flat[4::13] = -np.inf
    expected = interpret(graph, {"x": data})
    for found, name in zip(runner(graph)(data), graph.outputs, strict=True):
        np.testing.assert_array_equal(found, expected[name])
