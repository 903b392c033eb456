"""Which products of a depthwise convolution's tiles are with padding, on the last axis.

A tile is `TILE` neighbouring positions. Of known widths, the tiles at the edges are counted. Of free widths, a tile's
distance from an edge says as much: the first tiles from the left one, the last tiles from the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as cartesian
from typing import TypeAlias

from tvm import tirx

from hcomp.targets.cpu.schedule.conv_shape import ConvShape
from hcomp.targets.cpu.schedule.nest import Expr, imm

TILE = 6
"""Positions of one register tile: enough sums to hide the latency of a multiply-add."""

_MOST_EDGES = 4
"""Tiles with taps outside of the image that may be code of their own."""

Outside: TypeAlias = frozenset[tuple[int, int]]
"""Taps of the last axis and positions of a tile whose product is with padding: (tap, position)."""

NOTHING: Outside = frozenset()


@dataclass(frozen=True)
class Kind:
    """A kind of tiles: what is outside of the image, and whether a tile that starts at a position is one."""

    outside: Outside
    holds: Callable[[Expr], Expr]


def known_kinds(shape: ConvShape, size: int, length: int, chunk: int) -> list[Kind] | None:
    """Return the kinds of tiles that have something outside, in rows of `length` positions cut into chunks.

    None where so many kinds of tiles would be much code.
    """
    found = {start: _outside(shape, start, lambda x: not 0 <= x < size) for start in _starts(length, chunk)}
    kinds = [Kind(outside, _starts_at(start)) for start, outside in found.items() if outside]
    return kinds if len(kinds) <= _MOST_EDGES else None


def free_kinds(shape: ConvShape, size: Expr, length: Expr) -> list[Kind]:
    """Return the kinds of tiles in images of a free `size`, with rows of `length` positions; the most frequent first.

    A tile is of a kind at one edge only if it is far enough from the other one, or is the first one at both. How far
    the last window reaches over the edge depends on the remainder of the size by the stride. A tile can be of no kind.
    """
    step, reach = shape.strides[-1], (shape.kernel[-1] - 1) * shape.dilation[-1]

    def place(position: Expr) -> Expr:
        return position * imm(step) - imm(shape.begin[-1])

    def ends_inside(start: Expr) -> Expr:
        return place(start + imm(TILE - 1)) + imm(reach) < size

    def begins_inside(start: Expr) -> Expr:
        return place(start) >= imm(0)

    def both(one: Callable[[Expr], Expr], other: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
        return lambda start: tirx.all(one(start), other(start))

    def is_last(over: int, behind: int) -> Callable[[Expr], Expr]:
        """Return whether `behind` positions follow a tile, and the last window ends `over` elements outside."""
        end = place(length - imm(1)) + imm(reach)
        return lambda start: tirx.all(start == length - imm(TILE + behind), end == size - imm(1) + imm(over))

    def left(start: int) -> Outside:
        return _outside(shape, start, lambda x: x < 0)

    kinds = [Kind(NOTHING, both(begins_inside, ends_inside))]
    firsts = range(0, -(-shape.begin[-1] // step), TILE)
    kinds += [Kind(left(start), both(_starts_at(start), ends_inside)) for start in firsts]
    for over in range(max(0, shape.end[-1] - step + 1), shape.end[-1] + 1):
        for behind in range(-(-over // step)):
            # From the last window's end: each position before it ends `step` earlier.
            right = frozenset(
                (q, p)
                for q, p in cartesian(range(shape.kernel[-1]), range(TILE))
                if over - reach + q * shape.dilation[-1] - (TILE - 1 - p + behind) * step > 0
            )
            kinds.append(Kind(right, both(begins_inside, is_last(over, behind))))
            if left(0):
                kinds.append(Kind(right | left(0), both(_starts_at(0), is_last(over, behind))))
    return kinds


def tile_of(chunk: int, *, whole: bool) -> int:
    """Return the positions of a tile in chunks of `chunk`, all of them `whole` or not; in shorter ones it is 1."""
    return min(TILE, chunk) if whole or chunk >= TILE else 1


def _starts_at(position: int) -> Callable[[Expr], Expr]:
    return lambda start: start == imm(position)


def _outside(shape: ConvShape, start: int, is_outside: Callable[[int], bool]) -> Outside:
    """Return the products of a tile at `start` whose place in the image `is_outside`."""
    step, distance, begin = shape.strides[-1], shape.dilation[-1], shape.begin[-1]
    pairs = cartesian(range(shape.kernel[-1]), range(TILE))
    return frozenset((q, p) for q, p in pairs if is_outside((start + p) * step + q * distance - begin))


def _starts(length: int, chunk: int) -> list[int]:
    """Return where the tiles of an axis start that is cut into chunks."""
    found = []
    widest = tile_of(chunk, whole=length % chunk == 0)
    for first in range(0, length, chunk):
        count = min(chunk, length - first)
        tile = widest if count >= widest else 1
        found += [first + min(start, count - tile) for start in range(0, count, tile)]
    return found
