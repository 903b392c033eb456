"""Pooling on the processor, in both layouts, against the reference."""

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim.expr import Let

from hcomp.dims import symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.schedule.pool_shape import PoolShape
from hcomp.testing import assert_close, interpret, random_array
from tests.test_lowering import runner

# Data, window, strides, padding, dilation, ceil_mode
CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]] = [
    ((1, 9, 10, 8), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False),
    ((2, 9, 10, 20), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    ((1, 7, 8, 3), (3, 2), (2, 3), (1, 0, 1, 1), (1, 2), True),
    ((1, 12, 5, 100), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), False),
    ((1, 12, 13, 1), (5, 5), (3, 3), (2, 2, 2, 2), (2, 2), True),
    ((3, 40, 9), (3,), (2,), (1, 1), (1,), False),
    ((2, 21, 19, 2), (1, 11), (1, 1), (0, 3, 0, 4), (1, 1), False),
    ((1, 30, 4, 3), (11, 2), (2, 1), (5, 0, 5, 0), (1, 1), True),
    ((1, 14, 13, 2), (9, 9), (1, 1), (4, 4, 4, 4), (1, 1), False),
    ((1, 4, 5, 6, 70), (2, 2, 3), (2, 2, 2), (0, 1, 1, 0, 1, 1), (1, 1, 1), True),
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("op", ["max_pool", "avg_pool", "avg_pool of padding"])
@pytest.mark.parametrize("case", CASES)
def test_pool(case: tuple[Any, ...], op: str, symbolic: bool, last: bool) -> None:
    shape, window, strides, padding, dilation, ceil_mode = case
    names: tuple[Any, ...] = (*(symbol(f"S{i}") for i in range(len(shape) - 1)), shape[-1]) if symbolic else shape
    if not last:
        shape, names = (shape[0], shape[-1], *shape[1:-1]), (names[0], names[-1], *names[1:-1])
    b = GraphBuilder("g")
    x = b.input("x", TensorType("float32", names))
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    if op.startswith("avg"):
        attrs["count_include_pad"] = op.endswith("padding")
    name = op.split(maxsplit=1)[0]
    y = b.emit("relu", b.emit(name, x, pool_size=window, channels_last=last, **attrs))
    graph = b.finish([y])
    data = random_array("float32", shape, "pool")
    if name == "max_pool":
        data.flat[::37] = np.nan
        data.flat[5::41] = -np.inf
    (found,) = runner(graph)(data)
    assert_close(found, interpret(graph, {"x": data})[graph.outputs[0]], terms=int(np.prod(window)))


def test_parts_of_a_window_are_joined_in_pairs() -> None:
    """Lowering copies what a name stands for: a chain of n maxima would become 2^n expressions."""
    shape = PoolShape("max", False, (9,), (1,), (0,), (0,), (1,), False)

    def reads(value: Any, known: dict[Any, int]) -> int:
        """Count what is read once names are replaced by what they stand for; `known` weighs variables."""
        if isinstance(value, Let):
            return reads(value.body, {**known, value.var: reads(value.value, known)})
        total = 0

        def visit(v: Any) -> None:
            nonlocal total
            total += known.get(v, 1)

        tvm_ffi.structural_walk(value, (tvm.ir.Var, visit))
        return total

    a, b = tirx.Var("a", "float32"), tirx.Var("b", "float32")
    joined = shape.join(a, b)
    most = max(reads(joined, {a: 1, b: 0}), reads(joined, {a: 0, b: 1}))
    levels = 4  # 9 parts in pairs: 5, 3, 2, 1.
    parts = [tirx.Var(f"p{k}", "float32") for k in range(9)]
    assert reads(shape.joined(parts), {}) <= len(parts) * most**levels
