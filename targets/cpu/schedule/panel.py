"""Register tiles of a product with one packed panel of columns.

    sums[p, :] += sum over k of source[base(p) + reach(k)] * weight[first + k, :]

The depth is cut into blocks whose part of the panel stays in L1 while every tile of rows uses it. Depth is
made of runs: products whose elements of `source` are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.nest import (
    Expr,
    Stmt,
    ceil_div,
    imm,
    let,
    load,
    load_vector,
    loop,
    register_buffer,
    seq,
    simple,
    spread,
    store,
    store_vector,
    unravel,
    vector_loop,
)

_MOST_ROWS = 8
"""Base addresses that fit into general registers beside the loop's own."""


@dataclass(frozen=True)
class Panel:
    """The blocking of one product.

    Attributes:
        columns: columns of the panel.
        lanes: elements of one vector.
        rows: rows of a register tile.
        runs, run: the depth: how many runs, and how long each is.
        part: a run longer than this is cut; each part is a block.
        together: runs in one block, where they are short.
        unit: neighbours of `source` that one product takes.
        accumulator: the type of sums.
    """

    columns: int
    lanes: int
    rows: int
    runs: int
    run: int
    part: int
    together: int
    unit: int = 1
    accumulator: str = "float32"

    @classmethod
    def of(cls, columns: int, runs: int, run: int, most_rows: int, cpu: CpuFeatures) -> Panel:
        """Choose the blocking for a panel of `columns` and at most `most_rows` rows."""
        lanes = min(cpu.lanes(), columns)
        rows = max(1, min(cpu.registers * 3 // 4 // (columns // lanes), _MOST_ROWS, most_rows))
        most = max(16, cpu.l1_bytes * 5 // 8 // 4 // columns)
        part = -(-run // -(-run // most))
        return cls(columns, lanes, rows, runs, run, part, max(1, most // run))

    @property
    def depth(self) -> int:
        """Products in one sum."""
        return self.runs * self.run

    @property
    def size(self) -> int:
        """Elements of the packed panel."""
        return self.depth * self.columns

    @property
    def parts(self) -> int:
        """Blocks that one run is cut into."""
        return -(-self.run // self.part)

    @property
    def blocks(self) -> int:
        """Blocks of the whole depth."""
        return self.parts * -(-self.runs // (self.together if self.parts == 1 else 1))

    def places(self, count: int) -> int:
        """Return the rows of sums that `count` rows need, the last tile filled up."""
        return -(-count // self.rows) * self.rows

    def product(
        self, source: Any, weight: Any, first: Expr, sums: Any, at: Expr, count: Expr,
        base: Callable[[Expr], Expr], reach: Callable[[Expr], Expr],
        finish: Callable[[Expr, Any], Stmt] | None = None,
    ) -> Stmt:  # fmt: skip
        """Return the statement that computes all sums.

        Args:
            source: flat buffer of the rows' elements.
            weight: flat buffer of panels; this one starts at `first`.
            sums: flat buffer; row p of the result starts at `at + p * columns`.
            count: rows; the last tile may compute some more, whose `base` must be readable.
            base: from a row to the element that it starts at.
            reach: from a run to its distance from the base.
            finish: what to do with a row's number and its sums, in registers, instead of storing them; for a
                depth of one block.
        """

        def block(number: Expr) -> Stmt:
            def tile(t: Expr) -> Stmt:
                return self._tile(source, weight, first, sums, at, base, reach, number, t, finish)

            return loop(ceil_div(count, self.rows), tile, "tile")

        steps = [loop(imm(self.blocks), block, "block")]
        if self.blocks > 1:
            zero = tirx.const(0, self.accumulator)
            whole = ceil_div(count, self.rows) * imm(self.rows * self.columns)
            steps.insert(0, vector_loop(simple(whole), self.lanes, lambda i: store(sums, zero, at + i)))
        return seq(steps)

    def _tile(
        self, source: Any, weight: Any, first: Expr, sums: Any, at: Expr,
        base: Callable[[Expr], Expr], reach: Callable[[Expr], Expr], block: Expr, tile: Expr,
        finish: Callable[[Expr, Any], Stmt] | None,
    ) -> Stmt:  # fmt: skip
        """Return one register tile over one block of the depth."""
        lanes, columns = self.lanes, self.columns
        vectors = columns // lanes
        out: list[Stmt] = []
        bases = [let("base", base(simple(tile * imm(self.rows) + imm(r))), out) for r in range(self.rows)]
        held = [register_buffer("held", columns, "float32") for _ in range(self.rows)]
        # With more vectors than rows the scalars are the fewer operands to hold.
        spots = [(r, v * lanes) for v in range(vectors) for r in range(self.rows)]
        if self.rows >= vectors:
            spots.sort()
        out.extend(tirx.AllocBuffer(row) for row in held)
        at = let("at", simple(at + tile * imm(self.rows * columns)), out)
        zero = spread(tirx.const(0, "float32"), lanes)
        for r, v in spots:
            old = zero if self.blocks == 1 else load_vector(sums, lanes, at + imm(r * columns + v))
            out.append(store_vector(held[r], lanes, old, v))

        def step(distance: Expr, k: Expr) -> Stmt:
            body = []
            for r, v in spots:
                scalar = load(source, bases[r] + distance)
                vector = load_vector(weight, lanes, first + k * imm(columns) + imm(v))
                total = load_vector(held[r], lanes, v) + spread(scalar, lanes) * vector
                body.append(store_vector(held[r], lanes, total, v))
            return seq(body)

        out.append(self._over_block(block, reach, step))
        if finish is not None:
            return seq([*out, *(finish(simple(tile * imm(self.rows) + imm(r)), row) for r, row in enumerate(held))])
        for r, v in spots:
            out.append(store_vector(sums, lanes, load_vector(held[r], lanes, v), at + imm(r * columns + v)))
        return seq(out)

    def _over_block(self, block: Expr, reach: Callable[[Expr], Expr], step: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """Return `step(distance from the base, number of the product)` over one block."""
        run, part = self.run, self.part

        def inside(number: Expr, start: Expr, length: Expr) -> Stmt:
            out: list[Stmt] = []
            distance = let("distance", simple(reach(number) + start * imm(self.unit)), out)
            done = let("done", simple(number * imm(run) + start), out)
            out.append(loop(length, lambda k: step(distance + k * imm(self.unit), done + k), "k"))
            return seq(out)

        if self.parts > 1:
            number, piece = unravel(block, [imm(self.runs), imm(self.parts)])
            start = simple(piece * imm(part))
            length = imm(part) if run % part == 0 else tirx.min(imm(part), imm(run) - start)
            return inside(number, start, length)
        first = simple(block * imm(self.together))
        count = simple(tirx.min(imm(self.together), imm(self.runs) - first))
        if self.runs % self.together == 0:
            count = imm(self.together)
        return loop(count, lambda i: inside(simple(first + i), imm(0), imm(run)), "run")
