"""ONNX's Resize: where each output element reads, with which weights, and the whole operator.

Resizing is separable: each axis has its own taps (indices into the input and weights). The formulas
are written against a small set of functions (`Math`), so that the same ones give tables of numbers
here and, in capture, a graph that computes them for sizes known only at run time.
All coordinates are float32, as in ONNX Runtime: ties and truncations fall the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hcomp.dtypes import dtype_name, is_float


class Math(Protocol):
    """The functions that the formulas use; the values also have + - * / and comparisons."""

    def number(self, value: float) -> Any:
        """Return a constant."""

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """Return a where the condition holds, else b."""

    def floor(self, x: Any) -> Any:
        """Return x rounded down."""

    def minimum(self, a: Any, b: Any) -> Any:
        """Return the smaller."""

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the larger."""


class NumpyMath:
    """`Math` on float32 arrays."""

    def number(self, value: float) -> Any:
        """Return a constant."""
        return np.float32(value)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """Return a where the condition holds, else b."""
        return np.where(condition, a, b).astype(np.float32)

    def floor(self, x: Any) -> Any:
        """Return x rounded down."""
        return np.floor(x)

    def minimum(self, a: Any, b: Any) -> Any:
        """Return the smaller."""
        return np.minimum(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the larger."""
        return np.maximum(a, b)


@dataclass(frozen=True)
class Axis:
    """One resized axis; each entry is a float32 number, or a value of a graph that holds one.

    Attributes:
        size: elements of the input along the axis.
        length: the output's size, with its fraction where the scale was given.
        count: the output's size, whole.
        scale: output over input.
        start: where the region of interest starts, 0 to 1.
        end: where it ends.
    """

    size: Any
    length: Any
    count: Any
    scale: Any
    start: Any
    end: Any


@dataclass(frozen=True)
class Method:
    """How Resize interpolates: its attributes that are the same for all axes."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_coeff: float = -0.75
    exclude_outside: bool = False
    extrapolation: float = 0.0
    antialias: bool = False


def coordinates(m: Math, x: Any, axis: Axis, kind: str) -> Any:
    """Return where in the input the output elements `x` (0, 1, 2 ...) lie.

    Raises:
        ValueError: `kind` is no coordinate_transformation_mode.
    """
    one, half = m.number(1), m.number(0.5)
    last = axis.size - one
    match kind:
        case "asymmetric":
            return x / axis.scale
        case "half_pixel":
            return (x + half) / axis.scale - half
        case "pytorch_half_pixel":
            return m.where(axis.count > one, (x + half) / axis.scale - half, x * m.number(0))
        case "tf_half_pixel_for_nn":
            return (x + half) / axis.scale
        case "half_pixel_symmetric":
            center = axis.size / m.number(2)
            offset = center * (one - axis.count / axis.length)
            return offset + (x + half) / axis.scale - half
        case "align_corners":
            many = axis.length > one
            steps = m.where(many, axis.length - one, one)
            return m.where(many, x * last / steps, x * m.number(0))
        case "tf_crop_and_resize":
            many = axis.length > one
            steps = m.where(many, axis.length - one, one)
            spread = axis.start * last + x * (axis.end - axis.start) * last / steps
            return m.where(many, spread, half * (axis.start + axis.end) * last + x * m.number(0))
    raise ValueError(f"{kind!r} is no coordinate_transformation_mode of Resize")


def nearest_index(m: Math, x: Any, axis: Axis, kind: str) -> Any:
    """Return the input element for each coordinate `x`, inside the input.

    Raises:
        ValueError: `kind` is no nearest_mode.
    """
    low = m.floor(x)
    up = low + m.number(1)
    match kind:
        case "round_prefer_floor":
            index = m.where(x - low > m.number(0.5), up, low)
        case "round_prefer_ceil":
            index = m.where(x - low >= m.number(0.5), up, low)
        case "floor":
            index = low
        case "ceil":
            index = m.where(x > low, up, low)
        case "simple":
            # Before opset 11: down where it grows, up where it shrinks.
            index = m.where((axis.scale < m.number(1)) & (x > low), up, low)
        case _:
            raise ValueError(f"{kind!r} is no nearest_mode of Resize")
    return _inside(m, index, axis)


def linear_taps(m: Math, x: Any, axis: Axis) -> list[tuple[Any, Any]]:
    """Return (index, weight) of the two neighbours of each coordinate."""
    x = _inside(m, x, axis)
    low = m.floor(x)
    high = m.minimum(low + m.number(1), axis.size - m.number(1))
    part = x - low
    return [(low, m.number(1) - part), (high, part)]


def cubic_taps(m: Math, x: Any, axis: Axis, method: Method) -> list[tuple[Any, Any]]:
    """Return (index, weight) of the four neighbours of each coordinate."""
    a, low = method.cubic_coeff, m.floor(x)
    s = x - low
    n = m.number
    t, r, u = s + n(1), n(1) - s, n(2) - s
    weights = [
        ((n(a) * t - n(5 * a)) * t + n(8 * a)) * t - n(4 * a),
        ((n(a + 2) * s - n(a + 3)) * s) * s + n(1),
        ((n(a + 2) * r - n(a + 3)) * r) * r + n(1),
        ((n(a) * u - n(5 * a)) * u + n(8 * a)) * u - n(4 * a),
    ]
    places = [low - n(1), low, low + n(1), low + n(2)]
    if method.exclude_outside:
        last = axis.size - n(1)
        kept = [m.where((p >= n(0)) & (p <= last), w, w * n(0)) for p, w in zip(places, weights, strict=True)]
        total = kept[0] + kept[1] + kept[2] + kept[3]
        weights = [w / total for w in kept]
    return [(_inside(m, p, axis), w) for p, w in zip(places, weights, strict=True)]


def _inside(m: Math, index: Any, axis: Axis) -> Any:
    return m.maximum(m.minimum(index, axis.size - m.number(1)), m.number(0))


# -- with numbers -----------------------------------------------------------------------------
NUMPY = NumpyMath()


@dataclass(frozen=True)
class Table:
    """The taps of one static axis.

    Attributes:
        taps: (indices int64 [out], weights float32 [out], or None for all ones) each.
        outside: bool [out], the elements that take the extrapolation value; None is none.
    """

    taps: list[tuple[NDArray[np.int64], NDArray[np.float32] | None]]
    outside: NDArray[np.bool_] | None

    def matrix(self, size: int) -> NDArray[np.float32]:
        """Return the taps as a matrix [size, out]."""
        count = len(self.taps[0][0])
        result = np.zeros((size, count), np.float32)
        for index, weight in self.taps:
            np.add.at(result, (index, np.arange(count)), np.float32(1) if weight is None else weight)
        return result


def static_axis(size: int, count: int, scale: float, roi: tuple[float, float], fractional: bool) -> Axis:
    """Return the axis for known numbers; `fractional`: the scale was given, not the size."""
    f = np.float32
    length = f(scale) * f(size) if fractional else f(count)
    return Axis(f(size), length, f(count), f(scale), f(roi[0]), f(roi[1]))


def axis_table(axis: Axis, method: Method) -> Table:
    """Return the taps of an axis whose sizes are numbers."""
    with np.errstate(all="ignore"):
        x = coordinates(NUMPY, np.arange(int(axis.count), dtype=np.float32), axis, method.coordinates)
        x = np.asarray(x, np.float32)
        outside = None
        if method.coordinates == "tf_crop_and_resize":
            outside = (x < 0) | (x > axis.size - 1)
        if method.mode == "nearest":
            taps = [(nearest_index(NUMPY, x, axis, method.nearest), None)]
        elif method.antialias and axis.scale < 1:
            taps = _antialias_taps(x, axis, method)
        elif method.mode == "linear":
            taps = linear_taps(NUMPY, x, axis)
        else:
            taps = cubic_taps(NUMPY, x, axis, method)
    return Table(
        [(np.asarray(i).astype(np.int64), None if w is None else np.asarray(w, np.float32)) for i, w in taps],
        outside,
    )


def _antialias_taps(x: NDArray[np.float32], axis: Axis, method: Method) -> list[tuple[Any, Any]]:
    """Return the taps of a kernel that is stretched by 1 / scale; the weights sum to 1."""
    scale = float(axis.scale)
    reach = int(np.ceil((1 if method.mode == "linear" else 2) / scale)) + 1
    places = np.floor(x)[:, None] + np.arange(-reach, reach + 1)
    distance = np.abs(places - x[:, None].astype(np.float64)) * scale
    weights = _kernel(distance, method)
    weights /= weights.sum(axis=1, keepdims=True)
    last = int(axis.size) - 1
    if method.exclude_outside:
        weights = np.where((places >= 0) & (places <= last), weights, 0)
        weights /= weights.sum(axis=1, keepdims=True)
    places = np.clip(places, 0, last)
    return [(places[:, k], weights[:, k]) for k in range(places.shape[1]) if weights[:, k].any()]


def _kernel(distance: NDArray[np.float64], method: Method) -> NDArray[np.float64]:
    if method.mode == "linear":
        return np.clip(1 - distance, 0, 1)
    a, d = method.cubic_coeff, distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def output_sizes(
    shape: Sequence[int],
    axes: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    policy: str,
) -> tuple[list[int], list[float]]:
    """Return the output's size and the scale of each of `axes`."""
    if sizes is None:
        assert scales is not None
        counts = [int(np.float32(s) * np.float32(shape[a])) for a, s in zip(axes, scales, strict=True)]
        return counts, [float(s) for s in scales]
    f = np.float32
    factors = [f(s) / f(shape[a]) for a, s in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return list(sizes), [float(s) for s in factors]
    one = min(factors) if policy == "not_larger" else max(factors)
    return [int(np.floor(one * f(shape[a]) + f(0.5))) for a in axes], [float(one)] * len(axes)


def onnx_resize(
    x: NDArray[Any],
    *,
    axes: Sequence[int],
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    roi: Sequence[float] | None = None,
    policy: str = "stretch",
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    nearest: str = "round_prefer_floor",
    cubic_coeff: float = -0.75,
    exclude_outside: bool = False,
    extrapolation: float = 0.0,
    antialias: bool = False,
) -> NDArray[Any]:
    """Return ONNX's Resize of `x` along `axes`; `sizes` or `scales` has one entry for each of them.

    Source: the documentation of Resize, version 19.
    """
    method = Method(mode, coordinates, nearest, cubic_coeff, exclude_outside, extrapolation, antialias)
    counts, factors = output_sizes(x.shape, axes, scales, sizes, policy)
    wide = x if mode == "nearest" or x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    outside = np.zeros((1,) * x.ndim, bool)
    for place, axis in enumerate(axes):
        region = (0.0, 1.0) if roi is None else (roi[place], roi[place + len(axes)])
        if is_identity(x.shape[axis], counts[place], factors[place], method):
            continue
        fractional = sizes is None or policy != "stretch"
        entry = static_axis(x.shape[axis], counts[place], factors[place], region, fractional)
        table = axis_table(entry, method)
        wide = apply_table(wide, table, axis)
        if table.outside is not None:
            along = [-1 if i == axis else 1 for i in range(x.ndim)]
            outside = outside | table.outside.reshape(along)
    if outside.any():
        wide = np.where(outside, np.array(extrapolation, wide.dtype), wide)
    if wide.dtype != x.dtype and not is_float(dtype_name(x.dtype)):
        wide = np.trunc(wide)
    return np.ascontiguousarray(wide.astype(x.dtype))


def is_identity(size: object, count: object, scale: float, method: Method) -> bool:
    """Say whether an axis stays as it is."""
    return scale == 1 and size == count and method.coordinates != "tf_crop_and_resize"


def apply_table(x: NDArray[Any], table: Table, axis: int) -> NDArray[Any]:
    """Return `x` resized along `axis`."""
    result: NDArray[Any] | None = None
    for index, weight in table.taps:
        picked = np.take(x, index, axis=axis)
        if weight is not None:
            along = [-1 if i == axis else 1 for i in range(x.ndim)]
            picked = picked * weight.astype(x.dtype).reshape(along)
        result = picked if result is None else result + picked
    assert result is not None
    return result


TABLE = {"onnx_resize": onnx_resize}
