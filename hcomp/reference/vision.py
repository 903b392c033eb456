"""Reference functions of detection and warping: grid_sample, roi_align, max_roi_pool, deform_conv."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from hcomp.reference.numeric import Array, Function

Floats = Any
"""A float64 array."""


def grid_sample(
    x: Array, grid: Array, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> Array:
    """Return x [N, C, *sizes] sampled at grid [N, *out, rank]; entries are (x, y[, z]) in [-1, 1].

    ONNX's GridSample: cubic has a = -0.75, nearest rounds halves to even.
    """
    sizes = x.shape[2:]
    where = np.moveaxis(grid.astype(np.float64)[..., ::-1], -1, 0)  # [rank, N, *out], slowest axis first
    places = [
        (w + 1) / 2 * (s - 1) if align_corners else ((w + 1) * s - 1) / 2 for w, s in zip(where, sizes, strict=True)
    ]
    bounds = [(0.0, s - 1.0) if align_corners else (-0.5, s - 0.5) for s in sizes]
    if mode == "nearest":
        places = [np.rint(p) for p in places]
    if mode != "cubic" or padding != "border":  # a cubic keeps its place: only its taps are clipped
        places = [_inside(p, b, s, padding) for p, b, s in zip(places, bounds, sizes, strict=True)]
    out = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:-1]))
    data = x.astype(np.float64)
    for taps in product(*(_taps(p, mode) for p in places)):
        weight = np.prod([w for _, w in taps], axis=0)
        out += weight[:, None] * _read(data, [t for t, _ in taps], bounds, padding)
    return out.astype(x.dtype)


def _taps(place: Floats, mode: str) -> list[tuple[Floats, Floats]]:
    """Return the neighbours along one axis as (integer place, weight)."""
    if mode == "nearest":
        return [(place, np.ones_like(place))]
    low = np.floor(place)
    t = place - low
    if mode == "linear":
        return [(low, 1 - t), (low + 1, t)]
    return [(low + k, _cubic(np.abs(t - k))) for k in (-1, 0, 1, 2)]


def _cubic(d: Floats, a: float = -0.75) -> Floats:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _inside(place: Floats, bounds: tuple[float, float], size: int, padding: str) -> Floats:
    if padding == "border":
        return np.clip(place, 0, size - 1)
    return _reflect(place, *bounds) if padding == "reflection" else place


def _reflect(place: Floats, low: float, high: float) -> Floats:
    width = high - low
    if width <= 0:
        return np.full_like(place, low)
    folded = np.mod(place - low, 2 * width)
    return low + np.where(folded > width, 2 * width - folded, folded)


def _read(data: Floats, taps: list[Floats], bounds: list[tuple[float, float]], padding: str) -> Floats:
    """Return data [N, C, *sizes] at integer places [N, *out] as [N, C, *out]."""
    sizes = data.shape[2:]
    valid = np.ones(taps[0].shape, bool)
    index: list[Any] = []
    for tap, size, limits in zip(taps, sizes, bounds, strict=True):
        if padding == "reflection":
            tap = np.trunc(_reflect(tap, *limits))
        elif padding == "zeros":
            valid &= (tap >= 0) & (tap < size)
        finite = np.nan_to_num(tap, nan=0.0, posinf=0.0, neginf=0.0)
        index.append(np.clip(finite, 0, size - 1).astype(np.int64)[:, None])
    batch = np.arange(data.shape[0]).reshape(-1, *([1] * taps[0].ndim))
    channel = np.arange(data.shape[1]).reshape(1, -1, *([1] * (taps[0].ndim - 1)))
    return np.where(valid[:, None], data[batch, channel, *index], 0.0)


def roi_align(
    x: Array, rois: Array, batch: Array, *, size: tuple[int, int], mode: str = "avg",
    sampling_ratio: int = 0, scale: float = 1.0, half_pixel: bool = True,
) -> Array:  # fmt: skip
    """Return x [N, C, H, W] pooled over regions [R, 4] (x1, y1, x2, y2): [R, C, *size]. ONNX's RoiAlign."""
    out = np.zeros((rois.shape[0], x.shape[1], *size))
    for r in range(rois.shape[0]):
        x1, y1, x2, y2 = rois[r].astype(np.float64) * scale - (0.5 if half_pixel else 0.0)
        spans = [y2 - y1, x2 - x1] if half_pixel else [max(y2 - y1, 1.0), max(x2 - x1, 1.0)]
        counts = [sampling_ratio or max(1, int(np.ceil(s / n))) for s, n in zip(spans, size, strict=True)]
        rows, columns = (
            start + (np.arange(n)[:, None] + (np.arange(k) + 0.5) / k) * span / n
            for start, span, n, k in zip((y1, x1), spans, size, counts, strict=True)
        )
        image = x[int(batch[r])].astype(np.float64)
        parts = _bilinear_parts(image, rows[:, None, :, None], columns[None, :, None, :])
        if mode == "avg":
            out[r] = np.sum(parts, axis=0).mean(axis=(-2, -1))
        else:
            out[r] = np.max(np.stack(parts), axis=0).max(axis=(-2, -1))
    return out.astype(x.dtype)


def _bilinear_parts(image: Floats, y: Floats, x: Floats) -> list[Floats]:
    """Return the four weighted neighbours of image [C, H, W] at (y, x); 0 more than one pixel outside."""
    y, x = np.broadcast_arrays(y, x)
    height, width = image.shape[1:]
    outside = (y < -1) | (y > height) | (x < -1) | (x > width)
    y0, y1, ty = _neighbours(y, height)
    x0, x1, tx = _neighbours(x, width)
    parts = []
    for iy, wy in ((y0, 1 - ty), (y1, ty)):
        for ix, wx in ((x0, 1 - tx), (x1, tx)):
            parts.append(np.where(outside, 0.0, wy * wx) * image[:, iy, ix])
    return parts


def _neighbours(place: Floats, size: int) -> tuple[Floats, Floats, Floats]:
    place = np.maximum(place, 0)
    low = np.minimum(place.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    return low, high, np.where(low >= size - 1, 0.0, place - low)


def max_roi_pool(x: Array, rois: Array, *, size: tuple[int, int], scale: float = 1.0) -> Array:
    """Return the largest value of each bin of regions [R, 5] (batch, x1, y1, x2, y2): [R, C, *size]."""
    out = np.zeros((rois.shape[0], x.shape[1], *size), x.dtype)
    height, width = x.shape[2:]
    for r, (b, x1, y1, x2, y2) in enumerate(rois):
        left, top, right, bottom = (int(np.floor(v * scale + 0.5)) for v in (x1, y1, x2, y2))
        steps = max(bottom - top + 1, 1) / size[0], max(right - left + 1, 1) / size[1]
        for i, j in product(range(size[0]), range(size[1])):
            rows = [int(np.clip(np.floor(i * steps[0]) + top, 0, height)),
                    int(np.clip(np.ceil((i + 1) * steps[0]) + top, 0, height))]  # fmt: skip
            columns = [int(np.clip(np.floor(j * steps[1]) + left, 0, width)),
                       int(np.clip(np.ceil((j + 1) * steps[1]) + left, 0, width))]  # fmt: skip
            window = x[int(b), :, rows[0] : rows[1], columns[0] : columns[1]]
            if window.size:
                out[r, :, i, j] = window.max(axis=(1, 2))
    return out


def deform_conv(
    x: Array, weight: Array, offset: Array, mask: Array | None = None, *, strides: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...], groups: int = 1, offset_groups: int = 1,
) -> Array:  # fmt: skip
    """Return the convolution of x [N, C, H, W] whose taps are moved by `offset` and scaled by `mask`."""
    n, channels = x.shape[:2]
    kernel, (oh, ow) = weight.shape[2:], offset.shape[2:]
    taps = kernel[0] * kernel[1]
    moves = offset.astype(np.float64).reshape(n, offset_groups, taps, 2, oh, ow)
    scales = np.ones((n, offset_groups, taps, oh, ow)) if mask is None else mask.reshape(n, offset_groups, taps, oh, ow)
    columns = np.empty((n, channels, taps, oh, ow))
    per_group = channels // offset_groups
    for b, g, k in product(range(n), range(offset_groups), range(taps)):
        row, column = divmod(k, kernel[1])
        y = np.arange(oh)[:, None] * strides[0] - padding[0] + row * dilation[0] + moves[b, g, k, 0]
        z = np.arange(ow)[None, :] * strides[1] - padding[1] + column * dilation[1] + moves[b, g, k, 1]
        image = x[b : b + 1, g * per_group : (g + 1) * per_group].astype(np.float64)
        found = np.zeros((1, per_group, oh, ow))
        for (ty, wy), (tx, wx) in product(_taps(y[None], "linear"), _taps(z[None], "linear")):
            found += (wy * wx)[:, None] * _read(image, [ty, tx], [(0.0, 0.0)] * 2, "zeros")
        columns[b, g * per_group : (g + 1) * per_group, k] = found[0] * scales[b, g, k]
    split = columns.reshape(n, groups, channels // groups * taps, oh * ow)
    filters = weight.astype(np.float64).reshape(groups, weight.shape[0] // groups, -1)
    made: Array = np.matmul(filters, split).reshape(n, weight.shape[0], oh, ow).astype(x.dtype)
    return made


TABLE: dict[str, Function] = {
    "grid_sample": grid_sample,
    "roi_align": roi_align,
    "max_roi_pool": max_roi_pool,
    "deform_conv": deform_conv,
}
