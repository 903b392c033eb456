"""The row for top-k: the best so far are kept while walking along the axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, wide
from hcomp.codegen.relax_table import scalar
from hcomp.codegen.relax_table.loops import Buffer, local, nest, repeat_while, statements, store, when
from hcomp.codegen.relax_table.scans import at_step, without
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike, ceildiv, floordiv, lower_bound

_BLOCK = 16
"""Elements that are looked at together."""

_MOST_IN_ORDER = 128
"""More than so many are kept as a heap: inserting into a list moves half of it (as fast at about 150)."""


def _before(largest: bool, a: Expr, b: Expr) -> Expr:
    """Return whether `a` comes strictly before `b`: NaN is the largest of all."""
    if scalar.is_bool(a):
        a, b = a.astype("int8"), b.astype("int8")
    ordered = tirx.GT(a, b) if largest else tirx.LT(a, b)
    if not scalar.is_float(a):
        return ordered
    nan_a, nan_b = scalar.is_nan(a), scalar.is_nan(b)
    if largest:
        return tirx.Or(ordered, tirx.And(nan_a, tirx.Not(nan_b)))
    return tirx.Or(ordered, tirx.And(nan_b, tirx.Not(nan_a)))


def _equal(a: Expr, b: Expr) -> Expr:
    """Return whether neither comes before the other."""
    same = tirx.EQ(a, b)
    return tirx.Or(same, tirx.And(scalar.is_nan(a), scalar.is_nan(b))) if scalar.is_float(a) else same


class _Kept:
    """The `count` best elements of one row so far, in the outputs; equal values in the order of their indices."""

    def __init__(self, ins: Sequence[Buffer], outs: Sequence[Buffer], row: Sequence[Expr], kernel: Kernel) -> None:
        self.kernel, self.row = kernel, row
        (self.source,), (self.values, self.indices) = ins, outs
        self.size: DimLike = kernel.shape(0)[kernel.attrs["axis"]]
        self.largest: bool = kernel.attrs["largest"]
        self.kept: DimLike = kernel.attrs["k"]
        self.count = kernel.dim(self.kept)
        self.place = local("int64")

    def at(self, step: Expr) -> tuple[Expr, ...]:
        """Return the position at `step` of this row."""
        return tuple(at_step(self.row, self.kernel.attrs["axis"] % (len(self.row) + 1), step))

    def put(self, place: Expr, value: Expr, index: Expr) -> None:
        """Emit the writes of one kept element."""
        store(self.values, self.at(place), value)
        store(self.indices, self.at(place), index)

    def before(self, a: Expr, b: Expr) -> Expr:
        """Return whether the value `a` comes strictly before `b`."""
        return _before(self.largest, wide(a), wide(b))

    def walk(self, last: Expr, enter: Any) -> None:
        """Emit `enter(step)` for every step, but not for blocks without anything before the kept value at `last`.

        Until `count` elements are there, all enter.
        """
        size, news = self.kernel.dim(self.size), local("int32")
        with nest(self.kernel, [ceildiv(self.size, _BLOCK)]) as (block,):
            start = block * int64(_BLOCK)
            store(news, [int64(0)], tirx.const(1, "int32"))
            with when(tirx.all(self.count > int64(0), start >= self.count, start + int64(_BLOCK) <= size)):
                store(news, [int64(0)], tirx.const(0, "int32"))
                with nest(self.kernel, [_BLOCK]) as (k,):
                    better = self.before(self.source[self.at(start + k)], self.values[self.at(last)])
                    store(news, [int64(0)], tirx.bitwise_or(news[0], better.astype("int32")))
            with when(news[0] != tirx.const(0, "int32")), nest(self.kernel, [_BLOCK]) as (k,):  # noqa: SIM117
                with when(start + k < size):
                    enter(start + k)

    def in_order(self) -> None:
        """Keep a sorted list: a newcomer moves in front of the elements that it comes strictly before."""
        last = tirx.max(self.count - int64(1), int64(0))
        place = self.place

        def enter(step: Expr) -> None:
            found = self.source[self.at(step)]
            # `place` is one behind the last that is filled.
            store(place, [int64(0)], tirx.min(step, self.count))
            enters = tirx.Or(step < self.count, self.before(found, self.values[self.at(last)]))
            with when(tirx.And(self.count > int64(0), enters)):
                with when(place[0] == self.count):
                    store(place, [int64(0)], self.count - int64(1))
                left = tirx.max(place[0] - int64(1), int64(0))
                moves = self.before(found, self.values[self.at(left)])
                with repeat_while(tirx.And(place[0] > int64(0), moves)):
                    self.put(place[0], self.values[self.at(left)], self.indices[self.at(left)])
                    store(place, [int64(0)], left)
                self.put(place[0], found, step)

        self.walk(last, enter)

    def as_heap(self) -> None:
        """Keep a heap whose root comes after all others, and sort it at the end."""
        root = int64(0)
        held, index = local(self.kernel.out_dtype), local("int64")

        def hold(value: Expr, number: Expr) -> None:
            store(held, [int64(0)], value)
            store(index, [int64(0)], number)

        with nest(self.kernel, [self.kept]) as (k,):
            self.put(k, self.source[self.at(k)], k)
        with nest(self.kernel, [floordiv(self.kept, 2)]) as (k,):
            node = tirx.floordiv(self.count, int64(2)) - int64(1) - k
            hold(self.values[self.at(node)], self.indices[self.at(node)])
            self._sift(node, self.count, held[0], index[0])

        def enter(step: Expr) -> None:
            found = self.source[self.at(step)]
            enters = tirx.And(step >= self.count, self.before(found, self.values[self.at(root)]))
            with when(tirx.And(self.count > int64(0), enters)):
                hold(found, step)
                self._sift(root, self.count, held[0], index[0])

        self.walk(root, enter)
        with nest(self.kernel, [self.kept]) as (k,):
            end = self.count - int64(1) - k
            hold(self.values[self.at(end)], self.indices[self.at(end)])
            self.put(end, self.values[self.at(root)], self.indices[self.at(root)])
            self._sift(root, end, held[0], index[0])

    def _sift(self, start: Expr, end: Expr, value: Expr, index: Expr) -> None:
        """Put an element into the place `start` of a heap of `end`, or below, where later ones move up."""
        place, child = self.place, local("int64")
        last = tirx.max(end - int64(1), int64(0))

        def after(place: Expr, value: Expr, index: Expr) -> Expr:
            """Return whether the kept element at `place` comes after another one."""
            own, number = self.values[self.at(place)], self.indices[self.at(place)]
            # Not "neither before the other": TVM takes not (a < b) for a >= b, NaN or not.
            return tirx.Or(self.before(value, own), tirx.And(_equal(wide(value), wide(own)), number > index))

        def descend(above: Expr) -> None:
            left = above * int64(2) + int64(1)
            a, b = tirx.min(left, last), tirx.min(left + int64(1), last)
            # Without a right child both are the last element, which does not come after itself.
            right = after(b, self.values[self.at(a)], self.indices[self.at(a)])
            store(child, [int64(0)], left + right.astype("int64"))

        store(place, [int64(0)], start)
        descend(start)
        lower = after(tirx.min(child[0], last), value, index)
        with repeat_while(tirx.And(child[0] < end, lower)):
            self.put(place[0], self.values[self.at(child[0])], self.indices[self.at(child[0])])
            store(place, [int64(0)], child[0])
            descend(place[0])
        self.put(place[0], value, index)


def _topk(kernel: Kernel) -> tuple[Tensor, ...]:
    shape, attrs = kernel.shape(0), kernel.attrs
    axis, kept = attrs["axis"] % len(shape), attrs["k"]
    spare = shape[axis] - kept
    if (least := lower_bound(spare)) is None or least < 0:
        kernel.require(f"k is {kept}, beyond an axis of size {shape[axis]}", lambda k: k.dim(spare) >= int64(0))

    def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        with nest(kernel, without(shape, axis)) as row:
            best = _Kept(ins, outs, row, kernel)
            if isinstance(kept, int) and kept <= _MOST_IN_ORDER:
                best.in_order()
            else:
                best.as_heap()

    out = kernel.out_shape
    return statements(kernel, [kernel.tensor(0)], [(out, kernel.out_dtype), (out, "int64")], emit, "topk")


KERNELS: dict[str, KernelBody] = {"topk": _topk}
