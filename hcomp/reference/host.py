"""Reference functions whose result depends on values: nonzero, unique, NMS, random numbers.

Also `dynamic`, which calls another operator with attributes taken from tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hcomp.dtypes import dtype_name, numpy_dtype
from hcomp.reference.cast import cast
from hcomp.reference.numeric import Array, Function, narrow, quiet_table, widen

Ints = Sequence[int]


def nonzero(x: Array) -> Array:
    """Return the indices of the elements that are not zero, int64 [rank, n], in order."""
    wide = widen(x)
    if x.ndim == 0:
        return np.zeros((0, int(bool(wide))), np.int64)
    return np.array(np.nonzero(wide), np.int64)


def unique(
    x: Array,
    *,
    axis: int | None = None,
    sorted: bool = True,
) -> tuple[Array, Array, Array, Array]:
    """Return the different elements (or slices along `axis`), and where and how often they are.

    Outputs: values, index of the first of each, index into the values for each element, counts;
    the last three int64 and 1-D. Not `sorted`: in the order of first appearance.
    """
    values, first, inverse, counts = np.unique(
        widen(x), return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], place[inverse]
    index = (np.asarray(a, np.int64) for a in (first, inverse, counts))
    return narrow(values, x.dtype), *index  # type: ignore[return-value]


def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Return the slices along `axis` (None: the elements) where the 1-D `condition` holds.

    The condition may be shorter than the axis: what is behind it is left out.
    """
    kept = np.nonzero(condition)[0]
    return np.take(x, kept, axis=axis)


def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Return the kept boxes as rows (batch, class, box), int64 [n, 3]: ONNX's NonMaxSuppression.

    boxes [B, N, 4]: two opposite corners (y, x, y, x), or centre and size (x, y, width, height)
    where `center_point_box`; scores [B, C, N]. Of each class at most `max_output` (default 0) boxes
    are kept, best first (equal scores: lower index first), without those that overlap a kept one by
    more than the IOU threshold, or whose score is not above the score threshold.
    """
    limit = _number(max_output, 0)
    overlap = np.float32(_number(iou_threshold, 0))
    rows: list[tuple[int, int, int]] = []
    for batch in range(boxes.shape[0]):
        corners = _corners(boxes[batch], center_point_box)
        for category in range(scores.shape[1]):
            score = scores[batch, category]
            order = np.argsort(-score, kind="stable")
            if score_threshold is not None:
                order = order[score[order] > _number(score_threshold, 0)]
            kept = _suppress(corners, order, int(limit), overlap)
            rows += [(batch, category, box) for box in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def _number(value: Array | None, default: float) -> Any:
    return default if value is None or value.size == 0 else value.reshape(-1)[0]


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Return rows (low, low, high, high)."""
    if center_point_box:
        middle, half = boxes[:, :2], boxes[:, 2:] / boxes.dtype.type(2)
        return np.concatenate([middle - half, middle + half], axis=1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _suppress(corners: Array, order: Array, limit: int, threshold: np.float32) -> list[int]:
    """Return the boxes that are kept, in the order of their scores."""
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, rest = int(order[0]), order[1:]
        kept.append(best)
        low = np.maximum(corners[best, :2], corners[rest, :2])
        high = np.minimum(corners[best, 2:], corners[rest, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = area[best] + area[rest] - shared
        # Boxes without area overlap nothing.
        real = (shared > 0) & (area[best] > 0) & (area[rest] > 0) & (union > 0)
        order = rest[~(real & (shared / np.where(real, union, 1) > threshold))]
    return kept


def _generator(seed: float | None) -> np.random.Generator | np.random.RandomState:
    """Return a generator; the same seed gives the same numbers, None different ones each time.

    Whole seeds give numpy's legacy stream: what the ONNX standard's own examples draw.
    """
    if seed is None:
        return np.random.default_rng()
    if float(seed).is_integer() and 0 <= seed < 2**32:
        return np.random.RandomState(int(seed))
    return np.random.default_rng(int.from_bytes(struct.pack("<d", float(seed)), "little"))


def random_normal(
    *,
    shape: Ints,
    dtype: str = "float32",
    seed: float | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
) -> Array:
    """Return normally distributed numbers of the given mean and standard deviation."""
    return narrow(_generator(seed).normal(mean, scale, tuple(shape)), numpy_dtype(dtype))


def random_uniform(
    *,
    shape: Ints,
    dtype: str = "float32",
    seed: float | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> Array:
    """Return numbers drawn evenly from [low, high)."""
    return narrow(_generator(seed).uniform(low, high, tuple(shape)), numpy_dtype(dtype))


def bernoulli(x: Array, *, dtype: str, seed: float | None = None) -> Array:
    """Return 1 with the probability that `x` holds at each place, else 0, as `dtype`."""
    drawn = _generator(seed).random(x.shape) < widen(x)
    return cast(np.asarray(drawn), dtype=dtype)


def multinomial(x: Array, *, samples: int, dtype: str = "int32", seed: float | None = None) -> Array:
    """Return `samples` classes for each row of x [B, classes], its log probabilities unscaled."""
    wide = widen(x).astype(np.float64)
    power = np.exp(wide - wide.max(axis=1, keepdims=True))
    ends = np.cumsum(power, axis=1)
    drawn = _generator(seed).random((x.shape[0], samples)) * ends[:, -1:]
    found = (drawn[:, :, None] >= ends[:, None, :]).sum(axis=2)
    # Rounding may put a draw at the very end.
    return narrow(np.minimum(found, x.shape[1] - 1), numpy_dtype(dtype))


def det(x: Array) -> Array:
    """Return the determinant of the matrices in the last two axes."""
    return narrow(np.linalg.det(widen(x)), x.dtype)


def dynamic_for(table: Mapping[str, Function]) -> Function:
    """Return the reference of `dynamic`, which calls the functions of `table`."""

    def dynamic(
        *inputs: Array | None,
        op: str,
        bind: Sequence[str],
        static: Sequence[tuple[str, Any]] = (),
        dtypes: Sequence[str] = (),
        rank: int | None = None,
    ) -> Any:
        """Return `op` of the leading inputs, with the attributes `bind` from the trailing ones.

        A 0-D tensor gives a number, any other a tuple; an absent one leaves the default. `rank` and
        `dtypes` are what the typing rule promised; a result that breaks it is an error.
        """
        split = len(inputs) - len(bind)
        bound = {
            name: attribute_value(value) for name, value in zip(bind, inputs[split:], strict=True) if value is not None
        }
        result = table[op](*inputs[:split], **{**dict(static), **bound})
        for array, dtype in zip(_arrays(result), dtypes, strict=False):
            if dtype_name(array.dtype) != dtype:
                raise ValueError(f"{op} gave {array.dtype}, expected {dtype}")
            if rank is not None and array.ndim != rank:
                raise ValueError(f"{op} gave rank {array.ndim}, expected {rank}")
        return result

    return dynamic


def _arrays(result: Any) -> Sequence[Array]:
    outputs = result if isinstance(result, tuple) else (result,)
    return [o for o in outputs if isinstance(o, np.ndarray)]


def attribute_value(value: Array) -> Any:
    """Return a tensor as an attribute: a number for 0-D, else a (nested) tuple."""
    return _tuples(value.tolist())


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


TABLE: dict[str, Callable[..., Any]] = quiet_table(
    {
        "nonzero": nonzero,
        "unique": unique,
        "compress": compress,
        "non_max_suppression": non_max_suppression,
        "random_normal": random_normal,
        "random_uniform": random_uniform,
        "bernoulli": bernoulli,
        "multinomial": multinomial,
        "det": det,
    }
)
