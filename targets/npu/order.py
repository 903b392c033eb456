"""The program's order: instructions by the moment at which they would start if the memory served who comes first.

The machine's memory port goes by program order, and its queues are filled in it. So the order of a
program is a schedule, and a program that was written tile by tile gets one here: loads move up until
they meet the store or the free place that they have to wait for. Each engine's own order stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.targets.npu.device.cycles import Duration, Durations
from hcomp.targets.npu.device.isa import ENGINES, LD, LW, OPS, PE, ST, Instruction

_NEVER = 1 << 62


def schedule(instructions: Sequence[Instruction], durations: Durations) -> list[Instruction]:
    """Return the instructions of a program with waits in a better order; it works for any machine."""
    queues: list[list[int]] = [[] for _ in ENGINES]
    for index, one in enumerate(instructions):
        queues[OPS[one.op].engine].append(index)
    scheduler = _Scheduler(instructions, queues, durations)
    order: list[int] = []
    while len(order) < len(instructions):
        order.append(scheduler.step())
    return [instructions[i] for i in order]


class _Scheduler:
    def __init__(
        self, instructions: Sequence[Instruction], queues: Sequence[Sequence[int]], durations: Durations
    ) -> None:
        self.instructions, self.queues, self.durations = instructions, queues, durations
        self.token = durations.machine.queue.token_cycles
        self.retired: list[list[int]] = [[] for _ in ENGINES]
        self.free = [0] * len(ENGINES)
        self.port_free = self.shadow_free = 0
        # When the tokens of each engine's next instruction are there; None: not known yet.
        self.ready: list[int | None] = [None] * len(ENGINES)

    def step(self) -> int:
        """Return the instruction that can start first, and let it run."""
        best, best_start, best_index = -1, _NEVER, _NEVER
        for engine, queue in enumerate(self.queues):
            done = len(self.retired[engine])
            if done == len(queue):
                continue
            ready = self.ready[engine]
            if ready is None:
                ready = self.ready[engine] = self._tokens(self.instructions[queue[done]])
                if ready is None:
                    continue
            start = max(ready, self.shadow_free if engine == PE else self.free[engine])
            if engine in (LD, LW, ST) and self.port_free > start:
                start = self.port_free
            if start < best_start or (start == best_start and queue[done] < best_index):
                best, best_start, best_index = engine, start, queue[done]
        self._run(best, best_start, self.durations.of(self.instructions[best_index]))
        return best_index

    def _tokens(self, one: Instruction) -> int | None:
        moment = 0
        for engine, count in enumerate(one.wait):
            if count:
                history = self.retired[engine]
                if count > len(history):
                    return None
                moment = max(moment, history[count - 1] + self.token)
        return moment

    def _run(self, engine: int, start: int, duration: Duration) -> None:
        if engine in (LD, LW, ST):
            self.port_free = start + duration.port
        elif engine == PE:
            start = max(start + duration.preload, self.free[PE])
            self.shadow_free = start + duration.shadow
        self.free[engine] = start + duration.occupied
        history = self.retired[engine]
        done = self.free[engine] + duration.latency
        history.append(max(done, history[-1]) if history else done)
        self.ready[engine] = None
