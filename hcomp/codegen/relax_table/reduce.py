"""Rows for operators along axes: reductions, softmax, normalisations.

Sums of float16 and bfloat16 are kept in float32 from the first element to the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.codegen.relax_table import scalar
from hcomp.dims import DimLike
from hcomp.ir.types import Shape


def reduced_axes(attrs: Any, rank: int) -> tuple[int, ...]:
    """Return the attribute `axis` (int, tuple, or None for all) counted from the front."""
    axis = attrs["axis"]
    if axis is None:
        return tuple(range(rank))
    return tuple(sorted({a % rank for a in (axis if isinstance(axis, tuple) else (axis,))}))


def _lowest(dtype: str) -> Expr:
    if dtype == "bool":
        return tirx.const(False, "bool")
    return constant(-math.inf, dtype) if "float" in dtype else tirx.min_value(dtype)


def _highest(dtype: str) -> Expr:
    if dtype == "bool":
        return tirx.const(True, "bool")
    return constant(math.inf, dtype) if "float" in dtype else tirx.max_value(dtype)


Combine = Callable[[Expr, Expr], Expr]

REDUCTIONS: dict[str, tuple[Combine, Callable[[str], Expr]]] = {
    "sum": (scalar.add, lambda dtype: constant(False if dtype == "bool" else 0, dtype)),
    "prod": (scalar.multiply, lambda dtype: constant(True if dtype == "bool" else 1, dtype)),
    "max": (scalar.maximum, _lowest),
    "min": (scalar.minimum, _highest),
}
"""How two elements combine, and what an empty axis gives."""

_SUM = te.comm_reducer(lambda a, b: a + b, lambda dtype: tirx.const(0, dtype), name="sum")


def reducer(name: str) -> Any:
    """Return the TE reducer of a reduction."""
    combine, start = REDUCTIONS[name]
    if name == "sum":
        return _SUM
    return te.comm_reducer(combine, start, name=name)


def reduced(
    kernel: Kernel,
    function: Any,
    term: Callable[..., Expr],
    steps: Sequence[Expr],
    sizes: Sequence[DimLike],
    start: Expr,
    name: str = "reduce",
) -> Tensor:
    """Return the kernel's output as the reduction of `term` over `steps`, which have `sizes`.

    A loop that never runs leaves its result unset, so `start` is put where a size turns out 0.
    """
    if any(s == 0 for s in sizes):
        return kernel.compute(lambda *_: start)
    total = kernel.compute(lambda *i: function(term(*i), axis=list(steps)), shape=kernel.out_shape, name=name)
    maybe_empty = [kernel.dim(s) for s in sizes if not isinstance(s, int)]
    if not maybe_empty:
        if wide_dtype(kernel.out_dtype) == kernel.out_dtype:
            return total
        return kernel.compute(lambda *i: total(*i))
    empty = tirx.any(*(s == tirx.IntImm("int64", 0) for s in maybe_empty))
    return kernel.compute(lambda *i: tirx.Select(empty, start, total(*i)))


def along(
    kernel: Kernel, axes: Sequence[int], shape: Shape
) -> tuple[list[Expr], Callable[[Sequence[Expr]], list[Expr]]]:
    """Return reduction axes over `axes` and the function that joins them with the kept position."""
    steps = {a: kernel.axis(shape[a], f"k{a}") for a in axes}

    def join(kept: Sequence[Expr]) -> list[Expr]:
        rest = iter(kept)
        return [steps[a] if a in steps else next(rest) for a in range(len(shape))]

    return list(steps.values()), join


def _kept(position: Sequence[Expr], axes: Sequence[int], keepdims: bool) -> list[Expr]:
    return [p for a, p in enumerate(position) if not keepdims or a not in axes]


def _reduction(name: str) -> KernelBody:
    def body(kernel: Kernel) -> Tensor:
        shape = kernel.shape(0)
        axes, keep = reduced_axes(kernel.attrs, len(shape)), kernel.attrs["keepdims"]
        if not axes:
            return kernel.compute(lambda *i: kernel.read(0, i))
        steps, join = along(kernel, axes, shape)
        start = REDUCTIONS[name][1](wide_dtype(kernel.out_dtype))

        def term(*i: Expr) -> Expr:
            return kernel.read(0, join(_kept(i, axes, keep)))

        sizes = [shape[a] for a in axes]
        return reduced(kernel, reducer(name), term, steps, sizes, start, name)

    return body


def _count(kernel: Kernel, shape: Shape, axes: Sequence[int], dtype: str) -> Expr:
    total: DimLike = 1
    for a in axes:
        total = total * shape[a]
    return kernel.dim(total).astype(dtype)


def _mean(kernel: Kernel) -> Tensor:
    shape = kernel.shape(0)
    axes, keep = reduced_axes(kernel.attrs, len(shape)), kernel.attrs["keepdims"]
    if not axes:
        return kernel.compute(lambda *i: kernel.read(0, i))
    # Integers are added up in int64 and the quotient is truncated.
    own = wide_dtype(kernel.dtype())
    held = own if "float" in own or own == "uint64" else "int64"
    count = _count(kernel, shape, axes, held)
    if any(shape[a] == 0 for a in axes):
        return kernel.compute(lambda *_: scalar.divide(constant(0, held), count))
    steps, join = along(kernel, axes, shape)
    total = kernel.compute(
        lambda *i: _SUM(kernel.read(0, join(_kept(i, axes, keep))).astype(held), axis=steps),
        shape=kernel.out_shape,
        name="sum",
    )
    empty = [kernel.dim(shape[a]) for a in axes if not isinstance(shape[a], int)]

    def quotient(*i: Expr) -> Expr:
        value = total(*i)
        if empty:  # the loop has not run, so the sum is not set
            none = tirx.any(*(e == tirx.IntImm("int64", 0) for e in empty))
            value = tirx.Select(none, constant(0, held), value)
        return scalar.divide(value, count)

    return kernel.compute(quotient)


def _row(kernel: Kernel, axis: int) -> tuple[Shape, Callable[..., list[Expr]]]:
    """Return the shape without `axis`, and a function that puts a step back in at `axis`."""
    shape = kernel.shape(0)
    return shape[:axis] + shape[axis + 1 :], lambda i, k: [*i[:axis], k, *i[axis:]]


def _softmax(log: bool) -> KernelBody:
    def body(kernel: Kernel) -> Tensor:
        shape = kernel.shape(0)
        axis = kernel.attrs["axis"] % len(shape)
        rows, insert = _row(kernel, axis)
        k1, k2 = kernel.axis(shape[axis], "k"), kernel.axis(shape[axis], "k")
        largest_of = reducer("max")
        largest = kernel.compute(
            lambda *i: largest_of(kernel.read(0, insert(i, k1)), axis=k1),
            shape=rows,
            name="T_softmax_maxelem",
        )

        def row(i: Sequence[Expr]) -> list[Expr]:
            return [*i[:axis], *i[axis + 1 :]]

        def power(*i: Expr) -> Expr:
            return tirx.exp(kernel.read(0, i) - largest(*row(i)))

        if log:
            total = kernel.compute(
                lambda *i: _SUM(tirx.exp(kernel.read(0, insert(i, k2)) - largest(*i)), axis=k2),
                shape=rows,
                name="T_softmax_expsum",
            )
            return kernel.compute(lambda *i: kernel.read(0, i) - largest(*row(i)) - tirx.log(total(*row(i))))
        powers = kernel.compute(power, shape=shape, name="T_softmax_exp")
        total = kernel.compute(lambda *i: _SUM(powers(*insert(i, k2)), axis=k2), shape=rows, name="T_softmax_expsum")
        if total.dtype not in ("float32", "float64"):  # in fewer digits the reciprocal's rounding would show
            return kernel.compute(lambda *i: powers(*i) / total(*row(i)), name="T_softmax_norm")
        share = kernel.compute(lambda *i: constant(1, total.dtype) / total(*i), shape=rows, name="T_softmax_share")
        return kernel.compute(lambda *i: powers(*i) * share(*row(i)), name="T_softmax_norm")

    return body


def _norm(centred: bool) -> KernelBody:
    """Layer normalisation, or root mean square normalisation where nothing is subtracted."""

    def body(kernel: Kernel) -> Tensor:
        shape = kernel.shape(0)
        first = kernel.attrs["axis"] % len(shape)
        axes = tuple(range(first, len(shape)))
        dtype = wide_dtype(kernel.dtype())
        count = _count(kernel, shape, axes, dtype)

        def mean_of(name: str, value: Callable[[Sequence[Expr], Sequence[Expr]], Expr]) -> Tensor:
            steps, join = along(kernel, axes, shape)
            total = kernel.compute(lambda *i: _SUM(value(i, join(i)), axis=steps), shape=shape[:first], name=name)
            return kernel.compute(lambda *i: total(*i) / count, shape=shape[:first], name=f"{name}_mean")

        mean = mean_of("centre", lambda i, at: kernel.read(0, at)) if centred else None

        def shifted(row: Sequence[Expr], at: Sequence[Expr]) -> Expr:
            value = kernel.read(0, at)
            return value if mean is None else value - mean(*row)

        def squared(row: Sequence[Expr], at: Sequence[Expr]) -> Expr:
            value = shifted(row, at)
            return value * value

        variance = mean_of("spread", squared)
        epsilon = constant(kernel.attrs["epsilon"], dtype)

        def scaled(*i: Expr) -> Expr:
            row = i[:first]
            value = shifted(row, i) * (constant(1, dtype) / tirx.sqrt(variance(*row) + epsilon))
            if kernel.has(1):
                value = value * kernel.spread(1, i, shape)
            return value + kernel.spread(2, i, shape) if kernel.has(2) else value

        return kernel.compute(scaled)

    return body


KERNELS: dict[str, KernelBody] = {
    **{name: _reduction(name) for name in REDUCTIONS},
    "mean": _mean,
    "softmax": _softmax(log=False),
    "log_softmax": _softmax(log=True),
    "layer_norm": _norm(centred=True),
    "rms_norm": _norm(centred=False),
}
