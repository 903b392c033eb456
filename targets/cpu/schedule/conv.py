"""Loops for a packed convolution: a matrix product whose rows are output positions.

The image is channels last, so that the channels of one position (and of neighbouring taps) are
contiguous: position p, tap t and channel c are at `base(p) + reach(t) + c`. A register tile is some
positions times one panel of output channels; the depth is cut into blocks whose part of the panel
stays in L1 while every tile of the chunk uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.byte_panel import BytePanel
from hcomp.targets.cpu.schedule.conv_depthwise import emit_depthwise
from hcomp.targets.cpu.schedule.conv_phases import Phases
from hcomp.targets.cpu.schedule.conv_shape import Convolution
from hcomp.targets.cpu.schedule.conv_walk import Chunk, Walk
from hcomp.targets.cpu.schedule.conv_winograd import emit_winograd
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.nest import (
    VECTORIZED,
    Block,
    Expr,
    Stmt,
    as_int,
    flat_view,
    imm,
    let,
    load,
    loop,
    scratch,
    seq,
    simple,
    store,
    task_loops,
    unravel,
    vector_loop,
)
from hcomp.targets.cpu.schedule.panel import Panel

_POSITIONS = 192
"""About how many output positions one task computes."""

_FEW = 2
"""Images of one position that are computed one by one."""

_SHALLOW = 128
"""Sums of at most so many products are finished in registers: that is more code, and saves two of each ten loads."""


def emit_conv_loops(found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute `found` and finish every element with `epilogue`."""
    if found.shape.depthwise:
        return emit_depthwise(found, epilogue, cpu)
    if found.shape.tile:
        return emit_winograd(found, epilogue, cpu)
    return _Product(found, epilogue, cpu).statement()


class _Product:
    """One convolution as a matrix product."""

    def __init__(self, found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.epilogue = found, epilogue
        self.shape = shape = found.shape
        self.walk = Walk(found, found.shape.positions or _POSITIONS)
        blocking = BytePanel if shape.group else Panel
        self.panel = blocking.of(shape.columns, shape.runs, shape.run, self.walk.positions, cpu)
        self.places = self.panel.places(self.walk.positions)

    def statement(self) -> Stmt:
        """Return one loop over tasks: chunks of positions, then panels of output channels."""
        shape, parallel = self.shape, self.found.parallel

        def body(source: Any, image: dict[Any, Expr]) -> Stmt:
            def task(indices: list[Expr]) -> Stmt:
                *where, group, panel = indices
                return self._task(source, image, where, group, panel)

            return task_loops([*self.walk.extents, imm(shape.groups), imm(shape.panels)], task, parallel=parallel)

        return self.walk.over_images(body, parallel=parallel)

    def _task(self, source: Any, image: dict[Any, Expr], where: list[Expr], group: Expr, panel: Expr) -> Stmt:
        shape, out = self.shape, Block()
        chunk = self.walk.chunk(where, image, out)
        count = let("count", simple(chunk.rows * chunk.length), out)
        base = self._bases(chunk, count, group, out)
        sums = scratch("sums", self.places * shape.columns, self.panel.accumulator, out)
        weight = flat_view(self.found.weight, out)
        first = simple((group * imm(shape.panels) + panel) * imm(self.panel.size))
        first = let("weights", first, out)
        direct = self._direct(chunk, count, group, panel) if self._is_shallow() else None

        def product(panel: Panel) -> Stmt:
            return panel.product(source, weight, first, sums, imm(0), count, base, self._reach, direct)

        found = product(self.panel)
        if self._are_images() and self.panel.rows > _FEW:
            # A tile of many rows for the single position of a single image would be computed in vain.
            found = tirx.IfThenElse(count > imm(_FEW), found, product(replace(self.panel, rows=1)))
        out.append(found)
        if direct is not None:
            return seq(out)
        finish = self._finish
        if shape.phases:
            finish = Phases(self.found, self.epilogue, self.walk, self.panel.lanes).finish
        out.append(finish(chunk, sums, group, panel))
        return seq(out)

    def _bases(self, chunk: Chunk, count: Expr, group: Expr, out: Block) -> Callable[[Expr], Expr]:
        """Return a function from a position's number in the chunk to the element that it starts at.

        Numbers behind the last position stand for the last one; their sums are thrown away.
        """
        own = let("own", simple(chunk.origin + group * imm(self.shape.inputs)), out)
        second, last = self.walk.second, self.walk.last
        exact = as_int(count) is not None and as_int(count) % self.panel.rows == 0  # type: ignore[operator]

        def clamped(p: Expr) -> Expr:
            return p if exact else tirx.min(p, count - imm(1))

        if self.walk.chunk_rows == 1:
            return lambda p: own + clamped(p) * last.step
        table = scratch("bases", self.places, "int64", out)

        def fill(row: Expr) -> Stmt:
            return loop(
                chunk.length,
                lambda c: store(table, own + row * second.step + c * last.step, row * chunk.length + c),
                "column",
            )

        out.append(loop(chunk.rows, fill, "row"))
        return lambda p: load(table, clamped(p))

    def _are_images(self) -> bool:
        """Return whether positions are of different images, whose number only the run knows."""
        return as_int(self.walk.last.extent) is None and all(as_int(size) == 1 for size in self.walk.sizes)

    def _is_shallow(self) -> bool:
        """Return whether sums are so short that storing them and reading them again would cost much."""
        shape = self.shape
        whole = shape.panels == 1 or shape.outputs % shape.columns == 0
        rows = self.walk.chunk_rows == 1 and not shape.phases
        return (
            rows
            and whole
            and not shape.group
            and self.panel.blocks == 1
            and shape.depth <= _SHALLOW
            and self.epilogue.cheap
        )

    def _direct(self, chunk: Chunk, count: Expr, group: Expr, panel: Expr) -> Callable[[Expr, Any], Stmt]:
        """Return what finishes a row of sums in registers; the last may be done more than once."""
        shape, channel = self.shape, self.found.stage.spatial[-1]
        first = group * imm(shape.outputs) + panel * imm(shape.columns)

        def finish(p: Expr, held: Any) -> Stmt:
            out: list[Stmt] = []
            at = let("at", simple(tirx.min(p, count - imm(1))), out)
            point = self.walk.point(chunk, imm(0), at)
            for start in range(0, min(shape.columns, shape.outputs), self.panel.lanes):

                def element(lane: Expr, start: int = start) -> Stmt:
                    c = imm(start) + lane
                    return self.epilogue.finish({**point, channel: first + c}, load(held, c))

                width = min(self.panel.lanes, shape.outputs - start)
                out.append(loop(imm(width), element, "lane", VECTORIZED))
            return seq(out)

        return finish

    def _reach(self, number: Expr) -> Expr:
        """Return the distance of run `number` from the base."""
        return self.walk.reach(unravel(number, [imm(k) for k in self.shape.run_taps]))

    def _finish(self, chunk: Chunk, sums: Any, group: Expr, panel: Expr) -> Stmt:
        """Return the stores of a chunk through the epilogue."""
        shape, channel = self.shape, self.found.stage.spatial[-1]
        first = group * imm(shape.outputs) + panel * imm(shape.columns)

        def over(width: int) -> Stmt:
            def position(row: Expr, column: Expr) -> Stmt:
                out: list[Stmt] = []
                point = self.walk.point(chunk, row, column)
                at = let("at", simple((row * chunk.length + column) * imm(shape.columns)), out)

                def element(c: Expr) -> Stmt:
                    return self.epilogue.finish({**point, channel: first + c}, load(sums, at + c))

                return seq([*out, vector_loop(imm(width), self.panel.lanes, element)])

            return loop(chunk.rows, lambda r: loop(chunk.length, lambda c: position(r, c), "column"), "row")

        rest = shape.outputs - (shape.panels - 1) * shape.columns
        if rest == shape.columns or shape.panels == 1:
            return over(rest)
        return tirx.IfThenElse(panel < imm(shape.panels - 1), over(shape.columns), over(rest))
