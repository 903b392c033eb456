"""Rows for operators that walk along one axis with a state: argmax, cumsum, top-k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import (
    Expr,
    Kernel,
    KernelBody,
    Tensor,
    constant,
    narrow,
    wide,
    wide_dtype,
)
from hcomp.codegen.relax_table import scalar
from hcomp.codegen.relax_table.loops import Buffer, local, nest, repeat_while, statements, store, when
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike, ceildiv, lower_bound
from hcomp.ir.types import Shape

_BLOCK = 16
"""Elements that top-k looks at together."""


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _at(row: Sequence[Expr], axis: int, step: Expr) -> list[Expr]:
    return [*row[:axis], step, *row[axis:]]


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


def _wins(largest: bool, a: Expr, b: Expr) -> Expr:
    """Return whether `a` replaces `b` as the extreme so far: NaN beats everything."""
    if scalar.is_bool(a):
        a, b = a.astype("int8"), b.astype("int8")
    ordered = tirx.GT(a, b) if largest else tirx.LT(a, b)
    if not scalar.is_float(a):
        return ordered
    return tirx.Or(ordered, tirx.And(scalar.is_nan(a), tirx.Not(scalar.is_nan(b))))


def _arg(largest: bool) -> KernelBody:
    def body(kernel: Kernel) -> Tensor:
        shape, attrs = kernel.shape(0), kernel.attrs
        axis = attrs["axis"]
        axis = (axis[0] if isinstance(axis, tuple) else axis) % len(shape)
        size = kernel.dim(shape[axis])

        def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
            with nest(kernel, _without(shape, axis)) as row:
                best = local("int64")
                store(best, [int64(0)], int64(0))
                # From the other end, the first of equals is the last.
                with nest(kernel, [shape[axis]]) as (step,):
                    place = size - int64(1) - step if attrs["select_last"] else step
                    found = wide(ins[0][tuple(_at(row, axis, place))])
                    held = wide(ins[0][tuple(_at(row, axis, best[0]))])
                    with when(tirx.Or(step == int64(0), _wins(largest, found, held))):
                        store(best, [int64(0)], place)
                target = _at(row, axis, int64(0)) if attrs["keepdims"] else row
                store(outs[0], target, best[0])

        (made,) = statements(kernel, [kernel.tensor(0)], [(kernel.out_shape, "int64")], emit, "arg")
        return made

    return body


def _scan(combine: Callable[[Expr, Expr], Expr], start: int) -> KernelBody:
    def body(kernel: Kernel) -> Tensor:
        shape, attrs, dtype = kernel.shape(0), kernel.attrs, kernel.out_dtype
        axis = attrs["axis"] % len(shape)
        size = kernel.dim(shape[axis])
        held = "float64" if dtype in ("float32", "float64") else wide_dtype(dtype)

        def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
            with nest(kernel, _without(shape, axis)) as row:
                total = local(held)
                store(total, [int64(0)], constant(start, held))
                with nest(kernel, [shape[axis]]) as (step,):
                    place = size - int64(1) - step if attrs["reverse"] else step
                    at = _at(row, axis, place)
                    value = wide(ins[0][tuple(at)]).astype(held)
                    if attrs["exclusive"]:
                        store(outs[0], at, narrow(total[0], dtype))
                    store(total, [int64(0)], combine(total[0], value))
                    if not attrs["exclusive"]:
                        store(outs[0], at, narrow(total[0], dtype))

        (made,) = statements(kernel, [kernel.tensor(0)], [(shape, dtype)], emit, "scan")
        return made

    return body


def _topk(kernel: Kernel) -> tuple[Tensor, ...]:
    """Keep the best k in order while walking along the axis: insertion into a sorted list.

    A newcomer moves in front of the elements that it comes strictly before, so equal values stay
    in the order of their indices. A block with nothing that comes before the last one kept is skipped.
    """
    shape, attrs = kernel.shape(0), kernel.attrs
    axis = attrs["axis"] % len(shape)
    largest = attrs["largest"]
    kept: DimLike = attrs["k"]
    count = kernel.dim(kept)
    dtype = kernel.out_dtype
    spare = shape[axis] - kept
    if (least := lower_bound(spare)) is None or least < 0:
        kernel.require(f"k is {kept}, beyond an axis of size {shape[axis]}", lambda k: k.dim(spare) >= int64(0))

    def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        values, indices = outs
        with nest(kernel, _without(shape, axis)) as row:

            def value_at(place: Expr) -> Any:
                return values[tuple(_at(row, axis, place))]

            def index_at(place: Expr) -> Any:
                return indices[tuple(_at(row, axis, place))]

            slot, news = local("int64"), local("int32")

            def enter(step: Expr) -> None:
                found = ins[0][tuple(_at(row, axis, step))]
                # `slot` is one behind the last place that is filled.
                store(slot, [int64(0)], tirx.min(step, count))
                last = value_at(tirx.max(count - int64(1), int64(0)))
                enters = tirx.Or(step < count, _before(largest, wide(found), wide(last)))
                with when(tirx.And(count > int64(0), enters)):
                    with when(slot[0] == count):
                        store(slot, [int64(0)], count - int64(1))
                    left = tirx.max(slot[0] - int64(1), int64(0))
                    moves = _before(largest, wide(found), wide(value_at(left)))
                    with repeat_while(tirx.And(slot[0] > int64(0), moves)):
                        store(values, _at(row, axis, slot[0]), value_at(left))
                        store(indices, _at(row, axis, slot[0]), index_at(left))
                        store(slot, [int64(0)], left)
                    store(values, _at(row, axis, slot[0]), found)
                    store(indices, _at(row, axis, slot[0]), step)

            size = kernel.dim(shape[axis])
            with nest(kernel, [ceildiv(shape[axis], _BLOCK)]) as (block,):
                start = block * int64(_BLOCK)
                store(news, [int64(0)], tirx.const(1, "int32"))
                with when(tirx.all(count > int64(0), start >= count, start + int64(_BLOCK) <= size)):
                    store(news, [int64(0)], tirx.const(0, "int32"))
                    last = value_at(count - int64(1))
                    with nest(kernel, [_BLOCK]) as (k,):
                        found = ins[0][tuple(_at(row, axis, start + k))]
                        better = _before(largest, wide(found), wide(last)).astype("int32")
                        store(news, [int64(0)], tirx.bitwise_or(news[0], better))
                with when(news[0] != tirx.const(0, "int32")), nest(kernel, [_BLOCK]) as (k,), when(start + k < size):
                    enter(start + k)

    out = kernel.out_shape
    return statements(kernel, [kernel.tensor(0)], [(out, dtype), (out, "int64")], emit, "topk")


KERNELS: dict[str, KernelBody] = {
    "argmax": _arg(largest=True),
    "argmin": _arg(largest=False),
    "cumsum": _scan(scalar.add, 0),
    "cumprod": _scan(scalar.multiply, 1),
    "topk": _topk,
}
