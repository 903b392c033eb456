"""Reference functions along axes: reductions, scans, softmax, normalisations, top-k.

Sums of floats are accumulated in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hcomp.reference.numeric import (
    Array,
    Function,
    compute_dtype,
    highest,
    is_float_array,
    is_integer_array,
    lowest,
    narrow,
    quiet_table,
    widen,
)

Axis = int | Sequence[int] | None


def _axes(axis: Axis) -> Any:
    """Return an axis attribute as numpy takes it."""
    return tuple(axis) if isinstance(axis, Sequence) else axis


def _sum_dtype(x: Array) -> Any:
    """Return the dtype that a sum over `x` is accumulated in."""
    if is_float_array(x):
        return np.float64
    return compute_dtype(x.dtype)


def sum_of(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the sum over `axis`; integers wrap, no elements give 0."""
    return narrow(np.sum(widen(x), _axes(axis), _sum_dtype(x), keepdims=keepdims), x.dtype)


def prod_of(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the product over `axis`; integers wrap, no elements give 1."""
    return narrow(np.prod(widen(x), _axes(axis), _sum_dtype(x), keepdims=keepdims), x.dtype)


def mean(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the mean over `axis`; of integers truncated towards zero (of none 0), of no floats NaN."""
    axes = _axes(axis)
    if is_integer_array(x):
        held = np.uint64 if x.dtype == np.uint64 else np.int64
        total = np.asarray(np.sum(widen(x), axes, held, keepdims=keepdims))
        each = held(_count(x, axes))
        return narrow((total - np.fmod(total, each)) // each if each else total, x.dtype)
    total = np.sum(widen(x), axes, _sum_dtype(x), keepdims=True)
    count = _count(x, axes)
    result = np.true_divide(total, count)
    return narrow(result if keepdims else result.reshape(_reduced(x, axes)), x.dtype)


def _normal(x: Array, axes: Any) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(x.ndim))
    single = axes if isinstance(axes, tuple) else (axes,)
    return tuple(a % x.ndim for a in single)


def _count(x: Array, axes: Any) -> int:
    """Return how many elements go into each result."""
    return prod(x.shape[a] for a in _normal(x, axes))


def _reduced(x: Array, axes: Any) -> tuple[int, ...]:
    gone = _normal(x, axes)
    return tuple(d for i, d in enumerate(x.shape) if i not in gone)


def max_of(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the largest over `axis`; NaN wins; no elements give -inf (or the lowest value)."""
    wide = widen(x)
    return narrow(np.max(wide, _axes(axis), keepdims=keepdims, initial=lowest(x.dtype)), x.dtype)


def min_of(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the smallest over `axis`; NaN wins; no elements give inf (or the highest value)."""
    wide = widen(x)
    return narrow(np.min(wide, _axes(axis), keepdims=keepdims, initial=highest(x.dtype)), x.dtype)


def _arg(function: Function) -> Function:
    """Return the reference of argmax or argmin: the first extreme, or the last; int64.

    NaN beats everything. Without `nan_wins` it beats nothing: it is found only where the search starts.
    """

    def reference(
        x: Array, *, axis: Axis, keepdims: bool = False, select_last: bool = False, nan_wins: bool = True
    ) -> Array:
        wide = widen(x)
        if isinstance(axis, Sequence):
            if len(axis) != 1:
                raise ValueError(f"one axis is needed, found {list(axis)}")
            axis = axis[0]
        if axis is None:
            flat = reference(wide.reshape(-1), axis=0, select_last=select_last, nan_wins=nan_wins)
            return flat.reshape((1,) * x.ndim) if keepdims else flat
        if not nan_wins and is_float_array(x):
            wide = _without_nan(wide, axis, -1 if select_last else 0, function is np.argmax)
        if select_last:
            found = x.shape[axis] - 1 - function(np.flip(wide, axis), axis, keepdims=keepdims)
        else:
            found = function(wide, axis, keepdims=keepdims)
        return np.asarray(found, np.int64)

    return reference


def _without_nan(x: Array, axis: int, start: int, largest: bool) -> Array:
    """Return x with the worst value for each NaN, and the best one for a NaN at `start` of the axis."""
    worst = -np.inf if largest else np.inf
    clean = np.where(np.isnan(x), x.dtype.type(worst), x)
    head = [slice(None)] * x.ndim
    head[axis] = [start]  # type: ignore[call-overload]
    clean[tuple(head)] = np.where(np.isnan(x[tuple(head)]), x.dtype.type(-worst), x[tuple(head)])
    return clean


def _scan(function: Function, start: int) -> Function:
    """Return the reference of a running sum or product along one axis.

    `exclusive` leaves the element itself out; `reverse` runs from the end.
    """

    def reference(x: Array, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Array:
        values = np.flip(x, axis) if reverse else x
        total = function(widen(values), axis, _sum_dtype(x))
        if exclusive:
            first = np.full_like(total[_along(x, axis, slice(0, 1))], start)
            total = np.concatenate([first, total[_along(x, axis, slice(0, -1))]], axis)
            total = total[_along(x, axis, slice(0, x.shape[axis]))]
        return narrow(np.flip(total, axis) if reverse else total, x.dtype)

    return reference


def _along(x: Array, axis: int, part: slice) -> tuple[slice, ...]:
    index = [slice(None)] * x.ndim
    index[axis] = part
    return tuple(index)


def _shifted(x: Array, axis: Axis) -> Array:
    """Return x minus its largest along `axis`, so that exp does not overflow."""
    wide = widen(x)
    largest: Array = np.max(wide, _axes(axis), keepdims=True, initial=-np.inf)
    return np.subtract(wide, largest)


def softmax(x: Array, *, axis: int = -1) -> Array:
    """Return exp(x) / sum(exp(x)) along `axis`."""
    power = np.exp(_shifted(x, axis))
    total = np.sum(power, axis, np.float64, keepdims=True).astype(power.dtype)
    return narrow(power / total, x.dtype)


def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """Return x - log(sum(exp(x))) along `axis`."""
    shifted = _shifted(x, axis)
    total = np.sum(np.exp(shifted), axis, np.float64, keepdims=True)
    return narrow(shifted - np.log(total).astype(shifted.dtype), x.dtype)


def _trailing(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(range(axis % x.ndim if x.ndim else 0, x.ndim))


def layer_norm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon) * gamma + beta over the axes from `axis` on."""
    wide, axes = widen(x), _trailing(x, axis)
    centred = wide - np.mean(wide, axes, np.float64, keepdims=True).astype(wide.dtype)
    variance = np.mean(np.square(centred), axes, np.float64, keepdims=True)
    scale = (1 / np.sqrt(variance + epsilon)).astype(wide.dtype)
    return narrow(_affine(centred * scale, gamma, beta), x.dtype)


def rms_norm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
) -> Array:
    """Return x / sqrt(mean(x * x) + epsilon) * gamma + beta over the axes from `axis` on."""
    wide, axes = widen(x), _trailing(x, axis)
    square = np.mean(np.square(wide), axes, np.float64, keepdims=True)
    scale = (1 / np.sqrt(square + epsilon)).astype(wide.dtype)
    return narrow(_affine(wide * scale, gamma, beta), x.dtype)


def _affine(x: Array, gamma: Array | None, beta: Array | None) -> Array:
    if gamma is not None:
        x = x * widen(gamma)
    return x if beta is None else x + widen(beta)


def topk(
    x: Array,
    *,
    k: int,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Array, Array]:
    """Return the `k` largest (or smallest) along `axis`, in order, and their int64 indices.

    Equal values come in the order of their indices; NaN counts as the largest of all. The result is
    always in order: `sorted` False allows any.
    """
    size = x.shape[axis]
    if not 0 <= k <= size:
        raise ValueError(f"k is {k}, but axis {axis} has {size} elements")
    wide = widen(x)
    if largest:
        # Sorting backwards and turning round keeps equal values in the order of their indices.
        order = np.argsort(np.flip(wide, axis), axis, kind="stable")
        order = size - 1 - np.flip(order, axis)
    else:
        order = np.argsort(wide, axis, kind="stable")
    indices = order[_along(x, axis, slice(0, k))].astype(np.int64)
    return np.take_along_axis(x, indices, axis), indices


TABLE: dict[str, Function] = quiet_table(
    {
        "sum": sum_of,
        "mean": mean,
        "prod": prod_of,
        "max": max_of,
        "min": min_of,
        "argmax": _arg(np.argmax),
        "argmin": _arg(np.argmin),
        "cumsum": _scan(np.cumsum, 0),
        "cumprod": _scan(np.cumprod, 1),
        "softmax": softmax,
        "log_softmax": log_softmax,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "topk": topk,
    }
)
