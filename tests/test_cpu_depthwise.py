"""Depthwise convolutions at every kind of edge, and sums that are finished in registers, agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

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
