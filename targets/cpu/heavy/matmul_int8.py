"""Exact integer matrix product with a constant 8-bit weight, on x86 without its instructions for that.

The weight is packed in groups of four along K. Of several rows, both factors are widened to int16 (the weight
as it is loaded), and `vpmaddwd` multiplies sixteen elements and adds neighbours into eight int32 sums.

One row reads each weight once, and widening it takes longer than multiplying it. There an unsigned row is cut into
halves of four bits: `vpmaddubsw` multiplies 32 bytes and adds neighbours in int16, which whole bytes could
overflow; of halves, eight steps fit (8 * 2 * 15 * 128 < 2**15), and are widened together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.kernel import shape_of
from hcomp.targets.cpu.heavy.matmul import Pack
from hcomp.targets.cpu.schedule.byte_panel import (
    GROUP,
    LANES,
    PAIR_PRODUCT,
    ROWS,
    has_pair_products,
    pair_products,
    whole_sums,
)
from hcomp.targets.cpu.schedule.nest import (
    GRAIN_OPERATIONS,
    PARALLEL,
    SERIAL,
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    flat_view,
    imm,
    let,
    load,
    load_vector,
    loop,
    product,
    register_buffer,
    seq,
    simple,
    spread,
    store,
    store_vector,
    task_loops,
)

VECTORS = 2
COLUMNS = LANES * VECTORS
"""Columns of a panel: a vector has the groups of eight."""

STEPS = 8
"""Groups whose products of four bits fit into int16."""

_BYTE_PRODUCT = "llvm.x86.avx2.pmadd.ub.sw"


def takes_pairs(weight: np.ndarray, cpu: CpuFeatures) -> bool:
    """Say whether the processor has products of pairs, and a weight [K, N] has pairs."""
    return has_pair_products(cpu) and weight.shape[0] > 1


def emit_matmul_int8(
    bb: relax.BlockBuilder, x: relax.Expr, weight: np.ndarray, pack: Pack, cpu: CpuFeatures
) -> relax.Expr:
    """Return the int32 product `x @ weight`, exact modulo 2**32, where `takes_pairs` says so.

    Args:
        bb: builder of the function that the product belongs to.
        x: [..., M, K] or [K], int8 or uint8; a zero point is the caller's to subtract.
        weight: [K, N], int8 or uint8.
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor.

    Returns:
        [..., M, N] int32.
    """
    assert takes_pairs(weight, cpu)
    *leading, _ = shape_of(x)
    packed = pack("groups", pack_groups(weight))
    func = _Loops(weight, str(x.ty.dtype), leading).function()
    function = bb.add_func(func, "matmul_int8")
    result = relax.TensorType([*leading, weight.shape[1]], "int32")
    return bb.emit(relax.call_tir(function, [x, packed], result))


def pack_groups(weight: np.ndarray) -> np.ndarray:
    """Return [K, N] as [ceil(N / 16)][ceil(K / 4)][16 * 4]: columns, then the group along K."""
    depth, width = weight.shape
    panels, groups = -(-width // COLUMNS), -(-depth // GROUP)
    padded = np.zeros((groups * GROUP, panels * COLUMNS), weight.dtype)
    padded[:depth, :width] = weight
    split = padded.reshape(groups, GROUP, panels, COLUMNS).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(split.reshape(panels, groups, COLUMNS * GROUP))


class _Loops:
    def __init__(self, weight: np.ndarray, dtype: str, leading: list[Expr]) -> None:
        self.depth, self.width = weight.shape
        self.groups, self.panels = -(-self.depth // GROUP), -(-self.width // COLUMNS)
        sizes = [
            imm(known) if (known := as_int(size)) is not None else tirx.Var(f"s{k}", "int64")
            for k, size in enumerate(leading)
        ]
        self.rows = simple(product(sizes))
        self.halves = dtype == "uint8" and weight.dtype == np.int8
        self.x = buffer("x", [*sizes, self.depth], dtype)
        self.weight = buffer("weight", [self.panels, self.groups, COLUMNS * GROUP], str(weight.dtype))
        self.y = buffer("y", [*sizes, self.width], "int32")

    def function(self) -> tirx.PrimFunc:
        """Return the PrimFunc over (x, weight, y)."""
        out: list[Stmt] = []
        x, y = flat_view(self.x, out), flat_view(self.y, out)
        known = as_int(self.rows)
        heavy = known is None or 2 * known * self.depth * self.width >= GRAIN_OPERATIONS

        def tiles(rows: int) -> Stmt:
            if rows == 1 and self.halves:
                return self._by_halves(x, y, parallel=heavy)
            return self._by_pairs(x, y, rows, parallel=heavy)

        if known is None:
            out.append(tirx.IfThenElse(self.rows >= imm(ROWS), tiles(ROWS), tiles(1)))
        else:
            out.append(tiles(min(known, ROWS)))
        func = tirx.PrimFunc([self.x, self.weight, self.y], seq(out))
        # 8 is Relax's opaque pattern: nothing is fused into hand-written loops.
        return func.with_attr("tirx.noalias", True).with_attr("op_pattern", 8)

    def _rows_of(self, name: str, dtype: str, value: Any, *, parallel: bool) -> tuple[Expr, list[Stmt]]:
        """Return a copy of all rows in whole groups, `value` of each element, and the statements that make it."""
        whole = self.groups * GROUP
        memory = buffer(name, [simple(self.rows * imm(whole))], dtype)

        def row(m: Expr) -> Stmt:
            out = [loop(imm(self.depth), lambda k: store(memory, value(m, k), m * imm(whole) + k), "k")]
            rest = whole - self.depth
            if rest:
                zero = tirx.const(0, dtype)
                out.append(loop(imm(rest), lambda k: store(memory, zero, m * imm(whole) + imm(self.depth) + k), "k"))
            return seq(out)

        return memory, [tirx.AllocBuffer(memory), loop(self.rows, row, "m", PARALLEL if parallel else SERIAL)]

    def _by_pairs(self, x: Expr, y: Expr, rows: int, *, parallel: bool) -> Stmt:
        """Return the whole product by tiles of `rows`, widened to int16; at least so many rows are there."""

        def wide(m: Expr, k: Expr) -> Expr:
            return tirx.Cast("int16", load(x, m * imm(self.depth) + k))

        memory, out = self._rows_of("wide", "int16", wide, parallel=parallel)
        last = self.rows - imm(rows)

        def task(at: list[Expr]) -> Stmt:
            panel, vector, tile = at
            return self._tile_of_pairs(memory, y, panel, vector, tirx.min(tile * imm(rows), last), rows)

        extents = [imm(self.panels), imm(VECTORS), ceil_div(self.rows, rows)]
        return seq([*out, task_loops(extents, task, parallel=parallel)])

    def _tile_of_pairs(self, memory: Expr, y: Expr, panel: Expr, vector: Expr, first: Expr, rows: int) -> Stmt:
        """Return a tile of `rows` by eight columns; a sum is in two parts, of the first and the last two of groups."""
        out: list[Stmt] = []
        first = let("row", first, out)
        sums = [[register_buffer("sums", LANES, "int32") for _ in range(2)] for _ in range(rows)]
        flat = [part for parts in sums for part in parts]
        out.extend(tirx.AllocBuffer(part) for part in flat)
        out.extend(store_vector(part, LANES, spread(tirx.const(0, "int32"), LANES), 0) for part in flat)

        def step(k: Expr) -> Stmt:
            body = []
            for r, parts in enumerate(sums):
                at = (first + imm(r)) * imm(self.groups * GROUP) + k * imm(GROUP)
                for half, part in enumerate(parts):
                    place = vector * imm(LANES * GROUP) + imm(half * LANES // 2 * GROUP)
                    dot = pair_products(memory, at, load_vector(self.weight, LANES // 2 * GROUP, panel, k, place))
                    body.append(store_vector(part, LANES, load_vector(part, LANES, 0) + dot, 0))
            return seq(body)

        out.append(loop(imm(self.groups), step, "k"))
        columns = panel * imm(COLUMNS) + vector * imm(LANES)
        for r, parts in enumerate(sums):
            out.append(self._kept(y, first + imm(r), columns, whole_sums(parts)))
        return seq(out)

    def _by_halves(self, x: Expr, y: Expr, *, parallel: bool) -> Stmt:
        """Return the product row by row, by halves of the row's bytes."""

        def low(m: Expr, k: Expr) -> Expr:
            return tirx.bitwise_and(load(x, m * imm(self.depth) + k), tirx.const(15, "uint8"))

        def high(m: Expr, k: Expr) -> Expr:
            return tirx.shift_right(load(x, m * imm(self.depth) + k), tirx.const(4, "uint8"))

        lows, out = self._rows_of("low", "uint8", low, parallel=False)
        highs, more = self._rows_of("high", "uint8", high, parallel=False)
        extents = [imm(self.panels), self.rows]
        tasks = task_loops(extents, lambda at: self._row_of_halves(lows, highs, y, at[1], at[0]), parallel=parallel)
        return seq([*out, *more, tasks])

    def _row_of_halves(self, lows: Expr, highs: Expr, y: Expr, row: Expr, panel: Expr) -> Stmt:
        """Return one row by one panel."""
        out: list[Stmt] = []
        sums = [register_buffer("sums", LANES, "int32") for _ in range(VECTORS)]
        out.extend(tirx.AllocBuffer(s) for s in sums)
        out.extend(store_vector(s, LANES, spread(tirx.const(0, "int32"), LANES), 0) for s in sums)

        def block(start: Expr, steps: int) -> Stmt:
            """Return some steps in int16, and their sums added to the others; sixteen is what high halves count."""
            body: list[Stmt] = []
            parts = [[register_buffer("part", 2 * LANES, "int16") for _ in range(2)] for _ in range(VECTORS)]
            body.extend(tirx.AllocBuffer(part) for both in parts for part in both)
            for step in range(steps):
                k = start + imm(step)
                at = row * imm(self.groups * GROUP) + k * imm(GROUP)
                halves = [spread(tirx.reinterpret("int32", load_vector(h, GROUP, at)), LANES) for h in (lows, highs)]
                for v, both in enumerate(parts):
                    weights = load_vector(self.weight, LANES * GROUP, panel, k, v * LANES * GROUP)
                    for half, part in zip(halves, both, strict=True):
                        a = tirx.reinterpret("uint8x32", half)
                        dot = tirx.call_llvm_pure_intrin("int16x16", _BYTE_PRODUCT, a, weights)
                        total = load_vector(part, 2 * LANES, 0) + dot if step else dot
                        body.append(store_vector(part, 2 * LANES, total, 0))
            for total, both in zip(sums, parts, strict=True):
                found = load_vector(total, LANES, 0)
                for factor, part in zip((1, 16), both, strict=True):
                    factors = spread(tirx.const(factor, "int16"), 2 * LANES)
                    held = load_vector(part, 2 * LANES, 0)
                    found = found + tirx.call_llvm_pure_intrin("int32x8", PAIR_PRODUCT, held, factors)
                body.append(store_vector(total, LANES, found, 0))
            return seq(body)

        out.append(loop(imm(self.groups // STEPS), lambda k: block(k * imm(STEPS), STEPS), "k"))
        if self.groups % STEPS:
            out.append(block(imm(self.groups // STEPS * STEPS), self.groups % STEPS))
        for v, total in enumerate(sums):
            columns = panel * imm(COLUMNS) + imm(v * LANES)
            out.append(self._kept(y, row, columns, load_vector(total, LANES, 0)))
        return seq(out)

    def _kept(self, y: Expr, row: Expr, columns: Expr, sums: Expr) -> Stmt:
        """Return the store of eight sums from `columns` on, or of those that are there."""
        at = row * imm(self.width) + columns
        whole = store_vector(y, LANES, sums, at)
        if self.width % LANES == 0 and self.width % COLUMNS == 0:
            return whole
        done = buffer("done", [LANES], "int32")
        left = tirx.min(imm(LANES), imm(self.width) - columns)
        some = [
            tirx.AllocBuffer(done),
            store_vector(done, LANES, sums, 0),
            loop(tirx.max(left, imm(0)), lambda c: store(y, load(done, c), at + c), "c"),
        ]
        return tirx.IfThenElse(columns + imm(LANES) <= imm(self.width), whole, seq(some))
