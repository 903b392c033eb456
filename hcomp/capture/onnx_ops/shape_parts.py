"""Joining and cutting: Concat, Split, Slice with symbolic starts and ends."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext, RunTime
from hcomp.capture.onnx_ops.math_common import axis_of
from hcomp.capture.onnx_ops.shape import whole_numbers
from hcomp.dims import DimLike, ceildiv, dim_max, dim_min, lower_bound

UNBOUNDED = 2**31 - 1
"""Exporters write the largest int32 or int64 for "to the end"."""


def _concat(c: NodeContext) -> str:
    axis = c.attr("axis", 1) if c.opset < 4 else c.required("axis")
    if len(c.inputs) == 1:
        return c.input(0)
    return c.b.emit("concat", *c.inputs, axis=axis_of(c, axis))


def _split(c: NodeContext) -> Sequence[str]:
    """Split: by sizes, or evenly into as many parts as there are outputs."""
    axis = axis_of(c, c.attr("axis", 0))
    count = len(c.node.output)
    parts = c.attr("num_outputs", count)
    if parts != count:
        raise c.refuse(f"its num_outputs is {parts}, but it has {count} outputs")
    try:
        sizes = c.ints(1, "split")
    except RunTime:
        bound, dtypes = {"sizes": c.input(1)}, [c.dtype(0)] * count
        return c.b.dynamic(
            "split", [c.input(0)], static={"axis": axis}, bound=bound, dtypes=dtypes, rank=c.type(0).rank
        )
    if sizes is None:
        whole = c.shape()[axis]
        each = ceildiv(whole, count)
        sizes = [each] * (count - 1) + [whole - each * (count - 1)]
    if len(sizes) != count:
        raise c.refuse(f"it has {len(sizes)} sizes for {count} outputs")
    if c.ranked() and isinstance(spare := sum(sizes) - c.shape()[axis], int) and spare != 0:
        raise c.refuse(f"its sizes add up to {sum(sizes)}, not to {c.shape()[axis]}")
    if count == 1:
        return [c.input(0)]
    return c.emit_many("split", 0, sizes=tuple(sizes), axis=axis)


def _slice(c: NodeContext) -> str:
    """Slice: parameters are attributes before opset 10, then inputs."""
    try:
        starts, ends = c.ints(1, "starts"), c.ints(2, "ends")
        axes, steps = c.ints(3, "axes"), c.ints(4, "steps")
    except RunTime:
        return _late(c)
    if starts is None or ends is None:
        raise c.refuse("its starts or ends are missing")
    if not c.ranked():
        return _late(c)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise c.refuse("its starts, ends, axes and steps differ in number")
    return slice_axes(c, c.input(0), starts, ends, axes, whole_numbers(c, steps, "steps"))


def _late(c: NodeContext) -> str:
    """Slice where a parameter, or the rank, comes at run time."""
    names = [c.optional(i) for i in range(5)]
    if c.opset < 10:
        given = [c.attr(name) for name in ("starts", "ends", "axes")]
        names[1:] = ["" if v is None else c.tensor(v, "int64") for v in given]
    return c.b.emit("onnx_slice", *names, rank=c.type(0).rank)


def slice_axes(
    c: NodeContext,
    x: str,
    starts: Sequence[DimLike],
    ends: Sequence[DimLike],
    axes: Sequence[DimLike],
    steps: Sequence[int],
) -> str:
    """Return ONNX's slice of `x`; starts and ends may be expressions of sizes."""
    shape = c.shape(x)
    chosen = [c.axis(a, x) for a in whole_numbers(c, axes, "axes")]
    if any(step == 0 for step in steps):
        raise c.refuse("its step is 0")
    spans = [
        span(start, end, step, shape[axis]) for start, end, step, axis in zip(starts, ends, steps, chosen, strict=True)
    ]
    kept = [
        (axis, begin, size, step)
        for axis, (begin, size), step in zip(chosen, spans, steps, strict=True)
        if not (step == 1 and size == shape[axis])
    ]
    if not kept:
        return x
    axes_, begins, sizes, strides = zip(*kept, strict=True)
    return c.emit("strided_slice", x, axes=axes_, begin=begins, size=sizes, strides=strides)


def span(start: DimLike, end: DimLike, step: int, size: DimLike) -> tuple[DimLike, DimLike]:
    """Return the first index and the length of a slice of an axis of `size`, clamped as ONNX does.

    Backwards, a start before the axis is its first element; numpy would take nothing.
    """
    if step < 0:
        # An empty axis has its last element at -1, below the first: the last wins.
        first = size - 1 if start == -1 else dim_min(_clamped(start, size, 0, size - 1), size - 1)
        last = _clamped(end, size, -1, size - 1)
        return dim_max(first, 0), dim_max(0, ceildiv(first - last, -step))
    first, last = _clamped(start, size, 0, size), _clamped(end, size, 0, size)
    length = ceildiv(last - first, step)
    # Both lie in [0, size], so these lengths are never negative, and read better without max.
    return first, length if first == 0 or last == size else dim_max(0, length)


def _clamped(index: DimLike, size: DimLike, low: DimLike, high: DimLike) -> DimLike:
    """Return an index counted from the front, inside [low, high]."""
    if isinstance(index, int):
        if index >= UNBOUNDED:
            return high
        if index <= -UNBOUNDED:
            return low
    if index == size:
        return high
    if index == 0 and low == 0:
        return low  # so that a size whose own expression might go below zero stays out of it
    bound, above = lower_bound(index), lower_bound(-index)
    if bound is not None and bound >= 0:
        return dim_min(index, high)
    if above is not None and above > 0:
        return dim_max(index + size, low)
    negative = dim_min(1, dim_max(0, -index))
    return dim_min(dim_max(index + size * negative, low), high)


PARTS: dict[str, Converter] = {"Concat": _concat, "Split": _split, "Slice": _slice}
