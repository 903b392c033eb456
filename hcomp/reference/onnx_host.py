"""ONNX operators with run-time shape parameters (hcomp.ir.ops.host_onnx): their numpy meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hcomp.reference.numeric import Array, Function


def onnx_reshape(x: Array, shape: Array, *, allowzero: bool = False, rank: int | None = None) -> Array:
    """Return x in a shape where 0 keeps a size (unless `allowzero`) and -1 is what is left.

    Raises:
        ValueError: the elements do not fill the shape.
    """
    del rank
    sizes = [int(s) for s in shape]
    if not allowzero:
        if any(s == 0 and i >= x.ndim for i, s in enumerate(sizes)):
            raise ValueError(f"shape {sizes} keeps a dimension that a tensor of rank {x.ndim} lacks")
        sizes = [x.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return x.reshape(sizes)


def onnx_expand(x: Array, shape: Array, *, rank: int | None = None) -> Array:
    """Return x broadcast together with `shape`; a read-only view."""
    del rank
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(s) for s in shape)))


def onnx_squeeze(x: Array, axes: Array | None = None, *, rank: int | None = None) -> Array:
    """Return x without `axes`, or without all axes of size 1."""
    del rank
    return np.squeeze(x) if axes is None else np.squeeze(x, tuple(int(a) for a in axes.ravel()))


def onnx_slice(
    x: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
    *,
    rank: int | None = None,
) -> Array:
    """Return a slice, with starts and ends clamped to the axis.

    Backwards, a start before the axis is its first element; numpy would take nothing.
    """
    del rank
    index = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts.ravel(), ends.ravel(), strict=True)):
        axis = i if axes is None else int(axes.ravel()[i])
        step = 1 if steps is None else int(steps.ravel()[i])
        first = max(int(start), -x.shape[axis]) if step < 0 else int(start)
        index[axis] = slice(first, int(end), step)
    return x[tuple(index)]


def onnx_pad(
    x: Array,
    pads: Array,
    value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
    rank: int | None = None,
) -> Array:
    """Return x padded (negative: cropped) along `axes`, or all axes."""
    from hcomp.reference.shape import pad

    del rank
    chosen = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes.ravel()]
    given = [int(p) for p in pads.ravel()]
    padding = [0] * (2 * x.ndim)
    for i, axis in enumerate(chosen):
        padding[axis], padding[axis + x.ndim] = given[i], given[i + len(given) // 2]
    number: Any = 0 if value is None else value.ravel()[0].item()
    result: Array = pad(x, padding=tuple(padding), mode=mode, value=number)
    return result


def onnx_center_crop_pad(x: Array, sizes: Array, *, axes: Sequence[int], rank: int | None = None) -> Array:
    """Return x cropped or padded with zeros about the centre, to `sizes` along `axes`."""
    del rank
    for axis, size in zip(axes, (int(s) for s in sizes), strict=True):
        have = x.shape[axis]
        if size < have:
            begin = (have - size) // 2
            x = x.take(np.arange(begin, begin + size), axis)
        elif size > have:
            begin = (size - have) // 2
            widths = [(0, 0)] * x.ndim
            widths[axis] = (begin, size - have - begin)
            x = np.pad(x, widths)
    return x


def onnx_col2im(
    x: Array,
    image: Array,
    block: Array,
    *,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    rank: int | None = None,
) -> Array:
    """Return [N, C, *image]: the columns x [N, C * elements of a block, L] added where they overlap.

    Sums are taken in float64 and rounded once.
    """
    del rank
    sizes, kernel = [int(s) for s in image], [int(k) for k in block]
    n = len(sizes)
    room = [size + padding[i] + padding[i + n] for i, size in enumerate(sizes)]
    counts = [(room[i] - (kernel[i] - 1) * dilation[i] - 1) // strides[i] + 1 for i in range(n)]
    columns = x.reshape(x.shape[0], -1, *kernel, *counts)
    total = np.zeros((*columns.shape[:2], *room), np.float64)
    lead = (slice(None), slice(None))
    for offset in np.ndindex(*kernel):
        span = tuple(
            slice(o * d, o * d + (count - 1) * s + 1, s)
            for o, d, s, count in zip(offset, dilation, strides, counts, strict=True)
        )
        total[lead + span] += columns[lead + offset].astype(np.float64)
    inner = tuple(slice(padding[i], padding[i] + size) for i, size in enumerate(sizes))
    return total[lead + inner].astype(x.dtype)


def onnx_range(start: Array, limit: Array, delta: Array, *, rank: int | None = None) -> Array:
    """Return start, start + delta, ... up to `limit`, not included."""
    del rank
    first, last, step = (v.ravel()[0] for v in (start, limit, delta))
    if first.dtype.kind == "f" or first.dtype.name == "bfloat16":
        size = int(np.ceil((float(last) - float(first)) / float(step)))
        steps = np.arange(max(size, 0)).astype(np.float64) * float(step) + float(first)
        return steps.astype(start.dtype)
    return np.arange(int(first), int(last), int(step)).astype(start.dtype)


def onnx_shape(x: Array, *, start: int = 0, end: int | None = None, rank: int = 1) -> Array:
    """Return the sizes of x from axis `start` to `end` as int64."""
    del rank
    return np.array(x.shape[start:end], np.int64)


def onnx_size(x: Array, *, rank: int = 0) -> Array:
    """Return the number of elements of x, 0-D int64."""
    del rank
    return np.array(x.size, np.int64)


def string_normalize(x: Array, *, case: str = "", case_sensitive: bool = False, stopwords: Sequence[str] = ()) -> Array:
    """Return strings [C] or [1, C] without the stop words, in lower or upper case where `case` says so.

    Where no word is left, the result is one empty string. Without `case_sensitive`, words are
    compared in the case of the result, or in lower case.

    Raises:
        ValueError: x is neither [C] nor [1, C].
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"expected strings of shape [C] or [1, C], found {list(x.shape)}")
    changes: dict[str, Callable[[str], str]] = {"": str, "lower": str.lower, "upper": str.upper}
    compared = str if case_sensitive else changes[case or "lower"]
    stops = {compared(word) for word in stopwords}
    words = [changes[case](word) for word in x.ravel() if compared(word) not in stops] or [""]
    return np.array(words, object).reshape((*x.shape[:-1], len(words)))


TABLE: dict[str, Function] = {
    f.__name__: f
    for f in (
        onnx_reshape,
        onnx_expand,
        onnx_squeeze,
        onnx_slice,
        onnx_pad,
        onnx_center_crop_pad,
        onnx_col2im,
        onnx_range,
        onnx_shape,
        onnx_size,
        string_normalize,
    )
}
