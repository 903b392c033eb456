"""When every instruction runs: the front end, queues, tokens, the array's shadow weights and the memory port.

Every moment is the largest of some earlier moments plus a duration, and who goes first is always the
program's order. So the result is the same each time, and shorter durations never make it longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcomp.targets.npu.device.cycles import Duration, Durations
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


class Engines:
    """The engines, the memory port and the array's shadow weights: what the next instruction meets.

    Attributes:
        free: when each engine can take the next instruction.
        retired: by engine, when each of its instructions was over.
    """

    def __init__(self, token_cycles: int) -> None:
        self.token_cycles = token_cycles
        self.free = [0] * len(ENGINES)
        self.retired: list[list[int]] = [[] for _ in ENGINES]
        self.port_free = self.shadow_free = 0

    def open(self, engine: int) -> int:
        """Return when an engine takes the next instruction.

        The array does so while the instruction before streams its last fold, to load its first weights.
        """
        return self.shadow_free if engine == PE else self.free[engine]

    def tokens(self, wait: Sequence[int]) -> tuple[int, int]:
        """Return when the last of some tokens is there, and the engine that sends it."""
        moment, sender = 0, -1
        for engine, count in enumerate(wait):
            if count:
                sent = self.retired[engine][count - 1] + self.token_cycles
                if sent > moment:
                    moment, sender = sent, engine
        return moment, sender

    def run(self, engine: int, begin: int, duration: Duration) -> int:
        """Let an engine take an instruction at `begin` and return when it starts to work."""
        if engine in DMA:
            self.port_free = begin + duration.port
        elif engine == PE:
            begin = max(begin + duration.preload, self.free[PE])
            self.shadow_free = begin + duration.shadow
        self.free[engine] = begin + duration.occupied
        history = self.retired[engine]
        done = self.free[engine] + duration.latency
        history.append(max(done, history[-1]) if history else done)
        return begin


def simulate(instructions: Sequence[Instruction], durations: Durations) -> Timeline:
    """Return the timeline of a checked program's instructions."""
    queue = durations.machine.queue
    engines = Engines(queue.token_cycles)
    taken: list[list[int]] = [[] for _ in ENGINES]
    stalls = [[0] * len(REASONS) for _ in ENGINES]
    busy, conflicts = [0] * len(ENGINES), [0] * len(ENGINES)
    start, end, retire = [], [], []
    dispatched = port_busy = memory_bytes = 0
    for one in instructions:
        engine = OPS[one.op].engine
        duration = durations.of(one)
        dispatched += queue.dispatch_cycles
        # A queue has room again when the instruction `depth` before has left it.
        before = taken[engine]
        if len(before) >= queue.depth:
            dispatched = max(dispatched, before[-queue.depth])
        was_free = engines.free[engine]
        begin, reason = _begin(engines, engine, dispatched, one.wait)
        before.append(begin)
        begin = engines.run(engine, begin, duration)
        stalls[engine][reason] += max(0, begin - was_free)
        busy[engine] += duration.occupied
        conflicts[engine] += duration.conflicts
        port_busy += duration.port
        memory_bytes += duration.memory_bytes
        start.append(begin)
        end.append(engines.free[engine])
        retire.append(engines.retired[engine][-1])
    cycles = max(retire, default=0)
    return Timeline(cycles, start, end, retire, busy, stalls, port_busy, conflicts, memory_bytes)


def _begin(engines: Engines, engine: int, dispatched: int, wait: Sequence[int]) -> tuple[int, int]:
    """Return when an engine takes an instruction, and the reason why not before."""
    begin, reason = engines.open(engine), WEIGHTS
    if dispatched > begin:
        begin, reason = dispatched, DISPATCH
    moment, sender = engines.tokens(wait)
    if moment > begin:
        begin, reason = moment, TOKEN + sender
    if engine in DMA and engines.port_free > begin:
        begin, reason = engines.port_free, PORT
    return begin, reason
