"""The bytes that a view covers: bounds, the same view with fewer dimensions, and whether two can meet.

Sizes are in elements and strides in bytes here; a dimension of size 1 does not matter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hcomp.targets.npu.device.isa import ITEM_BYTES, OPS, Instruction, View, strides_of


class Region(NamedTuple):
    """Bytes in one memory: from `address`, runs of `run` bytes at every combination of `sizes` x `strides`."""

    space: str
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    run: int

    @property
    def low(self) -> int:
        """Return the first byte."""
        return self.address + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True) if s < 0)

    @property
    def high(self) -> int:
        """Return the byte behind the last one."""
        ups = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True) if s > 0)
        return self.address + ups + self.run

    @property
    def bytes(self) -> int:
        """Return how many bytes are touched, those touched twice counted twice."""
        total = self.run
        for n in self.sizes:
            total *= n
        return total


@lru_cache(maxsize=1 << 14)
def _collapse(
    sizes: tuple[int, ...], strides: tuple[int, ...], item: int
) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Return (offset in bytes, sizes, byte strides, run): repeats dropped, flips turned, neighbours joined."""
    offset = 0
    dims = []
    for n, stride in zip(sizes, strides, strict=True):
        if n > 1 and stride:
            if stride < 0:
                offset += (n - 1) * stride * item
            dims.append((abs(stride) * item, n))
    dims.sort()
    run = item
    while dims and dims[0][0] == run:
        run *= dims.pop(0)[1]
    joined: list[tuple[int, int]] = []
    for stride, n in dims:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0], joined[-1][1] * n)
        else:
            joined.append((stride, n))
    joined.reverse()
    return offset, tuple(n for _, n in joined), tuple(s for s, _ in joined), run


def region_of(instruction: Instruction, name: str) -> Region:
    """Return the bytes of an instruction's operand, which is a view; dimensions from the widest stride inwards."""
    view: View = getattr(instruction, name)
    sizes, strides = strides_of(instruction, name)
    offset, kept, steps, run = _collapse(sizes, strides, ITEM_BYTES[view.dtype])
    return Region(view.space, view.address + offset, kept, steps, run)


def accesses(instruction: Instruction) -> list[tuple[Region, bool]]:
    """Return every region that an instruction touches, with whether it is written; reads first."""
    views = (name for name in OPS[instruction.op].sources if isinstance(getattr(instruction, name), View))
    found = [(region_of(instruction, name), False) for name in views]
    written = region_of(instruction, "d")
    if instruction.op == "gemm" and instruction.imm[0]:
        found.append((written, False))
    found.append((written, True))
    return found


def writes_twice(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Say whether two elements of a view may share a place; some that do not are taken for such."""
    span = 0
    for stride, n in sorted((abs(s), n) for n, s in zip(sizes, strides, strict=True) if n > 1):
        if stride <= span:
            return True
        span += (n - 1) * stride
    return False


def may_overlap(one: Region, other: Region) -> bool:
    """Say whether two regions may share a byte; exact for rows of one pitch, else by their bounds."""
    if one.space != other.space or one.low >= other.high or other.low >= one.high:
        return False
    if not (one.sizes and other.sizes and one.strides[0] == other.strides[0]):
        return True
    pitch = one.strides[0]
    spans = [_row_span(region) for region in (one, other)]
    if max(spans) > pitch:
        return True
    # Both are rows of a matrix of `pitch` bytes: compare the columns, and the rows of those that meet.
    start = (other.low - one.low) % pitch
    shift = (other.low - one.low) // pitch
    rows = one.sizes[0], other.sizes[0]
    same_row = start < spans[0] and shift < rows[0] and shift + rows[1] > 0
    next_row = start + spans[1] > pitch and shift + 1 < rows[0] and shift + 1 + rows[1] > 0
    return same_row or next_row


def _row_span(region: Region) -> int:
    return sum((n - 1) * s for n, s in zip(region.sizes[1:], region.strides[1:], strict=True)) + region.run
