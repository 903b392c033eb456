"""The numbers of a pooling, as the lowering writes them on the block, and where its windows lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import Let

from hcomp.codegen.relax_table import scalar
from hcomp.targets.cpu.schedule.annotation import Annotation
from hcomp.targets.cpu.schedule.nest import Expr, Stmt, imm, let, loads, opaque_let, simple
from hcomp.targets.cpu.schedule.stages import Stage

POOL = "hcomp.pool"
"""Block annotation: the text of a `PoolShape`."""


@dataclass(frozen=True)
class PoolShape(Annotation):
    """One pooling of float32 data.

    Attributes:
        kind: "max" or "mean".
        channels_last: whether the data is [N, *spatial, C], not [N, C, *spatial].
        window, strides, dilation: one number a spatial axis.
        begin, end: the padding of each axis.
        counts_padding: whether a mean's divisor counts the padding.
    """

    kind: str
    channels_last: bool
    window: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilation: tuple[int, ...]
    counts_padding: bool

    @property
    def start(self) -> Expr:
        """The result of a window that holds nothing."""
        return tirx.const(0, "float32") if self.kind == "mean" else tirx.min_value("float32")

    @property
    def steps(self) -> int:
        """Steps of a window."""
        return prod(self.window)

    def join(self, a: Expr, b: Expr) -> Expr:
        """Return what two parts of a window come to."""
        return scalar.add(a, b) if self.kind == "mean" else scalar.maximum(a, b)

    def joined(self, parts: Sequence[Expr]) -> Expr:
        """Return what all `parts` come to.

        In pairs: a maximum reads its operands more than once, and lowering copies what a name stands for,
        so that a chain of n would become 2^n expressions.
        """
        named: list[tuple[Any, Expr]] = []
        level = list(parts)
        while len(level) > 1:
            above = []
            for first, second in zip(level[::2], level[1::2], strict=False):
                a, b = tirx.Var("a", "float32"), tirx.Var("b", "float32")
                named += [(a, first), (b, second)]
                above.append(self.join(a, b))
            level = above + level[2 * len(above) :]
        (total,) = level
        for name, value in reversed(named):
            total = Let(name, value, total)
        return total


@dataclass(frozen=True)
class Pooling:
    """A recognised stage, its shape and its input."""

    stage: Stage
    shape: PoolShape
    image: Any


def match_pool(stage: Stage) -> Pooling | None:
    """Return the pooling that `stage` computes, or None."""
    text = stage.annotations.get(POOL)
    if text is None or stage.store is None:
        return None
    out = stage.store.buffer
    (image,) = {item.source for item in loads(stage.store.value) if not item.source.same_as(out)}
    return Pooling(stage, PoolShape.parse(str(text)), image)


@dataclass(frozen=True)
class Window:
    """The part of a window inside the image along one axis.

    Attributes:
        pixel: its first pixel.
        count: its steps.
        divisor: the steps that a mean counts.
    """

    pixel: Expr
    count: Expr
    divisor: Expr


class Windows:
    """Where the windows of a pooling lie.

    Attributes:
        prelude: statements that bind sizes; they come before everything else.
        sizes, outputs: spatial sizes of the image and of the result.
    """

    def __init__(self, found: Pooling) -> None:
        self.shape = shape = found.shape
        self.axes = slice(1, -1) if shape.channels_last else slice(2, None)
        self.prelude: list[Stmt] = []
        self.sizes = [opaque_let("size", e, self.prelude) for e in found.image.shape[self.axes]]
        self.outputs = [opaque_let("output", e, self.prelude) for e in found.stage.store.buffer.shape[self.axes]]

    def at(self, axis: int, position: Expr, out: list[Stmt]) -> Window:
        """Return the window of output `position` of one axis."""
        shape, size = self.shape, self.sizes[axis]
        step = shape.dilation[axis]
        start = let("start", simple(position * imm(shape.strides[axis]) - imm(shape.begin[axis])), out)
        before, count = self._within(axis, start, imm(0), size, out)
        divisor = count
        if shape.kind == "mean" and shape.counts_padding:
            low, high = imm(-shape.begin[axis]), simple(size + imm(shape.end[axis]))
            _, divisor = self._within(axis, start, low, high, out)
        return Window(let("pixel", simple(start + before * imm(step)), out), count, divisor)

    def _within(self, axis: int, start: Expr, low: Expr, high: Expr, out: list[Stmt]) -> tuple[Expr, Expr]:
        """Return the first step of the window at `start` that is in [low, high), and how many are."""
        step = imm(self.shape.dilation[axis])
        before = tirx.max(tirx.floordiv(low - start + step - imm(1), step), imm(0))
        before = let("before", simple(before), out)
        after = tirx.min(tirx.floordiv(high - start + step - imm(1), step), imm(self.shape.window[axis]))
        return before, let("count", simple(tirx.max(after - before, imm(0))), out)


def divided(value: Expr, divisors: list[Expr]) -> Expr:
    """Return a sum over a window divided by the product of `divisors`; a window of nothing stays 0."""
    total = imm(1)
    for divisor in divisors:
        total = total * divisor
    return value / tirx.Cast("float32", tirx.max(simple(total), imm(1)))
