"""Attention of few queries, one by one: k and v are read once, along their rows.

A score is a sum along d, by vectors; the sums of as many keys as a vector has lanes are added up within
themselves together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from hcomp.ir.ops.attention import COLUMN, INNER, KEY, QUERY
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.attention_parts import (
    F32,
    Attention,
    Operand,
    block_count,
    column_groups,
    key_blocks,
    lanes_loop,
)
from hcomp.targets.cpu.schedule.nest import (
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    imm,
    imm32,
    load,
    load_vector,
    loop,
    opaque_let,
    register_buffer,
    seq,
    simple,
    spread,
    store,
    store_vector,
)

_CHAINS = 8
"""Sums side by side: what the latency of a multiply-add takes, at two a cycle."""


def rows_of(found: Attention, operands: Sequence[Operand], cpu: CpuFeatures) -> Stmt:
    """Return all queries of a task, one after the other."""
    return loop(found.sizes[QUERY], lambda s: _Row(found, operands, s, cpu).statement(), "query")


@dataclass
class _Row:
    """One query."""

    found: Attention
    operands: Sequence[Operand]
    query: Expr
    cpu: CpuFeatures

    def __post_init__(self) -> None:
        self.lanes = self.cpu.lanes()
        self.q, self.k, self.v, *self.masks, self.out = self.operands
        self.most = self.found.keys_at_once(1, self.cpu)
        known = as_int(self.found.sizes[KEY])
        self.single = known is not None and known <= self.most
        self.scaled = buffer("scaled", [self.found.inner], F32)
        self.scores = buffer("scores", [known if self.single and known is not None else self.most], F32)
        self.state = buffer("state", [4], F32)
        self.groups = column_groups(self.found.columns, self.lanes, _CHAINS)
        lanes, groups, _, offsets = self.groups
        self.sums = buffer("sums", [groups * len(offsets) * lanes], F32)

    def statement(self) -> Stmt:
        """Return the whole query."""
        out: list[Stmt] = [tirx.AllocBuffer(b) for b in (self.scaled, self.scores, self.state)]
        scale = tirx.const(self.found.scale, F32)

        def copied(d: Expr) -> Stmt:
            return store(self.scaled, self.q.element(**{QUERY: self.query, INNER: d}) * scale, d)

        out.append(loop(self.found.inner, copied, "d"))
        out.append(store(self.state, tirx.const(-math.inf, F32), _LARGEST))
        out.append(store(self.state, tirx.const(0, F32), _TOTAL))
        if not self.single:
            out.append(tirx.AllocBuffer(self.sums))
            size = int(self.sums.shape[0].value)
            out.append(loop(size, lambda i: store(self.sums, tirx.const(0, F32), i), "i"))
        keys = self.found.sizes[KEY]
        last = simple(block_count(keys, self.most, out) - imm(1))

        def block(first: Expr, count: Expr, number: Expr | None) -> Stmt:
            return self._keys(first, count, number, last)

        out.append(key_blocks(keys, self.most, block, few=self.single))
        return seq(out)

    def _keys(self, first: Expr, count: Expr, number: Expr | None, last: Expr) -> Stmt:
        out = [store(self.state, load(self.state, _LARGEST), _BEFORE)]
        out.append(self._scores(first, count))
        out.append(self._powers(count, number))
        out.append(self._values(first, count, number, last))
        return seq(out)

    # -- scores --------------------------------------------------------------------------------
    def _scores(self, first: Expr, count: Expr) -> Stmt:
        """Return the scores of a block of keys, and the largest."""
        known, lanes = as_int(count), self.lanes
        pure = self.found.inner >= lanes and lanes >= 4 and not lanes & (lanes - 1)
        singles = loop(count, lambda key: self._single(first, key), "l")
        if not pure or (known is not None and known < lanes):
            scores = singles
        else:

            def at(number: Expr) -> Stmt:
                out: list[Stmt] = []
                start = number * imm(lanes)
                if known is None or known % lanes:
                    start = tirx.min(start, count - imm(lanes))
                start = opaque_let("key", simple(start), out)
                return seq([*out, self._tile(first, start)])

            scores = loop(ceil_div(count, lanes), at, "tile")
            if known is None:
                scores = tirx.IfThenElse(count >= imm(lanes), scores, singles)

        def raised(key: Expr) -> Stmt:
            return store(self.state, tirx.max(load(self.state, _LARGEST), load(self.scores, key)), _LARGEST)

        return seq([scores, loop(count, raised, "l")])

    def _finished(self, first: Expr, key: Expr, score: Expr) -> Stmt:
        return store(self.scores, self.found.masked(score, self.masks, first + key, self.query), key)

    def _single(self, first: Expr, key: Expr) -> Stmt:
        """Return one score."""
        cell = buffer("score", [1], F32)
        base = self.k.place(**{KEY: first + key})

        def add(d: Expr) -> Stmt:
            return store(cell, load(cell, 0) + load(self.scaled, d) * load(self.k.flat, base + d), 0)

        start = store(cell, tirx.const(0, F32), 0)
        return seq(
            [tirx.AllocBuffer(cell), start, loop(self.found.inner, add, "d"), self._finished(first, key, load(cell, 0))]
        )

    def _tile(self, first: Expr, start: Expr) -> Stmt:
        """Return the scores of one vector of keys."""
        lanes, inner = self.lanes, self.found.inner
        out: list[Stmt] = []
        bases = [opaque_let("base", simple(self.k.place(**{KEY: first + start + imm(r)})), out) for r in range(lanes)]
        held = [register_buffer("held", lanes, F32) for _ in range(lanes)]
        out.extend(tirx.AllocBuffer(h) for h in held)
        out.extend(store_vector(h, lanes, spread(tirx.const(0, F32), lanes), 0) for h in held)

        def step(number: Expr) -> Stmt:
            at = number * imm(lanes)
            body = []
            for h, base in zip(held, bases, strict=True):
                product = load_vector(self.scaled, lanes, at) * load_vector(self.k.flat, lanes, base + at)
                body.append(store_vector(h, lanes, load_vector(h, lanes, 0) + product, 0))
            return seq(body)

        out.append(loop(inner // lanes, step, "d"))
        sums = buffer("within", [lanes], F32)
        out.append(tirx.AllocBuffer(sums))
        vectors = held
        for even, odd in _foldings(lanes):
            pairs = [
                (load_vector(a, lanes, 0), load_vector(b, lanes, 0))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            vectors = []
            for pair in pairs:
                made = register_buffer("folded", lanes, F32)
                value = tirx.Shuffle(list(pair), even) + tirx.Shuffle(list(pair), odd)
                out.extend([tirx.AllocBuffer(made), store_vector(made, lanes, value, 0)])
                vectors.append(made)
        out.append(store_vector(sums, lanes, load_vector(vectors[0], lanes, 0), 0))
        for d in range(inner // lanes * lanes, inner):
            for r, base in enumerate(bases):
                product = load(self.scaled, d) * load(self.k.flat, base + imm(d))
                out.append(store(sums, load(sums, r) + product, r))
        out.append(lanes_loop(lanes, lambda i: self._finished(first, start + i, load(sums, i))))
        return seq(out)

    # -- softmax -------------------------------------------------------------------------------
    def _powers(self, count: Expr, number: Expr | None) -> Stmt:
        """Return the powers of a block of scores in place, and their sum; see the blocks' form."""
        lanes, zero = self.lanes, tirx.const(0, F32)
        largest = load(self.state, _LARGEST)
        off = tirx.Select(largest == tirx.const(-math.inf, F32), zero, largest)
        part, cell = buffer("part", [1], F32), buffer("off", [1], F32)
        out: list[Stmt] = [tirx.AllocBuffer(part), tirx.AllocBuffer(cell), store(cell, off, 0)]
        out.append(store(self.state, tirx.exp(load(self.state, _BEFORE) - load(cell, 0)), _BEFORE))
        out.append(store(part, zero, 0))

        def power(key: Expr) -> Stmt:
            return store(self.scores, tirx.exp(load(self.scores, key) - load(cell, 0)), key)

        whole = simple(tirx.floordiv(count, imm(lanes)))
        out.append(loop(whole, lambda i: lanes_loop(lanes, power, i * imm(lanes)), "i"))
        left = simple(count - whole * imm(lanes))
        if as_int(left) != 0:
            out.append(loop(left, lambda i: power(whole * imm(lanes) + i), "i"))
        out.append(loop(count, lambda key: store(part, load(part, 0) + load(self.scores, key), 0), "l"))
        total = load(part, 0)
        if number is not None:
            total = load(self.state, _TOTAL) * load(self.state, _BEFORE) + total
        out.append(store(self.state, total, _TOTAL))
        share = self.found.share(load(self.state, _TOTAL))
        out.append(store(self.state, share, _SHARE))
        return seq(out)

    # -- values --------------------------------------------------------------------------------
    def _values(self, first: Expr, count: Expr, number: Expr | None, last: Expr) -> Stmt:
        """Return the sums of a block of keys; they go to the result after the last one."""
        lanes, groups, step, offsets = self.groups
        ends = self.found.columns - len(offsets) * lanes

        def group(g: Expr) -> Stmt:
            out: list[Stmt] = []
            column: Expr = imm(0)
            if groups > 1:
                column = opaque_let("column", simple(tirx.min(g * imm(step), imm(ends))), out)
            return seq([*out, self._group(first, count, number, last, g, column)])

        return loop(groups, group, "group")

    def _group(self, first: Expr, count: Expr, number: Expr | None, last: Expr, group: Expr, column: Expr) -> Stmt:
        """Return the sums of one group of columns: several keys side by side where its vectors are few."""
        lanes, _, _, offsets = self.groups
        vectors = len(offsets)
        chains = max(1, _CHAINS // vectors)
        wide = vectors * lanes
        held = [register_buffer("held", wide, F32) for _ in range(chains)]
        out: list[Stmt] = [tirx.AllocBuffer(h) for h in held]
        kept = [simple(group * imm(wide) + imm(n * lanes)) for n in range(vectors)]
        for c, h in enumerate(held):
            for n in range(vectors):
                value = spread(tirx.const(0, F32), lanes)
                if number is not None and c == 0:
                    value = load_vector(self.sums, lanes, kept[n]) * spread(load(self.state, _BEFORE), lanes)
                out.append(store_vector(h, lanes, value, n * lanes))
        base = opaque_let("base", simple(self.v.place(**{KEY: first, COLUMN: column})), out)
        stride = self.v.strides[KEY]

        def add(c: int, key: Expr) -> list[Stmt]:
            body = []
            for n in range(vectors):
                vector = load_vector(self.v.flat, lanes, base + key * stride + imm(offsets[n]))
                total = load_vector(held[c], lanes, n * lanes) + spread(load(self.scores, key), lanes) * vector
                body.append(store_vector(held[c], lanes, total, n * lanes))
            return body

        whole = simple(tirx.floordiv(count, imm(chains)))
        out.append(
            loop(whole, lambda i: seq([s for c in range(chains) for s in add(c, i * imm(chains) + imm(c))]), "i")
        )
        left = simple(count - whole * imm(chains))
        if as_int(left) != 0:
            out.append(loop(left, lambda i: seq(add(0, whole * imm(chains) + i)), "i"))
        done, keep = [], []
        for n in range(vectors):
            value = load_vector(held[0], lanes, n * lanes)
            for h in held[1:]:
                value = value + load_vector(h, lanes, n * lanes)
            keep.append(store_vector(self.sums, lanes, value, kept[n]))
            result = self.found.weighted(value, load(self.state, _SHARE), lanes)
            place = self.out.place(**{QUERY: self.query, COLUMN: column + imm(offsets[n])})
            done.append(store_vector(self.out.flat, lanes, result, place))
        if number is None:
            return seq([*out, *done])
        return seq([*out, tirx.IfThenElse(tirx.EQ(number, last), seq(done), seq(keep))])


_LARGEST, _BEFORE, _TOTAL, _SHARE = range(4)
"""Places in a query's state: the largest score, what earlier sums are scaled by, the sum of powers, its inverse."""


def _foldings(lanes: int) -> list[tuple[list[Expr], list[Expr]]]:
    """Return the steps that make of `lanes` vectors one with the sum of each: which lanes of a pair are added.

    The first two stay within groups of four lanes, where a shuffle is one instruction.
    """
    fours = range(0, lanes, 4)
    steps = [[base + offset + k for base in fours for offset in (0, lanes) for k in (0, 2)] for _ in range(2)]
    pairs = [(even, [i + 1 for i in even]) for even in steps]
    groups = lanes // 4
    while groups > 1:
        quads = [4 * g for g in range(0, 2 * lanes // 4, 2)]
        pairs.append(([q + k for q in quads for k in range(4)], [q + 4 + k for q in quads for k in range(4)]))
        groups //= 2
    return [([imm32(i) for i in even], [imm32(i) for i in odd]) for even, odd in pairs]
