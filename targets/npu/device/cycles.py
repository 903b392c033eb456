"""How long one instruction keeps its engine, by its shape alone: no data, no other instruction.

README.md has the formulas. `Durations` is for one machine in one power state and remembers every shape,
so that a program of many equal tiles costs few computations; a cost model can ask it too.
"""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple, TypeAlias

from hcomp.targets.npu.device.isa import (
    ITEM_BYTES,
    OPS,
    OS,
    Instruction,
    View,
    gemm_type,
    strides_of,
)
from hcomp.targets.npu.device.machine import Machine
from hcomp.targets.npu.device.regions import region_of


class Duration(NamedTuple):
    """Cycles of an instruction.

    Attributes:
        occupied: until its engine can take the next one (for a gemm, of streaming alone).
        latency: from then until its results are there.
        port: of `occupied`, cycles of the memory port.
        preload: of a gemm, cycles to load the first weights into the array.
        shadow: of a gemm, streaming cycles before the last fold, when the next weights may be loaded.
        conflicts: of `occupied`, cycles lost to bank conflicts.
        memory_bytes: whole bursts moved.
    """

    occupied: int
    latency: int
    port: int = 0
    preload: int = 0
    shadow: int = 0
    conflicts: int = 0
    memory_bytes: int = 0


Walk: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""Sizes and strides in elements."""


class Durations:
    """Cycles by shape on one machine in one power state.

    Attributes:
        overlap: whether the array hides loading weights, filling and draining behind other work; if
            not, every fold pays them, as SCALE-Sim counts.
    """

    def __init__(self, machine: Machine, state: str = "", *, overlap: bool = True) -> None:
        self.machine = machine
        self.overlap = overlap
        self.clock_hz = machine.state(state).clock_mhz * 1_000_000
        self.bytes_per_s = max(1, round(machine.memory.bandwidth_gb_s * 1e9))
        self.memory_latency = ceil(machine.memory.latency_ns * self.clock_hz * 1e-9)
        self._known: dict[object, Duration] = {}
        self._access: dict[object, int] = {}

    def of(self, one: Instruction) -> Duration:
        """Return the cycles of an instruction."""
        key = _shape_of(one)
        found = self._known.get(key)
        if found is None:
            form = OPS[one.op].form
            found = self._move(one) if form == "move" else self._gemm(one) if form == "gemm" else self._vector(one)
            self._known[key] = found
        return found

    def port_cycles(self, size: int) -> int:
        """Return the cycles that the memory port takes for `size` bytes."""
        return -(-size * self.clock_hz // self.bytes_per_s)

    def gemm(self, m: int, k: int, n: int, dtype: str, flow: int, *, a_access: int = 1, b_access: int = 1) -> Duration:
        """Return the cycles of a product [m,k] x [k,n]; `a_access`, `b_access` are cycles for each step's operands.

        Without overlap the folds are those of SCALE-Sim's equations (Samajdar et al., ISPASS 2020, section III):
        output stationary ceil(m/R) ceil(n/C) (k + R + C - 2), weight stationary ceil(k/R) ceil(n/C) (m + 2R + C - 2).
        """
        array = self.machine.array
        rows, columns, step = array.rows, array.columns, array.step_cycles[gemm_type(dtype)]
        edge = rows + columns - 2
        if flow == OS:
            folds = -(-m // rows) * -(-n // columns)
            stream, preload = k * max(step, a_access, b_access), 0
            fold, free = max(stream, rows), max(k * step, rows)
        else:
            folds = -(-k // rows) * -(-n // columns)
            stream, preload = m * max(step, a_access), rows * b_access
            fold, free = max(stream, preload), max(m * step, rows)
        if not self.overlap:
            plain = folds * (preload + stream + edge)
            return Duration(plain, 0, shadow=plain)
        # The last fold's sums leave while what keeps it longer than its stream, loading or shifting out, goes on.
        latency = max(0, edge - (fold - stream))
        return Duration(folds * fold, latency, 0, preload, (folds - 1) * fold, folds * (fold - free))

    def _gemm(self, one: Instruction) -> Duration:
        m, k, n = prod(one.sizes[:3]), prod(one.sizes[3:6]), one.sizes[6]
        a, b = one.a, one.b
        assert isinstance(a, View)
        assert isinstance(b, View)
        array = self.machine.array
        flow = int(one.imm[1])
        rows, inner = (one.sizes[:3], a.strides[:3]), (one.sizes[3:6], a.strides[3:6])
        a_access = self._edge(a, *((rows, inner) if flow == OS else (inner, rows)), array.rows)
        b_access = self._edge(b, ((n,), b.strides[1:]), ((k,), b.strides[:1]), array.columns)
        return self.gemm(m, k, n, a.dtype, flow, a_access=a_access, b_access=b_access)

    def _vector(self, one: Instruction) -> Duration:
        op, vector = OPS[one.op], self.machine.vector
        steps = -(-prod(one.sizes) // vector.lanes) * op.passes
        # Each element is fetched once and written once, whatever the passes in between.
        views = (name for name in ("d", *op.sources) if isinstance(getattr(one, name), View))
        access = max(self._walk(getattr(one, name), *strides_of(one, name)) for name in views)
        occupied = max(steps, access)
        return Duration(occupied, vector.startup_cycles, conflicts=occupied - steps)

    def _walk(self, view: View, sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
        """Return the cycles in which a scratchpad gives or takes a whole walk, whose beginning stands for all.

        The buffer of an operand evens out what the banks have to do over as many elements as banks have bytes.
        """
        pad, total = self.machine.scratchpad[view.space], prod(sizes)
        window = min(total, pad.banks * pad.bank_bytes)
        return -(-total * self._cycles(view, sizes, strides, window) // window)

    def _move(self, one: Instruction) -> Duration:
        dma, memory = self.machine.dma, self.machine.memory
        outer, inner = ("a", "d") if one.op != "store" else ("d", "a")
        far, near = region_of(one, outer), region_of(one, inner)
        far_runs, near_runs = prod(far.sizes), prod(near.sizes)
        moved = far_runs * -(-far.run // memory.burst_bytes) * memory.burst_bytes
        port = self.port_cycles(moved)
        width = dma.bytes_per_cycle
        # Padding is written on chip too; repeated elements are read from memory once and written each time.
        written = prod(one.sizes) * ITEM_BYTES[one.d.dtype]
        on_chip = max(near_runs * -(-near.run // width), -(-written // width))
        runs = max(far_runs, near_runs) * dma.run_cycles
        occupied = dma.startup_cycles + max(port, on_chip, runs)
        latency = self.memory_latency
        return Duration(occupied, latency, port, memory_bytes=moved)

    def _edge(self, view: View, across: Walk, along: Walk, lanes: int) -> int:
        """Return the cycles in which a scratchpad feeds an edge of the array for one step.

        Each of the `lanes` elements across comes from a feeder that keeps a word. Either all are read together,
        or each feeder reads a word for as many steps as it has neighbours along; feeders take turns then.
        """
        together = self._cycles(view, *across, lanes)
        pad = self.machine.scratchpad[view.space]
        steps = [abs(stride) for n, stride in zip(*along, strict=True) if n > 1]
        if not steps:
            return together
        used = min(prod(across[0]), lanes)
        apart = -(-used * min(steps[-1] * ITEM_BYTES[view.dtype], pad.bank_bytes) // (pad.bank_bytes * pad.banks))
        return min(together, max(1, apart))

    def _cycles(self, view: View, sizes: tuple[int, ...], strides: tuple[int, ...], lanes: int) -> int:
        """Return the cycles in which a scratchpad gives the first `lanes` elements of a walk: 1 without a conflict."""
        pad = self.machine.scratchpad[view.space]
        item = ITEM_BYTES[view.dtype]
        key = (view.space, item, sizes, strides, lanes)
        found = self._access.get(key)
        if found is None:
            words: set[int] = set()
            for place in _first_places(sizes, strides, lanes):
                words.add(place * item // pad.bank_bytes)
            load: dict[int, int] = {}
            for word in words:
                load[word % pad.banks] = load.get(word % pad.banks, 0) + 1
            found = self._access[key] = max(load.values())
        return found


def _first_places(sizes: tuple[int, ...], strides: tuple[int, ...], count: int) -> list[int]:
    """Return the offsets, in elements, of the first `count` elements of a walk, the last size fastest."""
    places = [0]
    for n, stride in zip(reversed(sizes), reversed(strides), strict=True):
        need = min(n, -(-count // len(places)))
        places = [i * stride + place for i in range(need) for place in places]
    return places[:count]


def _shape_of(one: Instruction) -> object:
    """Return all of an instruction that its cycles depend on: not addresses, not numbers."""
    operands = [(v.space, v.dtype, v.strides) if isinstance(v, View) else None for v in (one.d, one.a, one.b, one.c)]
    imm = one.imm[:2] if OPS[one.op].form != "map" else ()
    return (one.op, one.sizes, *operands, imm, one.before, one.after)
