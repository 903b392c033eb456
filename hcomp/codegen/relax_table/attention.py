"""Row for attention: plain loops that any target can schedule, the scores in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.codegen.relax_table.reduce import reducer
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike
from hcomp.ir.ops.attention import INNER, KEY, QUERY, batch_axes


def _attention(kernel: Kernel) -> Tensor:
    attrs = kernel.attrs
    axes, dtype = attrs["axes"], wide_dtype(kernel.dtype())
    sizes: dict[str, DimLike] = {}
    for number, own in enumerate(axes):
        for letter, size in zip(own, kernel.shape(number), strict=True):
            if letter.isalpha():
                kernel.require_equal(sizes.setdefault(letter, size), size)
    zero = constant(0, dtype)
    if sizes[KEY] == 0:
        return kernel.compute(lambda *_: zero)
    batch = batch_axes(axes[0])
    rows = batch + QUERY

    def read(number: int, at: dict[str, Expr]) -> Expr:
        return kernel.read(number, [int64(int(c)) if c.isdigit() else at[c] for c in axes[number]])

    def shape(letters: str) -> list[DimLike]:
        return [sizes[c] for c in letters]

    def named(letters: str, position: Sequence[Expr]) -> dict[str, Expr]:
        return dict(zip(letters, position, strict=True))

    add, largest = reducer("sum"), reducer("max")
    inner, k1, k2, k3 = kernel.axis(sizes[INNER], "d"), *(kernel.axis(sizes[KEY], "l") for _ in range(3))

    def product(*i: Expr) -> Expr:
        at = {**named(rows + KEY, i), INNER: inner}
        return add(read(0, at) * read(1, at), axis=inner)

    scores = kernel.compute(product, shape=shape(rows + KEY), name="scores")

    def logit(*i: Expr) -> Expr:
        value = scores(*i) * constant(attrs["scale"], dtype)
        for number, kind in enumerate(attrs["masks"], start=3):
            mask = read(number, named(rows + KEY, i))
            value = value + mask if kind == "add" else tirx.Select(mask, value, constant(attrs["fill"], dtype))
        return value

    logits = kernel.compute(logit, shape=shape(rows + KEY), name="logits")
    highest = kernel.compute(lambda *i: largest(logits(*i, k1), axis=k1), shape=shape(rows), name="highest")
    powers = kernel.compute(
        lambda *i: tirx.exp(logits(*i) - highest(*i[:-1])), shape=shape(rows + KEY), name="powers"
    )
    total = kernel.compute(lambda *i: add(powers(*i, k2), axis=k2), shape=shape(rows), name="total")

    def weight(*i: Expr) -> Expr:
        value = powers(*i) / total(*i[:-1])
        return tirx.Select(tirx.isnan(value), zero, value) if attrs["zero_nan"] else value

    weights = kernel.compute(weight, shape=shape(rows + KEY), name="weights")

    def result(*i: Expr) -> Expr:
        at = {**named(attrs["output"], i), KEY: k3}
        return add(weights(*(at[c] for c in rows), k3) * read(2, at), axis=k3)

    made = kernel.compute(result, shape=shape(attrs["output"]), name="attention")
    # A loop that never runs leaves its result unset.
    if isinstance(sizes[KEY], int):
        return kernel.compute(lambda *i: made(*i))
    empty = tirx.EQ(kernel.dim(sizes[KEY]), int64(0))
    return kernel.compute(lambda *i: tirx.Select(empty, zero, made(*i)))


KERNELS: dict[str, KernelBody] = {"attention": _attention}
