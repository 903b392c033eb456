"""Reductions along axes that are an attribute, an input, or known only at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hcomp.capture.context import Converter, NodeContext, RunTime
from hcomp.capture.onnx_ops.math_common import as_float, highest, like, lowest, wide
from hcomp.dims import DimLike


@dataclass(frozen=True)
class Axes:
    """The axes of a reduction: numbers (None: all of them), or the value that holds them."""

    numbers: tuple[int, ...] | None
    value: str = ""


def axes_of(c: NodeContext) -> Axes:
    """Return the axes of a Reduce node; no axes means all, or none with noop_with_empty_axes."""
    noop = bool(c.attr("noop_with_empty_axes", 0))
    try:
        found = c.ints(1, "axes")
    except RunTime:
        value = c.input(1)
        count = c.shape(value)[0]
        if isinstance(count, int) and count == 0:
            return Axes(() if noop else None)
        if not noop and not isinstance(count, int):
            raise c.refuse("the number of its axes is known only at run time") from None
        return Axes(None, value)
    if not found:
        return Axes(() if noop else None)
    if not all(isinstance(a, int) for a in found):
        raise c.refuse("its axes are sizes")
    return Axes(tuple(a for a in found if isinstance(a, int)))


def reduced(c: NodeContext, op: str, x: str, axes: Axes, keepdims: bool) -> str:
    """Return `x` reduced by the graph's operator `op`."""
    if axes.value:
        count = c.shape(axes.value)[0]
        rank = c.type(x).rank
        if rank is not None and not keepdims:
            rank = rank - count if isinstance(count, int) else None
        return c.b.dynamic(
            op,
            [x],
            static={"keepdims": keepdims},
            bound={"axis": axes.value},
            dtypes=[c.dtype(x)],
            rank=rank,
        )[0]
    identity = {"max": lowest, "min": highest}.get(op)
    if identity is not None and c.ranked(x) and _is_empty(c, x, axes):
        shape = _kept(c, x, axes, keepdims)
        return c.emit("full", shape=shape, value=identity(c.dtype(x)), dtype=c.dtype(x))
    return c.emit(op, x, axis=axes.numbers, keepdims=keepdims)


def _is_empty(c: NodeContext, x: str, axes: Axes) -> bool:
    shape = c.shape(x)
    numbers = range(len(shape)) if axes.numbers is None else axes.numbers
    return any(isinstance(d, int) and d == 0 for d in (shape[c.axis(a, x)] for a in numbers))


def _kept(c: NodeContext, x: str, axes: Axes, keepdims: bool) -> tuple[DimLike, ...]:
    shape = c.shape(x)
    numbers = range(len(shape)) if axes.numbers is None else axes.numbers
    gone = {c.axis(a, x) for a in numbers}
    if keepdims:
        return tuple(1 if i in gone else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def _extreme(op: str) -> Converter:
    """ReduceMax, ReduceMin; of booleans they are any and all."""

    def convert(c: NodeContext) -> str:
        axes, keepdims = axes_of(c), bool(c.attr("keepdims", 1))
        if c.dtype(0) != "bool":
            return reduced(c, op, c.input(0), axes, keepdims)
        return c.cast(reduced(c, op, c.cast(0, "uint8"), axes, keepdims), "bool")

    return convert


def _plain(op: str) -> Converter:
    return lambda c: reduced(c, op, c.input(0), axes_of(c), bool(c.attr("keepdims", 1)))


def _mean(c: NodeContext) -> str:
    """ReduceMean; of integers it is the exact sum divided by the count, truncated."""
    return reduced(c, "mean", c.input(0), axes_of(c), bool(c.attr("keepdims", 1)))


def _formula(
    before: Callable[[NodeContext, str], str] | None, after: Callable[[NodeContext, str], str] | None
) -> Converter:
    """Return the converter of after(sum(before(x))), with half floats rounded once."""

    def convert(c: NodeContext) -> str:
        axes, keepdims = axes_of(c), bool(c.attr("keepdims", 1))
        # Integers stay integers as long as nothing but sums is taken of them.
        x = as_float(c, 0) if after is not None else wide(c, 0)
        total = reduced(c, "sum", before(c, x) if before else x, axes, keepdims)
        return c.cast(after(c, total) if after else total, c.dtype(0))

    return convert


def _log_sum_exp(c: NodeContext) -> str:
    """ReduceLogSumExp, with the maximum taken out so that nothing overflows."""
    axes, keepdims = axes_of(c), bool(c.attr("keepdims", 1))
    x = as_float(c, 0)
    peak = _finite(c, reduced(c, "max", x, axes, True))
    total = reduced(c, "sum", c.emit("exp", c.emit("subtract", x, peak)), axes, keepdims)
    shift = peak if keepdims else _finite(c, reduced(c, "max", x, axes, False))
    return c.cast(c.emit("add", c.emit("log", total), shift), c.dtype(0))


def _finite(c: NodeContext, x: str) -> str:
    """Return x with infinities replaced by 0: inf - inf would be NaN."""
    return c.emit("where", c.emit("isinf", x), like(c, 0, x), x)


REDUCE: dict[str, Converter] = {
    "ReduceSum": _plain("sum"),
    "ReduceProd": _plain("prod"),
    "ReduceMean": _mean,
    "ReduceMax": _extreme("max"),
    "ReduceMin": _extreme("min"),
    "ReduceL1": _formula(lambda c, x: c.emit("abs", x), None),
    "ReduceL2": _formula(lambda c, x: c.emit("square", x), lambda c, x: c.emit("sqrt", x)),
    "ReduceLogSum": _formula(None, lambda c, x: c.emit("log", x)),
    "ReduceSumSquare": _formula(lambda c, x: c.emit("square", x), None),
    "ReduceLogSumExp": _log_sum_exp,
}
