"""Loops for a contraction: register tiles of rows x vectors, no predicate in the hot loop.

Tails are handled outside it: the last tile of rows (or of contiguous columns) starts early and
computes some elements twice; packed panels are padded with zeros and only their store is shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.contraction import Contraction, batch_count, static_rows
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.gemm_tile import Tile, best_rows, row_choices, tile_of, tile_work
from hcomp.targets.cpu.schedule.nest import (
    GRAIN_OPERATIONS,
    VECTORIZED,
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    imm,
    let,
    load,
    loads,
    loop,
    opaque_let,
    register_buffer,
    seq,
    simple,
    store,
    substitute,
    task_loops,
    unravel,
)

_ROW_TILES_A_TASK = 16


def emit_contraction(found: Contraction, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute `found` and finish every element with `epilogue`."""

    def variant(rows: int) -> Stmt:
        return _with_column_guard(found, epilogue, cpu, tile_of(found, rows, cpu))

    known = static_rows(found)
    if known is not None:
        return variant(min(known, found.tile_rows) or best_rows(known, cpu))
    most, fewer = row_choices(cpu)[-1], row_choices(cpu)[0]

    def work(rows: int) -> Expr:
        return ceil_div(found.row_count, rows) * imm(tile_work(rows))

    def filled(rows: int) -> Expr:
        return found.row_count >= imm(rows)

    # With few rows it is reading a weight that takes the time: each number of them has its own tile.
    few = variant(1)
    for rows in range(2 if found.packed else fewer, fewer + 1):
        few = tirx.IfThenElse(filled(rows), variant(rows), few)
    return tirx.IfThenElse(tirx.And(filled(most), work(most) <= work(fewer)), variant(most), few)


def _with_column_guard(found: Contraction, epilogue: Epilogue, cpu: CpuFeatures, tile: Tile) -> Stmt:
    """Direct tiles need at least one tile of columns; a symbolic extent is asked at run time."""
    main = _Variant(found, epilogue, cpu, tile).statement()
    columns = found.extent(found.column)
    if tile.copied or found.packed is not None or as_int(columns) is not None:
        return main
    narrow = Tile(tile.rows, 1, 1, copied=False)
    small = _Variant(found, epilogue, cpu, narrow).statement()
    return tirx.IfThenElse(columns >= imm(tile.columns), main, small)


class _Variant:
    """One loop nest for one register tile."""

    def __init__(self, found: Contraction, epilogue: Epilogue, cpu: CpuFeatures, tile: Tile) -> None:
        self.found, self.epilogue, self.cpu, self.tile = found, epilogue, cpu, tile
        self.columns = found.extent(found.column)
        self.rows = found.row_count
        self.row_tiles = ceil_div(self.rows, tile.rows)
        self.done = buffer("done", [tile.rows * tile.columns], found.accumulator)
        # Rows of several axes: dividing by a size that is not known takes long, so each tile does it once.
        self.divides = any(as_int(found.extent(v)) is None for v in found.rows[1:])
        self.places = buffer("places", [tile.rows * len(found.rows)], "int64")
        if found.packed is not None:
            panels = ceil_div(self.columns, found.packed)
            self.column_tiles = ceil_div(panels, tile.columns // found.packed)
        else:
            self.column_tiles = ceil_div(self.columns, tile.columns)

    def statement(self) -> Stmt:
        """Return the whole nest: tasks over (product, columns, rows)."""
        found = self.found
        chunk = self._row_tiles_a_task()
        row_tasks = ceil_div(self.row_tiles, chunk) if chunk is not None else imm(1)
        symbolic = any(as_int(e) is None for e in found.stage.extents.values())
        batch = [found.extent(v) for v in found.batch]
        shared = found.packed is not None
        extents = [self.column_tiles, *batch] if shared else [*batch, self.column_tiles]

        def task(indices: list[Expr]) -> Stmt:
            *outer, row_task = indices
            column_tile, *where = outer if shared else [outer[-1], *outer[:-1]]
            return self._task(where, column_tile, row_task, chunk)

        return task_loops(
            [*extents, row_tasks],
            task,
            parallel=symbolic or found.operations >= GRAIN_OPERATIONS,
        )

    def _row_tiles_a_task(self) -> int | None:
        """Split rows over tasks only when products and columns give too few tasks."""
        if self.tile.copied:
            return None
        tiles, columns = as_int(self.row_tiles), as_int(self.column_tiles)
        batch = as_int(simple(batch_count(self.found)))
        if tiles is None or columns is None or batch is None:
            return _ROW_TILES_A_TASK
        if batch * columns >= 4 * self.cpu.cores or tiles == 1:
            return None
        return max(1, min(_ROW_TILES_A_TASK, -(-tiles // (4 * self.cpu.cores))))

    def _task(self, where: list[Expr], column_tile: Expr, row_task: Expr, chunk: int | None) -> Stmt:
        out: list[Stmt] = []
        point = dict(zip(self.found.batch, where, strict=True))
        panel, first = self._columns_of(column_tile, out)
        point[self.found.column] = first
        out.append(tirx.AllocBuffer(self.done))
        if self.tile.copied:
            panel = self._copy_panel(point, first, out)
        tiles: Expr = self.row_tiles
        start: Expr = imm(0)
        if chunk is not None:
            start = row_task * imm(chunk)
            tiles = simple(tirx.min(imm(chunk), self.row_tiles - start))
        out.append(loop(tiles, lambda t: self._register_tile(point, panel, start + t), "row_tile"))
        return seq(out)

    def _columns_of(self, tile: Expr, out: list[Stmt]) -> tuple[Expr, Expr]:
        """Return (panel, first column) of a column tile."""
        packed, width = self.found.packed, self.tile.columns
        if packed is not None:
            wide = width // packed
            panels = as_int(ceil_div(self.columns, packed))
            assert panels is not None
            at = tile * imm(wide)
            panel = at if panels % wide == 0 else tirx.min(at, imm(panels - wide))
            panel = let("panel", panel, out)
            return panel, let("column", panel * imm(packed), out)
        first = tile * imm(width)
        known = as_int(self.columns)
        if not self.tile.copied and (known is None or known % width != 0):
            first = tirx.min(first, self.columns - imm(width))
        return imm(0), let("column", first, out)

    def _copy_panel(self, point: dict[Any, Expr], first: Expr, out: list[Stmt]) -> Expr:
        """Append the copy of `b[:, first : first + width]` as [k][width], padded with zeros."""
        found, width = self.found, self.tile.columns
        (inner,) = found.inner
        depth = found.extent(inner)
        panel = buffer("panel", [depth, imm(width)], found.accumulator)
        out.append(tirx.AllocBuffer(panel))
        known = as_int(self.columns)
        partial = known is None or known % width != 0
        zero = tirx.const(0, found.accumulator)

        def element(k: Expr, j: Expr) -> Stmt:
            value = substitute(found.b, {**point, inner: k, found.column: first + j})
            return store(panel, value, k, j)

        def full(_: Expr) -> Stmt:
            if found.unit:
                return loop(depth, lambda k: loop(imm(width), lambda j: element(k, j), "j", VECTORIZED), "k")
            return loop(depth, lambda k: seq([element(k, imm(j)) for j in range(width)]), "k")

        def short(_: Expr) -> Stmt:
            here = self.columns - first
            return loop(
                depth,
                lambda k: seq(
                    [
                        loop(imm(width), lambda j: store(panel, zero, k, j), "j", VECTORIZED),
                        loop(here, lambda j: element(k, j), "j"),
                    ]
                ),
                "k",
            )

        if not partial:
            out.append(full(imm(0)))
        elif known is not None and known < width:
            out.append(short(imm(0)))
        else:
            fits = first + imm(width) <= self.columns
            out.append(tirx.IfThenElse(fits, full(imm(0)), short(imm(0))))
        return panel

    def _register_tile(self, outer: dict[Any, Expr], panel: Any, tile_number: Expr) -> Stmt:
        """Return one register tile: zero, accumulate over k, finish."""
        tile, found = self.tile, self.found
        out: list[Stmt] = []
        first_row = tile_number * imm(tile.rows)
        known = as_int(self.rows)
        if tile.rows > 1 and (known is None or known % tile.rows != 0):
            first_row = tirx.min(first_row, self.rows - imm(tile.rows))
        first_row = let("row", first_row, out)
        sums = [register_buffer("sums", tile.columns, found.accumulator) for _ in range(tile.rows)]
        out.extend(tirx.AllocBuffer(row) for row in sums)
        zero = tirx.const(0, found.accumulator)
        # A store before the sums are dead keeps TVM from giving both buffers the same storage.
        out.append(store(self.done, zero, imm(0)))
        for row, v in self._spots():

            def clear(at: Expr, row: int = row) -> Stmt:
                return store(sums[row], zero, at)

            out.append(self._lanes(clear, imm(v * tile.lanes)))
        points = self._row_points(outer, first_row, out)
        out.append(self._accumulate(points, panel, sums))
        out.extend(self._finish(outer, first_row, sums))
        return seq(out)

    def _spots(self) -> list[tuple[int, int]]:
        """Return every (row, vector) of the register tile."""
        return [(r, v) for r in range(self.tile.rows) for v in range(self.tile.vectors)]

    def _lanes(self, body: Callable[[Expr], Stmt], base: Expr) -> Stmt:
        """Return `body(base + lane)` for every lane of one vector, as one vector statement."""
        return loop(imm(self.tile.lanes), lambda lane: body(base + lane), "lane", VECTORIZED)

    def _row_point(self, outer: dict[Any, Expr], row: Expr, out: list[Stmt]) -> dict[Any, Expr]:
        rows = self.found.rows
        indices = unravel(row, [self.found.extent(v) for v in rows])
        bound = {v: let(str(v.name), i, out) for v, i in zip(rows, indices, strict=True)}
        return {**outer, **bound}

    def _kept_point(self, outer: dict[Any, Expr], row: Expr, out: list[Stmt]) -> dict[Any, Expr]:
        """Return the point of row number `row` of the tile, as `_row_points` has kept it."""
        rows = self.found.rows
        kept = {v: load(self.places, row * imm(len(rows)) + imm(k)) for k, v in enumerate(rows)}
        return {**outer, **{v: let(str(v.name), place, out) for v, place in kept.items()}}

    def _row_points(self, outer: dict[Any, Expr], first: Expr, out: list[Stmt]) -> list[dict[Any, Expr]]:
        """Return the point of each row of a tile, and keep their places for `_finish` where it takes a division."""
        rows = self.found.rows
        if not self.divides:
            return [self._row_point(outer, first + imm(r), out) for r in range(self.tile.rows)]
        out.append(tirx.AllocBuffer(self.places))
        # TVM takes a divisor that is a plain size for one that may be zero.
        extents = [opaque_let("extent", tirx.max(self.found.extent(v), imm(1)), out) for v in rows]
        places = [opaque_let("place", place, out) for place in unravel(first, extents)]
        points = [{**outer, **dict(zip(rows, places, strict=True))}]
        for _ in range(1, self.tile.rows):
            point, step = dict(points[-1]), imm(1)
            for v in reversed(rows):
                following = opaque_let(str(v.name), point[v] + step, out)
                if v is not rows[0]:
                    wraps = following >= self.found.extent(v)
                    following = opaque_let(str(v.name), tirx.Select(wraps, imm(0), following), out)
                    step = opaque_let("step", tirx.Select(wraps, step, imm(0)), out)
                point[v] = following
            points.append(point)
        for r, point in enumerate(points):
            out.extend(store(self.places, point[v], imm(r * len(rows) + k)) for k, v in enumerate(rows))
        return points

    def _accumulate(self, points: list[dict[Any, Expr]], panel: Any, sums: list[Any]) -> Stmt:
        found, tile = self.found, self.tile

        def step(inner: dict[Any, Expr]) -> Stmt:
            body = []
            for r, point in enumerate(points):
                a = substitute(found.a, {**point, **inner})
                for v in range(tile.vectors):
                    base = imm(v * tile.lanes)

                    def add(lane: Expr, a: Expr = a, v: int = v, base: Expr = base, r: int = r) -> Stmt:
                        b = self._b(points[0], inner, panel, v, lane)
                        return store(sums[r], load(sums[r], base + lane) + a * b, base + lane)

                    body.append(self._lanes(add, imm(0)))
            return seq(body)

        return self._over_inner(list(found.inner), {}, step)

    def _over_inner(
        self,
        variables: list[Any],
        bound: dict[Any, Expr],
        body: Callable[[dict[Any, Expr]], Stmt],
    ) -> Stmt:
        if not variables:
            return body(bound)
        first, *rest = variables
        return loop(
            self.found.extent(first),
            lambda k: self._over_inner(rest, {**bound, first: k}, body),
            "k",
        )

    def _b(self, point: dict[Any, Expr], inner: dict[Any, Expr], panel: Any, v: int, lane: Expr) -> Expr:
        """Return lane `lane` of vector `v` of the row of `b` at `inner`."""
        found, tile = self.found, self.tile
        offset = v * tile.lanes
        if tile.copied:
            return load(panel, inner[found.inner[0]], imm(offset) + lane)
        if found.packed is not None:
            (source,) = loads(found.b)
            number, within = divmod(offset, found.packed)
            return load(
                source.source,
                panel + imm(number),
                inner[found.inner[0]],
                imm(within) + lane,
            )
        column = point[found.column] + imm(offset) + lane
        return substitute(found.b, {**point, **inner, found.column: column})

    def _finish(self, outer: dict[Any, Expr], first_row: Expr, sums: list[Any]) -> list[Stmt]:
        """Copy the sums out of the registers, then store each element through the epilogue.

        The copy keeps `sums` free of variable indices (LLVM then holds it in registers) and lets one
        compact loop serve all rows.
        """
        tile, found, done = self.tile, self.found, self.done
        out: list[Stmt] = []
        for number, v in self._spots():

            def keep(at: Expr, number: int = number) -> Stmt:
                return store(done, load(sums[number], at), imm(number * tile.columns) + at)

            out.append(self._lanes(keep, imm(v * tile.lanes)))
        first = outer[found.column]

        def row(body: Callable[[dict[Any, Expr], Expr], Stmt]) -> Stmt:
            def one(r: Expr) -> Stmt:
                bound: list[Stmt] = []
                point = (
                    self._kept_point(outer, r, bound) if self.divides else self._row_point(outer, first_row + r, bound)
                )
                return seq([*bound, body(point, r * imm(tile.columns))])

            return loop(imm(tile.rows), one, "r")

        def element(point: dict[Any, Expr], base: Expr, offset: Expr) -> Stmt:
            here = {**point, found.column: first + offset}
            return self.epilogue.finish(here, load(done, base + offset))

        def whole(point: dict[Any, Expr], base: Expr) -> Stmt:
            return seq(
                [self._lanes(lambda at: element(point, base, at), imm(v * tile.lanes)) for v in range(tile.vectors)]
            )

        def short(point: dict[Any, Expr], base: Expr) -> Stmt:
            return loop(self.columns - first, lambda at: element(point, base, at), "c")

        out.append(self._shortened(first, row(whole), row(short)))
        return out

    def _shortened(self, first: Expr, whole: Stmt, short: Stmt) -> Stmt:
        """Return `whole`, or a run-time choice where the last columns do not fill the tile."""
        tile, known = self.tile, as_int(self.columns)
        padded = tile.copied or self.found.packed is not None
        unit = self.found.packed or tile.columns
        if not padded or (known is not None and known % unit == 0):
            return whole
        if known is not None and known < tile.columns:
            return short
        return tirx.IfThenElse(first + imm(tile.columns) <= self.columns, whole, short)
