"""The loops over time of LSTM, GRU and RNN: one PrimFunc a layer.

A task owns a few sequences of one direction and walks all their steps, so its state stays in cache and
no synchronisation is needed between steps. Each step has three parts: the gates start from the inputs'
projection, the product of the state with the packed recurrent weight is added in panels whose sums stay in
registers, and `recurrent_units.py` advances the hidden units, a vector at a time.

Gates and states are padded to whole vectors; what is in the padding is computed and never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.recurrent_cell import Cell
from hcomp.targets.cpu.heavy.recurrent_units import Memory, Units
from hcomp.targets.cpu.schedule.nest import (
    GRAIN_OPERATIONS,
    PARALLEL,
    SERIAL,
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    imm,
    let,
    load,
    load_vector,
    loop,
    register_buffer,
    seq,
    simple,
    spread,
    store,
    store_vector,
    vector_loop,
)

_SEQUENCES = 4
"""Sequences of one task, where the batch has as many: they share every load of the weight."""
_SUMS = 12
"""Vectors of sums that a register tile of several sequences holds."""


def recurrent_function(cells: Sequence[Cell], cpu: CpuFeatures, steps: Expr, batch: Expr) -> tirx.PrimFunc:
    """Return the function of one layer, one cell a direction.

    Parameters, in order. For each direction those that the cell has: projection [T, B, gates * H]; for each
    of the cell's products its weight [panels, H, width]; bias [gates * H]; peepholes [3, H];
    recurrent bias of the hidden gate [H] (GRU, linear before reset). Then, if given: h0 [D, B, H];
    c0 [D, B, H] (LSTM); lengths [B] int32. Then the results y [T, D, B, H], y_h [D, B, H], and
    y_c [D, B, H] (LSTM).

    Args:
        cells: one or two directions.
        cpu: the processor.
        steps: T, a constant or a variable of this function alone.
        batch: B, likewise.
    """
    shared = _Shared(cells[0], len(cells), steps, batch)
    directions = [_Direction(cell, cpu, shared, number) for number, cell in enumerate(cells)]
    parameters = [p for direction in directions for p in direction.parameters]
    func = tirx.PrimFunc([*parameters, *shared.parameters], _tasks(directions, steps, batch))
    # 8 is Relax's opaque pattern: nothing is fused into the loops over time.
    return func.with_attr("tirx.noalias", True).with_attr("op_pattern", 8)


def _tasks(directions: Sequence[_Direction], steps: Expr, batch: Expr) -> Stmt:
    """Return the tasks of all directions in one parallel loop, several sequences each if there are as many."""
    cell = directions[0].cell
    known = [as_int(size) for size in (steps, batch)]
    work = 2 * cell.hidden * cell.columns * len(directions)
    for size in known:
        work *= _SEQUENCES if size is None else size
    small = None not in known and work < GRAIN_OPERATIONS

    def tasks(rows: int) -> Stmt:
        each = ceil_div(batch, rows)

        def run(k: Expr) -> Stmt:
            def task(number: int) -> Stmt:
                place = simple(k - each * imm(number))
                first = place if rows == 1 else tirx.min(place * imm(rows), batch - imm(rows))
                return directions[number].task(simple(first), rows)

            if len(directions) == 1:
                return task(0)
            return tirx.IfThenElse(k < each, task(0), task(1))

        return loop(simple(each * imm(len(directions))), run, "task", SERIAL if small else PARALLEL)

    if known[1] is not None:
        return tasks(_SEQUENCES if known[1] >= _SEQUENCES else 1)
    return tirx.IfThenElse(batch >= imm(_SEQUENCES), tasks(_SEQUENCES), tasks(1))


class _Shared:
    """The buffers that all directions of a layer read and write."""

    def __init__(self, cell: Cell, directions: int, steps: Expr, batch: Expr) -> None:
        self.cell = cell
        self.steps, self.batch = steps, batch
        state = [directions, self.batch, cell.hidden]
        self.h0, self.c0 = buffer("h0", state, cell.dtype), buffer("c0", state, cell.dtype)
        self.lengths = buffer("lengths", [self.batch], "int32")
        self.y = buffer("y", [self.steps, *state], cell.dtype)
        self.y_h, self.y_c = buffer("y_h", state, cell.dtype), buffer("y_c", state, cell.dtype)

    @property
    def parameters(self) -> list[Any]:
        """The buffers that are there, in the order of `recurrent_function`."""
        cell = self.cell
        optional = [
            (cell.initial_h, self.h0),
            (cell.initial_c, self.c0),
            (cell.lengths, self.lengths),
            (True, self.y),
            (True, self.y_h),
            (cell.kind == "lstm", self.y_c),
        ]
        return [b for present, b in optional if present]


class _Direction:
    """The loops of one direction."""

    def __init__(self, cell: Cell, cpu: CpuFeatures, shared: _Shared, number: int) -> None:
        self.cell, self.cpu, self.shared, self.number = cell, cpu, shared, number
        self.steps, self.batch = shared.steps, shared.batch
        self.lanes, self.row = cell.lanes(cpu), cell.row(cpu)
        hidden, dtype = imm(cell.hidden), cell.dtype
        self.projection = buffer("projection", [self.steps, self.batch, cell.columns], dtype)
        self.weights = []
        for gates in cell.products:
            panels, width = cell.panels(gates, cpu)
            self.weights.append(buffer("weight", [panels, hidden, width], dtype))
        self.bias = buffer("bias", [cell.columns], dtype)
        self.peepholes = buffer("peepholes", [3, hidden], dtype)
        self.hidden_bias = buffer("hidden_bias", [hidden], dtype)

    @property
    def parameters(self) -> list[Any]:
        """The direction's own buffers, in the order of `recurrent_function`."""
        cell = self.cell
        optional = [
            (cell.bias, self.bias),
            (cell.peepholes, self.peepholes),
            (cell.linear_before_reset, self.hidden_bias),
        ]
        return [self.projection, *self.weights, *[b for present, b in optional if present]]

    def task(self, first: Expr, rows: int) -> Stmt:
        """Return all steps of `rows` sequences from `first` on."""
        cell = self.cell
        out: list[Stmt] = []
        first = let("first", first, out)
        memory = Memory.of(cell, self.cpu, rows)
        out.extend(memory.statements)
        if cell.peepholes:
            out.append(
                loop(imm(3), lambda g: self._copy(memory.peepholes, g * imm(memory.units), self.peepholes, g), "g")
            )
        units = Units(cell, self.lanes, memory)
        if cell.initial_h or cell.initial_c:
            out.append(self._each(rows, lambda r: self._start(first + r, r, memory)))
        out.append(loop(self.steps, lambda s: self._step(s, first, rows, memory, units), "step"))
        out.append(self._each(rows, lambda r: self._end(first + r, r, memory)))
        return seq(out)

    def _each(self, rows: int, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(imm(rows), body, "row")

    def _copy(self, target: Any, at: Expr, source: Any, *index: Expr | int) -> Stmt:
        """Return the copy of one row of hidden units into padded memory."""
        size = imm(self.cell.hidden)
        return vector_loop(size, self.lanes, lambda j: store(target, load(source, *index, j), at + j))

    def _length(self, row: Expr) -> Expr:
        if not self.cell.lengths:
            return self.steps
        return tirx.Cast("int64", load(self.shared.lengths, row))

    def _start(self, row: Expr, r: Expr, memory: Memory) -> Stmt:
        cell, shared, at = self.cell, self.shared, r * imm(memory.units)
        out = []
        if cell.initial_h:
            out.append(self._copy(memory.h, at, shared.h0, self.number, row))
        if cell.initial_c:
            out.append(self._copy(memory.c, at, shared.c0, self.number, row))
        return seq(out)

    def _out(self, target: Any, state: Any, at: Expr, *index: Expr | int) -> Stmt:
        size = imm(self.cell.hidden)
        return vector_loop(size, self.lanes, lambda j: store(target, load(state, at + j), *index, j))

    def _end(self, row: Expr, r: Expr, memory: Memory) -> Stmt:
        """Return the last states, and zeros where a sequence has ended."""
        shared, at, d = self.shared, r * imm(memory.units), self.number
        out = [self._out(shared.y_h, memory.h, at, d, row)]
        if self.cell.kind == "lstm":
            out.append(self._out(shared.y_c, memory.c, at, d, row))
        if self.cell.lengths:
            zero = tirx.const(0, self.cell.dtype)
            length = self._length(row)
            size = imm(self.cell.hidden)

            def clear(t: Expr) -> Stmt:
                return vector_loop(size, self.lanes, lambda j: store(shared.y, zero, length + t, d, row, j))

            out.append(loop(self.steps - length, clear, "t"))
        return seq(out)

    def _step(self, step: Expr, first: Expr, rows: int, memory: Memory, units: Units) -> Stmt:
        cell = self.cell
        states = [memory.h, memory.reset]

        def live(r: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
            """Return what is done for a sequence that has not ended, given its time."""
            row = first + r
            if not cell.lengths:
                return body(self.steps - imm(1) - step if cell.reverse else step)
            length = self._length(row)
            out: list[Stmt] = []
            time = let("time", length - imm(1) - step if cell.reverse else step, out)
            return tirx.IfThenElse(step < length, seq([*out, body(time)]), None)

        out = [self._each(rows, lambda r: live(r, lambda time: self._gates(time, first + r, r, memory)))]
        for number, gates in enumerate(cell.products):
            if number:
                out.append(self._each(rows, lambda r: live(r, lambda _: units.reset(r))))
            out.append(self._product(number, gates, rows, states[number], memory))

        def advance(time: Expr, r: Expr) -> Stmt:
            y = self._out(self.shared.y, memory.h, r * imm(memory.units), time, self.number, first + r)
            return seq([units.advance(r), y])

        out.append(self._each(rows, lambda r: live(r, lambda time: advance(time, r))))
        return seq(out)

    def _gates(self, time: Expr, row: Expr, r: Expr, memory: Memory) -> Stmt:
        """Return the gates' start: the inputs' projection and the bias.

        Where the GRU's reset gate scales the product, its third gate starts from the recurrent bias,
        and the projection waits beside it.
        """
        cell, at = self.cell, r * imm(self.row)

        def given(column: Expr) -> Expr:
            value = load(self.projection, time, row, column)
            return value + load(self.bias, column) if cell.bias else value

        if not cell.linear_before_reset:
            size = imm(cell.columns)
            return vector_loop(size, self.lanes, lambda j: store(memory.gates, given(j), at + j))
        both, hidden = imm(2 * cell.hidden), imm(cell.hidden)
        return seq(
            [
                vector_loop(both, self.lanes, lambda j: store(memory.gates, given(j), at + j)),
                self._copy(memory.gates, at + both, self.hidden_bias),
                vector_loop(
                    hidden,
                    self.lanes,
                    lambda j: store(memory.fresh, given(both + j), r * imm(memory.units) + j),
                ),
            ]
        )

    def _product(self, number: int, gates: range, rows: int, state: Any, memory: Memory) -> Stmt:
        """Return gates += state @ weight, by register tiles over panels."""
        cell, lanes, weight = self.cell, self.lanes, self.weights[number]
        panels, width = cell.panels(gates, self.cpu)
        vectors = width // lanes
        wide = vectors if rows == 1 else _SUMS // rows

        def tile(panel: Expr, first: int, count: int) -> Stmt:
            spots = [(r, v) for r in range(rows) for v in range(count)]
            sums = [register_buffer("sums", count * lanes, cell.dtype) for _ in range(rows)]
            out: list[Stmt] = [tirx.AllocBuffer(s) for s in sums]

            def at(r: int, v: int) -> Expr:
                start = r * self.row + gates.start * cell.hidden + (first + v) * lanes
                return panel * imm(width) + imm(start)

            for r, v in spots:
                out.append(store_vector(sums[r], lanes, load_vector(memory.gates, lanes, at(r, v)), v * lanes))

            def add(k: Expr) -> Stmt:
                body = []
                for r, v in spots:
                    scalar = load(state, imm(r * memory.units) + k)
                    vector = load_vector(weight, lanes, panel, k, (first + v) * lanes)
                    total = load_vector(sums[r], lanes, v * lanes) + spread(scalar, lanes) * vector
                    body.append(store_vector(sums[r], lanes, total, v * lanes))
                return seq(body)

            out.append(loop(imm(cell.hidden), add, "k"))
            for r, v in spots:
                out.append(store_vector(memory.gates, lanes, load_vector(sums[r], lanes, v * lanes), at(r, v)))
            return seq(out)

        def panel_of(panel: Expr) -> Stmt:
            return seq([tile(panel, v, min(wide, vectors - v)) for v in range(0, vectors, wide)])

        return loop(imm(panels), panel_of, "panel")
