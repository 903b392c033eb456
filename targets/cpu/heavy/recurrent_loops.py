"""The loops over time of LSTM, GRU and RNN: one PrimFunc a direction.

A task owns a few sequences of the batch and walks all their steps, so its state stays in cache and
no synchronisation is needed between steps. Each step is a product of the state with the packed recurrent
weight (register tiles of sequences x columns) and one elementwise loop over the hidden units.
"""

from __future__ import annotations

from collections.abc import Callable
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


def recurrent_function(cell: Cell, cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return the function of one direction.

    Parameters, in order: projection [T, B, gates * H] with all biases that are added outside the
    reset gate; weight [gates, panels, H, panel]; h0 [B, H]; then those that the cell has: c0 [B, H]
    (LSTM), peepholes [3, H], recurrent bias of the hidden gate [H] (GRU, linear before reset), lengths [B]
    int32; then the results y [T, B, H], y_h [B, H], and y_c [B, H] (LSTM).
    """
    return _Loops(cell, cpu).function()


class _Loops:
    def __init__(self, cell: Cell, cpu: CpuFeatures) -> None:
        self.cell, self.cpu = cell, cpu
        self.steps, self.batch = var("steps"), var("batch")
        hidden, dtype = imm(cell.hidden), cell.dtype
        gates, panel, panels = GATES[cell.kind], cell.panel(cpu), cell.panels(cpu)
        state = [self.batch, hidden]
        self.padded = panel * panels
        self.projection = buffer("projection", [self.steps, self.batch, imm(cell.columns)], dtype)
        self.weight = buffer("weight", [gates, panels, hidden, panel], dtype)
        self.h0 = buffer("h0", state, dtype)
        self.c0 = buffer("c0", state, dtype)
        self.peepholes = buffer("peepholes", [3, hidden], dtype)
        self.hidden_bias = buffer("hidden_bias", [hidden], dtype)
        self.lengths = buffer("lengths", [self.batch], "int32")
        self.y = buffer("y", [self.steps, self.batch, hidden], dtype)
        self.y_h = buffer("y_h", state, dtype)
        self.y_c = buffer("y_c", state, dtype)

    @property
    def parameters(self) -> list[Any]:
        """The buffers of the function, in the order that `recurrent_function` documents."""
        cell = self.cell
        lstm = cell.kind == "lstm"
        optional = [
            (lstm, self.c0),
            (cell.peepholes, self.peepholes),
            (cell.linear_before_reset, self.hidden_bias),
            (cell.lengths, self.lengths),
        ]
        given = [b for present, b in optional if present]
        results = [self.y, self.y_h, *([self.y_c] if lstm else [])]
        return [self.projection, self.weight, self.h0, *given, *results]

    def function(self) -> tirx.PrimFunc:
        """Return the PrimFunc: several sequences a task, or one where the batch is small."""
        many = 4
        wide = loop(
            ceil_div(self.batch, many),
            lambda k: self._task(tirx.min(k * imm(many), self.batch - imm(many)), many),
            "task",
            PARALLEL,
        )
        single = loop(self.batch, lambda k: self._task(k, 1), "task", PARALLEL)
        body = tirx.IfThenElse(self.batch >= imm(many), wide, single)
        func = tirx.PrimFunc(self.parameters, body)
        # 8 is Relax's opaque pattern: nothing is fused into the loops over time.
        return func.with_attr("tirx.noalias", True).with_attr("op_pattern", 8)

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
        return tirx.Cast("int64", load(self.lengths, row))

    def _start(self, row: Expr, r: Expr) -> Stmt:
        at = r * imm(self.cell.hidden)
        copies = [self._units(lambda j: store(self.h, load(self.h0, row, j), at + j))]
        if self.cell.kind == "lstm":
            copies.append(self._units(lambda j: store(self.c, load(self.c0, row, j), at + j)))
        return seq(copies)

    def _end(self, row: Expr, r: Expr) -> Stmt:
        """Return the last states, and zeros where a sequence has ended."""
        at = r * imm(self.cell.hidden)
        out = [self._units(lambda j: store(self.y_h, load(self.h, at + j), row, j))]
        if self.cell.kind == "lstm":
            out.append(self._units(lambda j: store(self.y_c, load(self.c, at + j), row, j)))
        if self.cell.lengths:
            zero = tirx.const(0, self.cell.dtype)
            length = self._length(row)
            out.append(
                loop(
                    self.steps - length,
                    lambda t: self._units(lambda j: store(self.y, zero, length + t, row, j)),
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
        return load(self.projection, time, row, imm(gate * self.cell.hidden) + j)

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
        return seq([kept, store(self.y, load(self.h, at), time, row, j)])

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
