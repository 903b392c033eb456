"""Waits from what instructions touch: memory in lines of 64 bytes, each with its latest readers and writers.

Two accesses of one line count as touching, so that a wait may be one too many and never one too few.
The work for an instruction is proportional to the lines that it touches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.targets.npu.device.isa import ENGINES, OPS, Instruction
from hcomp.targets.npu.device.regions import Region, accesses

LINE = 64
_COUNT = len(ENGINES)


class Dependencies:
    """What has been issued so far.

    Attributes:
        sizes: bytes of each scratchpad.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.pads = {name: _Table(0, size) for name, size in sizes.items()}
        self.starts: list[int] = []
        self.buffers: list[_Table | None] = []
        self.issued = [0] * _COUNT
        # clocks[e][i][o]: instructions of engine o that are over once instruction i of e has started.
        self.clocks: list[list[list[int]]] = [[] for _ in ENGINES]
        self.now = [[0] * _COUNT for _ in ENGINES]

    def add_buffer(self, address: int, size: int, *, writable: bool) -> None:
        """Declare a buffer in device memory, behind those declared before."""
        self.starts.append(address)
        self.buffers.append(_Table(address, size) if writable else None)

    def issue(self, one: Instruction) -> tuple[int, ...]:
        """Return the waits that an instruction needs, and count it as issued."""
        engine = OPS[one.op].engine
        touched = [(lines, written) for region, written in accesses(one) if (lines := self._lines(region)) is not None]
        latest = [lines.latest(written) for lines, written in touched]
        wait = self._waits(engine, [max(counts) for counts in zip(*latest, strict=True)])
        self.issued[engine] += 1
        for lines, written in touched:
            lines.note(engine, self.issued[engine], written)
        return wait

    def _waits(self, engine: int, needed: Sequence[int]) -> tuple[int, ...]:
        """Return the waits for what is not over anyway when the next instruction of an engine starts."""
        clock = self.now[engine]
        clock[engine] = self.issued[engine]
        wait = [0] * _COUNT
        open_ = [other for other, count in enumerate(needed) if count > clock[other]]
        # With an instruction, all that was over when it started is over: a wait that another one brings is not needed.
        brought = {other: self.clocks[other][needed[other] - 1] for other in open_}
        for other in open_:
            if all(brought[o][other] < needed[other] for o in open_ if o != other):
                wait[other] = needed[other]
        for other in open_:
            clock[:] = map(max, clock, brought[other])
            clock[other] = needed[other]
        self.clocks[engine].append(clock.copy())
        return tuple(wait)

    def _lines(self, region: Region) -> _Lines | None:
        if region.space != "mem":
            return self.pads[region.space].lines(region)
        table = self.buffers[bisect_right(self.starts, region.address) - 1]
        return table.lines(region) if table is not None else None


class _Lines:
    """The lines of one region: a view [writes or reads, engine, ..., lines] of its table."""

    __slots__ = ("counts",)

    def __init__(self, counts: NDArray[Any]) -> None:
        self.counts = counts

    def latest(self, written: bool) -> list[int]:
        """Return, for each engine, how many of its instructions must be over before this access."""
        if not written:
            writes: list[int] = self.counts[_WRITES].reshape(_COUNT, -1).max(1).tolist()
            return writes
        both = self.counts.reshape(2 * _COUNT, -1).max(1).tolist()
        return list(map(max, both[:_COUNT], both[_COUNT:]))

    def note(self, engine: int, count: int, written: bool) -> None:
        self.counts[_WRITES if written else _READS, engine] = count


_WRITES, _READS = 0, 1


class _Table:
    """The lines of one memory: by engine, the count up to and with the latest that wrote and that read each."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.counts = np.zeros((2, _COUNT, -(-size // LINE) + 1), np.int32)

    def lines(self, region: Region) -> _Lines:
        """Return the lines that a region touches, or more: inner axes of odd strides count as one run."""
        sizes, strides, span = region.sizes, region.strides, region.run
        kept = len(sizes)
        for i, stride in enumerate(strides):
            if stride % LINE:
                kept = i
                break
        for n, stride in zip(sizes[kept:], strides[kept:], strict=True):
            span += (n - 1) * stride
        start = region.address - self.address
        run = (start % LINE + span + LINE - 1) // LINE
        first = start // LINE
        if not kept:
            return _Lines(self.counts[:, :, first : first + run])
        item = self.counts.itemsize
        shape = (2, _COUNT, *sizes[:kept], run)
        steps = (*self.counts.strides[:2], *(s // LINE * item for s in strides[:kept]), item)
        return _Lines(np.ndarray(shape, np.int32, self.counts, first * item, steps))
