"""Register tiles of exact integer products with one packed panel of columns, for bytes on x86.

As `Panel`, but four neighbours along the depth stand together in the weight, a group. The source has been
widened to int16 and the weight is as it is loaded: `vpmaddwd` multiplies sixteen elements and adds neighbours into
eight int32 sums, two for each of four columns. What a run has fewer than whole groups is zeros of the weight, so that
whatever the source has there, up to three elements behind its last one, counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.nest import (
    Expr,
    Stmt,
    imm,
    imm32,
    let,
    load_vector,
    register_buffer,
    seq,
    simple,
    spread,
    store_vector,
)
from hcomp.targets.cpu.schedule.panel import Panel

GROUP = 4
"""Neighbours along the depth that stand together."""

LANES = 8
"""Columns of a panel, and sums of a vector."""

ROWS = 6

PAIR_PRODUCT = "llvm.x86.avx2.pmadd.wd"


def has_pair_products(cpu: CpuFeatures) -> bool:
    """Say whether the processor multiplies pairs of int16 and adds them."""
    return cpu.vector_bytes >= GROUP * LANES and cpu.triple.startswith("x86_64")


def pair_products(source: Any, at: Expr, weights: Expr) -> Expr:
    """Return eight int32: the products of four int16 at `at`, two by two, with half a vector of weights."""
    group = tirx.reinterpret("int64", load_vector(source, GROUP, at))
    a = tirx.reinterpret("int16x16", spread(group, LANES // 2))
    return tirx.call_llvm_pure_intrin("int32x8", PAIR_PRODUCT, a, tirx.Cast("int16x16", weights))


def whole_sums(halves: Sequence[Any]) -> Expr:
    """Return the sums of eight columns from two registers that have each in two parts."""
    both = [load_vector(half, LANES, 0) for half in halves]
    even, odd = (tirx.Shuffle(both, [imm32(2 * lane + n) for lane in range(LANES)]) for n in (0, 1))
    return even + odd


@dataclass(frozen=True)
class BytePanel(Panel):
    """The blocking of one product; runs, parts and depth count groups."""

    unit: int = GROUP
    accumulator: str = "int32"

    @classmethod
    def of(cls, columns: int, runs: int, run: int, most_rows: int, cpu: CpuFeatures) -> BytePanel:
        """Choose the blocking for eight columns and runs of `run` elements."""
        assert columns == LANES
        groups = -(-run // GROUP)
        most = max(16, cpu.l1_bytes * 5 // 8 // (GROUP * LANES))
        part = -(-groups // -(-groups // most))
        return cls(columns, LANES, max(1, min(ROWS, most_rows)), runs, groups, part, max(1, most // groups))

    @property
    def size(self) -> int:
        """Elements of the packed panel."""
        return self.depth * GROUP * self.columns

    def _tile(
        self, source: Any, weight: Any, first: Expr, sums: Any, at: Expr,
        base: Callable[[Expr], Expr], reach: Callable[[Expr], Expr], block: Expr, tile: Expr,
        finish: Callable[[Expr, Any], Stmt] | None,
    ) -> Stmt:  # fmt: skip
        assert finish is None
        out: list[Stmt] = []
        bases = [let("base", base(simple(tile * imm(self.rows) + imm(r))), out) for r in range(self.rows)]
        held = [[register_buffer("held", LANES, "int32") for _ in range(2)] for _ in range(self.rows)]
        flat = [half for halves in held for half in halves]
        out.extend(tirx.AllocBuffer(half) for half in flat)
        out.extend(store_vector(half, LANES, spread(tirx.const(0, "int32"), LANES), 0) for half in flat)
        at = let("at", simple(at + tile * imm(self.rows * LANES)), out)

        def step(distance: Expr, k: Expr) -> Stmt:
            body = []
            for start, halves in zip(bases, held, strict=True):
                for number, half in enumerate(halves):
                    place = first + k * imm(GROUP * LANES) + imm(number * GROUP * LANES // 2)
                    made = pair_products(source, start + distance, load_vector(weight, GROUP * LANES // 2, place))
                    body.append(store_vector(half, LANES, load_vector(half, LANES, 0) + made, 0))
            return seq(body)

        out.append(self._over_block(block, reach, step))
        for r, halves in enumerate(held):
            place = at + imm(r * LANES)
            found = whole_sums(halves)
            if self.blocks > 1:
                found = load_vector(sums, LANES, place) + found
            out.append(store_vector(sums, LANES, found, place))
        return seq(out)
