"""Whether a program's tokens are enough: an exact search for races, and runs in other legal orders.

Two instructions are ordered if they are of one engine or if tokens lead from one to the other. They
race if they are not, touch a common byte, and one of them writes it. `find_races` is exact to the byte;
`legal_order` gives orders in which the engines may really run, for `values.State.run`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.errors import ArtifactError
from hcomp.targets.npu.device.isa import ENGINES, OPS, Instruction
from hcomp.targets.npu.device.program import Program
from hcomp.targets.npu.device.regions import Region, accesses
from hcomp.targets.npu.device.text import print_instruction

MAX_RACES = 20


@dataclass(frozen=True)
class Race:
    """Two instructions that nothing orders and that touch a byte which one writes.

    Attributes:
        kind: RAW, WAR or WAW, as they come in the program.
        first, second: their places in the program.
        space: the memory that they meet in.
    """

    kind: str
    first: int
    second: int
    space: str

    def describe(self, program: Program) -> str:
        """Return the race as a sentence."""
        one, two = program.instructions[self.first], program.instructions[self.second]
        return (
            f"{self.kind} in {self.space}: nothing orders instruction {self.second} ({print_instruction(two)}) "
            f"after {self.first} ({print_instruction(one)})"
        )


def check_races(program: Program) -> None:
    """Refuse a program with a race.

    Raises:
        ArtifactError: there is one; says between which instructions.
    """
    races = find_races(program, limit=1)
    if races:
        raise ArtifactError(f"{program.name}: {races[0].describe(program)}")


def find_races(program: Program, limit: int = MAX_RACES) -> list[Race]:
    """Return the races of a checked program, at most `limit`, in program order of the second instruction."""
    shadow = _Shadow(program)
    clocks: list[NDArray[np.int32]] = []
    latest = np.zeros((len(ENGINES), len(ENGINES)), np.int32)
    places: list[list[int]] = [[] for _ in ENGINES]
    found: list[Race] = []
    for index, one in enumerate(program.instructions):
        engine = OPS[one.op].engine
        # clock[e]: how many instructions of engine e are certainly over when this one starts.
        clock = latest[engine]
        clock[engine] = len(places[engine])
        for other, count in enumerate(one.wait):
            if count > clock[other]:
                np.maximum(clock, clocks[places[other][count - 1]], out=clock)
                clock[other] = max(clock[other], count)
        clocks.append(clock.copy())
        for region, written in accesses(one):
            for kind, other, number in shadow.conflicts(region, written, clock):
                race = Race(kind, places[other][number], index, region.space)
                if race not in found:
                    found.append(race)
                if len(found) == limit:
                    return found
        # What one instruction reads and writes itself is in order: its accesses are noted after all are looked at.
        for region, written in accesses(one):
            shadow.note(region, written, engine, len(places[engine]))
        places[engine].append(index)
    return found


class _Shadow:
    """For every byte that can change: the last instruction of each engine that read it, and that wrote it."""

    def __init__(self, program: Program) -> None:
        self.pads = {name: _Bytes(0, pad.size) for name, pad in program.machine.scratchpad.items()}
        buffers = [buffer for buffer in program.buffers if buffer.size]
        self.starts = [buffer.address for buffer in buffers]
        # Inputs and constants are never written.
        self.buffers = [_Bytes(b.address, b.size) if b.writable else None for b in buffers]

    def conflicts(self, region: Region, written: bool, clock: NDArray[np.int32]) -> Iterator[tuple[str, int, int]]:
        """Yield (kind, engine, number) of accesses that are not over at `clock`: the latest of each engine."""
        place = self._place(region)
        if place is None:
            return
        tables = [("WAW", place.writes), ("WAR", place.reads)] if written else [("RAW", place.writes)]
        for kind, table in tables:
            latest = place.view(table, region).reshape(len(ENGINES), -1).max(1)
            for engine in np.flatnonzero(latest > clock).tolist():
                yield kind, engine, int(latest[engine]) - 1

    def note(self, region: Region, written: bool, engine: int, number: int) -> None:
        """Remember an access."""
        place = self._place(region)
        if place is not None:
            place.view(place.writes if written else place.reads, region)[engine] = number + 1

    def _place(self, region: Region) -> _Bytes | None:
        """Return the entries of the memory that a region is in, None where nothing can change."""
        if region.space != "mem":
            return self.pads[region.space]
        return self.buffers[bisect_right(self.starts, region.address) - 1]


class _Bytes:
    """One memory: for each engine and byte, one more than the number of the last access; 0 for none.

    Zero pages come free, so that a large memory of which little is used costs little.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.reads = np.zeros((len(ENGINES), size), np.int32)
        self.writes = np.zeros((len(ENGINES), size), np.int32)

    def view(self, table: NDArray[np.int32], region: Region) -> NDArray[Any]:
        """Return the entries [engine, ..., run] of a region."""
        shape = (len(ENGINES), *region.sizes, region.run)
        strides = (table.strides[0], *(s * table.itemsize for s in region.strides), table.itemsize)
        return np.ndarray(shape, np.int32, table, (region.address - self.address) * table.itemsize, strides)


def legal_order(program: Program, seed: int) -> list[Instruction]:
    """Return the instructions in an order that the tokens allow: each engine in order, runs of random length.

    Raises:
        ArtifactError: the engines wait for one another.
    """
    rng = random.Random(seed)
    queues: list[list[Instruction]] = [[] for _ in ENGINES]
    for one in program.instructions:
        queues[OPS[one.op].engine].append(one)
    done = [0] * len(ENGINES)
    order: list[Instruction] = []
    while len(order) < len(program.instructions):
        ready = [e for e in range(len(ENGINES)) if _is_ready(queues, done, e)]
        if not ready:
            raise ArtifactError(f"{program.name}: the engines wait for one another after {len(order)} instructions")
        engine = rng.choice(ready)
        for _ in range(rng.randint(1, 8)):
            if not _is_ready(queues, done, engine):
                break
            order.append(queues[engine][done[engine]])
            done[engine] += 1
    return order


def _is_ready(queues: Sequence[Sequence[Instruction]], done: Sequence[int], engine: int) -> bool:
    if done[engine] == len(queues[engine]):
        return False
    wait = queues[engine][done[engine]].wait
    return all(count <= over for count, over in zip(wait, done, strict=True))
