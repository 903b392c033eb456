"""The stores of a transposed convolution: each phase of a position goes to its place in the result."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from hcomp.targets.cpu.schedule.conv_shape import Convolution
from hcomp.targets.cpu.schedule.conv_walk import Chunk, Walk
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.nest import (
    Block,
    Expr,
    Stmt,
    imm,
    let,
    load,
    loop,
    scratch,
    seq,
    simple,
    store,
    unravel,
    vector_loop,
)


class Phases:
    """The end of one transposed convolution."""

    def __init__(self, found: Convolution, epilogue: Epilogue, walk: Walk, lanes: int) -> None:
        self.shape, self.epilogue, self.walk, self.lanes = found.shape, epilogue, walk, lanes
        _, *self.places, self.channel = found.stage.spatial
        self.sizes = found.stage.store.buffer.shape[1:-1]

    def finish(self, chunk: Chunk, sums: Any, group: Expr, panel: Expr) -> Stmt:
        """Return the stores of one chunk and panel through the epilogue."""
        shape = self.shape
        if shape.together == 1:
            part, phase = simple(tirx.floormod(panel, imm(shape.parts))), tirx.floordiv(panel, imm(shape.parts))
            first = simple(group * imm(shape.outputs) + part * imm(shape.columns))
            rest = shape.outputs - (shape.parts - 1) * shape.columns

            def over(width: int) -> Stmt:
                return self._phase(chunk, sums, simple(phase), imm(0), first, width)

            if rest == shape.columns or shape.parts == 1:
                return over(rest)
            return tirx.IfThenElse(part < imm(shape.parts - 1), over(shape.columns), over(rest))
        # Phases along the last axis stand side by side in the panel as in the result.
        along = shape.phases[-1] if shape.outputs < self.lanes and shape.together % shape.phases[-1] == 0 else 1
        first = simple(group * imm(shape.outputs))

        def phases(k: Expr) -> Stmt:
            number = simple(panel * imm(shape.together) + k * imm(along))
            at = simple(k * imm(along * shape.outputs))
            if along > 1:
                return self._line(chunk, sums, number, at, first)
            return self._phase(chunk, sums, number, at, first, shape.outputs)

        return loop(imm(shape.together // along), phases, "phase")

    def _phase(self, chunk: Chunk, sums: Any, phase: Expr, at: Expr, first: Expr, width: int) -> Stmt:
        """Return the stores of `width` channels from `first` on of one phase; its sums start at column `at`."""
        out = Block()
        offsets = self._offsets(phase, out)

        def position(row: Expr, column: Expr) -> Stmt:
            inside: list[Stmt] = []
            point = self._placed(self.walk.point(chunk, row, column), offsets, self.places, inside)
            start = let("at", simple((row * chunk.length + column) * imm(self.shape.columns) + at), inside)

            def element(c: Expr) -> Stmt:
                return self.epilogue.finish({**point, self.channel: first + c}, load(sums, start + c))

            return seq([*inside, self._guarded(point, self.places, vector_loop(imm(width), self.lanes, element))])

        out.append(loop(chunk.rows, lambda r: loop(chunk.length, lambda c: position(r, c), "column"), "row"))
        return seq(out)

    def _line(self, chunk: Chunk, sums: Any, phase: Expr, at: Expr, first: Expr) -> Stmt:
        """Return the stores of all phases along the last axis, row by row: few channels, but contiguous.

        `phase` is the first of them, `at` the column at which its sums start.
        """
        shape, out = self.shape, Block()
        run = shape.phases[-1] * shape.outputs
        line = scratch("line", imm(self.walk.chunk_length * run), "float32", out)
        offsets = self._offsets(phase, out)
        *outer, last = self.places

        def row(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            point = self._placed(self.walk.point(chunk, number, imm(0)), offsets, self.places, inside)
            start = let("x", point[last], inside)

            def column(c: Expr) -> Stmt:
                source = (number * chunk.length + c) * imm(shape.columns) + at
                return vector_loop(
                    imm(run), self.lanes, lambda j: store(line, load(sums, source + j), c * imm(run) + j)
                )

            count = simple(chunk.length * imm(shape.phases[-1]))
            low: Expr = imm(0)
            if shape.before[-1]:
                low = let("low", tirx.max(imm(0) - start, imm(0)), inside)
            if shape.behind[-1]:
                count = tirx.min(count, self.sizes[-1] - start)
            count = let("count", simple(count - low), inside)

            def pixel(x: Expr) -> Stmt:
                def element(o: Expr) -> Stmt:
                    here = {**point, last: start + low + x, self.channel: first + o}
                    return self.epilogue.finish(here, load(line, (low + x) * imm(shape.outputs) + o))

                return vector_loop(imm(shape.outputs), shape.outputs, element)

            body = seq([loop(chunk.length, column, "column"), loop(count, pixel, "pixel")])
            return seq([*inside, self._guarded(point, outer, body)])

        out.append(loop(chunk.rows, row, "row"))
        return seq(out)

    def _offsets(self, phase: Expr, out: list[Stmt]) -> list[Expr]:
        """Return, for every axis, where the phase is, counted from the first that is inside of the result."""
        found = unravel(phase, [imm(s) for s in self.shape.phases])
        return [let("offset", simple(r - imm(b)), out) for r, b in zip(found, self.shape.before, strict=True)]

    def _placed(
        self, point: dict[Any, Expr], offsets: list[Expr], places: list[Any], out: list[Stmt]
    ) -> dict[Any, Expr]:  # fmt: skip
        """Return the point of the result that a phase of a position of the walk writes."""
        moved = dict(point)
        for place, stride, offset in zip(places, self.shape.phases, offsets, strict=True):
            moved[place] = let("place", simple(point[place] * imm(stride) + offset), out)
        return moved

    def _guarded(self, point: dict[Any, Expr], places: list[Any], body: Stmt) -> Stmt:
        """Return `body`, done only where the point is inside of the result along `places`."""
        tests = []
        for place, size, before, behind in zip(
            places, self.sizes, self.shape.before, self.shape.behind, strict=False
        ):  # fmt: skip
            tests += [point[place] >= imm(0)] * bool(before) + [point[place] < size] * bool(behind)
        return tirx.IfThenElse(tirx.all(*tests), body, None) if tests else body
