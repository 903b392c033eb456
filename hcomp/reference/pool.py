"""Reference functions of pooling: one pass over the output for each tap of the window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcomp.reference.linear import either_layout, fit_windows, padded, window_view
from hcomp.reference.numeric import Array, Function, lowest, narrow, quiet_table, widen

Ints = Sequence[int]


def _sizes(x: Array, pool_size: Ints, strides: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> list[int]:
    """Return the output's spatial sizes.

    With `ceil_mode` a window may hang over the end, but must start inside the tensor or the
    leading padding.
    """
    n = len(pool_size)
    if not ceil_mode:
        fit_windows(x.shape[2:], pool_size, padding, dilation)
    sizes = []
    for i, size in enumerate(x.shape[2:]):
        room = size + padding[i] + padding[i + n] - ((pool_size[i] - 1) * dilation[i] + 1)
        out = room // strides[i] + 1
        if ceil_mode:
            inside = (size + padding[i] - 1) // strides[i] + 1
            out = min(-(-room // strides[i]) + 1, inside)
        sizes.append(out)
    return sizes


def _windows(
    x: Array,
    value: object,
    sizes: Ints,
    pool_size: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
) -> Array:
    """Return the windows [N, C, *sizes, *pool_size] of x, with `value` outside of it."""
    n = len(pool_size)
    reach = [(out - 1) * s + (k - 1) * d + 1 for out, s, k, d in zip(sizes, strides, pool_size, dilation, strict=True)]
    # What the windows need after the end may be more (ceil mode) or less than the padding.
    after = [r - size - b for r, size, b in zip(reach, x.shape[2:], padding, strict=False)]
    return window_view(padded(x, [*padding[:n], *after], value), pool_size, strides, dilation)


@either_layout
def max_pool(
    x: Array,
    *,
    pool_size: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool = False,
) -> Array:
    """Return the largest element of every window of x [N, C, *spatial]; NaN wins."""
    sizes = _sizes(x, pool_size, strides, padding, dilation, ceil_mode)
    wide = widen(x)
    windows = _windows(wide, lowest(x.dtype), sizes, pool_size, strides, padding, dilation)
    result = np.full(windows.shape[: x.ndim], lowest(x.dtype), wide.dtype)
    for tap in np.ndindex(*pool_size):
        np.maximum(result, windows[(..., *tap)], out=result)
    return narrow(result, x.dtype)


@either_layout
def avg_pool(
    x: Array,
    *,
    pool_size: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Array:
    """Return the mean of every window of x [N, C, *spatial].

    The divisor counts elements of x, and with `count_include_pad` those of the padding; never what
    `ceil_mode` adds behind it. A window of padding alone gives 0.
    """
    n = len(pool_size)
    sizes = _sizes(x, pool_size, strides, padding, dilation, ceil_mode)
    windows = _windows(widen(x), 0, sizes, pool_size, strides, padding, dilation)
    total = np.zeros(windows.shape[: x.ndim], np.float64)
    for tap in np.ndindex(*pool_size):
        total += windows[(..., *tap)]
    for i, size in enumerate(x.shape[2:]):
        before, after = (padding[i], padding[i + n]) if count_include_pad else (0, 0)
        start = np.arange(sizes[i])[:, None] * strides[i] - padding[i]
        position = start + np.arange(pool_size[i]) * dilation[i]
        count = ((position >= -before) & (position < size + after)).sum(axis=1)
        total /= np.maximum(count, 1).reshape(-1, *(1,) * (n - 1 - i))
    return narrow(total, x.dtype)


TABLE: dict[str, Function] = quiet_table({"max_pool": max_pool, "avg_pool": avg_pool})
