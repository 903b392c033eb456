"""When every instruction runs: the front end, queues, tokens, the array's shadow weights and the memory port.

Every moment is the largest of some earlier moments plus a duration, and who goes first is always the
program's order. So the result is the same each time, and shorter durations never make it longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hcomp.targets.npu.device.cycles import Durations
from hcomp.targets.npu.device.isa import ENGINES, LD, LW, OPS, PE, ST, Instruction

REASONS = ("dispatch", "port", "weights", *(f"token {name}" for name in ENGINES))
"""Why an engine stood still before an instruction: it was not there yet, the memory port was busy, the array
loaded its first weights, or a token of an engine had not come."""
DISPATCH, PORT, WEIGHTS, TOKEN = range(4)
DMA = (LD, LW, ST)


@dataclass(frozen=True)
class Timeline:
    """The moments of a program in cycles.

    Attributes:
        cycles: until the last instruction has retired.
        start: when each instruction began to keep its engine (an array: to stream).
        end: when its engine was free again.
        retire: when its results were there.
        busy: by engine, cycles in which it worked.
        stalls: by engine, cycles that it stood still for each of REASONS; what is missing to `cycles` is after its
            last instruction.
        port_busy: cycles in which the memory port moved data.
        conflicts: by engine, of `busy`, cycles lost to bank conflicts.
        memory_bytes: moved by the port, whole bursts.
    """

    cycles: int
    start: Sequence[int]
    end: Sequence[int]
    retire: Sequence[int]
    busy: Sequence[int]
    stalls: Sequence[Sequence[int]]
    port_busy: int
    conflicts: Sequence[int]
    memory_bytes: int


@dataclass
class _Run:
    """The state of the machine while instructions pass."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    retire: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=lambda: [0] * len(ENGINES))
    stalls: list[list[int]] = field(default_factory=lambda: [[0] * len(REASONS) for _ in ENGINES])
    conflicts: list[int] = field(default_factory=lambda: [0] * len(ENGINES))
    port_busy: int = 0
    memory_bytes: int = 0


def simulate(instructions: Sequence[Instruction], durations: Durations) -> Timeline:
    """Return the timeline of a checked program's instructions."""
    queue = durations.machine.queue
    depth, dispatch_cycles, token = queue.depth, queue.dispatch_cycles, queue.token_cycles
    run = _Run()
    started: list[list[int]] = [[] for _ in ENGINES]
    retired: list[list[int]] = [[] for _ in ENGINES]
    free = [0] * len(ENGINES)
    dispatched = port_free = shadow_free = 0
    of = durations.of
    for one in instructions:
        engine = OPS[one.op].engine
        duration = of(one)
        occupied = duration.occupied
        before = started[engine]
        dispatched += dispatch_cycles
        # A queue has room again when the instruction `depth` before has left it.
        if len(before) >= depth and before[-depth] > dispatched:
            dispatched = before[-depth]
        was_free = free[engine]
        # The array takes an instruction, to load its first weights, while the one before streams its last fold.
        begin, reason = (shadow_free, WEIGHTS) if engine == PE else (was_free, DISPATCH)
        if dispatched > begin:
            begin, reason = dispatched, DISPATCH
        for other, count in enumerate(one.wait):
            if count:
                moment = retired[other][count - 1] + token
                if moment > begin:
                    begin, reason = moment, TOKEN + other
        if engine in DMA:
            if port_free > begin:
                begin, reason = port_free, PORT
            port_free = begin + duration.port
            run.port_busy += duration.port
            run.memory_bytes += duration.memory_bytes
        before.append(begin)
        if engine == PE:
            begin += duration.preload
            if was_free > begin:
                begin = was_free
            shadow_free = begin + duration.shadow
        if begin > was_free:
            run.stalls[engine][reason] += begin - was_free
        ended = begin + occupied
        free[engine] = ended
        done = ended + duration.latency
        history = retired[engine]
        if history and history[-1] > done:
            done = history[-1]
        history.append(done)
        run.busy[engine] += occupied
        run.conflicts[engine] += duration.conflicts
        run.start.append(begin)
        run.end.append(ended)
        run.retire.append(done)
    return Timeline(
        cycles=max((moments[-1] for moments in retired if moments), default=0),
        start=run.start,
        end=run.end,
        retire=run.retire,
        busy=run.busy,
        stalls=run.stalls,
        port_busy=run.port_busy,
        conflicts=run.conflicts,
        memory_bytes=run.memory_bytes,
    )
