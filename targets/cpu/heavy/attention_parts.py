"""What the two forms of the attention kernel share: the operator, its operands in memory, blocks of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.ir.ops.attention import COLUMN, INNER, KEY, QUERY
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.nest import (
    VECTORIZED,
    Expr,
    Stmt,
    as_int,
    imm,
    load,
    loop,
    opaque_let,
    product,
    seq,
    simple,
    spread,
)

F32 = "float32"


@dataclass(frozen=True)
class Attention:
    """One attention: the operator's attributes, and the sizes of its axes.

    Attributes:
        sizes: by letter; those of `d` and `e` are constants.
        scale, masks, fill, zero_nan: as the operator's row has them.
    """

    sizes: Mapping[str, Expr]
    scale: float
    masks: tuple[str, ...]
    fill: float
    zero_nan: bool

    @property
    def inner(self) -> int:
        """Columns of q and k."""
        return int(self.sizes[INNER].value)

    @property
    def columns(self) -> int:
        """Columns of v."""
        return int(self.sizes[COLUMN].value)

    def masked(self, score: Expr, operands: Sequence[Operand], key: Expr, query: Expr) -> Expr:
        """Return a score after the masks; `operands` are those of the masks."""
        for kind, operand in zip(self.masks, operands, strict=True):
            mask = operand.element(**{KEY: key, QUERY: query})
            score = score + mask if kind == "add" else tirx.Select(mask, score, tirx.const(self.fill, F32))
        return score

    def share(self, total: Expr) -> Expr:
        """Return the factor that makes weights of powers whose sum is `total`."""
        one, zero, keys = tirx.const(1, F32), tirx.const(0, F32), self.sizes[KEY]
        if self.zero_nan:
            return tirx.Select(total > zero, one / total, zero)
        # Without keys the result is 0.
        return one / total if as_int(keys) is not None else tirx.Select(keys == imm(0), one, one / total)

    def weighted(self, value: Expr, share: Expr, lanes: int) -> Expr:
        """Return a vector of the result of its sums and the query's share."""
        made = value * spread(share, lanes)
        if not self.zero_nan:
            return made
        zero = tirx.const(0, F32)
        return tirx.Select(spread(share > zero, lanes), made, spread(zero, lanes))

    def keys_at_once(self, lanes_of_queries: int, cpu: CpuFeatures) -> int:
        """Return the most keys of one block: scores fill half of the first cache, k and v half of the second."""
        return max(
            64, min(cpu.l1_bytes // 2 // 4 // lanes_of_queries, cpu.l2_bytes // 2 // 4 // (self.inner + self.columns))
        )


@dataclass(frozen=True)
class Operand:
    """One tensor in memory, at the task's batch.

    Attributes:
        flat: its elements in one row.
        start: where the task's part starts.
        strides: the distance of neighbours by letter; none where the tensor does not have the axis.
    """

    flat: Any
    start: Expr
    strides: Mapping[str, Expr]

    @classmethod
    def of(cls, flat: Any, axes: str, shape: Sequence[Expr], at: Mapping[str, Expr], out: list[Stmt]) -> Operand:
        """Return the tensor `flat` of `shape` at the indices `at` of the batch axes and at its digits."""
        start: Expr = imm(0)
        strides = {}
        for place, letter in enumerate(axes):
            stride = opaque_let("stride", product(list(shape[place + 1 :])), out)
            if letter in at:
                start = start + at[letter] * stride
            elif letter.isdigit():
                start = start + imm(int(letter)) * stride
            else:
                strides[letter] = stride
        return cls(flat, opaque_let("start", simple(start), out), strides)

    def place(self, **at: Expr) -> Expr:
        """Return where the element at these indices is; axes that the tensor does not have do not matter."""
        total = self.start
        for letter, index in at.items():
            if letter in self.strides:
                total = total + index * self.strides[letter]
        return total

    def element(self, **at: Expr) -> Expr:
        """Return the element at these indices."""
        return load(self.flat, self.place(**at))


def key_blocks(keys: Expr, most: int, body: Callable[[Expr, Expr, Expr | None], Stmt], *, few: bool) -> Stmt:
    """Return `body(first key, how many, number)` over blocks of at most `most` keys that differ by one at most.

    Where the keys are known to be `few`, there is but one block, and the number is None.
    """
    if few:
        return body(imm(0), keys, None)
    out: list[Stmt] = []
    count = block_count(keys, most, out)

    def block(number: Expr) -> Stmt:
        inside: list[Stmt] = []
        first = opaque_let("first", tirx.floordiv(number * keys, count), inside)
        end = opaque_let("end", tirx.floordiv((number + imm(1)) * keys, count), inside)
        length = opaque_let("length", end - first, inside)
        return seq([*inside, body(first, length, number)])

    return seq([*out, loop(count, block, "keys")])


def block_count(keys: Expr, most: int, out: list[Stmt]) -> Expr:
    """Return the number of blocks of keys, at least 1."""
    known = as_int(keys)
    if known is not None:
        return imm(max(1, -(-known // most)))
    return opaque_let("parts", tirx.max(tirx.floordiv(keys + imm(most - 1), imm(most)), imm(1)), out)


def lanes_loop(lanes: int, body: Callable[[Expr], Stmt], base: Expr | int = 0) -> Stmt:
    """Return `body` for every lane of the vector at `base`, as one vector statement."""
    first = imm(base) if isinstance(base, int) else base
    return loop(imm(lanes), lambda lane: body(simple(first + lane)), "lane", VECTORIZED)


def column_groups(columns: int, lanes: int, most: int) -> tuple[int, int, int, tuple[int, ...]]:
    """Return how the columns of a result are cut: (lanes, groups, step, offsets of a group's vectors).

    Fewer columns than lanes are one short vector. Vectors and groups overlap where they do not fill the columns.
    """
    if columns < lanes:
        return columns, 1, 0, (0,)
    vectors = -(-columns // lanes)
    if vectors <= most:
        return lanes, 1, 0, tuple(min(v * lanes, columns - lanes) for v in range(vectors))
    groups = -(-vectors // most)
    each = -(-vectors // groups)
    return lanes, -(-columns // (each * lanes)), each * lanes, tuple(v * lanes for v in range(each))
