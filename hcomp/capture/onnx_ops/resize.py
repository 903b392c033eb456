"""Resize (10 to 19) and Upsample (7, 9): each axis by takes with weights, or by a matrix.

Where an axis's sizes are numbers the taps are constants; where they are symbols a small graph
computes them from the sizes; scales or sizes that only the run knows go to `onnx_resize` on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.resize_graph import graph_axis, graph_taps
from hcomp.dims import DimLike, floordiv
from hcomp.dtypes import is_integer
from hcomp.reference.resize import (
    Method,
    Table,
    axis_table,
    is_identity,
    output_sizes,
    static_axis,
)

MOST_TAKES = 4
"""An axis with more taps than cubic's four (antialias) becomes a matrix product."""
EXACT_SCALE = 1 << 12
"""A symbolic size times p/q is exact in float32, as ONNX Runtime computes it, for p and q below."""


@dataclass(frozen=True)
class Resize:
    """A Resize node's parameters; None: absent. Input indices, where the value comes at run time."""

    method: Method
    axes: list[int]
    policy: str
    roi: int | None
    scales: list[float] | int | None
    sizes: list[DimLike] | int | None

    @property
    def fractional(self) -> bool:
        """Whether an output's size times its scale may differ from the input's size."""
        return self.sizes is None or self.policy != "stretch"


def _resize(c: NodeContext) -> str:
    old = c.opset < 11
    method = Method(
        _mode(c.attr("mode", "nearest")),
        c.attr("coordinate_transformation_mode", "asymmetric" if old else "half_pixel"),
        c.attr("nearest_mode", "simple" if old else "round_prefer_floor"),
        float(c.attr("cubic_coeff_a", -0.75)),
        bool(c.attr("exclude_outside", 0)),
        float(c.attr("extrapolation_value", 0.0)),
        bool(c.attr("antialias", 0)),
    )
    rank = c.rank(0)
    axes = [c.axis(a) for a in c.attr("axes", tuple(range(rank)))]
    crop = method.coordinates == "tf_crop_and_resize"
    first = 1 if old else 2
    scales, sizes = _scales(c, first), _sizes(c, 3)
    spec = Resize(
        method, axes, c.attr("keep_aspect_ratio_policy", "stretch"),
        1 if crop and not old and c.has(1) else None, None if sizes is not None else scales, sizes,
    )  # fmt: skip
    return convert(c, spec)


def _upsample(c: NodeContext) -> str:
    method = Method(_mode(c.attr("mode", "nearest")), "asymmetric", "simple")
    given = c.attr("scales")
    scales = [float(s) for s in given] if given is not None else _scales(c, 1)
    return convert(c, Resize(method, list(range(c.rank(0))), "stretch", None, scales, None))


def _mode(name: str) -> str:
    # Upsample 7 and 9 called it so.
    return {"bilinear": "linear", "bicubic": "cubic"}.get(name, name)


def _is_empty(c: NodeContext, index: int) -> bool:
    return not c.has(index) or (c.ranked(index) and c.shape(index) == (0,))


def _scales(c: NodeContext, index: int) -> list[float] | int | None:
    if _is_empty(c, index):
        return None
    found = c.const(index)
    return index if found is None else [float(s) for s in found.ravel()]


def _sizes(c: NodeContext, index: int) -> list[DimLike] | int | None:
    if _is_empty(c, index):
        return None
    found = c.known(index)
    return index if found is None else found


def convert(c: NodeContext, spec: Resize) -> str:
    """Return the resized input 0."""
    if spec.method.mode not in ("nearest", "linear", "cubic"):
        raise c.refuse(f"its mode {spec.method.mode!r} is not one of the standard's")
    if c.dtype(0) == "string":
        raise c.refuse("it resizes text")
    if spec.scales is None and spec.sizes is None:
        raise c.refuse("it has neither scales nor sizes")
    roi = None if spec.roi is None else c.const(spec.roi)
    if isinstance(spec.scales, int) or isinstance(spec.sizes, int) or (spec.roi is not None and roi is None):
        return _at_run_time(c, spec)
    shape = [c.shape(0)[a] for a in spec.axes]
    factors = _factors(c, spec, shape)
    if factors is None:
        return _at_run_time(c, spec)
    counts, scales = factors
    if spec.method.antialias and not all(isinstance(d, int) for d in (*shape, *counts)):
        return _at_run_time(c, spec)
    if spec.method.antialias and is_integer(c.dtype(0)):
        raise c.refuse("it smooths integers, which ONNX Runtime rounds in a way of its own")
    regions = _regions(spec, None if roi is None else [float(r) for r in roi.ravel()])
    return _resized(c, spec, counts, scales, regions)


def _regions(spec: Resize, roi: Sequence[float] | None) -> list[tuple[float, float]]:
    n = len(spec.axes)
    return [(0.0, 1.0) if roi is None else (roi[i], roi[i + n]) for i in range(n)]


def _factors(
    c: NodeContext, spec: Resize, shape: Sequence[DimLike]
) -> tuple[Sequence[DimLike], Sequence[float | None]] | None:
    """Return each axis's output size and scale (None: their quotient, from symbols).

    None as a whole: no expression of the sizes gives it.
    """
    given = spec.sizes if isinstance(spec.sizes, list) else spec.scales
    if not isinstance(given, list) or len(given) != len(spec.axes):
        raise c.refuse(f"its scales or sizes do not have {len(spec.axes)} entries")
    old = [d for d in shape if isinstance(d, int)]
    places = range(len(shape))
    if isinstance(spec.sizes, list):
        new = [d for d in spec.sizes if isinstance(d, int)]
        if len(old) == len(new) == len(shape):
            return output_sizes(old, places, None, new, spec.policy)
        return (spec.sizes, [None] * len(shape)) if spec.policy == "stretch" else None
    assert isinstance(spec.scales, list)
    counts = [_scaled(d, s) for d, s in zip(shape, spec.scales, strict=True)]
    known = [d for d in counts if d is not None]
    return (known, spec.scales) if len(known) == len(counts) else None


def _scaled(size: DimLike, scale: float) -> DimLike | None:
    """Return floor(size * scale) as float32 computes it, or None where that has no expression."""
    if isinstance(size, int):
        return int(np.float32(scale) * np.float32(size))
    ratio = Fraction(float(np.float32(scale)))
    if ratio.numerator > EXACT_SCALE or ratio.denominator > EXACT_SCALE:
        return None
    return floordiv(size * ratio.numerator, ratio.denominator)


def _at_run_time(c: NodeContext, spec: Resize) -> str:
    method = spec.method
    static: dict[str, object] = {
        "axes": tuple(spec.axes), "policy": spec.policy, "mode": method.mode,
        "coordinates": method.coordinates, "nearest": method.nearest,
        "cubic_coeff": method.cubic_coeff, "exclude_outside": method.exclude_outside,
        "extrapolation": method.extrapolation, "antialias": method.antialias,
    }  # fmt: skip
    bound: dict[str, str] = {}
    if spec.sizes is not None:
        bound["sizes"] = c.input(3)
    elif isinstance(spec.scales, list):
        static["scales"] = tuple(spec.scales)
    elif spec.scales is not None:
        bound["scales"] = c.input(spec.scales)
    if spec.roi is not None:
        bound["roi"] = c.input(spec.roi)
    if not bound:
        # The scale is known and no expression gives the size: a constant takes the parameter's place.
        bound["scales"] = c.tensor(static.pop("scales"), "float32")
    return c.b.dynamic("onnx_resize", [c.input(0)], static=static, bound=bound, dtypes=[c.dtype(0)], rank=c.rank(0))[0]


# -- emission ---------------------------------------------------------------------------------
def _resized(
    c: NodeContext,
    spec: Resize,
    counts: Sequence[DimLike],
    scales: Sequence[float | None],
    regions: Sequence[tuple[float, float]],
) -> str:
    method, x, given = spec.method, c.input(0), c.dtype(0)
    if method.mode != "nearest" and given not in ("float32", "float64"):
        x = c.cast(x, "float32")
    outside = ""
    for place, axis in enumerate(spec.axes):
        size, count = c.shape(x)[axis], counts[place]
        scale = scales[place]
        if is_identity(size, count, 1.0 if scale is None else scale, method):
            continue
        x, mask = _along(c, spec, x, axis, count, scale, regions[place])
        if mask:
            mask = c.reshape(mask, [count if i == axis else 1 for i in range(c.rank(0))])
            outside = c.emit("logical_or", outside, mask) if outside else mask
    if outside:
        x = c.emit("where", outside, c.scalar(method.extrapolation, c.dtype(x)), x)
    if given in ("float32", "float64") or method.mode == "nearest":
        return x
    # ONNX Runtime truncates towards zero for integer images.
    return c.cast(x, given)


def _along(
    c: NodeContext, spec: Resize, x: str, axis: int, count: DimLike, scale: float | None, roi: tuple[float, float]
) -> tuple[str, str]:  # fmt: skip
    """Return `x` resized along `axis`, and the mask [count] of elements outside the input, or ""."""
    size = c.shape(x)[axis]
    if isinstance(size, int) and isinstance(count, int) and scale is not None:
        entry = static_axis(size, count, scale, roi, spec.fractional)
        table = axis_table(entry, spec.method)
        mask = "" if table.outside is None else c.tensor(table.outside, "bool")
        return _by_table(c, x, table, axis, size), mask
    taps, mask = graph_taps(c, graph_axis(c, size, count, scale, roi), count, spec.method)
    return _by_takes(c, x, taps, axis, count), mask


def _by_table(c: NodeContext, x: str, table: Table, axis: int, size: int) -> str:
    if len(table.taps) > MOST_TAKES:
        return _by_matrix(c, x, table.matrix(size), axis)
    taps = [(c.tensor(i, "int64"), "" if w is None else c.tensor(w, "float32")) for i, w in table.taps]
    return _by_takes(c, x, taps, axis, len(table.taps[0][0]))


def _by_takes(c: NodeContext, x: str, taps: Sequence[tuple[str, str]], axis: int, count: DimLike) -> str:
    result, along = "", [count if i == axis else 1 for i in range(c.rank(x))]
    for index, weight in taps:
        picked = c.emit("take", x, index, axis=axis)
        if weight:
            picked = c.emit("multiply", picked, c.reshape(c.cast(weight, c.dtype(x)), along))
        result = c.emit("add", result, picked) if result else picked
    return result


def _by_matrix(c: NodeContext, x: str, matrix: np.ndarray, axis: int) -> str:
    rank = c.rank(x)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    moved = x if axis == rank - 1 else c.emit("permute_dims", x, axes=tuple(order))
    product = c.emit("matmul", moved, c.tensor(matrix, c.dtype(x)))
    return product if axis == rank - 1 else c.emit("permute_dims", product, axes=tuple(back))


RESIZE: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
