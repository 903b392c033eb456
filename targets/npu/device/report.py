"""What a timed program did: utilisation, stalls, bytes, memory, energy; as text, as JSON, as a Chrome trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from hcomp.targets.npu.device.cycles import Durations
from hcomp.targets.npu.device.isa import ENGINES, OPS, OS, Instruction, View, gemm_type
from hcomp.targets.npu.device.machine import SCRATCHPADS, Machine
from hcomp.targets.npu.device.program import Program
from hcomp.targets.npu.device.regions import accesses
from hcomp.targets.npu.device.text import print_instruction
from hcomp.targets.npu.device.timeline import REASONS, Timeline, simulate


@dataclass(frozen=True)
class Report:
    """A program with its timeline on its machine.

    Attributes:
        state: the power state it was timed in.
    """

    program: Program
    timeline: Timeline
    state: str

    @property
    def seconds(self) -> float:
        """Return the time of the program."""
        return self.timeline.cycles / (self.program.machine.state(self.state).clock_mhz * 1e6)

    @cached_property
    def work(self) -> Work:
        """Return what was done, counted from the instructions."""
        return count_work(self.program)

    @property
    def array_utilisation(self) -> float:
        """Return multiply-adds done as a share of those that the array could have done in all cycles."""
        array = self.program.machine.array
        steps = sum(n * array.step_cycles[dtype] for dtype, n in self.work.macs.items())
        return steps / (array.rows * array.columns * self.timeline.cycles) if self.timeline.cycles else 0.0

    def energy_uj(self) -> dict[str, float]:
        """Return microjoules by component: dynamic ones by (voltage / first voltage)^2, leakage by voltage and time."""
        machine, work = self.program.machine, self.work
        energy = machine.energy
        voltage = machine.state(self.state).voltage_v / machine.states[0].voltage_v
        scale = voltage * voltage * 1e-6
        found = {
            "array": sum(energy.mac_pj[dtype] * n for dtype, n in work.macs.items()) * scale,
            "vector": energy.vector_pj * work.vector_operations * scale,
            "memory": energy.memory_pj_per_byte * self.timeline.memory_bytes * scale,
            "control": energy.instruction_pj * len(self.program.instructions) * scale,
            "leakage": energy.leakage_mw * voltage * self.seconds * 1e3,
        }
        for name in SCRATCHPADS:
            found[name] = getattr(energy, f"{name}_pj_per_byte") * work.scratchpad_bytes[name] * scale
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        line, cycles = self.timeline, max(self.timeline.cycles, 1)
        energy = self.energy_uj()
        return {
            "program": self.program.name,
            "machine": self.program.machine.name,
            "state": self.state,
            "instructions": len(self.program.instructions),
            "cycles": line.cycles,
            "microseconds": self.seconds * 1e6,
            "engines": {
                name: {
                    "instructions": self.work.instructions[i],
                    "busy_cycles": line.busy[i],
                    "utilisation": line.busy[i] / cycles,
                    "bank_conflict_cycles": line.conflicts[i],
                    "stall_cycles": {r: n for r, n in zip(REASONS, line.stalls[i], strict=True) if n},
                }
                for i, name in enumerate(ENGINES)
            },
            "array_utilisation": self.array_utilisation,
            "memory_port_utilisation": line.port_busy / cycles,
            "macs": dict(self.work.macs),
            "memory_bytes": line.memory_bytes,
            "scratchpad_bytes_moved": dict(self.work.scratchpad_bytes),
            "high_water_bytes": dict(self.work.high_water),
            "energy_uj": energy | {"total": sum(energy.values())},
        }

    def to_text(self) -> str:
        """Return the report for people."""
        data = self.to_json()
        lines = [
            f"{data['program']} on {data['machine']} ({self.state}): {data['cycles']} cycles, "
            f"{data['microseconds']:.1f} us, {data['instructions']} instructions",
            f"array {data['array_utilisation']:.1%} used, memory port {data['memory_port_utilisation']:.1%}, "
            f"{data['memory_bytes']} bytes moved, {data['energy_uj']['total']:.1f} uJ",
        ]
        for name, engine in data["engines"].items():
            stalls = ", ".join(f"{reason} {n}" for reason, n in engine["stall_cycles"].items())
            lines.append(
                f"{name}  {engine['instructions']} instructions, busy {engine['utilisation']:.1%}"
                + (f", of it bank conflicts {engine['bank_conflict_cycles']}" if engine["bank_conflict_cycles"] else "")
                + (f"; waited for {stalls}" if stalls else "")
            )
        for name in SCRATCHPADS:
            size = self.program.machine.scratchpad[name].size
            lines.append(f"{name}  {data['high_water_bytes'][name]} of {size} bytes used")
        return "\n".join(lines)

    def chrome_trace(self) -> dict[str, Any]:
        """Return every instruction in the trace format that chrome://tracing and Perfetto open; 1 us is 1 us."""
        scale = 1 / self.program.machine.state(self.state).clock_mhz
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": name}}
            for i, name in enumerate(ENGINES)
        ]
        line = self.timeline
        for one, start, end in zip(self.program.instructions, line.start, line.end, strict=True):
            events.append(
                {
                    "ph": "X",
                    "name": one.op,
                    "pid": 1,
                    "tid": OPS[one.op].engine,
                    "ts": round(start * scale, 6),
                    "dur": round((end - start) * scale, 6),
                    "args": {"instruction": print_instruction(one)},
                }
            )
        return {"displayTimeUnit": "ns", "traceEvents": events}


@dataclass(frozen=True)
class Work:
    """What a program does, whatever the time it takes.

    Attributes:
        instructions: by engine.
        macs: multiply-adds by the type under which the machine lists them.
        vector_operations: elements times passes.
        scratchpad_bytes: read and written by name, as the instructions' operands say.
        high_water: the end of the highest byte touched, by scratchpad.
    """

    instructions: tuple[int, ...]
    macs: Mapping[str, int]
    vector_operations: int
    scratchpad_bytes: Mapping[str, int]
    high_water: Mapping[str, int]


def count_work(program: Program) -> Work:
    """Return what a checked program does."""
    instructions = [0] * len(ENGINES)
    macs: dict[str, int] = {}
    vector = 0
    moved = dict.fromkeys(SCRATCHPADS, 0)
    high = dict.fromkeys(SCRATCHPADS, 0)
    for one in program.instructions:
        op = OPS[one.op]
        instructions[op.engine] += 1
        if op.form == "gemm":
            assert isinstance(one.a, View)
            dtype = gemm_type(one.a.dtype)
            macs[dtype] = macs.get(dtype, 0) + prod(one.sizes)
        elif op.form != "move":
            vector += prod(one.sizes) * op.passes
        passes = _gemm_passes(one, program.machine) if op.form == "gemm" else {}
        for region, _ in accesses(one):
            if region.space != "mem":
                moved[region.space] += region.bytes * passes.get(region.space, 1)
                high[region.space] = max(high[region.space], region.high)
    return Work(tuple(instructions), macs, vector, moved, high)


def _gemm_passes(one: Instruction, machine: Machine) -> dict[str, int]:
    """Return how often a product reads its operands and reads or writes its sums, by scratchpad."""
    m, k, n = prod(one.sizes[:3]), prod(one.sizes[3:6]), one.sizes[6]
    rows, columns = machine.array.rows, machine.array.columns
    across = -(-n // columns)
    if one.imm[1] == OS:
        return {"act": across, "wgt": -(-m // rows), "acc": 1}
    # Weights stay; every fold along k adds to the sums: a read for each but the first, which is counted apart.
    folds = -(-k // rows)
    return {"act": across, "wgt": 1, "acc": folds if one.imm[0] else 2 * folds - 1}


def time_program(program: Program, state: str = "", *, overlap: bool = True) -> Report:
    """Return the report of a checked program in a power state of its machine, the first for "".

    Raises:
        UsageError: the machine has no such state.
    """
    name = program.machine.state(state).name
    durations = Durations(program.machine, name, overlap=overlap)
    return Report(program, simulate(program.instructions, durations), name)
