"""Attention of many queries: the queries are the lanes of vectors.

    scores[l, s] = sum over d of k[l, d] * q^T[d, s]        k's elements are broadcast, q^T is a small copy
    powers[l, s] = exp(scores[l, s] - largest[s])           no sum within a vector
    out[s, e]   += sum over l of powers[l, s] * v[l, e]     powers are broadcast, v is read in place

So k and v are read where they lie, whatever their strides, and only a block of q is turned. Blocks are three
vectors of queries wide; what is left is done by blocks of two and of one, which may start early and compute
some queries twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    vector_loop,
)
from hcomp.targets.cpu.schedule.turned import turning

_VECTORS = 3
"""Vectors of queries in a whole block: with four keys their sums fill three quarters of 16 registers."""

_TOGETHER = 4
"""Blocks of queries that share a block of keys, at most."""


def queries_of(found: Attention, cpu: CpuFeatures) -> int:
    """Return the most queries of one task."""
    return _Block.together(found, cpu) * _VECTORS * cpu.lanes()


def block_statement(found: Attention, operands: Sequence[Operand], task: Expr, cpu: CpuFeatures) -> Stmt:
    """Return the queries of task number `task`, where there are at least as many as a vector has lanes."""
    out: list[Stmt] = []
    first = opaque_let("first", simple(task * imm(queries_of(found, cpu))), out)
    queries = _Queries(found, operands, cpu, first)
    known = as_int(found.sizes[QUERY])
    return seq([*out, queries.symbolic() if known is None else queries.static(known)])


@dataclass(frozen=True)
class _Queries:
    """The queries of one task, from `first` on: as many whole blocks as there are, then smaller ones."""

    found: Attention
    operands: Sequence[Operand]
    cpu: CpuFeatures
    first: Expr

    @property
    def width(self) -> int:
        """Queries of a whole block."""
        return _VECTORS * self.cpu.lanes()

    def symbolic(self) -> Stmt:
        """Return the statement for a number of queries that only the run tells."""
        queries, width, lanes, out = self.found.sizes[QUERY], self.width, self.cpu.lanes(), list[Stmt]()
        left = opaque_let("left", tirx.min(queries - self.first, imm(queries_of(self.found, self.cpu))), out)
        # What is more than two vectors is a whole block, which may start early.
        count = tirx.Select(queries >= imm(width), tirx.floordiv(left + imm(lanes - 1), imm(width)), imm(0))
        count = opaque_let("count", count, out)
        start = opaque_let("behind", self.first + count * imm(width), out)
        left = opaque_let("left", left - count * imm(width), out)
        two = tirx.And(left > imm(lanes), queries >= imm(2 * lanes))
        done = opaque_let("done", tirx.Select(two, imm(2 * lanes), imm(0)), out)
        ones = opaque_let("ones", ceil_div(tirx.max(left - done, imm(0)), lanes), out)
        last = opaque_let("last", start + done, out)
        out.append(tirx.IfThenElse(count > imm(0), self._blocks(self.first, count, _VECTORS), None))
        out.append(tirx.IfThenElse(done > imm(0), self._blocks(start, imm(1), 2), None))
        out.append(tirx.IfThenElse(ones > imm(0), self._blocks(last, ones, 1), None))
        return seq(out)

    def static(self, queries: int) -> Stmt:
        """Return the statement for a known number of queries."""
        width, most = self.width, queries_of(self.found, self.cpu)
        last = queries if queries <= most else queries % most
        whole = (last + self.cpu.lanes() - 1) // width if queries >= width else 0
        behind = self._rest(queries, simple(self.first + imm(whole * width)), last - whole * width)
        if queries <= most:
            return seq([self._blocks(self.first, imm(whole), _VECTORS), *behind] if whole else behind)
        out: list[Stmt] = []
        full = self.first + imm(most) <= imm(queries)
        count = opaque_let("count", tirx.Select(full, imm(most // width), imm(whole)), out)
        out.append(self._blocks(self.first, count, _VECTORS))
        if behind:
            out.append(tirx.IfThenElse(tirx.Not(full), seq(behind), None))
        return seq(out)

    def _rest(self, queries: int, start: Expr, left: int) -> list[Stmt]:
        """Return blocks of two vectors and of one for the `left` of all queries that fill no whole block."""
        lanes = self.cpu.lanes()
        pair = left > lanes and queries >= 2 * lanes
        done = 2 * lanes if pair else 0
        ones = -(-max(0, left - done) // lanes)
        out = [self._blocks(start, imm(1), 2)] if pair else []
        return [*out, self._blocks(simple(start + imm(done)), imm(ones), 1)] if ones else out

    def _blocks(self, start: Expr, count: Expr, vectors: int) -> Stmt:
        """Return `count` blocks from query `start` on; one that would reach over the end starts early."""
        keys, at_once = self.found.sizes[KEY], self.found.keys_at_once(vectors * self.cpu.lanes(), self.cpu)
        known = as_int(keys)
        few, many = (
            _Block(self.found, self.operands, start, count, vectors, self.cpu, few_keys=f) for f in (True, False)
        )
        if known is not None:
            return (few if known <= at_once else many).statement()
        if vectors < _VECTORS:
            return many.statement()
        return tirx.IfThenElse(keys <= imm(at_once), few.statement(), many.statement())


@dataclass
class _Block:
    """`count` blocks of `vectors` vectors of queries from `start` on, which share each block of keys.

    `few_keys` says that one block has them all. Otherwise blocks of keys are copied first, where enough queries
    share the copy.
    """

    found: Attention
    operands: Sequence[Operand]
    start: Expr
    count: Expr
    vectors: int
    cpu: CpuFeatures
    few_keys: bool

    def __post_init__(self) -> None:
        self.lanes = self.cpu.lanes()
        self.width = self.vectors * self.lanes
        self.q, self.k, self.v, *self.masks, self.out = self.operands
        budget = self.cpu.registers * 3 // 4
        self.keys = max(1, min(8, budget // self.vectors))
        self.rows = next(r for r in range(min(self.width, budget // 2), 0, -1) if self.width % r == 0)
        self.groups = column_groups(self.found.columns, self.lanes, max(1, budget // self.rows))
        self.most = self.found.keys_at_once(self.width, self.cpu)
        known = as_int(self.found.sizes[KEY])
        at_once = known if self.few_keys and known is not None else self.most
        lanes, groups, _, offsets = self.groups
        self.row = groups * len(offsets) * lanes
        # Of smaller blocks there are at most as many as leave no whole one.
        together = self.together(self.found, self.cpu) if self.vectors == _VECTORS else _VECTORS - 1
        most = as_int(self.count) or together
        self.turned = buffer("turned", [most * self.found.inner * self.width], F32)
        self.scores = buffer("scores", [at_once * self.width], F32)
        self.largest, self.total = (buffer(name, [most * self.width], F32) for name in ("largest", "total"))
        self.before, self.share = (buffer(name, [self.width], F32) for name in ("before", "share"))
        self.sums = buffer("sums", [most * self.width * self.row], F32)
        queries = as_int(self.found.sizes[QUERY])
        shared = self.together(self.found, self.cpu) == _TOGETHER and (queries is None or queries >= 2 * self.width)
        self.copied = shared and self.vectors == _VECTORS and not self.few_keys
        self.near_k = buffer("near_k", [at_once * self.found.inner], F32)
        self.near_v = buffer("near_v", [at_once * self.row], F32)

    @staticmethod
    def together(found: Attention, cpu: CpuFeatures) -> int:
        """Return how many blocks of queries share a block of keys: what they carry along stays in the second cache.

        Where one block has all keys, those stay in the caches by themselves.
        """
        width = _VECTORS * cpu.lanes()
        known = as_int(found.sizes[KEY])
        if known is not None and known <= found.keys_at_once(width, cpu):
            return 1
        each = 4 * width * (found.inner + found.columns)
        return max(1, min(_TOGETHER, cpu.l2_bytes // 2 // each))

    def statement(self) -> Stmt:
        """Return all the blocks."""
        out: list[Stmt] = [tirx.AllocBuffer(b) for b in (self.turned, self.scores, self.largest, self.total)]
        out += [tirx.AllocBuffer(b) for b in (self.before, self.share)]
        if not self.few_keys:
            out.append(tirx.AllocBuffer(self.sums))
        keys = self.found.sizes[KEY]
        last = simple(block_count(keys, self.most, out) - imm(1))

        def begun(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            self._place(number, inside)
            inside.append(self._turn())
            inside.append(self._each(lambda i: store(self.largest, tirx.const(-math.inf, F32), self.state + i)))
            inside.append(self._each(lambda i: store(self.total, tirx.const(0, F32), self.state + i)))
            if not self.few_keys:
                zero = spread(tirx.const(0, F32), self.lanes)
                vectors = self.width * self.row // self.lanes
                at = opaque_let("at", self.state * imm(self.row), inside)
                inside.append(
                    loop(vectors, lambda i: store_vector(self.sums, self.lanes, zero, at + i * imm(self.lanes)), "i")
                )
            return seq(inside)

        def block(first: Expr, length: Expr, part: Expr | None) -> Stmt:
            copies = self._copies(first, length) if self.copied else []

            def one(number: Expr) -> Stmt:
                inside: list[Stmt] = []
                self._place(number, inside)
                return seq([*inside, self._keys(first, length, part, last)])

            return seq([*copies, loop(self.count, one, "block")])

        if self.copied:
            out += [tirx.AllocBuffer(self.near_k), tirx.AllocBuffer(self.near_v)]
        return seq([*out, loop(self.count, begun, "block"), key_blocks(keys, self.most, block, few=self.few_keys)])

    def _place(self, number: Expr, out: list[Stmt]) -> None:
        """Say which block what follows is about: its first query, and where in the buffers its part begins."""
        first = self.start + number * imm(self.width)
        self.first = opaque_let("query", tirx.min(first, self.found.sizes[QUERY] - imm(self.width)), out)
        self.state = opaque_let("state", simple(number * imm(self.width)), out)
        self.panel = opaque_let("panel", simple(number * imm(self.width * self.found.inner)), out)

    def _each(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """Return `body` for every query of a block, by vectors."""
        return seq([lanes_loop(self.lanes, body, v * self.lanes) for v in range(self.vectors)])

    def _turn(self) -> Stmt:
        """Return the copy of q as [d][query], scaled."""
        inner, lanes = self.found.inner, self.lanes
        scale = tirx.const(self.found.scale, F32)
        if inner < lanes or lanes & (lanes - 1):

            def line(d: Expr) -> Stmt:
                def one(i: Expr) -> Stmt:
                    value = self.q.element(**{QUERY: self.first + i, INNER: d}) * scale
                    return store(self.turned, value, self.panel + d * imm(self.width) + i)

                return loop(self.width, one, "i")

            return loop(inner, line, "d")

        def square(number: Expr) -> Stmt:
            out: list[Stmt] = []
            at = number * imm(lanes)
            d = opaque_let("d", simple(at if inner % lanes == 0 else tirx.min(at, imm(inner - lanes))), out)
            for v in range(self.vectors):
                held = []
                for r in range(lanes):
                    place = self.q.place(**{QUERY: self.first + imm(v * lanes + r), INNER: d})
                    held.append(_register(load_vector(self.q.flat, lanes, place) * spread(scale, lanes), lanes, out))
                for pairs in turning(lanes, 4):
                    old = [load_vector(h, lanes, 0) for h in held]
                    held = [
                        _register(tirx.Shuffle([old[a], old[b]], [imm32(i) for i in picked]), lanes, out)
                        for a, b, picked in pairs
                    ]
                for r, h in enumerate(held):
                    place = self.panel + (d + imm(r)) * imm(self.width) + imm(v * lanes)
                    out.append(store_vector(self.turned, lanes, load_vector(h, lanes, 0), place))
            return seq(out)

        return loop(-(-inner // lanes), square, "square")

    def _copies(self, first: Expr, count: Expr) -> list[Stmt]:
        """Return the copies of a block of k and of v, one group of columns of v after the other.

        Rows of all heads are as far apart as a power of two, or nearly: in place they would fall on few lines of
        the caches.
        """
        lanes, groups, step, offsets = self.groups
        inner, wide = self.found.inner, len(offsets) * lanes
        ends = max(0, self.found.columns - wide)

        def key_row(key: Expr) -> Stmt:
            out: list[Stmt] = []
            base = opaque_let("base", self.k.place(**{KEY: first + key}), out)
            at = opaque_let("at", key * imm(inner), out)
            copy = vector_loop(
                imm(inner), self.lanes, lambda d: store(self.near_k, load(self.k.flat, base + d), at + d)
            )
            return seq([*out, copy])

        def value_row(key: Expr) -> Stmt:
            out: list[Stmt] = []
            base = opaque_let("base", self.v.place(**{KEY: first + key}), out)
            for g in range(groups):
                for n, offset in enumerate(offsets):
                    vector = load_vector(self.v.flat, lanes, base + imm(min(g * step, ends) + offset))
                    at = (imm(g) * count + key) * imm(wide) + imm(n * lanes)
                    out.append(store_vector(self.near_v, lanes, vector, at))
            return seq(out)

        return [loop(count, key_row, "l"), loop(count, value_row, "l")]

    def _keys(self, first: Expr, count: Expr, number: Expr | None, last: Expr) -> Stmt:
        """Return what one block of keys adds."""
        out: list[Stmt] = []
        if number is not None:
            out.append(self._each(lambda i: store(self.before, load(self.largest, self.state + i), i)))
        out.append(self._scores(first, count))
        out.extend(self._powers(count, number))
        out.append(self._values(first, count, number, last))
        return seq(out)

    # -- scores --------------------------------------------------------------------------------
    def _scores(self, first: Expr, count: Expr) -> Stmt:
        """Return the scores of a block of keys and the largest of each query; the last tile may start early."""
        known, tile = as_int(count), self.keys
        if known is not None and known < tile:
            return self._score_tile(first, imm(0), known)

        def at(number: Expr) -> Stmt:
            out: list[Stmt] = []
            start = number * imm(tile)
            if known is None or known % tile:
                start = tirx.min(start, count - imm(tile))
            start = opaque_let("key", simple(start), out)
            return seq([*out, self._score_tile(first, start, tile)])

        tiles = loop(ceil_div(count, tile), at, "tile")
        if known is not None:
            return tiles
        singles = loop(count, lambda key: self._score_tile(first, key, 1), "key")
        return tirx.IfThenElse(count >= imm(tile), tiles, singles)

    def _score_tile(self, first: Expr, start: Expr, keys: int) -> Stmt:
        """Return the scores of `keys` keys from `start` on in the block that begins at key `first`."""
        lanes, width = self.lanes, self.width
        out: list[Stmt] = []
        numbers = [opaque_let("l", simple(first + start + imm(r)), out) for r in range(keys)]
        if self.copied:
            bases = [opaque_let("base", (start + imm(r)) * imm(self.found.inner), out) for r in range(keys)]
        else:
            bases = [opaque_let("base", simple(self.k.place(**{KEY: n})), out) for n in numbers]
        source = self.near_k if self.copied else self.k.flat
        held = [register_buffer("held", width, F32) for _ in range(keys)]
        spots = [(r, v * lanes) for r in range(keys) for v in range(self.vectors)]
        out.extend(tirx.AllocBuffer(h) for h in held)
        out.extend(store_vector(held[r], lanes, spread(tirx.const(0, F32), lanes), v) for r, v in spots)

        def step(d: Expr) -> Stmt:
            body = []
            for r, v in spots:
                vector = load_vector(self.turned, lanes, self.panel + d * imm(width) + imm(v))
                scalar = spread(load(source, bases[r] + d), lanes)
                body.append(store_vector(held[r], lanes, load_vector(held[r], lanes, v) + scalar * vector, v))
            return seq(body)

        out.append(loop(self.found.inner, step, "d"))
        for r, v in spots:

            def masked(i: Expr, r: int = r) -> Stmt:
                value = self.found.masked(load(held[r], i), self.masks, numbers[r], self.first + i)
                return store(held[r], value, i)

            if self.masks:
                out.append(lanes_loop(lanes, masked, v))
            place = (start + imm(r)) * imm(width) + imm(v)
            out.append(store_vector(self.scores, lanes, load_vector(held[r], lanes, v), place))

        def raised(i: Expr) -> Stmt:
            largest = load(self.largest, self.state + i)
            for row in held:
                largest = tirx.max(largest, load(row, i))
            return store(self.largest, largest, self.state + i)

        out.append(self._each(raised))
        return seq(out)

    # -- softmax -------------------------------------------------------------------------------
    def _powers(self, count: Expr, number: Expr | None) -> list[Stmt]:
        """Return the powers of a block of scores in place, their sums, and what earlier sums are scaled by.

        Where all scores are -inf so far, 0 is taken off: the powers are 0, and so is what is done before.
        """
        lanes, width, zero = self.lanes, self.width, tirx.const(0, F32)
        part, off = register_buffer("part", width, F32), register_buffer("off", width, F32)
        out: list[Stmt] = [tirx.AllocBuffer(part), tirx.AllocBuffer(off)]

        def taken(i: Expr) -> Stmt:
            largest = load(self.largest, self.state + i)
            return store(off, tirx.Select(largest == tirx.const(-math.inf, F32), zero, largest), i)

        out.append(self._each(taken))
        if number is not None:
            out.append(self._each(lambda i: store(self.before, tirx.exp(load(self.before, i) - load(off, i)), i)))
        out.append(self._each(lambda i: store(part, zero, i)))

        def line(key: Expr) -> Stmt:
            body = []
            for v in range(self.vectors):

                def power(i: Expr) -> Stmt:
                    at = key * imm(width) + i
                    return store(self.scores, tirx.exp(load(self.scores, at) - load(off, i)), at)

                def added(i: Expr) -> Stmt:
                    return store(part, load(part, i) + load(self.scores, key * imm(width) + i), i)

                body += [lanes_loop(lanes, power, v * lanes), lanes_loop(lanes, added, v * lanes)]
            return seq(body)

        out.append(loop(count, line, "l"))

        def total(i: Expr) -> Stmt:
            before = load(self.total, self.state + i) * load(self.before, i) if number is not None else zero
            return store(self.total, before + load(part, i), self.state + i)

        def share(i: Expr) -> Stmt:
            return store(self.share, self.found.share(load(self.total, self.state + i)), i)

        return [*out, self._each(total), self._each(share)]

    # -- values --------------------------------------------------------------------------------
    def _values(self, first: Expr, count: Expr, number: Expr | None, last: Expr) -> Stmt:
        """Return the sums of a block of keys; they go to the result after the last one."""
        lanes, groups, step, offsets = self.groups
        ends = self.found.columns - len(offsets) * lanes

        def group(tile: Expr, g: Expr) -> Stmt:
            out: list[Stmt] = []
            column: Expr = imm(0)
            if groups > 1:
                column = opaque_let("column", simple(tirx.min(g * imm(step), imm(ends))), out)
            out.append(self._value_tile(first, count, number, last, tile, g, column))
            return seq(out)

        tiles = self.width // self.rows
        return loop(groups, lambda g: loop(tiles, lambda tile: group(tile, g), "rows"), "group")

    def _value_tile(
        self, first: Expr, count: Expr, number: Expr | None, last: Expr, tile: Expr, group: Expr, column: Expr
    ) -> Stmt:
        """Return the sums of a register tile: `rows` queries, one group of columns."""
        lanes, _, _, offsets = self.groups
        rows, wide = self.rows, len(offsets) * lanes
        out: list[Stmt] = []
        row = opaque_let("row", simple(tile * imm(rows)), out)
        held = [register_buffer("held", wide, F32) for _ in range(rows)]
        spots = [(r, n) for r in range(rows) for n in range(len(offsets))]
        out.extend(tirx.AllocBuffer(h) for h in held)

        def kept(r: int, n: int) -> Expr:
            return (self.state + row + imm(r)) * imm(self.row) + group * imm(wide) + imm(n * lanes)

        for r, n in spots:
            value = spread(tirx.const(0, F32), lanes)
            if number is not None:
                value = load_vector(self.sums, lanes, kept(r, n)) * spread(load(self.before, row + imm(r)), lanes)
            out.append(store_vector(held[r], lanes, value, n * lanes))
        if self.copied:
            source, stride = self.near_v, imm(wide)
            base = opaque_let("base", group * count * imm(wide), out)
            places = [imm(n * lanes) for n in range(len(offsets))]
        else:
            source, stride = self.v.flat, self.v.strides[KEY]
            base = opaque_let("base", simple(self.v.place(**{KEY: first, COLUMN: column})), out)
            places = [imm(offset) for offset in offsets]

        def add(key: Expr) -> Stmt:
            body = []
            for r, n in spots:
                scalar = spread(load(self.scores, key * imm(self.width) + row + imm(r)), lanes)
                vector = load_vector(source, lanes, base + key * stride + places[n])
                total = load_vector(held[r], lanes, n * lanes) + scalar * vector
                body.append(store_vector(held[r], lanes, total, n * lanes))
            return seq(body)

        out.append(loop(count, add, "l"))

        def finish(r: int, n: int) -> Stmt:
            query = self.first + row + imm(r)
            share = load(self.share, row + imm(r))
            value = self.found.weighted(load_vector(held[r], lanes, n * lanes), share, lanes)
            place = self.out.place(**{QUERY: query, COLUMN: column + imm(offsets[n])})
            return store_vector(self.out.flat, lanes, value, place)

        done = seq([finish(r, n) for r, n in spots])
        if number is None:
            return seq([*out, done])
        keep = seq(
            [store_vector(self.sums, lanes, load_vector(held[r], lanes, n * lanes), kept(r, n)) for r, n in spots]
        )
        return seq([*out, tirx.IfThenElse(tirx.EQ(number, last), done, keep)])


def _register(value: Expr, lanes: int, out: list[Stmt]) -> Any:
    """Return a register that holds a vector."""
    held = register_buffer("turn", lanes, F32)
    out.extend([tirx.AllocBuffer(held), store_vector(held, lanes, value, 0)])
    return held
