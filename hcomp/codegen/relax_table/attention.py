"""Row for attention: plain loops that any target can schedule, the scores in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.codegen.relax_table.reduce import reducer
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike
from hcomp.ir.ops.attention import INNER, KEY, QUERY, batch_axes


@dataclass(frozen=True)
class _Scores:
    """The part that softmax runs over: [batch..., s, l]."""

    kernel: Kernel
    sizes: Mapping[str, DimLike]

    @property
    def rows(self) -> str:
        """The axes of a row of scores."""
        return batch_axes(self.kernel.attrs["axes"][0]) + QUERY

    def shape(self, letters: str) -> list[DimLike]:
        return [self.sizes[c] for c in letters]

    def read(self, number: int, at: Mapping[str, Expr]) -> Expr:
        """Return the element of an input at the indices of its axes."""
        axes = self.kernel.attrs["axes"][number]
        return self.kernel.read(number, [int64(int(c)) if c.isdigit() else at[c] for c in axes])

    def at(self, position: Sequence[Expr]) -> dict[str, Expr]:
        return dict(zip(self.rows + KEY, position, strict=True))

    def logits(self) -> Tensor:
        """Return the scores after the scale and the masks."""
        kernel, attrs, dtype = self.kernel, self.kernel.attrs, wide_dtype(self.kernel.dtype())
        add, inner = reducer("sum"), kernel.axis(self.sizes[INNER], "d")

        def product(*i: Expr) -> Expr:
            at = {**self.at(i), INNER: inner}
            return add(self.read(0, at) * self.read(1, at), axis=inner)

        scores = kernel.compute(product, shape=self.shape(self.rows + KEY), name="scores")

        def logit(*i: Expr) -> Expr:
            value = scores(*i) * constant(attrs["scale"], dtype)
            for number, kind in enumerate(attrs["masks"], start=3):
                mask = self.read(number, self.at(i))
                value = value + mask if kind == "add" else tirx.Select(mask, value, constant(attrs["fill"], dtype))
            return value

        return kernel.compute(logit, shape=self.shape(self.rows + KEY), name="logits")

    def weights(self) -> Tensor:
        """Return softmax of the logits."""
        kernel, zero = self.kernel, constant(0, wide_dtype(self.kernel.dtype()))
        rows, whole = self.shape(self.rows), self.shape(self.rows + KEY)
        logits, add, largest = self.logits(), reducer("sum"), reducer("max")
        k1, k2 = kernel.axis(self.sizes[KEY], "l"), kernel.axis(self.sizes[KEY], "l")
        highest = kernel.compute(lambda *i: largest(logits(*i, k1), axis=k1), shape=rows, name="highest")
        powers = kernel.compute(lambda *i: tirx.exp(logits(*i) - highest(*i[:-1])), shape=whole, name="powers")
        total = kernel.compute(lambda *i: add(powers(*i, k2), axis=k2), shape=rows, name="total")

        def weight(*i: Expr) -> Expr:
            value = powers(*i) / total(*i[:-1])
            return tirx.Select(tirx.isnan(value), zero, value) if kernel.attrs["zero_nan"] else value

        return kernel.compute(weight, shape=whole, name="weights")


def _attention(kernel: Kernel) -> Tensor:
    attrs, zero = kernel.attrs, constant(0, wide_dtype(kernel.dtype()))
    sizes: dict[str, DimLike] = {}
    for number, own in enumerate(attrs["axes"]):
        for letter, size in zip(own, kernel.shape(number), strict=True):
            if letter.isalpha():
                kernel.require_equal(sizes.setdefault(letter, size), size)
    if sizes[KEY] == 0:
        return kernel.compute(lambda *_: zero)
    scores, add, key = _Scores(kernel, sizes), reducer("sum"), kernel.axis(sizes[KEY], "l")
    weights = scores.weights()

    def result(*i: Expr) -> Expr:
        at = {**dict(zip(attrs["output"], i, strict=True)), KEY: key}
        return add(weights(*(at[c] for c in scores.rows), key) * scores.read(2, at), axis=key)

    made = kernel.compute(result, shape=scores.shape(attrs["output"]), name="attention")
    if isinstance(sizes[KEY], int):
        return kernel.compute(lambda *i: made(*i))
    # A loop that never runs leaves its result unset.
    empty = tirx.EQ(kernel.dim(sizes[KEY]), int64(0))
    return kernel.compute(lambda *i: tirx.Select(empty, zero, made(*i)))


KERNELS: dict[str, KernelBody] = {"attention": _attention}
