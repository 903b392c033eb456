"""Loops for a 3x3 convolution by Winograd's filtering: transform, many small products, transform back.

Tiles of m x m outputs are done in chunks: the transformed data and the products of one chunk stay in the
cache. With a dilation of d, every d-th row or column is a convolution of its own, and a tile is of one of them.
`winograd.py` has the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.conv_shape import Convolution
from hcomp.targets.cpu.schedule.conv_walk import Walk
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.nest import (
    PARALLEL,
    SERIAL,
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
    opaque_let,
    overlapped,
    register_buffer,
    scratch,
    seq,
    simple,
    spread,
    store_vector,
    task_loops,
    unravel,
    vector_loop,
)
from hcomp.targets.cpu.schedule.panel import Panel
from hcomp.targets.cpu.schedule.winograd import FILTERING, Matrix

_CHUNK_BYTES = 1 << 20
"""What the data and the products of one chunk of tiles take."""

_FEWEST = 24
"""Tiles of a chunk at least, so that each load of the weights is used often."""


def emit_winograd(found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute the convolution and finish its elements."""
    return _Winograd(found, epilogue, cpu).statement()


class _Winograd:
    def __init__(self, found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.epilogue = found, epilogue
        self.shape = shape = found.shape
        self.m, self.n = shape.tile, shape.tile + 2
        raw_outputs = found.stage.store.buffer.shape[1:-1]
        squares = [(ceil_div(ceil_div(o, d), self.m), d) for o, d in zip(raw_outputs, shape.dilation, strict=True)]
        self.walk = Walk(found, 1, [simple((count * imm(self.m) + imm(2)) * imm(d)) for count, d in squares])
        self.outputs = [opaque_let("output", o, self.walk.prelude) for o in raw_outputs]
        self.tiles = [opaque_let("tiles", count * imm(d), self.walk.prelude) for count, d in squares]
        self.total = simple(self.tiles[0] * self.tiles[1])
        self.lanes = min(cpu.lanes(), shape.inputs)
        self.chunk = self._chunk_tiles()
        self.panel = Panel.of(shape.columns, 1, shape.inputs, self.chunk, cpu)
        self.places = self.panel.places(self.chunk)
        # Whole chunks are the tasks where there are enough of them.
        chunks = as_int(ceil_div(self.total, self.chunk))
        self.by_chunks = found.parallel and (chunks is None or chunks >= cpu.cores)
        self.inside = PARALLEL if found.parallel and not self.by_chunks else SERIAL

    def _chunk_tiles(self) -> int:
        each = self.n * self.n * 4 * (self.shape.inputs + self.shape.panels * self.shape.columns)
        most = max(_FEWEST, _CHUNK_BYTES // each)
        total = as_int(self.total)
        if total is None:
            return most
        return -(-total // -(-total // most))

    def statement(self) -> Stmt:
        """Return the loop over chunks of tiles, for every image."""
        return self.walk.over_images(self._chunks, parallel=self.found.parallel)

    def _chunks(self, source: Any, image: dict[Any, Expr]) -> Stmt:
        def one(number: Expr) -> Stmt:
            out = Block()
            first = let("first", simple(number * imm(self.chunk)), out)
            known = as_int(self.total)
            exact = known is not None and known % self.chunk == 0
            count = imm(self.chunk) if exact else let("count", tirx.min(imm(self.chunk), self.total - first), out)
            squares = self.n * self.n
            data = scratch("data", imm(squares * self.chunk * self.shape.inputs), "float32", out)
            size = squares * self.shape.panels * self.places * self.shape.columns
            products = scratch("products", imm(size), "float32", out)
            weight = flat_view(self.found.weight, out)
            out.append(loop(count, lambda t: self._spread(source, data, first + t, t), "tile", self.inside))
            out.append(self._multiply(data, weight, products, count))
            out.append(loop(count, lambda t: self._gather(products, image, first + t, t), "tile", self.inside))
            return seq(out)

        return loop(ceil_div(self.total, self.chunk), one, "chunk", PARALLEL if self.by_chunks else SERIAL)

    def _corner(self, tile: Expr, out: list[Stmt]) -> tuple[Expr, Expr]:
        """Return the first output row and column of a tile."""

        def first(name: str, number: Expr, dilation: int) -> Expr:
            place = tirx.floordiv(number, imm(dilation)) * imm(self.m * dilation)
            return let(name, simple(place + tirx.floormod(number, imm(dilation))), out)

        y, x = unravel(tile, self.tiles)
        return first("y", y, self.shape.dilation[0]), first("x", x, self.shape.dilation[1])

    def _spread(self, source: Any, data: Any, tile: Expr, slot: Expr) -> Stmt:
        """Return the transform of one tile's input: BT d B for every vector of channels."""
        out: list[Stmt] = []
        channels, (down, across) = self.shape.inputs, self.walk.steps
        y, x = self._corner(tile, out)
        base = let("base", y * down + x * across, out)
        down, across = (step * imm(d) for step, d in zip((down, across), self.shape.dilation, strict=True))

        def vector(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            at = overlapped(number, self.lanes, channels, inside)

            def pixel(i: int, j: int) -> Expr:
                return load_vector(source, self.lanes, base + imm(i) * down + imm(j) * across + at)

            def keep(i: int, j: int, value: Expr) -> Stmt:
                place = (imm((i * self.n + j) * self.chunk) + slot) * imm(channels) + at
                return store_vector(data, self.lanes, value, place)

            inside.append(_sandwich(FILTERING[self.m].data, pixel, keep, self.lanes))
            return seq(inside)

        out.append(loop(imm(-(-channels // self.lanes)), vector, "vector"))
        return seq(out)

    def _multiply(self, data: Any, weight: Any, products: Any, count: Expr) -> Stmt:
        """Return the product of each of the n x n components with its panels."""
        shape = self.shape

        def one(indices: list[Expr]) -> Stmt:
            component, panel = indices
            out: list[Stmt] = []
            number = let("number", simple(component * imm(shape.panels) + panel), out)
            start = let("start", component * imm(self.chunk * shape.inputs), out)
            first = let("weights", number * imm(shape.inputs * shape.columns), out)
            at = let("products", number * imm(self.places * shape.columns), out)

            def base(p: Expr) -> Expr:
                return start + tirx.min(p, count - imm(1)) * imm(shape.inputs)

            out.append(self.panel.product(data, weight, first, products, at, count, base, lambda _: imm(0)))
            return seq(out)

        return task_loops([imm(self.n * self.n), imm(shape.panels)], one, parallel=self.inside == PARALLEL)

    def _gather(self, products: Any, image: dict[Any, Expr], tile: Expr, slot: Expr) -> Stmt:
        """Return the transform back of one tile, AT p A, and the stores of its outputs."""
        shape, m = self.shape, self.m
        out = Block()
        y, x = self._corner(tile, out)
        lanes, width = self.panel.lanes, shape.panels * shape.columns
        square = scratch("square", imm(m * m * width), "float32", out)

        def vector(indices: list[Expr]) -> Stmt:
            panel, number = indices
            inside: list[Stmt] = []
            column = let("column", number * imm(lanes), inside)
            start = let("start", (panel * imm(self.places) + slot) * imm(shape.columns) + column, inside)
            target = let("target", panel * imm(shape.columns) + column, inside)

            def component(i: int, j: int) -> Expr:
                skipped = (i * self.n + j) * shape.panels * self.places * shape.columns
                return load_vector(products, lanes, start + imm(skipped))

            def keep(i: int, j: int, value: Expr) -> Stmt:
                return store_vector(square, lanes, value, imm((i * m + j) * width) + target)

            inside.append(_sandwich(FILTERING[m].result, component, keep, lanes))
            return seq(inside)

        out.append(task_loops([imm(shape.panels), imm(shape.columns // lanes)], vector, parallel=False))
        batch, *places, channel = self.found.stage.spatial
        point = {batch: image.get(batch, imm(0))}

        below, beside = shape.dilation

        def position(i: Expr, j: Expr) -> Stmt:
            here = {**point, places[0]: y + i * imm(below), places[1]: x + j * imm(beside)}

            def element(c: Expr) -> Stmt:
                value = load(square, (i * imm(m) + j) * imm(width) + c)
                return self.epilogue.finish({**here, channel: c}, value)

            return vector_loop(imm(shape.outputs), lanes, element)

        ends = zip(self.outputs, (y, x), shape.dilation, strict=True)
        rows, columns = (tirx.min(imm(m), tirx.max(imm(0), ceil_div(simple(e - p), d))) for e, p, d in ends)
        out.append(loop(simple(rows), lambda i: loop(simple(columns), lambda j: position(i, j), "j"), "i"))
        return seq(out)


def _sandwich(
    matrix: Matrix, read: Callable[[int, int], Expr], write: Callable[[int, int, Expr], Stmt], lanes: int
) -> Stmt:
    """Return the statements that write `matrix X matrixT`, X given by `read`."""
    rows, n = len(matrix), len(matrix[0])
    half = [register_buffer("half", n * lanes, "float32") for _ in range(rows)]
    out: list[Stmt] = [tirx.AllocBuffer(h) for h in half]
    for j in range(n):
        column = [read(i, j) for i in range(n)]
        out.extend(store_vector(half[r], lanes, _combined(matrix[r], column, lanes), j * lanes) for r in range(rows))
    for r in range(rows):
        row = [load_vector(half[r], lanes, j * lanes) for j in range(n)]
        out.extend(write(r, s, _combined(matrix[s], row, lanes)) for s in range(rows))
    return seq(out)


def _combined(factors: Sequence[float], values: Sequence[Expr], lanes: int) -> Expr:
    """Return the sum of factor times value, without products by 0, 1 and -1."""
    total: Expr = None
    # A positive term first: nothing to negate.
    for factor, value in sorted(zip(factors, values, strict=True), key=lambda pair: pair[0] <= 0):
        if factor == 0:
            continue
        size = abs(factor)
        term = value if size == 1 else value * spread(tirx.const(size, "float32"), lanes)
        if total is None:
            total = term if factor > 0 else term * spread(tirx.const(-1.0, "float32"), lanes)
        else:
            total = total + term if factor > 0 else total - term
    return total
