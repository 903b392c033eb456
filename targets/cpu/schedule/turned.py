"""Loops for a map whose input is contiguous along another axis than its output: a transpose.

Tiles of both axes go through vector registers: rows are loaded along the input's last axis, turned by
shuffles, and stored along the output's. The last tile of an axis overlaps the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.maps import worth_threads
from hcomp.targets.cpu.schedule.nest import (
    VECTORIZED,
    Expr,
    Stmt,
    as_int,
    ceil_div,
    imm,
    imm32,
    let,
    load,
    load_vector,
    loads,
    loop,
    register_buffer,
    replace_loads,
    same,
    seq,
    simple,
    store,
    store_vector,
    substitute,
    task_loops,
)
from hcomp.targets.cpu.schedule.stages import Stage

_TILES = {4: (8, 4), 8: (4,)}
"""By bytes of an element, rows and columns of a tile, best first."""

_SQUARE = 8
"""Rows and columns of a tile of other elements, which are moved one by one."""

_FEW = 3
"""An axis of at most so many elements is done at once for every element of the other."""


@dataclass(frozen=True)
class _Turned:
    """A map of one turned input.

    Attributes:
        stage: the map.
        item: the load.
        row: the variable along which the input is contiguous.
        column: the variable along which the output is contiguous.

    Axes of size 1 behind `row` and `column` do not count: their only index is 0.
    """

    stage: Stage
    item: Any
    row: Any
    column: Any


def emit_turned(stage: Stage, cpu: CpuFeatures) -> Stmt | None:
    """Return the loops of a map of a turned input, or None where `stage` is something else."""
    found = _match(stage)
    if found is None:
        return None
    rows, columns = (stage.extents[v] for v in (found.row, found.column))
    known = [n for n in (as_int(rows), as_int(columns)) if n is not None]
    if known and min(known) <= _FEW:
        return _few(found, rows, columns)
    size = _itemsize(found.item.source)
    fits = [n for n in _TILES.get(size, ()) if n * size <= cpu.vector_bytes and n <= min((n, *known))]
    tile = fits[0] if fits else min(_SQUARE, *known) if known else _SQUARE
    return _tiled(found, rows, columns, tile, shuffled=bool(fits))


def _itemsize(source: Any) -> int:
    """Return the bytes of an element; 0 for less than one."""
    return int(tvm.DataType(str(source.dtype)).bits) // 8


def _match(stage: Stage) -> _Turned | None:
    """Return the turned input: read once, at plain variables, and by no choice."""
    variables = stage.spatial
    if len(variables) < 2 or not all(a.same_as(b) for a, b in zip(stage.store.indices, variables, strict=False)):
        return None
    if len(stage.store.indices) != len(variables) or _chooses(stage.store.value):
        return None
    column = _contiguous(stage, variables)
    found = loads(stage.store.value)
    item = next((f for f in found if _turns(stage, f, column)), None)
    if item is None:
        return None
    for other in found:
        if other.source.same_as(item.source) and not same(other.indices, item.indices):
            return None
    indices = list(item.indices)
    fit = all(i in stage.extents and same(stage.extents[i], d) for i, d in zip(indices, item.source.shape, strict=True))
    row = _contiguous(stage, indices)
    return _Turned(stage, item, row, column) if fit and len(set(indices)) == len(indices) else None


def _contiguous(stage: Stage, indices: Sequence[Any]) -> Any:
    """Return the last of `indices` that can be other than 0, or the last one."""
    longer = [i for i in indices if as_int(stage.extents.get(i)) != 1]
    return longer[-1] if longer else indices[-1]


def _turns(stage: Stage, item: Any, column: Any) -> bool:
    """Return whether `item` is read by `column`, but is contiguous along something else."""
    indices = list(item.indices)
    return any(column.same_as(i) for i in indices) and not column.same_as(_contiguous(stage, indices))


def _chooses(value: Any) -> bool:
    """Return whether an element may be read only under a condition."""
    found = False

    def look(node: Any) -> None:
        nonlocal found
        found = found or isinstance(node, tirx.Select) or "if_then_else" in str(getattr(node, "op", ""))

    tvm_ffi.structural_walk(value, (tvm.ir.Expr, look))
    return found


def _around(found: _Turned, body: Any, rows: Expr) -> Stmt:
    """Return `body(point, row number)` in loops over `rows` and over all variables but the two."""
    stage = found.stage
    outer = [v for v in stage.spatial if v not in (found.row, found.column)]

    def task(indices: list[Expr]) -> Stmt:
        *rest, number = indices
        return body(dict(zip(outer, rest, strict=True)), number)

    return task_loops([*(stage.extents[v] for v in outer), rows], task, parallel=worth_threads(stage))


def _element(found: _Turned, point: dict[Any, Expr], value: Expr | None = None) -> Stmt:
    """Return the store of the element at `point`; `value` stands for that of the turned input."""
    stage = found.stage
    body = substitute(stage.store.value, point)
    if value is not None:
        body = replace_loads(stage.store.value, found.item.source, lambda _: value)
        body = substitute(body, point)
    return tirx.BufferStore(stage.store.buffer, body, [substitute(i, point) for i in stage.store.indices])


def _few(found: _Turned, rows: Expr, columns: Expr) -> Stmt:
    """Return loops whose innermost step does the whole of the shorter axis, for LLVM to interleave."""
    short_rows = (as_int(rows) or _FEW + 1) <= _FEW
    short, long = (found.row, found.column) if short_rows else (found.column, found.row)
    count = as_int(rows if short_rows else columns)
    assert count is not None

    def body(point: dict[Any, Expr], _: Expr) -> Stmt:
        def step(i: Expr) -> Stmt:
            return seq([_element(found, {**point, long: i, short: imm(k)}) for k in range(count)])

        return loop(found.stage.extents[long], step, "i")

    return _around(found, body, imm(1))


def _tiled(found: _Turned, rows: Expr, columns: Expr, tile: int, *, shuffled: bool) -> Stmt:
    """Return loops over tiles; where a symbolic axis turns out shorter than one, over elements."""

    def start(number: Expr, extent: Expr, out: list[Stmt]) -> Expr:
        known = as_int(extent)
        at = number * imm(tile)
        whole = known is not None and known % tile == 0
        return let("at", simple(at if whole else tirx.min(at, extent - imm(tile))), out)

    def body(point: dict[Any, Expr], number: Expr) -> Stmt:
        out: list[Stmt] = []
        row = start(number, rows, out)

        def square(k: Expr) -> Stmt:
            inside: list[Stmt] = []
            column = start(k, columns, inside)
            move = _shuffled if shuffled else _moved
            return seq([*inside, move(found, point, row, column, tile)])

        return seq([*out, loop(ceil_div(columns, tile), square, "column")])

    tiles = _around(found, body, ceil_div(rows, tile))
    open_ended = [extent >= imm(tile) for extent in (rows, columns) if as_int(extent) is None]
    if not open_ended:
        return tiles

    def plain(point: dict[Any, Expr], row: Expr) -> Stmt:
        return loop(columns, lambda c: _element(found, {**point, found.row: row, found.column: c}), "c")

    return tirx.IfThenElse(tirx.all(*open_ended), tiles, _around(found, plain, rows))


def _moved(found: _Turned, point: dict[Any, Expr], row: Expr, column: Expr, tile: int) -> Stmt:
    """Return one tile, element by element."""

    def line(r: Expr) -> Stmt:
        return loop(imm(tile), lambda c: _element(found, {**point, found.row: row + r, found.column: column + c}), "c")

    return loop(imm(tile), line, "r")


def _shuffled(found: _Turned, point: dict[Any, Expr], row: Expr, column: Expr, tile: int) -> Stmt:
    """Return one tile through registers."""
    source, out = found.item.source, []
    dtype = str(source.dtype)

    def register(value: Expr) -> Any:
        held = register_buffer("held", tile, dtype)
        out.extend([tirx.AllocBuffer(held), store_vector(held, tile, value, 0)])
        return held

    held = []
    for c in range(tile):
        line = register_buffer("held", tile, dtype)

        def read(lane: Expr, c: int = c, line: Any = line) -> Stmt:
            at = {**point, found.row: row + lane, found.column: column + imm(c)}
            return store(line, load(source, *(substitute(i, at) for i in found.item.indices)), lane)

        out.extend([tirx.AllocBuffer(line), loop(imm(tile), read, "lane", VECTORIZED)])
        held.append(line)
    for pairs in turning(tile, _itemsize(source)):
        old = [load_vector(h, tile, 0) for h in held]
        held = [register(tirx.Shuffle([old[a], old[b]], [imm32(i) for i in lanes])) for a, b, lanes in pairs]
    for r, h in enumerate(held):

        def element(lane: Expr, h: Any = h, r: int = r) -> Stmt:
            at = {**point, found.row: row + imm(r), found.column: column + lane}
            return _element(found, at, load(h, lane))

        out.append(loop(imm(tile), element, "lane", VECTORIZED))
    return seq(out)


def turning(size: int, itemsize: int) -> list[list[tuple[int, int, list[int]]]]:
    """Return the steps of a transpose of `size` rows: for each new row two old ones, and lanes of the pair.

    Step b exchanges, between rows that differ in bit b, lanes that differ in it. Four-byte lanes are
    taken the way that one instruction does the first step (unpcklps, zip1): in pairs of the low and of
    the high half of every four, which leaves the two lowest bits of the rows' numbers exchanged.
    """
    steps = []
    for bit in range(size.bit_length() - 1):
        far = 1 << bit
        step: list[tuple[int, int, list[int]]] = []
        for row in range(size):
            low = row & ~far
            if bit == 0 and itemsize == 4:
                first = 0 if row == low else 2
                near = [base + first + k for base in range(0, size, 4) for k in (0, 1)]
                lanes = [lane for k in near for lane in (k, size + k)]
            elif row == low:
                lanes = [j if not j & far else size + j - far for j in range(size)]
            else:
                lanes = [j + far if not j & far else size + j for j in range(size)]
            step.append((low, low | far, lanes))
        steps.append(step)
    if itemsize == 4:
        order = [r & ~3 | (r & 1) << 1 | (r & 2) >> 1 for r in range(size)]
        steps[-1] = [steps[-1][r] for r in order]
    return steps
