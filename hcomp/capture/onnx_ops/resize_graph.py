"""Resize for sizes that are symbols: the taps of an axis, computed by a graph from the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcomp.capture.context import NodeContext
from hcomp.dims import DimLike
from hcomp.reference.resize import (
    Axis,
    Method,
    coordinates,
    cubic_taps,
    linear_taps,
    nearest_index,
)


@dataclass(frozen=True)
class Term:
    """A float32 (or, from a comparison, bool) value of the graph being built, with operators."""

    c: NodeContext
    name: str

    def _with(self, op: str, other: Term) -> Term:
        return Term(self.c, self.c.emit(op, self.name, other.name))

    def __add__(self, other: Term) -> Term:
        return self._with("add", other)

    def __sub__(self, other: Term) -> Term:
        return self._with("subtract", other)

    def __mul__(self, other: Term) -> Term:
        return self._with("multiply", other)

    def __truediv__(self, other: Term) -> Term:
        return self._with("divide", other)

    def __lt__(self, other: Term) -> Term:
        return self._with("less", other)

    def __le__(self, other: Term) -> Term:
        return self._with("less_equal", other)

    def __gt__(self, other: Term) -> Term:
        return self._with("greater", other)

    def __ge__(self, other: Term) -> Term:
        return self._with("greater_equal", other)

    def __and__(self, other: Term) -> Term:
        return self._with("logical_and", other)

    def __or__(self, other: Term) -> Term:
        return self._with("logical_or", other)


@dataclass(frozen=True)
class GraphMath:
    """The functions of hcomp.reference.resize.Math on values of a graph."""

    c: NodeContext

    def number(self, value: float) -> Term:
        """Return a constant."""
        return Term(self.c, self.c.scalar(value, "float32"))

    def where(self, condition: Term, a: Term, b: Term) -> Term:
        """Return a where the condition holds, else b."""
        return Term(self.c, self.c.emit("where", condition.name, a.name, b.name))

    def floor(self, x: Term) -> Term:
        """Return x rounded down."""
        return Term(self.c, self.c.emit("floor", x.name))

    def minimum(self, a: Term, b: Term) -> Term:
        """Return the smaller."""
        return Term(self.c, self.c.emit("minimum", a.name, b.name))

    def maximum(self, a: Term, b: Term) -> Term:
        """Return the larger."""
        return Term(self.c, self.c.emit("maximum", a.name, b.name))


def graph_axis(c: NodeContext, size: DimLike, count: DimLike, scale: float | None, roi: Sequence[float]) -> Axis:
    """Return the axis as values of the graph; a scale of None is count / size."""
    m = GraphMath(c)
    elements, whole = _float(c, size), _float(c, count)
    if scale is None:
        return Axis(elements, whole, whole, whole / elements, m.number(roi[0]), m.number(roi[1]))
    factor = m.number(scale)
    return Axis(elements, elements * factor, whole, factor, m.number(roi[0]), m.number(roi[1]))


def _float(c: NodeContext, dim: DimLike) -> Term:
    return Term(c, c.cast(c.b.shape_value([dim], scalar=True), "float32"))


def graph_taps(c: NodeContext, axis: Axis, count: DimLike, method: Method) -> tuple[list[tuple[str, str]], str]:
    """Return (indices int64, weights float32 or "") of each tap, and the mask of outside elements."""
    m = GraphMath(c)
    steps = Term(c, c.cast(c.b.emit("arange", size=count, dtype="int64"), "float32"))
    x = coordinates(m, steps, axis, method.coordinates)
    mask = ""
    if method.coordinates == "tf_crop_and_resize":
        mask = ((x < m.number(0)) | (x > axis.size - m.number(1))).name
    if method.mode == "nearest":
        return [(_index(c, nearest_index(m, x, axis, method.nearest)), "")], mask
    taps = linear_taps(m, x, axis) if method.mode == "linear" else cubic_taps(m, x, axis, method)
    return [(_index(c, i), w.name) for i, w in taps], mask


def _index(c: NodeContext, index: Term) -> str:
    return c.cast(index.name, "int64")
