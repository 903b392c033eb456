"""Pooling: average, maximum (with its indices), power means, global forms, LRN, unpooling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.conv import Window, of_rank, window_of
from hcomp.capture.onnx_ops.math_common import like, lowest, wide
from hcomp.capture.onnx_ops.reduce_scan import product
from hcomp.dims import DimLike, ceildiv, dim_min, floordiv

MAX_SHIFTS = 1024
"""Windows with more places have their maximum found by another engine: the graph would be too long."""


def _average_pool(c: NodeContext) -> str:
    shape = c.shape()
    window = window_of(c, shape[2:], c.required("kernel_shape"))
    return c.emit(
        "avg_pool", 0, pool_size=window.kernel, ceil_mode=bool(c.attr("ceil_mode", 0)),
        count_include_pad=bool(c.attr("count_include_pad", 0)), **window.attrs(),
    )  # fmt: skip


def _max_pool(c: NodeContext) -> Sequence[str]:
    """MaxPool: the second output is where each maximum lies in the whole input, flattened."""
    window = window_of(c, c.shape()[2:], c.required("kernel_shape"))
    ceil_mode, order = bool(c.attr("ceil_mode", 0)), c.attr("storage_order", 0)
    settings = {"pool_size": window.kernel, "ceil_mode": ceil_mode, **window.attrs()}
    y = c.emit("max_pool", 0, **settings)
    if not c.wants(1):
        return [y]
    return [y, _max_indices(c, window, c.shape(y), column_major=bool(order))]


def _max_indices(c: NodeContext, window: Window, out: Sequence[DimLike], *, column_major: bool) -> str:
    """Return the position of each window's maximum: an argmax over shifted copies of the input."""
    shape = c.shape()
    n = len(shape) - 2
    kernel = [k for k in window.kernel if isinstance(k, int)]
    if prod(kernel) > MAX_SHIFTS:
        raise c.refuse(f"its window has {prod(kernel)} places, too many to compare one by one")
    padded = _padded_for(c, window, out)
    shifted = []
    for offset in itertools.product(*(range(k) for k in kernel)):
        begin = tuple(o * d for o, d in zip(offset, window.dilation, strict=True))
        piece = c.emit(
            "strided_slice", padded, axes=tuple(range(2, n + 2)), begin=begin,
            size=tuple(out[2:]), strides=window.strides,
        )  # fmt: skip
        shifted.append(c.emit("expand_dims", piece, axis=(0,)))
    stacked = c.b.emit("concat", *shifted, axis=0) if len(shifted) > 1 else shifted[0]
    chosen = c.emit("argmax", stacked, axis=0)
    # The number of the shift, read in the kernel's base, is the offset on each axis.
    places: list[str] = []
    divisor = 1
    for i in reversed(range(n)):
        digit = c.emit("floor_divide", chosen, like(c, divisor, chosen))
        digit = c.emit("floor_mod", digit, like(c, kernel[i], chosen))
        moved = c.emit("multiply", digit, like(c, window.dilation[i], chosen))
        first = c.emit("arange", size=out[i + 2], start=-window.padding[i], step=window.strides[i])
        aligned = c.reshape(first, (out[i + 2],) + (1,) * (n - 1 - i))
        places.insert(0, c.emit("add", moved, aligned))
        divisor *= kernel[i]
    return _flattened(c, places, shape, column_major=column_major)


def _padded_for(c: NodeContext, window: Window, out: Sequence[DimLike]) -> str:
    """Return input 0 padded with its type's lowest value, so far that all windows lie inside."""
    shape = c.shape()
    n = len(shape) - 2
    ends = []
    for i in range(n):
        last = (out[i + 2] - 1) * window.strides[i] + (window.kernel[i] - 1) * window.dilation[i]
        ends.append(last + 1 - shape[i + 2] - window.padding[i])
    padding = (0, 0, *window.padding[:n], 0, 0, *ends)
    return c.emit("pad", 0, padding=padding, value=lowest(c.dtype(0)))


def _flattened(c: NodeContext, places: Sequence[str], shape: Sequence[DimLike], *, column_major: bool) -> str:
    """Return coordinates in each image, with batch and channel, as one index into the tensor."""
    order = list(range(len(places)))
    if not column_major:
        order.reverse()
    index = ""
    sizes = list(shape[2:])
    step: DimLike = 1
    for axis in order:
        factor = c.b.shape_value([step], scalar=True)
        part = c.emit("multiply", places[axis], factor)
        index = c.emit("add", index, part) if index else part
        step = step * sizes[axis]
    images = c.emit("arange", size=shape[0] * shape[1], start=0, step=step)
    images = c.reshape(images, (shape[0], shape[1], *(1 for _ in sizes)))
    return c.emit("add", index, images)


def _lp_pool(c: NodeContext) -> str:
    """LpPool: the p-norm of each window, by a convolution of |x|^p with ones."""
    shape, p = c.shape(), c.attr("p", 2)
    window = window_of(c, shape[2:], c.required("kernel_shape"))
    if c.attr("ceil_mode", 0):
        window = _reaching(window, shape[2:])
    x = wide(c, 0)
    powers = c.emit("power", c.emit("abs", x), like(c, p, x))
    images = c.reshape(powers, (shape[0] * shape[1], 1, *shape[2:]))
    ones = c.tensor(np.ones((1, 1, *(int(str(k)) for k in window.kernel))), c.dtype(x))
    sums = c.emit("conv", images, ones, **window.attrs())
    y = c.emit("power", sums, like(c, 1 / p, x))
    return c.cast(c.reshape(y, (*shape[:2], *c.shape(y)[2:])), c.dtype(0))


def _reaching(window: Window, sizes: Sequence[DimLike]) -> Window:
    """Return the window padded at the end so that rounding down counts as rounding up did."""
    n = len(sizes)
    ends = list(window.padding[n:])
    for i, size in enumerate(sizes):
        begin, stride = window.padding[i], window.strides[i]
        span = (window.kernel[i] - 1) * window.dilation[i] + 1
        room = size + begin + ends[i] - span
        out = dim_min(ceildiv(room, stride) + 1, floordiv(size + begin - 1, stride) + 1)
        ends[i] = (out - 1) * stride + span - size - begin
    return replace(window, padding=(*window.padding[:n], *ends))


def _spatial(c: NodeContext) -> tuple[int, ...]:
    return tuple(range(2, c.rank()))


def _global_average_pool(c: NodeContext) -> str:
    return c.emit("mean", 0, axis=_spatial(c), keepdims=True)


def _global_max_pool(c: NodeContext) -> str:
    return c.emit("max", 0, axis=_spatial(c), keepdims=True)


def _global_lp_pool(c: NodeContext) -> str:
    x, p = wide(c, 0), c.attr("p", 2)
    powers = c.emit("power", c.emit("abs", x), like(c, p, x))
    sums = c.emit("sum", powers, axis=_spatial(c), keepdims=True)
    return c.cast(c.emit("power", sums, like(c, 1 / p, x)), c.dtype(0))


def _lrn(c: NodeContext) -> str:
    """LRN: x / (bias + alpha / size * sum of squares of the neighbouring channels) ^ beta."""
    shape, size = c.shape(), c.required("size")
    x = wide(c, 0)
    squares = c.reshape(c.emit("square", x), (shape[0], 1, shape[1], product(shape[2:])))
    before = (size - 1) // 2
    # The mean over `size` channels, absent ones counted as 0, holds the division by size.
    mean = c.emit(
        "avg_pool", squares, pool_size=(size, 1), strides=(1, 1), dilation=(1, 1),
        padding=(before, 0, size - 1 - before, 0), count_include_pad=True,
    )  # fmt: skip
    alpha, bias = c.attr("alpha", 1e-4), c.attr("bias", 1.0)
    scaled = c.emit("multiply", c.reshape(mean, shape), like(c, alpha, x))
    base = c.emit("add", scaled, like(c, bias, x))
    divisor = _root_power(c, base, c.attr("beta", 0.75), positive=min(alpha, bias) > 0)
    return c.cast(c.emit("divide", x, divisor), c.dtype(0))


def _root_power(c: NodeContext, base: str, exponent: float, *, positive: bool) -> str:
    """Return base ^ exponent; by square roots for the exponent that LRN nearly always has."""
    if exponent != 0.75 or not positive:
        return c.emit("power", base, like(c, exponent, base))
    root = c.emit("sqrt", base)
    return c.emit("multiply", root, c.emit("sqrt", root))


def _max_unpool(c: NodeContext) -> str:
    """MaxUnpool: each value back at its index, zeros elsewhere."""
    shape = c.shape()
    n = len(shape) - 2
    kernel = c.required("kernel_shape")
    strides, pads = c.attr("strides", (1,) * n), c.attr("pads", (0,) * (2 * n))
    sizes: list[DimLike] = [(shape[i + 2] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + n] for i in range(n)]
    inferred = [*shape[:2], *sizes]
    zeros = c.emit("full", shape=(product(inferred),), value=0, dtype=c.dtype(0))
    flat = (product(shape),)
    filled = c.emit("scatter_elements", zeros, c.reshape(1, flat), c.reshape(0, flat), axis=0)
    image = c.reshape(filled, inferred)
    if not c.has(2):
        return image
    # The indices count in the inferred shape; a larger output has zeros behind it.
    wanted = c.known(2)
    if wanted is not None:
        ends = tuple(w - d for w, d in zip(wanted, inferred, strict=True))
        return c.emit("pad", image, padding=(0,) * len(shape) + ends)
    more = c.emit("subtract", 2, c.b.shape_value(inferred))
    pads = c.emit("concat", c.tensor([0] * len(shape), "int64"), more, axis=0)
    return c.emit("onnx_pad", image, pads, rank=len(shape))


def _kernel_rank(c: NodeContext) -> int:
    return len(c.required("kernel_shape")) + 2


POOL: dict[str, Converter] = {
    "AveragePool": of_rank(_kernel_rank, _average_pool),
    "MaxPool": of_rank(_kernel_rank, _max_pool),
    "LpPool": of_rank(_kernel_rank, _lp_pool),
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "GlobalLpPool": _global_lp_pool,
    "LRN": _lrn,
    "MaxUnpool": _max_unpool,
}
