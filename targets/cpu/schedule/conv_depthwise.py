"""Loops for a depthwise convolution, channels last: vectors of channels, no sum over channels.

A tile is some neighbouring positions times one vector of channels; with a stride of one its taps
share most of what they read, which LLVM then loads once.

Where windows reach over the edge of an image, the taps that are outside are left out: on the last axis a tile at
the edge is code of its own, on the others the loop over taps begins later or ends earlier. Of free widths the
first tile and the last ones are known all the same, by their distance from the edge; a tile that is near both edges
goes position by position, its loop over the last axis' taps bounded as those of the others.
"""

from __future__ import annotations

from itertools import product as cartesian
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.conv_edges import NOTHING, TILE, Kind, Outside, free_kinds, known_kinds, tile_of
from hcomp.targets.cpu.schedule.conv_shape import Convolution
from hcomp.targets.cpu.schedule.conv_walk import Chunk, Walk
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.nest import (
    VECTORIZED,
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


def emit_depthwise(found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute the depthwise convolution and finish its elements."""
    return _Depthwise(found, epilogue, cpu).statement()


class _Depthwise:
    """One depthwise convolution.

    Attributes:
        kinds: the kinds of tiles that are code of their own; others have nothing outside.
        free: whether the width is not known: tiles of no kind go position by position.
    """

    def __init__(self, found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.shape, self.epilogue = found, found.shape, epilogue
        self.lanes = min(cpu.lanes(), self.shape.groups)
        positions = found.shape.positions or _POSITIONS
        self.walk = Walk(found, positions, in_place=found.shape.padded)
        self.free, self.kinds = False, []
        if found.shape.padded:
            size, length = as_int(self.walk.sizes[-1]), as_int(self.walk.last.extent)
            if size is None or length is None:
                self.free = True
                kinds: list[Kind] | None = free_kinds(self.shape, self.walk.sizes[-1], self.walk.last.extent)
            else:
                kinds = known_kinds(self.shape, size, length, self.walk.chunk_length)
            if kinds is None:
                self.walk = Walk(found, positions)
            self.kinds = kinds or []

    def statement(self) -> Stmt:
        """Return one loop over chunks."""

        def body(source: Any, image: dict[Any, Expr]) -> Stmt:
            return task_loops(self.walk.extents, lambda i: self._task(source, image, i), parallel=self.found.parallel)

        return self.walk.over_images(body, parallel=self.found.parallel)

    def _task(self, source: Any, image: dict[Any, Expr], where: list[Expr]) -> Stmt:
        out: list[Stmt] = []
        chunk = self.walk.chunk(where, image, out)
        weight = flat_view(self.found.weight, out)
        known = as_int(chunk.length) is not None
        tile = tile_of(self.walk.chunk_length, whole=known)
        rows = self._rows(source, weight, chunk, tile)
        if not known and tile > 1:
            rows = tirx.IfThenElse(chunk.length >= imm(tile), rows, self._rows(source, weight, chunk, 1))
        return seq([*out, rows])

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
            base = let("base", simple(base), out)
            at = simple(chunk.first[1] + start)
            if self.free:
                found = self._by_positions(source, weight, base, chunk, row, start, tile)
            else:
                found = self._tile(source, weight, base, chunk, row, start, tile, NOTHING)
            if not self.free or tile == TILE:
                for kind in reversed(self.kinds):
                    part = self._tile(source, weight, base, chunk, row, start, tile, kind.outside)
                    found = tirx.IfThenElse(kind.holds(at), part, found)
            return seq([*out, found])

        return loop(chunk.rows, lambda r: loop(tiles, lambda t: one(r, t), "tile"), "row")

    def _by_positions(
        self, source: Any, weight: Any, base: Expr, chunk: Chunk, row: Expr, start: Expr, tile: int
    ) -> Stmt:
        """Return a tile whose positions are done one by one, with the taps that are inside."""

        def one(p: Expr) -> Stmt:
            here = simple(base + p * self.walk.last.step)
            return self._tile(source, weight, here, chunk, row, start + p, 1, None)

        return loop(imm(tile), one, "position")

    def _tile(
        self, source: Any, weight: Any, base: Expr, chunk: Chunk, row: Expr, start: Expr, tile: int,
        outside: Outside | None,
    ) -> Stmt:  # fmt: skip
        """Return one tile; without `outside`, only the run knows what is."""
        lanes, channels = self.lanes, self.shape.groups
        out, channel, cheap = Block(), self.found.stage.spatial[-1], self.epilogue.cheap
        points = [self.walk.point(chunk, row, start + imm(p)) for p in range(tile)]
        sums = None if cheap else scratch("sums", imm(tile * channels), "float32", out)

        def vector(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            at = overlapped(number, lanes, channels, inside)
            held = [register_buffer("held", lanes, "float32") for _ in range(tile)]
            inside.extend(tirx.AllocBuffer(h) for h in held)
            zero = spread(tirx.const(0, "float32"), lanes)
            inside.extend(store_vector(h, lanes, zero, 0) for h in held)
            inside.append(self._taps(source, weight, base + at, at, held, points[0], outside))
            for p, h in enumerate(held):
                if sums is not None:
                    inside.append(store_vector(sums, lanes, load_vector(h, lanes, 0), imm(p * channels) + at))
                    continue

                def element(lane: Expr, p: int = p, h: Any = h) -> Stmt:
                    return self.epilogue.finish({**points[p], channel: at + lane}, load(h, lane))

                inside.append(loop(imm(lanes), element, "lane", VECTORIZED))
            return seq(inside)

        out.append(loop(imm(-(-channels // lanes)), vector, "vector"))
        if sums is None:
            return seq(out)

        def finish(p: Expr) -> Stmt:
            point = self.walk.point(chunk, row, start + p)

            def element(c: Expr) -> Stmt:
                return self.epilogue.finish({**point, channel: c}, load(sums, p * imm(channels) + c))

            return vector_loop(imm(channels), lanes, element)

        out.append(loop(imm(tile), finish, "position"))
        return seq(out)

    def _taps(
        self,
        source: Any,
        weight: Any,
        base: Expr,
        channel: Expr,
        held: list[Any],
        point: dict[Any, Expr],
        outside: Outside | None,
    ) -> Stmt:
        """Return the sums over all taps; those of the last axis are written out, so that loads are shared."""
        shape, walk, lanes = self.shape, self.walk, self.lanes
        *outer, width = (*shape.kernel, 1) if outside is None else shape.kernel

        def row(taps: list[Expr]) -> Stmt:
            out: list[Stmt] = []
            number: Expr = imm(0)
            for tap, count in zip(taps, outer, strict=True):
                number = number * imm(count) + tap
            reach = let("reach", simple(walk.reach(taps)), out)
            for q, (p, h) in cartesian(range(width), enumerate(held)):
                if outside and (q, p) in outside:
                    continue
                distance = walk.steps[-1] * imm(q * shape.dilation[-1]) + walk.last.step * imm(p)
                pixel = load_vector(source, lanes, base + reach + simple(distance))
                tap = load_vector(weight, lanes, (number * imm(width) + imm(q)) * imm(shape.groups) + channel)
                out.append(store_vector(h, lanes, load_vector(h, lanes, 0) + pixel * tap, 0))
            return seq(out)

        def over(number: int, taps: list[Expr]) -> Stmt:
            if number == len(outer):
                return row(taps)
            out: list[Stmt] = []
            first, count = self._inside(number, point, out)
            return seq([*out, loop(count, lambda t: over(number + 1, [*taps, simple(first + t)]), "tap")])

        return over(0, [])

    def _inside(self, number: int, point: dict[Any, Expr], out: list[Stmt]) -> tuple[Expr, Expr]:
        """Return the first tap of an axis that is inside of the image, and how many there are."""
        shape = self.shape
        taps, dilation, begin = imm(shape.kernel[number]), shape.dilation[number], imm(shape.begin[number])
        if self.walk.copied or not (shape.begin[number] or shape.end[number]):
            return imm(0), taps
        before = begin - point[self.found.stage.spatial[1 + number]] * imm(shape.strides[number])
        first = let("first", tirx.max(imm(0), ceil_div(simple(before), dilation)), out)
        end = tirx.min(taps, ceil_div(simple(before + self.walk.sizes[number]), dilation))
        return first, let("taps", end - first, out)
