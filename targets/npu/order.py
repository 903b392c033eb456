"""The program's order: instructions by the moment at which they would start if the memory served who comes first.

The machine's memory port goes by program order, and its queues are filled in it. So the order of a
program is a schedule, and a program that was written tile by tile gets one here: loads move up until
they meet the store or the free place that they have to wait for. Each engine's own order stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.targets.npu.device.cycles import Durations
from hcomp.targets.npu.device.isa import ENGINES, OPS, Instruction
from hcomp.targets.npu.device.timeline import DMA, Engines

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
        self.engines = Engines(durations.machine.queue.token_cycles)
        # When the tokens of each engine's next instruction are there; None: not known yet.
        self.ready: list[int | None] = [None] * len(ENGINES)

    def step(self) -> int:
        """Return the instruction that can start first, and let it run."""
        best = (_NEVER, _NEVER, -1)
        for engine, queue in enumerate(self.queues):
            done = len(self.engines.retired[engine])
            if done == len(queue):
                continue
            ready = self.ready[engine]
            if ready is None:
                ready = self.ready[engine] = self._tokens(self.instructions[queue[done]])
                if ready is None:
                    continue
            start = max(ready, self.engines.open(engine))
            if engine in DMA:
                start = max(start, self.engines.port_free)
            best = min(best, (start, queue[done], engine))
        start, index, engine = best
        self.engines.run(engine, start, self.durations.of(self.instructions[index]))
        self.ready[engine] = None
        return index

    def _tokens(self, one: Instruction) -> int | None:
        retired = self.engines.retired
        if any(count > len(history) for count, history in zip(one.wait, retired, strict=True)):
            return None
        return self.engines.tokens(one.wait)[0]
