"""Operators along one axis: ArgMax, CumSum, TopK, Softmax, norms of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext, RunTime
from hcomp.capture.onnx_ops.attention_core import softmax
from hcomp.capture.onnx_ops.math_common import axis_of, like, rounded_once, wide
from hcomp.dims import DimLike


def product(dims: Sequence[DimLike]) -> DimLike:
    """Return the product of sizes."""
    total: DimLike = 1
    for dim in dims:
        total = total * dim
    return total


def _arg(op: str) -> Converter:
    def convert(c: NodeContext) -> str:
        return c.emit(
            op,
            0,
            axis=axis_of(c, c.attr("axis", 0)),
            keepdims=bool(c.attr("keepdims", 1)),
            select_last=bool(c.attr("select_last_index", 0)),
        )

    return convert


def _cumulative(op: str) -> Converter:
    """CumSum, CumProd: the axis is an input."""

    def convert(c: NodeContext) -> str:
        flags = {
            "exclusive": bool(c.attr("exclusive", 0)),
            "reverse": bool(c.attr("reverse", 0)),
        }
        axis = c.known(1)
        if axis is not None and isinstance(axis[0], int):
            return c.emit(op, 0, axis=axis_of(c, axis[0]), **flags)
        bound = {"axis": c.reshape(1, ())}
        rank = c.type(0).rank
        return c.b.dynamic(op, [c.input(0)], static=flags, bound=bound, dtypes=[c.dtype(0)], rank=rank)[0]

    return convert


def _topk(c: NodeContext) -> Sequence[str]:
    """TopK: k is an attribute in opset 1, then an input."""
    settings = {
        "axis": axis_of(c, c.attr("axis", -1)),
        "largest": bool(c.attr("largest", 1)),
        "sorted": bool(c.attr("sorted", 1)),
    }
    try:
        k = c.ints(1, "k")
    except RunTime:
        bound = {"k": c.reshape(1, ())}
        dtypes = [c.dtype(0), "int64"]
        return c.b.dynamic("topk", [c.input(0)], static=settings, bound=bound, dtypes=dtypes, rank=c.type(0).rank)
    if k is None:
        raise c.refuse("its k is missing")
    if c.ranked():
        size = c.shape()[settings["axis"]]
        if isinstance(size, int) and isinstance(k[0], int) and not 0 <= k[0] <= size:
            raise c.refuse(f"its k is {k[0]}, but the axis has {size} elements")
    return c.emit_many("topk", 0, k=k[0], **settings)


def _softmax(op: str) -> Converter:
    """Softmax, LogSoftmax: along one axis from opset 13 on, over all axes from `axis` on before."""

    def convert(c: NodeContext) -> str:
        if c.opset >= 13:
            axis = c.attr("axis", -1)
            if op == "softmax" and c.ranked() and c.axis(axis) == c.rank() - 1:
                return softmax(c, c.input(0))
            return c.emit(op, 0, axis=axis_of(c, axis))
        axis = c.axis(c.attr("axis", 1))
        shape = c.shape()
        if axis == len(shape) - 1:
            return c.emit(op, 0, axis=axis)
        flat = c.reshape(0, (product(shape[:axis]), product(shape[axis:])))
        return c.reshape(c.emit(op, flat, axis=1), shape)

    return convert


def _hardmax(c: NodeContext) -> str:
    """Hardmax: 1 at the first largest element, 0 elsewhere; axes as in Softmax."""
    shape = c.shape()
    if c.opset >= 13:
        return _one_at_peak(c, c.input(0), c.axis(c.attr("axis", -1)))
    axis = c.axis(c.attr("axis", 1))
    flat = c.reshape(0, (product(shape[:axis]), product(shape[axis:])))
    return c.reshape(_one_at_peak(c, flat, 1), shape)


def _one_at_peak(c: NodeContext, x: str, axis: int) -> str:
    shape = c.shape(x)
    peak = c.emit("argmax", x, axis=axis, keepdims=True)
    places = c.emit("arange", size=shape[axis])
    aligned = c.reshape(places, (shape[axis],) + (1,) * (len(shape) - axis - 1))
    return c.cast(c.emit("equal", aligned, peak), c.dtype(x))


def _lp_normalization(c: NodeContext, x: str) -> str:
    """LpNormalization: x divided by its norm along an axis; a norm of 0 gives 0."""
    axis, p = c.axis(c.attr("axis", -1)), c.attr("p", 2)
    if p == 1:
        norm = c.emit("sum", c.emit("abs", x), axis=axis, keepdims=True)
    elif p == 2:
        squares = c.emit("sum", c.emit("square", x), axis=axis, keepdims=True)
        norm = c.emit("sqrt", squares)
    else:
        raise c.refuse(f"its p is {p}, neither 1 nor 2")
    zero = c.emit("equal", norm, like(c, 0, x))
    safe = c.emit("where", zero, like(c, 1, x), norm)
    return c.emit("divide", x, safe)


def _mean_variance_normalization(c: NodeContext) -> str:
    """MeanVarianceNormalization: (x - mean) / (deviation + 1e-9)."""
    axes = c.attr("axes", (0, 2, 3))
    x = wide(c, 0)
    mean = c.emit("mean", x, axis=tuple(axes), keepdims=True)
    centred = c.emit("subtract", x, mean)
    variance = c.emit("mean", c.emit("square", centred), axis=tuple(axes), keepdims=True)
    deviation = c.emit("add", c.emit("sqrt", variance), like(c, 1e-9, x))
    return c.cast(c.emit("divide", centred, deviation), c.dtype(0))


SCAN: dict[str, Converter] = {
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "CumSum": _cumulative("cumsum"),
    "CumProd": _cumulative("cumprod"),
    "TopK": _topk,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Hardmax": _hardmax,
    "LpNormalization": rounded_once(_lp_normalization),
    "MeanVarianceNormalization": _mean_variance_normalization,
}
