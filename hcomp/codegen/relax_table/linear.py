"""Rows for matmul, convolution and pooling: plain loops that any target can schedule.

Float16 and bfloat16 products are added up in float32; integers in the output's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.codegen.relax_table.reduce import reduced, reducer
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike, floordiv
from hcomp.ir.ops.linear import spatial_axes


def _accumulate(kernel: Kernel, a: Expr, b: Expr) -> Expr:
    dtype = wide_dtype(kernel.out_dtype)
    return a.astype(dtype) * b.astype(dtype)


def _matmul(kernel: Kernel) -> Tensor:
    a_shape, b_shape = kernel.shape(0), kernel.shape(1)
    kernel.require_equal(a_shape[-1], b_shape[-2 if len(b_shape) > 1 else -1])
    step = kernel.axis(a_shape[-1])
    column = len(b_shape) > 1
    row = len(a_shape) > 1
    batch = kernel.out_shape[: len(kernel.out_shape) - row - column]

    def operand(index: int, at: Sequence[Expr], matrix: Sequence[Expr]) -> Expr:
        own = kernel.shape(index)
        lead = len(own) - len(matrix)
        tail = batch[len(batch) - lead :]
        # The trailing pair is read as it is: only the leading dimensions broadcast.
        return kernel.spread(index, [*at[len(batch) - lead :], *matrix], (*tail, *own[lead:]))

    def term(*i: Expr) -> Expr:
        at = i[: len(batch)]
        left = [i[len(batch)], step] if row else [step]
        right = [step, i[-1]] if column else [step]
        return _accumulate(kernel, operand(0, at, left), operand(1, at, right))

    return _sum(kernel, term, [step], [a_shape[-1]], "matmul")


def _sum(kernel: Kernel, term: Any, steps: Sequence[Expr], sizes: Sequence[DimLike], name: str) -> Tensor:
    zero = constant(0, wide_dtype(kernel.out_dtype))
    return reduced(kernel, reducer("sum"), term, steps, sizes, zero, name)


def padded(
    kernel: Kernel,
    fill: Expr,
    begins: Sequence[DimLike],
    reach: Sequence[DimLike],
    spacing: Sequence[int] = (),
    *,
    axes: slice,
) -> Callable[[Sequence[Expr]], Expr]:
    """Return a function that reads input 0 with `fill` around (and, by `spacing`, between) it.

    Args:
        kernel: the kernel.
        fill: what stands outside.
        begins: for each spatial axis, how much stands in front.
        reach: the spatial sizes that are read, padding included.
        spacing: steps between neighbours; more than 1 puts `fill` between them.
        axes: the spatial axes of input 0.
    """
    own = kernel.shape(0)
    spaced = any(s != 1 for s in spacing)
    within = all(
        b == 0 and (r == s or (isinstance(r, int) and isinstance(s, int) and r <= s))
        for b, r, s in zip(begins, reach, own[axes], strict=True)
    )
    if within and not spaced:
        return lambda position: kernel.read(0, position)
    before = kernel.dims(begins)
    sizes = kernel.dims(own[axes])

    def value(*i: Expr) -> Expr:
        source = [p - b for p, b in zip(i[axes], before, strict=True)]
        tests = []
        if spaced:
            steps = [int64(s) for s in spacing]
            tests += [tirx.floormod(p, s) == int64(0) for p, s in zip(source, steps, strict=True)]
            source = [tirx.floordiv(p, s) for p, s in zip(source, steps, strict=True)]
        for p, size in zip(source, sizes, strict=True):
            tests += [p >= int64(0), p < size]
        return tirx.if_then_else(tirx.all(*tests), kernel.read(0, at_axes(i, axes, source)), fill)

    made = kernel.compute(value, shape=at_axes(own, axes, reach), name="pad_temp")
    return lambda position: made(*position)


def at_axes(values: Sequence[Any], axes: slice, new: Sequence[Any]) -> tuple[Any, ...]:
    """Return `values` with those of `axes` replaced."""
    return (*values[: axes.start], *new, *values[axes.stop :])


def window_reach(
    out: Sequence[DimLike], window: Sequence[DimLike], strides: Sequence[int], dilation: Sequence[int]
) -> list[DimLike]:
    """Return how far the windows of `out` positions reach along each spatial axis."""
    return [(o - 1) * s + (w - 1) * d + 1 for o, w, s, d in zip(out, window, strides, dilation, strict=True)]


def _conv(kernel: Kernel) -> Tensor:
    attrs, data, weight = kernel.attrs, kernel.shape(0), kernel.shape(1)
    n, axes = len(data) - 2, spatial_axes(attrs, len(data))
    own = -1 if attrs["channels_last"] else 1
    groups, strides, dilation = attrs["groups"], attrs["strides"], attrs["dilation"]
    kernel.require_equal(data[own], weight[1] * groups)
    zero = constant(0, kernel.dtype())
    reach = window_reach(kernel.out_shape[axes], weight[2:], strides, dilation)
    if not any(attrs["padding"]):
        reach = list(data[axes])  # the windows lie inside, whatever the sizes
    read = padded(kernel, zero, attrs["padding"][:n], reach, axes=axes)
    channel = kernel.axis(weight[1], "rc")
    taps = [kernel.axis(weight[a + 2], f"r{a}") for a in range(n)]
    per_group = kernel.dim(floordiv(weight[0], groups)) if groups != 1 else None

    def term(*i: Expr) -> Expr:
        source = channel
        if per_group is not None:
            source = tirx.floordiv(i[own], per_group) * kernel.dim(weight[1]) + channel
        spatial = [p * int64(strides[a]) + taps[a] * int64(dilation[a]) for a, p in enumerate(i[axes])]
        position = (i[0], *spatial, source) if attrs["channels_last"] else (i[0], source, *spatial)
        return _accumulate(kernel, read(position), kernel.read(1, (i[own], channel, *taps)))

    return _sum(kernel, term, [channel, *taps], weight[1:], "conv")


def _conv_transpose(kernel: Kernel) -> Tensor:
    """Spread the input by the strides, then convolve with the turned kernel."""
    attrs, weight = kernel.attrs, kernel.shape(1)
    n, axes = len(weight) - 2, spatial_axes(attrs, len(weight))
    own = -1 if attrs["channels_last"] else 1
    groups, dilation = attrs["groups"], attrs["dilation"]
    kernel.require_equal(kernel.shape(0)[own], weight[0])
    zero = constant(0, kernel.dtype())
    margin = [(weight[a + 2] - 1) * dilation[a] for a in range(n)]
    begins = [margin[a] - attrs["padding"][a] for a in range(n)]
    reach = [o + m for o, m in zip(kernel.out_shape[axes], margin, strict=True)]
    read = padded(kernel, zero, begins, reach, attrs["strides"], axes=axes)
    each_in = floordiv(kernel.shape(0)[own], groups)
    channel = kernel.axis(each_in, "rc")
    taps = [kernel.axis(weight[a + 2], f"r{a}") for a in range(n)]
    each_out = kernel.dim(weight[1])

    def term(*i: Expr) -> Expr:
        source, filters = channel, i[own]
        if groups != 1:
            source = tirx.floordiv(i[own], each_out) * kernel.dim(each_in) + channel
            filters = tirx.floormod(i[own], each_out)
        spatial = [p + taps[a] * int64(dilation[a]) for a, p in enumerate(i[axes])]
        position = (i[0], *spatial, source) if attrs["channels_last"] else (i[0], source, *spatial)
        turned = [kernel.dim(weight[a + 2] - 1) - taps[a] for a in range(n)]
        return _accumulate(kernel, read(position), kernel.read(1, (source, filters, *turned)))

    sizes = [each_in, *weight[2:]]
    return _sum(kernel, term, [channel, *taps], sizes, "conv_transpose")


KERNELS: dict[str, KernelBody] = {
    "conv_transpose": _conv_transpose,
    "matmul": _matmul,
    "conv": _conv,
}
