"""Rows of the processor's lowering table for recurrent layers.

`targets/cpu/lowering.py` adds them to its own: `**recurrent_rules(features)`. A layer that they do not
cover (other types than float32, weights computed at run time) takes the plain row of the common table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table import LOWER
from hcomp.ir.graph import Node
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.activations import Activation, activation
from hcomp.targets.cpu.heavy.recurrent import Recurrence, emit_gru, emit_lstm, emit_rnn

_WEIGHTS = (1, 2, 3, 7)
"""Positions of weight, recurrence, bias and peepholes: they have to be constant."""


def recurrent_rules(features: CpuFeatures) -> Mapping[str, Rule]:
    """Return the rows of lstm, gru and rnn."""

    def rule(lowering: Lowering, node: Node) -> Any:
        if not _covered(lowering, node):
            return LOWER[node.op](lowering, node)
        x = lowering.expr(node.inputs[0])
        w, r, b, peepholes = (_array(lowering, node, k) for k in _WEIGHTS)
        lengths, h0, c0 = (_expr(lowering, node, k) for k in (4, 5, 6))
        common: dict[str, Any] = {
            "attributes": _attributes(lowering, node),
            "sequence_lens": lengths,
            "pack": _packer(lowering, node),
            "cpu": features,
        }
        bb = lowering.builder
        if node.op == "lstm":
            return emit_lstm(bb, x, w, r, b, h0, c0, peepholes=peepholes, **common)
        emit = emit_gru if node.op == "gru" else emit_rnn
        return emit(bb, x, w, r, b, h0, **common)

    return dict.fromkeys(("lstm", "gru", "rnn"), rule)


def _covered(lowering: Lowering, node: Node) -> bool:
    """Return whether dtype and sizes are those that the kernels take."""
    types = [lowering.type(n) for n in node.inputs[:3]]
    shapes = [t.shape for t in types]
    if any(s is None for s in shapes) or any(t.dtype != "float32" for t in types):
        return False
    present = [k for k in _WEIGHTS if k < len(node.inputs) and node.inputs[k]]
    if any(_array(lowering, node, k) is None for k in present):
        return False
    x, w, r = (tuple(s or ()) for s in shapes)
    known = all(isinstance(d, int) for d in (*w, *r))
    # A single column, the one gate of one unit, is no packed product.
    return known and w[1] != 1 and x[2] == w[2] and _states_fit(lowering, node, x[1])


def _states_fit(lowering: Lowering, node: Node, batch: Any) -> bool:
    """Return whether lengths and initial states have the batch's size for certain."""
    for position, axis in ((4, 0), (5, 1), (6, 1)):
        name = node.inputs[position] if position < len(node.inputs) else ""
        if name:
            own: TensorType = lowering.type(name)
            if own.shape is None or own.shape[axis] != batch:
                return False
    return True


def _attributes(lowering: Lowering, node: Node) -> Recurrence:
    attrs: Mapping[str, Any] = node.attrs
    hidden = lowering.type(node.inputs[2]).shape
    assert hidden is not None
    return Recurrence(
        hidden_size=int(str(hidden[2])),
        direction=str(attrs["direction"]),
        activations=tuple(_functions(attrs)),
        clip=attrs["clip"],
        input_forget=bool(attrs.get("input_forget", False)),
        linear_before_reset=bool(attrs.get("linear_before_reset", False)),
    )


def _functions(attrs: Mapping[str, Any]) -> list[Activation]:
    """Return the activations; our IR gives each its own parameters by position."""
    alphas, betas = tuple(attrs["alpha"]), tuple(attrs["beta"])
    return [
        activation(
            str(name),
            float(alphas[k]) if k < len(alphas) else None,
            float(betas[k]) if k < len(betas) else None,
        )
        for k, name in enumerate(attrs["activations"])
    ]


def _array(lowering: Lowering, node: Node, position: int) -> np.ndarray | None:
    """Return the contents of a constant input; None where it is absent or not constant."""
    name = node.inputs[position] if position < len(node.inputs) else ""
    array = lowering.array(name) if name else None
    return None if array is None else np.asarray(array)


def _expr(lowering: Lowering, node: Node, position: int) -> Any:
    """Return the expression of an optional input; None where it is absent."""
    name = node.inputs[position] if position < len(node.inputs) else ""
    return lowering.expr(name) if name else None


def _packer(lowering: Lowering, node: Node) -> Callable[[str, Any], Any]:
    """Return the callback that registers a constant of this layer, each under a name of its own."""
    number = count()
    return lambda hint, array: lowering.pack(f"{node.output}.{hint}.{next(number)}", array)
