"""Reference functions that address elements by index tensors.

A negative index counts from the end; one that is outside is an error that names it.
"""

from __future__ import annotations

import numpy as np

from hcomp.errors import RunError
from hcomp.reference.numeric import (
    Array,
    Function,
    compute_dtype,
    is_float_array,
    narrow,
    quiet_table,
    widen,
)


def _wrapped(indices: Array, size: int, op: str, axis: int) -> Array:
    """Return the indices counted from the front, as int64.

    Raises:
        RunError: an index is outside [-size, size).
    """
    index = indices.astype(np.int64, copy=False)
    outside = (index < -size) | (index >= size)
    if outside.any():
        first = int(index[outside].reshape(-1)[0])
        raise RunError(f"{op}: index {first} is outside axis {axis} of size {size}")
    return np.where(index < 0, index + size, index)


def take(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Return the slices of `x` along `axis` that `indices` (any rank) name."""
    axis %= x.ndim
    index = _wrapped(indices, x.shape[axis], "take", axis)
    return x[(slice(None),) * axis + (index,)]


def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Return, for each position, the element whose coordinate on `axis` is the index there.

    `indices` has the rank of `x`; on other axes it may be smaller.
    """
    return x[_element_index(x, indices, axis, "gather_elements")]


def _element_index(x: Array, indices: Array, axis: int, op: str) -> tuple[Array, ...]:
    """Return one index array an axis: positions everywhere, the indices on `axis`."""
    axis %= x.ndim
    for i, (limit, size) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and size > limit:
            raise RunError(f"{op}: {size} indices on axis {i} of size {limit}")
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = _wrapped(indices, x.shape[axis], op, axis)
    return tuple(positions)


def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Return x[batch, indices[batch, ..., :]]: the last axis of `indices` holds coordinates."""
    index = _coordinates(x, indices, batch_dims, "gather_nd")
    if not index:
        return np.broadcast_to(x, indices.shape[:-1] + x.shape)
    return x[index]


def _coordinates(x: Array, indices: Array, batch: int, op: str) -> tuple[Array, ...]:
    """Return one index array for each of the leading axes that `indices` addresses."""
    depth = indices.shape[-1]
    columns = [_wrapped(indices[..., i], x.shape[batch + i], op, batch + i) for i in range(depth)]
    grid: list[Array] = list(np.indices(indices.shape[:-1], sparse=True))[:batch]
    return tuple(grid + columns)


def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    """Return `x` with updates written where gather_elements would read.

    Where two go to one place, the later one wins, or they are combined by `reduction`.
    """
    index = _element_index(x, indices, axis, "scatter_elements")
    return _scattered(x, index, updates, reduction)


def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """Return `x` with updates (elements or slices) written at the coordinates in `indices`."""
    index = _coordinates(x, indices, 0, "scatter_nd")
    if not index:
        # No coordinates: every update covers the whole tensor.
        index = (np.zeros(indices.shape[:-1], np.int64),)
        return np.asarray(_scattered(x[None], index, updates, reduction)[0])
    return _scattered(x, index, updates, reduction)


_COMBINE = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scattered(x: Array, index: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        result = x.copy()
        result[index] = updates
        return result
    # Many small updates are added up: in float64, rounded once.
    wide = np.float64 if is_float_array(x) else compute_dtype(x.dtype)
    total = np.array(widen(x), wide)
    _COMBINE[reduction].at(total, index, widen(updates).astype(wide))
    return narrow(total, x.dtype)


TABLE: dict[str, Function] = quiet_table(
    {
        "take": take,
        "gather_elements": gather_elements,
        "gather_nd": gather_nd,
        "scatter_elements": scatter_elements,
        "scatter_nd": scatter_nd,
    }
)
