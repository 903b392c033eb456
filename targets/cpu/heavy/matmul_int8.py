"""Exact integer matrix product with a constant 8-bit weight, by pairs of 16-bit products.

Both factors are widened to int16 (the weight as it is loaded: reading it bounds a product of few rows) and
taken in pairs along K; x86's `vpmaddwd` multiplies sixteen pairs' elements and adds neighbours into
eight int32 sums. No step can saturate, unlike with 8-bit pairs.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.kernel import shape_of
from hcomp.targets.cpu.heavy.matmul import Pack
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

LANES = 8
VECTORS = 2
COLUMNS = LANES * VECTORS
ROWS = 6
_PAIR_PRODUCT = "llvm.x86.avx2.pmadd.wd"


def takes_pairs(weight: np.ndarray, cpu: CpuFeatures) -> bool:
    """Say whether the processor has products of pairs, and a weight [K, N] has pairs."""
    return cpu.vector_bytes >= 2 * LANES and cpu.triple.startswith("x86_64") and weight.shape[0] > 1


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
    packed = pack("pairs", pack_pairs(weight))
    func = _Loops(weight, str(x.ty.dtype), leading).function()
    function = bb.add_func(func, "matmul_int8")
    result = relax.TensorType([*leading, weight.shape[1]], "int32")
    return bb.emit(relax.call_tir(function, [x, packed], result))


def pack_pairs(weight: np.ndarray) -> np.ndarray:
    """Return [K, N] as [ceil(N / 16)][ceil(K / 2)][16 * 2]: columns, then the pair along K."""
    depth, width = weight.shape
    panels, pairs = -(-width // COLUMNS), -(-depth // 2)
    padded = np.zeros((pairs * 2, panels * COLUMNS), weight.dtype)
    padded[:depth, :width] = weight
    split = padded.reshape(pairs, 2, panels, COLUMNS).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(split.reshape(panels, pairs, COLUMNS * 2))


class _Loops:
    def __init__(self, weight: np.ndarray, dtype: str, leading: list[Expr]) -> None:
        self.depth, self.width = weight.shape
        depth, width = weight.shape
        self.pairs, self.panels = -(-depth // 2), -(-width // COLUMNS)
        sizes = [
            imm(known) if (known := as_int(size)) is not None else tirx.Var(f"s{k}", "int64")
            for k, size in enumerate(leading)
        ]
        self.rows = simple(product(sizes))
        self.x = buffer("x", [*sizes, depth], dtype)
        self.weight = buffer("weight", [self.panels, self.pairs, COLUMNS * 2], str(weight.dtype))
        self.y = buffer("y", [*sizes, width], "int32")

    def function(self) -> tirx.PrimFunc:
        """Return the PrimFunc over (x, weight, y)."""
        out: list[Stmt] = []
        x, y = flat_view(self.x, out), flat_view(self.y, out)
        memory = buffer("pairs", [simple(self.rows * imm(self.pairs))], "int32")
        out.append(tirx.AllocBuffer(memory))
        known = as_int(self.rows)
        heavy = known is None or 2 * known * self.depth * self.width >= GRAIN_OPERATIONS
        kind = PARALLEL if heavy else SERIAL
        out.append(loop(self.rows, lambda m: self._pair_up(x, memory, m), "m", kind))

        def tiles(rows: int) -> Stmt:
            last = self.rows - imm(rows)
            return task_loops(
                [imm(self.panels), ceil_div(self.rows, rows)],
                lambda at: self._tile(memory, y, at[0], tirx.min(at[1] * imm(rows), last), rows),
                parallel=heavy,
            )

        if known is None:
            out.append(tirx.IfThenElse(self.rows >= imm(ROWS), tiles(ROWS), tiles(1)))
        else:
            out.append(tiles(min(known, ROWS)))
        func = tirx.PrimFunc([self.x, self.weight, self.y], seq(out))
        # 8 is Relax's opaque pattern: nothing is fused into hand-written loops.
        return func.with_attr("tirx.noalias", True).with_attr("op_pattern", 8)

    def _pair_up(self, x: tvm.ir.Var, memory: tvm.ir.Var, m: Expr) -> Stmt:
        """Return the widening of one row: two int16 in each int32."""

        def wide(k: Expr) -> Expr:
            return tirx.Cast("int32", load(x, m * imm(self.depth) + k))

        def low(value: Expr) -> Expr:
            return value & tirx.const(0xFFFF, "int32")

        def pair(k: Expr) -> Stmt:
            first, second = wide(k * imm(2)), wide(k * imm(2) + imm(1))
            both = low(first) | (second << tirx.const(16, "int32"))
            return store(memory, both, m * imm(self.pairs) + k)

        out = [loop(imm(self.depth // 2), pair, "k")]
        if self.depth % 2:
            end = imm(self.pairs - 1)
            out.append(store(memory, low(wide(imm(self.depth - 1))), m * imm(self.pairs) + end))
        return seq(out)

    def _tile(self, memory: tvm.ir.Var, y: tvm.ir.Var, panel: Expr, first: Expr, rows: int) -> Stmt:
        out: list[Stmt] = []
        first = let("row", first, out)
        sums = [register_buffer("sums", COLUMNS, "int32") for _ in range(rows)]
        done = buffer("done", [rows * COLUMNS], "int32")
        spots = [(r, v) for r in range(rows) for v in range(VECTORS)]
        zero = tirx.const(0, "int32")
        out.extend(tirx.AllocBuffer(s) for s in [*sums, done])
        # A store before the sums are dead keeps TVM from giving both buffers the same storage.
        out.append(store(done, zero, 0))
        out.extend(store_vector(sums[r], LANES, spread(zero, LANES), v * LANES) for r, v in spots)

        def step(k: Expr) -> Stmt:
            body = []
            for r, v in spots:
                scalar = load(memory, (first + imm(r)) * imm(self.pairs) + k)
                a = tirx.reinterpret("int16x16", spread(scalar, LANES))
                b = tirx.Cast("int16x16", load_vector(self.weight, 2 * LANES, panel, k, v * 2 * LANES))
                dot = tirx.call_llvm_pure_intrin("int32x8", _PAIR_PRODUCT, a, b)
                total = load_vector(sums[r], LANES, v * LANES) + dot
                body.append(store_vector(sums[r], LANES, total, v * LANES))
            return seq(body)

        out.append(loop(imm(self.pairs), step, "k"))
        for r, v in spots:
            kept = load_vector(sums[r], LANES, v * LANES)
            out.append(store_vector(done, LANES, kept, r * COLUMNS + v * LANES))
        left = imm(COLUMNS)
        if self.width % COLUMNS:
            left = tirx.min(left, imm(self.width) - panel * imm(COLUMNS))

        def element(r: Expr, c: Expr) -> Stmt:
            at = (first + r) * imm(self.width) + panel * imm(COLUMNS) + c
            return store(y, load(done, r * imm(COLUMNS) + c), at)

        out.append(loop(imm(rows), lambda r: loop(left, lambda c: element(r, c), "c"), "r"))
        return seq(out)
