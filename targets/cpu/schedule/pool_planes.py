"""Loops for pooling with channels first: a plane at a time, each row in two steps.

What a window takes of one column is joined first, for all columns of the image, into a line with the
padding around it; then the columns of each window. So a 3x3 window costs 6 joins an element instead of
9, all of them over contiguous rows, and no plane is copied.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.maps import GRAIN_ELEMENTS
from hcomp.targets.cpu.schedule.nest import (
    Block,
    Expr,
    Stmt,
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
from hcomp.targets.cpu.schedule.pool_shape import Pooling, Window, Windows

_UNROLLED = 9
"""Rows of a window that are joined in registers; more go through the line one by one."""


def emit_plane_pool(found: Pooling, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute `found`, [N, C, *spatial], and finish every element with `epilogue`."""
    return _Planes(found, epilogue, cpu).statement()


class _Planes:
    def __init__(self, found: Pooling, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.epilogue, self.shape = found, epilogue, found.shape
        self.windows = Windows(found)
        self.lanes = cpu.lanes()
        self.heights = self.shape.window[:-1]
        self.begin, self.width = self.shape.begin[-1], self.windows.sizes[-1]
        self.columns = self.windows.outputs[-1]

    def statement(self) -> Stmt:
        """Return one loop over planes."""
        shape = self.shape
        out = Block(self.windows.prelude)
        source = flat_view(self.found.image, out)
        divisors: Any = None
        if shape.kind == "mean":
            divisors = scratch("divisors", simple(self.found.stage.store.buffer.shape[-1]), "int32", out)
            out.append(loop(self.columns, lambda x: self._divisor(divisors, x), "x"))
        batch, channels = self.found.image.shape[:2]

        def task(indices: list[Expr]) -> Stmt:
            return self._plane(source, divisors, indices)

        out.append(task_loops([batch, channels], task, parallel=self.found.stage.iterations >= GRAIN_ELEMENTS))
        return seq(out)

    def _divisor(self, divisors: Any, x: Expr) -> Stmt:
        out: list[Stmt] = []
        window = self.windows.at(len(self.heights), x, out)
        return seq([*out, store(divisors, tirx.Cast("int32", window.divisor), x)])

    def _plane(self, source: Any, divisors: Any, indices: list[Expr]) -> Stmt:
        shape, stage = self.shape, self.found.stage
        out = Block()
        image, result = self.found.image.shape[-1], stage.store.buffer.shape[-1]
        reach = (result - imm(1)) * imm(shape.strides[-1]) + imm((shape.window[-1] - 1) * shape.dilation[-1] + 1)
        total = simple(tirx.max(tirx.max(image + imm(self.begin), reach), imm(1)))
        line = scratch("line", total, "float32", out)
        start = imm(self.begin)
        behind = let("behind", simple(start + self.width), out)
        out.append(loop(start, lambda i: store(line, shape.start, i), "margin"))
        out.append(loop(simple(total - behind), lambda i: store(line, shape.start, behind + i), "margin"))
        number = let("plane", simple(indices[0] * self.found.image.shape[1] + indices[1]), out)

        def row(position: list[Expr]) -> Stmt:
            inside: list[Stmt] = []
            windows = [self.windows.at(axis, at, inside) for axis, at in enumerate(position)]
            inside.append(self._joined_rows(source, line, number, windows))
            inside.append(
                self._finish(line, divisors, dict(zip(stage.spatial, [*indices, *position], strict=False)), windows)
            )
            return seq(inside)

        out.append(task_loops(self.windows.outputs[:-1], row, parallel=False))
        return seq(out)

    def _joined_rows(self, source: Any, line: Any, plane: Expr, windows: list[Window]) -> Stmt:
        """Return the statement that puts the rows of `windows`, joined, into the line."""
        shape = self.shape
        steps = [imm(d) for d in shape.dilation[:-1]]

        def row(taps: list[Expr]) -> Expr:
            flat = plane
            for size, window, tap, step in zip(self.windows.sizes, windows, taps, steps, strict=False):
                flat = flat * size + (window.pixel + tap * step)
            return simple(flat) * self.width

        def every(count: int) -> Stmt:
            out: list[Stmt] = []
            rows = [let("row", row(unravel(imm(k), [imm(h) for h in self.heights])), out) for k in range(count)]

            def column(x: Expr) -> Stmt:
                value = shape.joined([load(source, start + x) for start in rows])
                return store(line, value, imm(self.begin) + x)

            return seq([*out, vector_loop(self.width, self.lanes, column)])

        def one_by_one() -> Stmt:
            def over(axis: int, taps: list[Expr]) -> Stmt:
                if axis < len(windows):
                    return loop(windows[axis].count, lambda k: over(axis + 1, [*taps, k]), "tap")
                out: list[Stmt] = []
                start = let("row", row(taps), out)

                def column(x: Expr) -> Stmt:
                    at = imm(self.begin) + x
                    return store(line, shape.join(load(line, at), load(source, start + x)), at)

                return seq([*out, loop(self.width, column, "x")])

            clear = loop(self.width, lambda x: store(line, shape.start, imm(self.begin) + x), "x")
            return seq([clear, over(0, [])])

        count = prod(self.heights)
        if count > _UNROLLED:
            return one_by_one()
        whole = [w.count >= imm(h) for w, h in zip(windows, self.heights, strict=True)]
        return tirx.IfThenElse(tirx.all(*whole), every(count), one_by_one()) if whole else every(1)

    def _finish(self, line: Any, divisors: Any, point: dict[Any, Expr], windows: list[Window]) -> Stmt:
        """Return the stores of one row of results."""
        shape, out = self.shape, Block()
        stride, steps, step = imm(shape.strides[-1]), shape.window[-1], imm(shape.dilation[-1])
        counted = imm(1)
        for window in windows:
            counted = counted * window.divisor
        counted = let("counted", simple(counted), out)
        done: Any = None
        if steps > _UNROLLED:
            done = scratch("done", simple(self.found.stage.store.buffer.shape[-1]), "float32", out)
            out.append(loop(self.columns, lambda x: store(done, shape.start, x), "x"))

            def tap(k: Expr) -> Stmt:
                def column(x: Expr) -> Stmt:
                    return store(done, shape.join(load(done, x), load(line, x * stride + k * step)), x)

                return loop(self.columns, column, "x")

            out.append(loop(imm(steps), tap, "tap"))

        def element(x: Expr) -> Stmt:
            if done is not None:
                value = load(done, x)
            else:
                value = shape.joined([load(line, x * stride + imm(k) * step) for k in range(steps)])
            if divisors is not None:
                whole = tirx.max(tirx.Cast("int32", counted) * load(divisors, x), tirx.const(1, "int32"))
                value = value / tirx.Cast("float32", whole)
            return self.epilogue.finish({**point, self.found.stage.spatial[-1]: x}, value)

        out.append(loop(self.columns, element, "x"))
        return seq(out)
