"""Depthwise convolutions at every kind of edge, and sums that are finished in registers, agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import hcomp
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy import emit_conv
from tests.test_cpu_heavy import close, normal, pack, reference, run

CPU = CpuFeatures.host()
ENDS = ["bias", "relu", "sigmoid"]
"""What follows: a few instructions, which are written out for each register, or many."""


def convolved(
    x: np.ndarray, w: np.ndarray, end: str, *, symbolic: bool = False, groups: int = 1, **window: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return our result and ONNX Runtime's, channels last."""
    b, rank = normal(w.shape[0]), x.ndim - 2
    names = ("n", *("h", "w", "d")[:rank], x.shape[1]) if symbolic else (x.shape[0], *x.shape[2:], x.shape[1])

    def body(bb: Any, v: Any) -> Any:
        y = emit_conv(bb, v, w, **window, groups=groups, pack=pack, cpu=CPU)
        y = bb.emit(relax.op.add(y, relax.const(b)))
        return y if end == "bias" else bb.emit({"relu": relax.op.nn.relu, "sigmoid": relax.op.sigmoid}[end](y))

    (y,), report = run([(names, "float32")], body, [np.ascontiguousarray(np.moveaxis(x, 1, -1))])
    assert list(report.values()) == ["convolution"]
    attributes = {
        "strides": window["strides"],
        "pads": window["padding"],
        "dilations": window["dilation"],
        "group": groups,
    }
    (expected,) = reference("Conv", ["x", "w", "b"], {"x": x}, {"w": w, "b": b}, **attributes)
    last = np.moveaxis(expected, 1, -1)
    return y, {"bias": last, "relu": np.maximum(last, 0), "sigmoid": 1 / (1 + np.exp(-last))}[end]


# Kernel, strides, padding, dilation
WINDOWS: list[tuple[tuple[int, ...], ...]] = [
    ((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((3, 3), (2, 2), (0, 0, 1, 1), (1, 1)),
    ((5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
    ((5, 5), (2, 1), (2, 1, 1, 2), (1, 1)),
    ((3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    ((7, 3), (1, 3), (6, 2, 0, 0), (1, 1)),
    ((1, 9), (1, 1), (0, 8, 0, 4), (1, 1)),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("width", [1, 5, 6, 7, 13, 90, 131])
def test_edges(window: tuple[tuple[int, ...], ...], width: int) -> None:
    kernel, strides, padding, dilation = window
    end = ENDS[width % 3]
    channels = {1: 6, 5: 24}.get(width, 11)
    spans = [
        n + padding[i] + padding[i + 2] - (k - 1) * d
        for i, (n, k, d) in enumerate(zip((9, width), kernel, dilation, strict=True))
    ]
    if min(spans) < 1:
        pytest.skip("the window is wider than the image")
    given = {"strides": strides, "padding": padding, "dilation": dilation, "groups": channels}
    y, expected = convolved(normal(2, channels, 9, width), normal(channels, 1, *kernel), end, **given)
    close(y, expected, int(np.prod(kernel)))


def free_program(sizes: list[str | int], w: np.ndarray, **attributes: Any) -> hcomp.Program:
    """Return a convolution of data of `sizes`, compiled."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return hcomp.compile(model, devices=["cpu"], threads=1, cache=False)


@pytest.mark.parametrize("sizes", [["n", 70, "h", "w"], ["n", 70, 1, 1], ["n", 70, "w"]])
def test_positions_of_free_sizes_are_one_axis(sizes: list[str | int]) -> None:
    w = normal(41, 70, *(1,) * (len(sizes) - 2))
    program = free_program(sizes, w)
    for n, h, wide in [(1, 1, 1), (2, 1, 1), (3, 1, 1), (7, 1, 1), (1, 7, 5), (3, 10, 13), (2, 1, 200)]:
        shape = tuple({"n": n, "h": h, "w": wide}.get(str(size), size) for size in sizes)
        x = normal(*(int(size) for size in shape))
        (expected,) = reference("Conv", ["x", "w"], {"x": x}, {"w": w})
        close(program.run({"x": x})["y"], expected, 70)


@pytest.mark.parametrize("window", WINDOWS)
def test_edges_of_free_widths(window: tuple[tuple[int, ...], ...]) -> None:
    """One program for widths at which tiles are near one edge, near both, or the row is shorter than a tile."""
    kernel, strides, padding, dilation = window
    w, channels = normal(11, 1, *kernel), 11
    attributes = {"strides": strides, "pads": padding, "dilations": dilation, "group": channels}
    program = free_program(["n", channels, "h", "w"], w, **attributes)
    least = max(1, (kernel[1] - 1) * dilation[1] + 1 - padding[1] - padding[3])
    for width in (*range(least, least + 20), 63, 64, 65, 66, 69, 70, 131, 132):
        x = normal(2, channels, 9, width)
        (expected,) = reference("Conv", ["x", "w"], {"x": x}, {"w": w}, **attributes)
        close(program.run({"x": x})["y"], expected, int(np.prod(kernel)))


@pytest.mark.parametrize("rest", [1, 3, 63])
def test_a_row_whose_last_chunk_is_short(rest: int) -> None:
    given = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 4}
    y, expected = convolved(normal(1, 4, 2, 64 * 70 + rest), normal(4, 1, 3, 3), "relu", **given)
    close(y, expected, 9)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("symbolic", [False, True])
def test_other_ranks(rank: int, symbolic: bool) -> None:
    given = {"strides": (1,) * rank, "padding": (1,) * 2 * rank, "dilation": (1,) * rank, "groups": 10}
    shape, kernel = (7, 6, 33)[-rank:], (3,) * rank
    y, expected = convolved(normal(2, 10, *shape), normal(10, 1, *kernel), "relu", symbolic=symbolic, **given)
    close(y, expected, 3**rank)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("outputs", [1, 7, 24, 28, 48, 96, 50])
def test_shallow_products(outputs: int, symbolic: bool, end: str) -> None:
    """Finished in registers, panels of any width."""
    given = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    y, expected = convolved(normal(2, 10, 5, 41), normal(outputs, 10, 1, 1), end, symbolic=symbolic, **given)
    close(y, expected, 10)
