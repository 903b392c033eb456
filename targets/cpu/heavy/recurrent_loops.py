"""The loops over time of LSTM, GRU and RNN: one PrimFunc a direction.

A task owns a few sequences of the batch and walks all their steps, so its state stays in cache and
no synchronisation is needed between steps. Each step is a product of the state with the packed recurrent
weight (register tiles of sequences x columns) and one elementwise loop over the hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.activations import Activation
from hcomp.targets.cpu.schedule.nest import (
    PARALLEL,
    Expr,
    Stmt,
    buffer,
    ceil_div,
    imm,
    let,
    load,
    load_vector,
    loop,
    register_buffer,
    seq,
    spread,
    store,
    store_vector,
    var,
)

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent operator.

    Attributes:
        kind: `lstm`, `gru` or `rnn`.
        hidden: hidden units.
        dtype: dtype of everything.
        reverse: whether each sequence is read from its end.
        activations: as ONNX lists them for one direction.
        clip: bound of the inputs of gate activations, or None.
        input_forget: LSTM: the forget gate is 1 - input gate.
        linear_before_reset: GRU: the reset gate scales the product instead of the state.
        lengths: whether a length of every sequence is given.
        peepholes: LSTM: whether the gates see the cell state.
        bias: whether the gates have a bias (outside the reset gate).
        initial_h: whether the hidden state starts from a given one; otherwise from zeros.
        initial_c: LSTM: likewise for the cell state.
    """

    kind: str
    hidden: int
    dtype: str
    reverse: bool
    activations: tuple[Activation, ...]
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False
    lengths: bool = False
    peepholes: bool = False
    bias: bool = False
    initial_h: bool = False
    initial_c: bool = False

    @property
    def columns(self) -> int:
        """Columns of the input projection: all gates of all units."""
        return GATES[self.kind] * self.hidden

    def panel(self, cpu: CpuFeatures) -> int:
        """Return the columns of one packed panel of the recurrent weight."""
        return 2 * cpu.lanes(_BYTES[self.dtype])

    def panels(self, cpu: CpuFeatures) -> int:
        """Return the panels of one gate; every gate starts a new panel."""
        return -(-self.hidden // self.panel(cpu))


def recurrent_function(cells: Sequence[Cell], cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return the function of one layer, one cell a direction.

    Parameters, in order. For each direction those that the cell has: projection [T, B, gates * H]; weight
    [gates, panels, H, panel]; bias [gates * H]; peepholes [3, H]; recurrent bias of the hidden gate
    [H] (GRU, linear before reset). Then, if given: h0 [D, B, H]; c0 [D, B, H] (LSTM); lengths [B] int32.
    Then the results y [T, D, B, H], y_h [D, B, H], and y_c [D, B, H] (LSTM).
    """
    shared = _Shared(cells[0], len(cells))
    loops = [_Loops(cell, cpu, shared, number) for number, cell in enumerate(cells)]
    parameters = [p for direction in loops for p in direction.parameters]
    body = seq([direction.statement() for direction in loops])
    func = tirx.PrimFunc([*parameters, *shared.parameters], body)
    # 8 is Relax's opaque pattern: nothing is fused into the loops over time.
    return func.with_attr("tirx.noalias", True).with_attr("op_pattern", 8)


class _Shared:
    """The buffers that all directions of a layer read and write."""

    def __init__(self, cell: Cell, directions: int) -> None:
        self.cell = cell
        self.steps, self.batch = var("steps"), var("batch")
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


class _Loops:
    """The loops of one direction."""

    def __init__(self, cell: Cell, cpu: CpuFeatures, shared: _Shared, number: int) -> None:
        self.cell, self.cpu, self.shared, self.number = cell, cpu, shared, number
        self.steps, self.batch = shared.steps, shared.batch
        hidden, dtype = imm(cell.hidden), cell.dtype
        gates, panel, panels = GATES[cell.kind], cell.panel(cpu), cell.panels(cpu)
        self.padded = panel * panels
        self.projection = buffer("projection", [self.steps, self.batch, cell.columns], dtype)
        self.weight = buffer("weight", [gates, panels, hidden, panel], dtype)
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
        return [self.projection, self.weight, *[b for present, b in optional if present]]

    def statement(self) -> Stmt:
        """Return the loops: several sequences a task, or one where the batch is small."""
        many = 4
        wide = loop(
            ceil_div(self.batch, many),
            lambda k: self._task(tirx.min(k * imm(many), self.batch - imm(many)), many),
            "task",
            PARALLEL,
        )
        single = loop(self.batch, lambda k: self._task(k, 1), "task", PARALLEL)
        return tirx.IfThenElse(self.batch >= imm(many), wide, single)

    def _task(self, first: Expr, rows: int) -> Stmt:
        """Return all steps of `rows` sequences from `first` on."""
        cell = self.cell
        out: list[Stmt] = []
        first = let("first", first, out)
        size = imm(rows * cell.hidden)
        gates = buffer("gates", [imm(rows * GATES[cell.kind] * self.padded)], cell.dtype)
        self.h, self.c = buffer("h", [size], cell.dtype), buffer("c", [size], cell.dtype)
        self.gates = gates
        out.extend([tirx.AllocBuffer(self.h), tirx.AllocBuffer(gates)])
        if cell.kind == "lstm":
            out.append(tirx.AllocBuffer(self.c))
        out.append(self._each(rows, lambda r: self._start(first + r, r)))
        out.append(loop(self.steps, lambda s: self._step(s, first, rows), "step"))
        out.append(self._each(rows, lambda r: self._end(first + r, r)))
        return seq(out)

    def _each(self, rows: int, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(imm(rows), body, "row")

    def _units(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(imm(self.cell.hidden), body, "unit")

    def _length(self, row: Expr) -> Expr:
        if not self.cell.lengths:
            return self.steps
        return tirx.Cast("int64", load(self.shared.lengths, row))

    def _start(self, row: Expr, r: Expr) -> Stmt:
        cell, shared, at = self.cell, self.shared, r * imm(self.cell.hidden)
        zero = tirx.const(0, cell.dtype)

        def first(state: Any, given: Any, present: bool) -> Stmt:
            def unit(j: Expr) -> Stmt:
                value = load(given, self.number, row, j) if present else zero
                return store(state, value, at + j)

            return self._units(unit)

        out = [first(self.h, shared.h0, cell.initial_h)]
        if cell.kind == "lstm":
            out.append(first(self.c, shared.c0, cell.initial_c))
        return seq(out)

    def _end(self, row: Expr, r: Expr) -> Stmt:
        """Return the last states, and zeros where a sequence has ended."""
        shared, at, d = self.shared, r * imm(self.cell.hidden), self.number
        out = [self._units(lambda j: store(shared.y_h, load(self.h, at + j), d, row, j))]
        if self.cell.kind == "lstm":
            out.append(self._units(lambda j: store(shared.y_c, load(self.c, at + j), d, row, j)))
        if self.cell.lengths:
            zero = tirx.const(0, self.cell.dtype)
            length = self._length(row)
            out.append(
                loop(
                    self.steps - length,
                    lambda t: self._units(lambda j: store(shared.y, zero, length + t, d, row, j)),
                    "t",
                )
            )
        return seq(out)

    def _step(self, step: Expr, first: Expr, rows: int) -> Stmt:
        cell = self.cell
        state_first = cell.kind == "gru" and not cell.linear_before_reset
        now = 2 if state_first else GATES[cell.kind]
        out = [loop(imm(now), lambda g: self._product(g, rows, self.h), "gate")]
        if state_first:
            reset = buffer("reset_state", [imm(rows * cell.hidden)], cell.dtype)
            out.append(tirx.AllocBuffer(reset))
            out.append(self._each(rows, lambda r: self._reset(step, first + r, r, reset)))
            out.append(self._product(imm(2), rows, reset))
        out.append(self._each(rows, lambda r: self._advance(step, first + r, r)))
        return seq(out)

    def _product(self, gate: Expr, rows: int, state: Any) -> Stmt:
        """Return gates[:, gate] = state @ weight[gate], by register tiles over panels."""
        cell, lanes = self.cell, self.cpu.lanes(_BYTES[self.cell.dtype])
        width = cell.panel(self.cpu)
        vectors = width // lanes
        zero = tirx.const(0, cell.dtype)
        spots = [(r, v) for r in range(rows) for v in range(vectors)]

        def tile(panel: Expr) -> Stmt:
            sums = [register_buffer("sums", width, cell.dtype) for _ in range(rows)]
            out: list[Stmt] = [tirx.AllocBuffer(s) for s in sums]
            out.extend(store_vector(sums[r], lanes, spread(zero, lanes), v * lanes) for r, v in spots)

            def add(k: Expr) -> Stmt:
                body = []
                for r, v in spots:
                    scalar = load(state, imm(r * cell.hidden) + k)
                    vector = load_vector(self.weight, lanes, gate, panel, k, v * lanes)
                    old = load_vector(sums[r], lanes, v * lanes)
                    total = old + spread(scalar, lanes) * vector
                    body.append(store_vector(sums[r], lanes, total, v * lanes))
                return seq(body)

            out.append(loop(imm(cell.hidden), add, "k"))
            for r, v in spots:
                at = self._gate_at(imm(r), gate) + panel * imm(width) + imm(v * lanes)
                out.append(store_vector(self.gates, lanes, load_vector(sums[r], lanes, v * lanes), at))
            return seq(out)

        return loop(imm(cell.panels(self.cpu)), tile, "panel")

    def _gate_at(self, r: Expr, gate: int | Expr) -> Expr:
        number = imm(gate) if isinstance(gate, int) else gate
        return (r * imm(GATES[self.cell.kind]) + number) * imm(self.padded)

    def _time(self, step: Expr, row: Expr) -> Expr:
        if not self.cell.reverse:
            return step
        return self._length(row) - imm(1) - step

    def _live(self, step: Expr, row: Expr, body: Stmt) -> Stmt:
        if not self.cell.lengths:
            return body
        return tirx.IfThenElse(step < self._length(row), body, None)

    def _given(self, time: Expr, row: Expr, gate: int, j: Expr) -> Expr:
        column = imm(gate * self.cell.hidden) + j
        value = load(self.projection, time, row, column)
        return value + load(self.bias, column) if self.cell.bias else value

    def _clipped(self, x: Expr) -> Expr:
        if self.cell.clip is None:
            return x
        bound = tirx.const(self.cell.clip, self.cell.dtype)
        low = tirx.const(-self.cell.clip, self.cell.dtype)
        return tirx.max(low, tirx.min(bound, x))

    def _reset(self, step: Expr, row: Expr, r: Expr, reset: Any) -> Stmt:
        """Return reset_state = r_gate * h, for the GRU whose reset comes before the product."""
        cell = self.cell
        (f, _), at = cell.activations, r * imm(cell.hidden)
        out: list[Stmt] = []
        time = let("time", self._time(step, row), out)

        def unit(j: Expr) -> Stmt:
            pre = load(self.gates, self._gate_at(r, 1) + j) + self._given(time, row, 1, j)
            return store(reset, f(self._clipped(pre)) * load(self.h, at + j), at + j)

        return self._live(step, row, seq([*out, self._units(unit)]))

    def _advance(self, step: Expr, row: Expr, r: Expr) -> Stmt:
        out: list[Stmt] = []
        time = let("time", self._time(step, row), out)
        advance = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.cell.kind]
        return self._live(step, row, seq([*out, self._units(lambda j: advance(time, row, r, j))]))

    def _pre(self, time: Expr, row: Expr, r: Expr, gate: int, j: Expr) -> Expr:
        return load(self.gates, self._gate_at(r, gate) + j) + self._given(time, row, gate, j)

    def _result(self, time: Expr, row: Expr, at: Expr, j: Expr, value: Expr) -> Stmt:
        kept = store(self.h, value, at)
        return seq([kept, store(self.shared.y, load(self.h, at), time, self.number, row, j)])

    def _rnn(self, time: Expr, row: Expr, r: Expr, j: Expr) -> Stmt:
        (f,) = self.cell.activations
        at = r * imm(self.cell.hidden) + j
        return self._result(time, row, at, j, f(self._clipped(self._pre(time, row, r, 0, j))))

    def _gru(self, time: Expr, row: Expr, r: Expr, j: Expr) -> Stmt:
        f, g = self.cell.activations
        at = r * imm(self.cell.hidden) + j
        update = _Cell(self.cell.dtype, f(self._clipped(self._pre(time, row, r, 0, j))))
        if self.cell.linear_before_reset:
            reset = f(self._clipped(self._pre(time, row, r, 1, j)))
            product = load(self.gates, self._gate_at(r, 2) + j) + load(self.hidden_bias, j)
            pre = self._given(time, row, 2, j) + reset * product
        else:
            pre = self._pre(time, row, r, 2, j)
        fresh = g(self._clipped(pre))
        one = tirx.const(1, self.cell.dtype)
        mixed = (one - update.value) * fresh + update.value * load(self.h, at)
        return seq([*update.statements, self._result(time, row, at, j, mixed)])

    def _lstm(self, time: Expr, row: Expr, r: Expr, j: Expr) -> Stmt:
        f, g, h = self.cell.activations
        cell, at = self.cell, r * imm(self.cell.hidden) + j
        old = load(self.c, at)

        def gate(number: int, peephole: int, state: Expr) -> Expr:
            pre = self._pre(time, row, r, number, j)
            if cell.peepholes:
                pre = pre + load(self.peepholes, peephole, j) * state
            return f(self._clipped(pre))

        into = _Cell(cell.dtype, gate(0, 0, old))
        one = tirx.const(1, cell.dtype)
        forget = one - into.value if cell.input_forget else gate(2, 2, old)
        fresh = g(self._clipped(self._pre(time, row, r, 3, j)))
        state = store(self.c, forget * old + into.value * fresh, at)
        output = gate(1, 1, load(self.c, at))
        value = output * h(load(self.c, at))
        return seq([*into.statements, state, self._result(time, row, at, j, value)])


class _Cell:
    """One value that is used more than once: stored in a cell that LLVM keeps in a register."""

    def __init__(self, dtype: str, value: Expr) -> None:
        cell = buffer("cell", [1], dtype)
        self.statements = [tirx.AllocBuffer(cell), store(cell, value, 0)]
        self.value = load(cell, 0)
