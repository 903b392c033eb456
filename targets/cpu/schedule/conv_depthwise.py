"""Loops for a depthwise convolution, channels last: vectors of channels, no sum over channels.

A tile is some neighbouring positions times one vector of channels; with a stride of one its taps
share most of what they read, which LLVM then loads once.
"""

from __future__ import annotations

from itertools import product as cartesian
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.conv_shape import Convolution
from hcomp.targets.cpu.schedule.conv_walk import Chunk, Walk
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.nest import (
    Block,
    Expr,
    Stmt,
    as_int,
    ceil_div,
    flat_view,
    imm,
    let,
    load,
    load_vector,
    loop,
    overlapped,
    register_buffer,
    scratch,
    seq,
    simple,
    spread,
    store_vector,
    task_loops,
    vector_loop,
)

_POSITIONS = 64
"""About how many output positions one task computes."""

_TILE = 6
"""Positions of one register tile: enough sums to hide the latency of a multiply-add."""


def emit_depthwise(found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute the depthwise convolution and finish its elements."""
    return _Depthwise(found, epilogue, cpu).statement()


class _Depthwise:
    def __init__(self, found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.shape, self.epilogue = found, found.shape, epilogue
        self.walk = Walk(found, found.shape.positions or _POSITIONS)
        self.lanes = min(cpu.lanes(), self.shape.groups)

    def statement(self) -> Stmt:
        """Return one loop over chunks."""

        def body(source: Any, image: dict[Any, Expr]) -> Stmt:
            return task_loops(self.walk.extents, lambda i: self._task(source, image, i), parallel=self.found.parallel)

        return self.walk.over_images(body, parallel=self.found.parallel)

    def _task(self, source: Any, image: dict[Any, Expr], where: list[Expr]) -> Stmt:
        out: list[Stmt] = []
        chunk = self.walk.chunk(where, image, out)
        weight = flat_view(self.found.weight, out)
        known = as_int(chunk.length)
        if known is not None:
            out.append(self._rows(source, weight, chunk, min(_TILE, known)))
        elif self.walk.chunk_length < _TILE:
            out.append(self._rows(source, weight, chunk, 1))
        else:
            wide, narrow = (self._rows(source, weight, chunk, n) for n in (_TILE, 1))
            out.append(tirx.IfThenElse(chunk.length >= imm(_TILE), wide, narrow))
        return seq(out)

    def _rows(self, source: Any, weight: Any, chunk: Chunk, tile: int) -> Stmt:
        """Return all tiles of a chunk that is at least `tile` long; the last may overlap the one before."""
        tiles = ceil_div(chunk.length, tile)

        def one(row: Expr, number: Expr) -> Stmt:
            out: list[Stmt] = []
            start = simple(number * imm(tile))
            known = as_int(chunk.length)
            if known is None or known % tile:
                start = tirx.min(start, chunk.length - imm(tile))
            start = let("start", start, out)
            base = chunk.origin + row * self.walk.second.step + start * self.walk.last.step
            out.append(self._tile(source, weight, let("base", simple(base), out), chunk, row, start, tile))
            return seq(out)

        return loop(chunk.rows, lambda r: loop(tiles, lambda t: one(r, t), "tile"), "row")

    def _tile(self, source: Any, weight: Any, base: Expr, chunk: Chunk, row: Expr, start: Expr, tile: int) -> Stmt:
        lanes, channels = self.lanes, self.shape.groups
        out = Block()
        sums = scratch("sums", imm(tile * channels), "float32", out)

        def vector(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            at = overlapped(number, lanes, channels, inside)
            held = [register_buffer("held", lanes, "float32") for _ in range(tile)]
            inside.extend(tirx.AllocBuffer(h) for h in held)
            zero = spread(tirx.const(0, "float32"), lanes)
            inside.extend(store_vector(h, lanes, zero, 0) for h in held)
            inside.append(self._taps(source, weight, base + at, at, held))
            for p, h in enumerate(held):
                inside.append(store_vector(sums, lanes, load_vector(h, lanes, 0), imm(p * channels) + at))
            return seq(inside)

        out.append(loop(imm(-(-channels // lanes)), vector, "vector"))
        channel = self.found.stage.spatial[-1]

        def finish(p: Expr) -> Stmt:
            point = self.walk.point(chunk, row, start + p)

            def element(c: Expr) -> Stmt:
                return self.epilogue.finish({**point, channel: c}, load(sums, p * imm(channels) + c))

            return vector_loop(imm(channels), lanes, element)

        out.append(loop(imm(tile), finish, "position"))
        return seq(out)

    def _taps(self, source: Any, weight: Any, base: Expr, channel: Expr, held: list[Any]) -> Stmt:
        """Return the sums over all taps; those of the last axis are written out, so that loads are shared."""
        shape, walk, lanes = self.shape, self.walk, self.lanes
        *outer, width = shape.kernel

        def row(taps: list[Expr]) -> Stmt:
            out: list[Stmt] = []
            number: Expr = imm(0)
            for tap, count in zip(taps, outer, strict=True):
                number = number * imm(count) + tap
            reach = let("reach", simple(walk.reach(taps)), out)
            for q, (p, h) in cartesian(range(width), enumerate(held)):
                distance = walk.steps[-1] * imm(q * shape.dilation[-1]) + walk.last.step * imm(p)
                pixel = load_vector(source, lanes, base + reach + simple(distance))
                tap = load_vector(weight, lanes, (number * imm(width) + imm(q)) * imm(shape.groups) + channel)
                out.append(store_vector(h, lanes, load_vector(h, lanes, 0) + pixel * tap, 0))
            return seq(out)

        def over(number: int, taps: list[Expr]) -> Stmt:
            if number == len(outer):
                return row(taps)
            return loop(imm(outer[number]), lambda t: over(number + 1, [*taps, t]), "tap")

        return over(0, [])
