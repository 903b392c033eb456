"""Rows for operators that walk along one axis with a state: argmax, cumsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from hcomp.codegen.relax_table.loops import Buffer, local, nest, statements, store, when
from hcomp.codegen.relax_table.shape import int64
from hcomp.ir.types import Shape


def without(shape: Shape, axis: int) -> Shape:
    """Return `shape` without its size along `axis`."""
    return shape[:axis] + shape[axis + 1 :]


def at_step(row: Sequence[Expr], axis: int, step: Expr) -> list[Expr]:
    """Return the position at `step` along `axis`, where `row` holds the other indices."""
    return [*row[:axis], step, *row[axis:]]


def _wins(largest: bool, a: Expr, b: Expr, *, nan_wins: bool) -> Expr:
    """Return whether `a` replaces `b` as the extreme so far: NaN beats everything, or nothing."""
    if scalar.is_bool(a):
        a, b = a.astype("int8"), b.astype("int8")
    ordered = tirx.GT(a, b) if largest else tirx.LT(a, b)
    if not scalar.is_float(a) or not nan_wins:
        return ordered
    return tirx.Or(ordered, tirx.And(scalar.is_nan(a), tirx.Not(scalar.is_nan(b))))


def _arg(largest: bool) -> KernelBody:
    def body(kernel: Kernel) -> Tensor:
        shape, attrs = kernel.shape(0), kernel.attrs
        axis = attrs["axis"]
        axis = (axis[0] if isinstance(axis, tuple) else axis) % len(shape)
        size = kernel.dim(shape[axis])

        def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
            with nest(kernel, without(shape, axis)) as row:
                best = local("int64")
                store(best, [int64(0)], int64(0))
                # From the other end, the first of equals is the last.
                with nest(kernel, [shape[axis]]) as (step,):
                    place = size - int64(1) - step if attrs["select_last"] else step
                    found = wide(ins[0][tuple(at_step(row, axis, place))])
                    held = wide(ins[0][tuple(at_step(row, axis, best[0]))])
                    with when(tirx.Or(step == int64(0), _wins(largest, found, held, nan_wins=attrs["nan_wins"]))):
                        store(best, [int64(0)], place)
                target = at_step(row, axis, int64(0)) if attrs["keepdims"] else row
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
            with nest(kernel, without(shape, axis)) as row:
                total = local(held)
                store(total, [int64(0)], constant(start, held))
                with nest(kernel, [shape[axis]]) as (step,):
                    place = size - int64(1) - step if attrs["reverse"] else step
                    at = at_step(row, axis, place)
                    value = wide(ins[0][tuple(at)]).astype(held)
                    if attrs["exclusive"]:
                        store(outs[0], at, narrow(total[0], dtype))
                    store(total, [int64(0)], combine(total[0], value))
                    if not attrs["exclusive"]:
                        store(outs[0], at, narrow(total[0], dtype))

        (made,) = statements(kernel, [kernel.tensor(0)], [(shape, dtype)], emit, "scan")
        return made

    return body


KERNELS: dict[str, KernelBody] = {
    "argmax": _arg(largest=True),
    "argmin": _arg(largest=False),
    "cumsum": _scan(scalar.add, 0),
    "cumprod": _scan(scalar.multiply, 1),
}
