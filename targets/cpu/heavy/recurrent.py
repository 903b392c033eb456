"""LSTM, GRU and RNN with ONNX's meaning: one product for all inputs, then loops over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from hcomp.errors import CodegenError
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.activations import Activation, resolve_activations
from hcomp.targets.cpu.heavy.kernel import shape_of
from hcomp.targets.cpu.heavy.matmul import Pack, emit_matmul
from hcomp.targets.cpu.heavy.recurrent_cell import Cell
from hcomp.targets.cpu.heavy.recurrent_loops import recurrent_function
from hcomp.targets.cpu.schedule.nest import as_int, imm, var

Operand: TypeAlias = relax.Expr | np.ndarray
_DEFAULTS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}


@dataclass(frozen=True)
class Recurrence:
    """The attributes of a recurrent operator, named as in ONNX.

    Attributes:
        hidden_size: hidden units.
        direction: `forward`, `reverse` or `bidirectional`.
        activations: for each direction in turn, names or activations with their parameters; empty
            for the defaults.
        activation_alpha: parameters, taken in order by the activations that have one.
        activation_beta: likewise.
        clip: bound of the inputs of the gates' activations.
        input_forget: LSTM only.
        linear_before_reset: GRU only.
    """

    hidden_size: int
    direction: str = "forward"
    activations: tuple[str | Activation, ...] = ()
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False


def emit_lstm(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    h0: relax.Expr | None = None,
    c0: relax.Expr | None = None,
    *,
    attributes: Recurrence,
    peepholes: Operand | None = None,
    sequence_lens: relax.Expr | None = None,
    pack: Pack,
    cpu: CpuFeatures,
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return (Y [T, D, B, H], Y_h [D, B, H], Y_c [D, B, H]) of ONNX's LSTM.

    Args:
        bb: builder of the function that the operator belongs to.
        x: [T, B, I], float32 or float64; T and B may be symbolic.
        w: [D, 4 H, I], gates in the order i, o, f, c; an array is packed at compile time.
        r: [D, 4 H, H].
        b: [D, 8 H], or None.
        h0: [D, B, H], or None for zeros.
        c0: [D, B, H], or None for zeros.
        attributes: the operator's attributes.
        peepholes: [D, 3 H] in the order i, o, f, or None.
        sequence_lens: [B] int32, or None when all sequences have T steps.
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor.
    """
    inputs = _Inputs(bb, x, w, r, b, h0, c0, peepholes, sequence_lens, pack, cpu)
    y, y_h, y_c = _emit("lstm", attributes, inputs)
    return y, y_h, y_c


def emit_gru(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    h0: relax.Expr | None = None,
    *,
    attributes: Recurrence,
    sequence_lens: relax.Expr | None = None,
    pack: Pack,
    cpu: CpuFeatures,
) -> tuple[relax.Expr, relax.Expr]:
    """Return (Y [T, D, B, H], Y_h [D, B, H]) of ONNX's GRU; see `emit_lstm` (gates z, r, h)."""
    inputs = _Inputs(bb, x, w, r, b, h0, None, None, sequence_lens, pack, cpu)
    y, y_h = _emit("gru", attributes, inputs)
    return y, y_h


def emit_rnn(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    h0: relax.Expr | None = None,
    *,
    attributes: Recurrence,
    sequence_lens: relax.Expr | None = None,
    pack: Pack,
    cpu: CpuFeatures,
) -> tuple[relax.Expr, relax.Expr]:
    """Return (Y [T, D, B, H], Y_h [D, B, H]) of ONNX's RNN; see `emit_lstm`."""
    inputs = _Inputs(bb, x, w, r, b, h0, None, None, sequence_lens, pack, cpu)
    y, y_h = _emit("rnn", attributes, inputs)
    return y, y_h


@dataclass(frozen=True)
class _Inputs:
    bb: relax.BlockBuilder
    x: relax.Expr
    w: Operand
    r: Operand
    b: Operand | None
    h0: relax.Expr | None
    c0: relax.Expr | None
    peepholes: Operand | None
    lengths: relax.Expr | None
    pack: Pack
    cpu: CpuFeatures

    @property
    def dtype(self) -> str:
        """The dtype of the input."""
        return str(self.x.ty.dtype)

    @property
    def sizes(self) -> tuple[Any, Any]:
        """The number of steps and sequences."""
        steps, batch, _ = shape_of(self.x)
        return steps, batch


def _emit(kind: str, attributes: Recurrence, inputs: _Inputs) -> tuple[relax.Expr, ...]:
    if inputs.dtype not in ("float32", "float64"):
        raise CodegenError(f"{kind}: expected float32 or float64, found {inputs.dtype}; cast the input first")
    reversals = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if attributes.direction not in reversals:
        raise CodegenError(f"{kind}: unknown direction {attributes.direction!r}")
    flags = reversals[attributes.direction]
    activations = _activations(kind, attributes, len(flags))
    cells, arguments = [], []
    for number, reverse in enumerate(flags):
        cell, own = _direction(kind, attributes, inputs, number, reverse, activations[number])
        cells.append(cell)
        arguments += own
    arguments += [g for g in (inputs.h0, inputs.c0, inputs.lengths) if g is not None]
    steps, batch = inputs.sizes
    state = [imm(len(flags)), batch, imm(attributes.hidden_size)]
    results = [relax.TensorType([steps, *state], inputs.dtype)]
    results += [relax.TensorType(state, inputs.dtype)] * (2 if kind == "lstm" else 1)
    bb = inputs.bb
    # A size that is not constant becomes a variable of the kernel's own.
    own_steps = steps if as_int(steps) is not None else var("steps")
    own_batch = batch if as_int(batch) is not None else var("batch")
    function = bb.add_func(recurrent_function(cells, inputs.cpu, own_steps, own_batch), f"{kind}_loops")
    call = bb.emit(relax.call_tir(function, arguments, results))
    return tuple(bb.emit(relax.TupleGetItem(call, k)) for k in range(len(results)))


def _activations(kind: str, attributes: Recurrence, directions: int) -> list[tuple[Activation, ...]]:
    names: list[str | Activation] = list(attributes.activations or _DEFAULTS[kind] * directions)
    count = len(_DEFAULTS[kind])
    if len(names) != count * directions:
        raise CodegenError(f"{kind}: expected {count * directions} activations, found {len(names)}")
    made = [n for n in names if isinstance(n, Activation)]
    found = tuple(made) or resolve_activations(
        [str(n) for n in names], attributes.activation_alpha, attributes.activation_beta
    )
    return [found[d * count : (d + 1) * count] for d in range(directions)]


def _direction(
    kind: str,
    attributes: Recurrence,
    inputs: _Inputs,
    number: int,
    reverse: bool,
    activations: tuple[Activation, ...],
) -> tuple[Cell, list[relax.Expr]]:
    """Return one direction's cell and its own arguments, as `recurrent_function` wants them."""
    hidden = attributes.hidden_size
    cell = Cell(
        kind=kind,
        hidden=hidden,
        dtype=inputs.dtype,
        reverse=reverse,
        activations=activations,
        clip=attributes.clip,
        input_forget=attributes.input_forget,
        linear_before_reset=attributes.linear_before_reset,
        lengths=inputs.lengths is not None,
        peepholes=inputs.peepholes is not None,
        bias=inputs.b is not None,
        initial_h=inputs.h0 is not None,
        initial_c=inputs.c0 is not None,
    )
    bias, hidden_bias = _biases(cell, inputs, number)
    peepholes = _peepholes(cell, inputs, number)
    optional = [a for a in (bias, peepholes, hidden_bias) if a is not None]
    own = [_projection(cell, inputs, number), *_packed_recurrent(cell, inputs, number)]
    return cell, own + optional


def _peepholes(cell: Cell, inputs: _Inputs, number: int) -> relax.Expr | None:
    if inputs.peepholes is None:
        return None
    if isinstance(inputs.peepholes, np.ndarray):
        return inputs.pack("peepholes", inputs.peepholes[number].reshape(3, cell.hidden))
    rows = _part(inputs, inputs.peepholes, number, "peepholes")
    return inputs.bb.emit(relax.op.reshape(rows, (3, cell.hidden)))


def _part(inputs: _Inputs, given: Operand, number: int, hint: str) -> relax.Expr:
    """Return `given[number]` as an expression."""
    if isinstance(given, np.ndarray):
        return inputs.pack(hint, np.ascontiguousarray(given[number]))
    bb = inputs.bb
    if int(shape_of(given)[0]) > 1:
        given = bb.emit(relax.op.strided_slice(given, [0], [number], [number + 1]))
    return bb.emit(relax.op.squeeze(given, [0]))


def _projection(cell: Cell, inputs: _Inputs, number: int) -> relax.Expr:
    """Return x @ w.T for all gates: [T, B, gates * H]."""
    bb = inputs.bb
    if isinstance(inputs.w, np.ndarray):
        weight = np.ascontiguousarray(inputs.w[number].T)
        return emit_matmul(bb, inputs.x, weight, inputs.pack, inputs.cpu)
    weight = _part(inputs, inputs.w, number, "w")
    return bb.emit(relax.op.matmul(inputs.x, bb.emit(relax.op.permute_dims(weight, [1, 0]))))


def _packed_recurrent(cell: Cell, inputs: _Inputs, number: int) -> list[relax.Expr]:
    """Return the recurrent weight of each product as [panels, H, width], padded with zeros."""
    bb, hidden, found = inputs.bb, cell.hidden, []
    for gates in cell.products:
        panels, width = cell.panels(gates, inputs.cpu)
        rows = slice(gates.start * hidden, gates.stop * hidden)
        extra = panels * width - len(gates) * hidden
        if isinstance(inputs.r, np.ndarray):
            padded = np.pad(inputs.r[number][rows], [(0, extra), (0, 0)])
            split = padded.reshape(panels, width, hidden).transpose(0, 2, 1)
            found.append(inputs.pack("recurrent", np.ascontiguousarray(split)))
            continue
        part = _part(inputs, inputs.r, number, "r")
        part = bb.emit(relax.op.strided_slice(part, [0], [rows.start], [rows.stop]))
        if extra:
            part = bb.emit(relax.op.nn.pad(part, [0, extra, 0, 0]))
        part = bb.emit(relax.op.reshape(part, (panels, width, hidden)))
        found.append(bb.emit(relax.op.permute_dims(part, [0, 2, 1])))
    return found


def _biases(cell: Cell, inputs: _Inputs, number: int) -> tuple[relax.Expr | None, relax.Expr | None]:
    """Return (bias of the projection [gates * H], recurrent bias of the hidden gate [H])."""
    bb, width, hidden = inputs.bb, cell.columns, cell.hidden
    split = cell.linear_before_reset
    if inputs.b is None:
        zero = np.zeros(hidden, cell.dtype)
        return None, inputs.pack("hidden_bias", zero) if split else None
    if isinstance(inputs.b, np.ndarray):
        own, recurrent = inputs.b[number][:width], inputs.b[number][width:]
        if not split:
            return inputs.pack("bias", own + recurrent), None
        joined = own.copy()
        joined[: 2 * hidden] += recurrent[: 2 * hidden]
        return inputs.pack("bias", joined), inputs.pack("hidden_bias", recurrent[2 * hidden :])
    both = _part(inputs, inputs.b, number, "b")

    def cut(begin: int, end: int) -> relax.Expr:
        return bb.emit(relax.op.strided_slice(both, [0], [begin], [end]))

    own, recurrent = cut(0, width), cut(width, 2 * width)
    if not split:
        return bb.emit(relax.op.add(own, recurrent)), None
    gates = bb.emit(relax.op.add(cut(0, 2 * hidden), cut(width, width + 2 * hidden)))
    joined = bb.emit(relax.op.concat([gates, cut(2 * hidden, width)], 0))
    return joined, cut(width + 2 * hidden, 2 * width)
