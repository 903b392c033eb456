"""Reference functions that make tensors or move elements; results may be views of the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hcomp.dtypes import dtype_name, numpy_dtype
from hcomp.reference.cast import cast
from hcomp.reference.numeric import Array, Function, quiet_table

Ints = Sequence[int]


def reshape(x: Array, *, shape: Ints) -> Array:
    """Return the elements in a new shape; one size may be -1 (for `dynamic`)."""
    return x.reshape(tuple(shape))


def permute_dims(x: Array, *, axes: Ints) -> Array:
    """Return `x` with axis i taken from axis axes[i]."""
    return x.transpose(tuple(axes))


def expand_dims(x: Array, *, axis: Ints) -> Array:
    """Return `x` with axes of size 1 at the positions `axis` of the result."""
    return np.expand_dims(x, tuple(axis) if isinstance(axis, Sequence) else axis)


def squeeze(x: Array, *, axis: Ints | int | None) -> Array:
    """Return `x` without the axes `axis` (None: all), which must have size 1."""
    if axis is None:
        axis = tuple(range(x.ndim))
    return np.squeeze(x, tuple(axis) if isinstance(axis, Sequence) else axis)


def require(x: Array, *, least: int, problem: str) -> Array:
    """Return `x`.

    Raises:
        ValueError: `least` is below zero.
    """
    if least < 0:
        raise ValueError(problem.replace("{", "").replace("}", ""))
    return x


def broadcast_to(x: Array, *, shape: Ints) -> Array:
    """Return `x` repeated to `shape`; a read-only view."""
    return np.broadcast_to(x, tuple(shape))


def concat(*inputs: Array, axis: int) -> Array:
    """Return the inputs behind one another along `axis`."""
    return np.concatenate(inputs, axis=axis)


def split(x: Array, *, sizes: Ints, axis: int = 0) -> tuple[Array, ...]:
    """Return pieces of `sizes` along `axis`, which they fill."""
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise ValueError(f"pieces of {list(sizes)} do not fill the size {x.shape[axis]}")
    ends = np.cumsum(np.asarray(sizes, np.int64))
    return tuple(np.split(x, ends[:-1], axis=axis))


def strided_slice(x: Array, *, axes: Ints, begin: Ints, size: Ints, strides: Ints) -> Array:
    """Return `size` elements from `begin` on, every `strides`-th, along each of `axes`.

    Raises:
        ValueError: the slice reaches outside the tensor.
    """
    index: list[Any] = [slice(None)] * x.ndim
    for axis, start, count, step in zip(axes, begin, size, strides, strict=True):
        index[axis] = _slice(start, count, step, axis, x.shape[axis])
    return np.asarray(x[tuple(index)])


def _slice(start: int, count: int, step: int, axis: int, length: int) -> slice:
    if count <= 0:
        return slice(0, 0)
    last = start + (count - 1) * step
    if not (0 <= start < length and 0 <= last < length):
        raise ValueError(f"elements {start} to {last} are outside axis {axis} of size {length}")
    stop = last + (1 if step > 0 else -1)
    return slice(start, None if stop < 0 else stop, step)


def tile(x: Array, *, repeats: Ints) -> Array:
    """Return `x` repeated repeats[i] times along axis i."""
    return np.tile(x, tuple(repeats))


def pad(x: Array, *, padding: Ints, mode: str = "constant", value: float = 0) -> Array:
    """Return `x` with elements added (or, where negative, cut) around every axis.

    `padding` is the begins of all axes, then the ends. `mode`: constant, edge, reflect, wrap.
    """
    n = x.ndim
    before, after = padding[:n], padding[n:]
    if any(size + b + a < 0 for b, a, size in zip(before, after, x.shape, strict=True)):
        raise ValueError(f"the padding {list(padding)} cuts more off {list(x.shape)} than there is")
    cut = tuple(slice(max(-b, 0), max(size - max(-a, 0), 0)) for b, a, size in zip(before, after, x.shape, strict=True))
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode != "constant":
        return _pad_from_inside(x[cut], widths, mode)
    inner = x[cut]
    shape = tuple(b + size + a for (b, a), size in zip(widths, inner.shape, strict=True))
    result = np.full(shape, _fill(value, x), x.dtype)
    middle = zip(widths, inner.shape, strict=True)
    result[tuple(slice(b, b + size) for (b, _), size in middle)] = inner
    return result


def _pad_from_inside(x: Array, widths: list[tuple[int, int]], mode: str) -> Array:
    """Take each new element from inside: works for all dtypes and any width."""
    for axis, (before, after) in enumerate(widths):
        if not before and not after:
            continue
        size = x.shape[axis]
        if size == 0:
            raise ValueError(f"axis {axis} is empty: nothing to repeat in mode {mode}")
        position = np.arange(-before, size + after)
        if mode == "edge":
            position = np.clip(position, 0, size - 1)
        elif mode == "wrap":
            position %= size
        elif mode == "reflect":
            period = max(2 * (size - 1), 1)
            position = np.abs((position + size - 1) % period - (size - 1)) if size > 1 else 0 * position
        else:
            raise ValueError(f"unknown mode {mode!r}")
        x = np.take(x, position, axis=axis)
    return x


def _fill(value: Any, x: Array) -> Any:
    if dtype_name(x.dtype) == "string":
        return value
    return cast(np.asarray(value), dtype=dtype_name(x.dtype))


def flip(x: Array, *, axis: int | Ints) -> Array:
    """Return `x` with the order along `axis` turned round."""
    return np.flip(x, tuple(axis) if isinstance(axis, Sequence) else axis)


def trilu(x: Array, *, upper: bool = True, k: int = 0) -> Array:
    """Return `x` with zeros below (upper) or above the `k`-th diagonal of the last two axes."""
    rows = np.arange(x.shape[-2])[:, None]
    columns = np.arange(x.shape[-1])[None, :]
    keep = columns - rows >= k if upper else columns - rows <= k
    return np.where(keep, x, np.zeros((), x.dtype))


def full(*, shape: Ints, value: Any, dtype: str) -> Array:
    """Return a tensor of `shape` that holds `value` everywhere."""
    target = numpy_dtype(dtype)
    return np.full(tuple(shape), value if dtype == "string" else np.asarray(value).astype(target), target)


def arange(*, size: int, start: Any = 0, step: Any = 1, dtype: str = "int64") -> Array:
    """Return start + i * step for i below `size`, computed in float64 or int64."""
    whole = isinstance(start, int) and isinstance(step, int)
    index = np.arange(size, dtype=np.int64 if whole else np.float64)
    return np.asarray((start + index * step).astype(numpy_dtype(dtype)))


def dims(*, values: Ints, scalar: bool = False) -> Array:
    """Return sizes as an int64 tensor, 1-D or (`scalar`) 0-D."""
    result = np.array(values, np.int64)
    return result.reshape(()) if scalar else result


TABLE: dict[str, Function] = quiet_table(
    {
        "reshape": reshape,
        "permute_dims": permute_dims,
        "expand_dims": expand_dims,
        "squeeze": squeeze,
        "require": require,
        "broadcast_to": broadcast_to,
        "concat": concat,
        "split": split,
        "strided_slice": strided_slice,
        "tile": tile,
        "pad": pad,
        "flip": flip,
        "trilu": trilu,
        "full": full,
        "arange": arange,
        "dims": dims,
    }
)
