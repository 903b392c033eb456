"""Whether a program's tokens are enough: an exact search for races, and runs in other legal orders.

Two instructions are ordered if they are of one engine or if tokens lead from one to the other. They
race if they are not, touch a common byte, and one of them writes it. `find_races` is exact to the byte;
`legal_order` gives orders in which the engines may really run, for `values.State.run`.
"""

from __future__ import annotations

import random
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
        sizes = {name: pad.size for name, pad in program.machine.scratchpad.items()}
        # Inputs and constants are never written; only the memory behind the first that is can have a race.
        changing = [b for b in program.buffers if b.writable and b.size]
        self.origin = min((b.address for b in changing), default=0)
        sizes["mem"] = max((b.address + b.size for b in changing), default=0) - self.origin
        # 0 is never: zero pages come free. Numbers are kept one higher.
        self.reads = {name: np.zeros((len(ENGINES), size), np.int32) for name, size in sizes.items()}
        self.writes = {name: np.zeros((len(ENGINES), size), np.int32) for name, size in sizes.items()}

    def conflicts(self, region: Region, written: bool, clock: NDArray[np.int32]) -> Iterator[tuple[str, int, int]]:
        """Yield (kind, engine, number) of accesses that are not over at `clock`: the latest of each engine."""
        tables = [("WAW" if written else "RAW", self.writes)]
        if written:
            tables.append(("WAR", self.reads))
        for kind, table in tables:
            last = self._bytes(table, region)
            if last is None:
                continue
            latest = last.reshape(len(ENGINES), -1).max(1)
            for engine in np.flatnonzero(latest > clock).tolist():
                yield kind, engine, int(latest[engine]) - 1

    def note(self, region: Region, written: bool, engine: int, number: int) -> None:
        """Remember an access."""
        last = self._bytes(self.writes if written else self.reads, region)
        if last is not None:
            last[engine] = number + 1

    def _bytes(self, tables: dict[str, NDArray[np.int32]], region: Region) -> NDArray[Any] | None:
        """Return a view [engine, ..., run] of a region's entries, None where nothing can change."""
        start = region.address
        if region.space == "mem":
            if region.low < self.origin:
                return None
            start -= self.origin
        table = tables[region.space]
        shape = (len(ENGINES), *region.sizes, region.run)
        strides = (table.strides[0], *(s * 4 for s in region.strides), 4)
        return np.ndarray(shape, np.int32, table, start * 4, strides)


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
