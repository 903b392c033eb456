"""One step of the hidden units of LSTM, GRU and RNN, from their gates: elementwise, a vector at a time.

The formulas are ONNX's: onnx.ai/onnx/operators, LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.recurrent_cell import Cell
from hcomp.targets.cpu.schedule.nest import (
    VECTORIZED,
    Expr,
    Stmt,
    buffer,
    imm,
    load,
    loop,
    seq,
    store,
    vector_loop,
)


@dataclass(frozen=True)
class Memory:
    """What a task keeps between and within steps.

    Attributes:
        units: hidden units in whole vectors; one sequence's part of all but the gates.
        row: one sequence's part of the gates.
        h: hidden states.
        gates: gates before their activations.
        c: LSTM: cell states.
        fresh: GRU, linear before reset: the inputs' part of the third gate.
        reset: GRU otherwise: the hidden state under the reset gate.
        peepholes: LSTM: padded copies.
        statements: the allocations, and zeros in all of it, so that no padding is slow to compute with.
    """

    units: int
    row: int
    h: Any
    gates: Any
    c: Any
    fresh: Any
    reset: Any
    peepholes: Any
    statements: list[Stmt]

    @classmethod
    def of(cls, cell: Cell, cpu: CpuFeatures, rows: int) -> Memory:
        """Return the memory of a task of `rows` sequences."""
        units, row, lanes = cell.units(cpu), cell.row(cpu), cell.lanes(cpu)
        out: list[Stmt] = []
        zero = tirx.const(0, cell.dtype)

        def memory(name: str, size: int, present: bool = True) -> Any:
            if not present:
                return None
            made = buffer(name, [imm(size)], cell.dtype)
            out.append(tirx.AllocBuffer(made))
            out.append(vector_loop(imm(size), lanes, lambda j: store(made, zero, j)))
            return made

        return cls(
            units=units,
            row=row,
            h=memory("h", rows * units),
            gates=memory("gates", rows * row),
            c=memory("c", rows * units, cell.kind == "lstm"),
            fresh=memory("fresh", rows * units, cell.linear_before_reset),
            reset=memory("reset", rows * units, len(cell.products) > 1),
            peepholes=memory("peepholes", 3 * units, cell.peepholes),
            statements=out,
        )


class Units:
    """The elementwise part of a step, for one sequence of a task."""

    def __init__(self, cell: Cell, lanes: int, memory: Memory) -> None:
        self.cell, self.lanes, self.memory = cell, lanes, memory

    def advance(self, r: Expr) -> Stmt:
        """Return the new states of sequence `r` from its gates."""
        make = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.cell.kind]
        return self._vectors(lambda j, cells: make(r, j, cells))

    def reset(self, r: Expr) -> Stmt:
        """Return the state under the reset gate, for the GRU whose reset comes before the product."""
        f, _ = self.cell.activations
        m, at = self.memory, r * imm(self.memory.units)
        return self._vectors(lambda j, _: [store(m.reset, f(self._gate(r, 1, j)) * load(m.h, at + j), at + j)])

    def _vectors(self, body: Callable[[Expr, _Cells], list[Stmt]]) -> Stmt:
        """Return a loop over whole vectors of units."""
        lanes = self.lanes

        def vector(i: Expr) -> Stmt:
            cells = _Cells(self.cell.dtype, lanes)

            def lane(at: Expr) -> Stmt:
                cells.lane = at
                return seq(body(i * imm(lanes) + at, cells))

            inner = loop(imm(lanes), lane, "lane", VECTORIZED)
            return seq([*cells.allocations, inner])

        return loop(imm(self.memory.units // lanes), vector, "unit")

    def _clipped(self, x: Expr) -> Expr:
        if self.cell.clip is None:
            return x
        bound = tirx.const(self.cell.clip, self.cell.dtype)
        low = tirx.const(-self.cell.clip, self.cell.dtype)
        return tirx.max(low, tirx.min(bound, x))

    def _raw(self, r: Expr, gate: int, j: Expr) -> Expr:
        at = r * imm(self.memory.row) + imm(gate * self.cell.hidden)
        return load(self.memory.gates, at + j)

    def _gate(self, r: Expr, gate: int, j: Expr) -> Expr:
        return self._clipped(self._raw(r, gate, j))

    def _rnn(self, r: Expr, j: Expr, cells: _Cells) -> list[Stmt]:
        (f,) = self.cell.activations
        return [store(self.memory.h, f(self._gate(r, 0, j)), r * imm(self.memory.units) + j)]

    def _gru(self, r: Expr, j: Expr, cells: _Cells) -> list[Stmt]:
        f, g = self.cell.activations
        m, at = self.memory, r * imm(self.memory.units) + j
        out: list[Stmt] = []
        update = cells.kept(f(self._gate(r, 0, j)), out)
        pre = self._raw(r, 2, j)
        if self.cell.linear_before_reset:
            pre = load(m.fresh, at) + f(self._gate(r, 1, j)) * pre
        fresh = g(self._clipped(pre))
        one = tirx.const(1, self.cell.dtype)
        out.append(store(m.h, (one - update) * fresh + update * load(m.h, at), at))
        return out

    def _lstm(self, r: Expr, j: Expr, cells: _Cells) -> list[Stmt]:
        f, g, h = self.cell.activations
        cell, m = self.cell, self.memory
        at = r * imm(m.units) + j
        out: list[Stmt] = []

        def gate(number: int, peephole: int, state: Expr) -> Expr:
            pre = self._raw(r, number, j)
            if cell.peepholes:
                pre = pre + load(m.peepholes, imm(peephole * m.units) + j) * state
            return f(self._clipped(pre))

        old = load(m.c, at)
        into = cells.kept(gate(0, 0, old), out)
        forget = tirx.const(1, cell.dtype) - into if cell.input_forget else gate(2, 2, old)
        state = cells.kept(forget * old + into * g(self._gate(r, 3, j)), out)
        out.append(store(m.c, state, at))
        out.append(store(m.h, gate(1, 1, state) * h(state), at))
        return out


class _Cells:
    """Values that are used more than once: stored in memory that LLVM keeps in registers."""

    def __init__(self, dtype: str, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        self.lane: Expr = imm(0)
        self.allocations: list[Stmt] = []

    def kept(self, value: Expr, out: list[Stmt]) -> Expr:
        """Return the stored `value`; the store is appended to `out`."""
        cell = buffer("cell", [self.lanes], self.dtype)
        self.allocations.append(tirx.AllocBuffer(cell))
        out.append(store(cell, value, self.lane))
        return load(cell, self.lane)
