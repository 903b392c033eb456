"""Spectra and windows: DFT, STFT, Hann, Hamming, Blackman, mel weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_types import element_type


def _dft(c: NodeContext) -> str:
    given: dict[str, Any] = {"axis": c.attr("axis", 1)} if c.opset < 20 else {"axis": -2}
    static: dict[str, Any] = {"inverse": bool(c.attr("inverse", 0)), "onesided": bool(c.attr("onesided", 0))}
    bound = _given(c, given, {"length": 1, **({"axis": 2} if c.opset >= 20 else {})})
    if not bound:
        return c.emit("dft", 0, axis=c.axis(given.pop("axis")), **given, **static)
    return c.b.dynamic("dft", (c.input(0),), static=given | static, bound=bound, dtypes=[c.dtype(0)], rank=c.rank(0))[0]


def _given(c: NodeContext, given: dict[str, Any], places: dict[str, int]) -> dict[str, str]:
    """Put the parameters that are known into `given`; return the others as attribute -> value."""
    bound: dict[str, str] = {}
    for name, place in places.items():
        if not c.has(place):
            continue
        known = c.known(place)
        if known is not None:
            given[name] = known[0]
        else:
            bound[name] = c.reshape(place, ())
            given.pop(name, None)
    return bound


def _stft(c: NodeContext) -> str:
    given: dict[str, Any] = {"onesided": bool(c.attr("onesided", 1))}
    if c.has(2) and not c.has(3):
        given["length"] = c.shape(2)[0]
    bound = _given(c, given, {"step": 1, "length": 3})
    window = c.cast(2, c.dtype(0)) if c.has(2) else ""
    signal = c.input(0)
    if c.rank(0) == 2:
        signal = c.emit("expand_dims", signal, axis=(2,))
    if not bound:
        return c.b.emit("stft", signal, window, **given)
    return c.b.dynamic("stft", (signal, window), static=given, bound=bound, dtypes=[c.dtype(0)], rank=4)[0]


COSINES = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""Window i is a - b cos(2 pi i / n) + c cos(4 pi i / n), as the standard's function bodies have them."""


def _window(c: NodeContext) -> str:
    a, b, d = COSINES[c.node.op_type]
    dtype = element_type(c.attr("output_datatype", 1))
    periodic = bool(c.attr("periodic", 1))
    known = c.known(0)
    # float64 until the end: the cosine of a large float32 angle would be off in the last digits.
    if known is not None:
        steps = c.b.emit("arange", size=known[0], dtype="float64")
    else:
        size = c.reshape(0, ())
        (steps,) = c.b.dynamic(
            "arange", (), static={"dtype": "float64"}, bound={"size": size}, dtypes=["float64"], rank=1
        )
    span = c.reshape(c.cast(0, "float64"), ())
    if not periodic:
        span = c.emit("subtract", span, c.scalar(1, "float64"))
    turn = c.emit("divide", c.emit("multiply", steps, c.scalar(2 * np.pi, "float64")), span)
    window = c.emit("subtract", c.scalar(a, "float64"), _wave(c, b, turn))
    if d:
        twice = c.emit("multiply", turn, c.scalar(2, "float64"))
        window = c.emit("add", window, _wave(c, d, twice))
    return c.cast(window, dtype)


def _wave(c: NodeContext, height: float, angle: str) -> str:
    return c.emit("multiply", c.emit("cos", angle), c.scalar(height, "float64"))


def _mel_weights(c: NodeContext) -> str:
    dtype = element_type(c.attr("output_datatype", 1))
    return c.emit("mel_weights", 0, 1, 2, 3, 4, dtype=dtype)


def _affine_grid(c: NodeContext) -> str:
    return c.emit("affine_grid", 0, 1, align_corners=bool(c.attr("align_corners", 0)))


SIGNAL: dict[str, Converter] = {
    "DFT": _dft,
    "STFT": _stft,
    "AffineGrid": _affine_grid,
    "MelWeightMatrix": _mel_weights,
    **dict.fromkeys(COSINES, _window),
}
