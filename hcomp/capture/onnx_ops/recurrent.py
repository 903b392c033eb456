"""LSTM, GRU and RNN: onto the operators of the same names, which have ONNX's layout 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hcomp.capture.context import Converter, NodeContext

# What each activation takes, with its default: None where it takes no such number.
# ONNX Runtime hands out activation_alpha and activation_beta only to those that take one.
_NUMBERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "relu": (None, None),
    "thresholdedrelu": (1.0, None),
    "tanh": (None, None),
    "sigmoid": (None, None),
    "leakyrelu": (0.01, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}


@dataclass(frozen=True)
class Cell:
    """The activations of a recurrent operator: one name, alpha and beta each; the clip of their inputs."""

    activations: tuple[str, ...]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    clip: float | None


def cell_of(c: NodeContext, default: Sequence[str], directions: int) -> Cell:
    """Return the activations that a node's attributes name, `default` for each direction."""
    names = [str(n).lower() for n in c.attr("activations", tuple(default) * directions)]
    if len(names) != len(default) * directions:
        raise c.refuse(f"it has {len(names)} activations where {len(default) * directions} belong")
    given: list[list[float]] = [[], []]
    lists = [list(c.attr("activation_alpha", ())), list(c.attr("activation_beta", ()))]
    for name in names:
        if name not in _NUMBERS:
            raise c.refuse(f"its activation {name!r} is not one of the standard's")
        for out, number, rest in zip(given, _NUMBERS[name], lists, strict=True):
            used = number is not None and bool(rest)
            out.append(float(rest.pop(0)) if used else number or 0.0)
    clip = c.attr("clip")
    return Cell(tuple(names), tuple(given[0]), tuple(given[1]), float(clip) if clip else None)


def direction_of(c: NodeContext) -> str:
    """Return the attribute `direction`: forward, reverse or bidirectional."""
    direction = str(c.attr("direction", "forward"))
    if direction not in ("forward", "reverse", "bidirectional"):
        raise c.refuse(f"its direction {direction!r} is not one of the standard's")
    return direction


def _lengths(c: NodeContext, index: int) -> str:
    return c.cast(index, "int32") if c.has(index) else ""


def _swap(c: NodeContext, value: str) -> str:
    """Return [a, b, c] as [b, a, c]; "" stays ""."""
    return c.emit("permute_dims", value, axes=(1, 0, 2)) if value else ""


def _of_rank_three(c: NodeContext, value: str) -> str:
    """Return a value whose rank comes at run time (out of an If) as the [., ., .] that it must be."""
    if not value or c.ranked(value):
        return value
    # Squeezing no axis is the identity; `dynamic` checks the rank.
    static: dict[str, object] = {"axis": ()}
    return c.b.dynamic("squeeze", [value], static=static, bound={}, dtypes=[c.dtype(value)], rank=3)[0]


def _sized(c: NodeContext, x: str, states: Sequence[str]) -> tuple[str, list[str]]:
    """Return x [T, B, I] and the states [D, B, H] with the sizes that the weights tell."""
    steps, batch, _ = c.shape(x)
    directions, _, hidden = c.shape(2)
    x = c.reshape(x, (steps, batch, c.shape(1)[2]))
    return x, [c.reshape(s, (directions, batch, hidden)) if s else "" for s in states]


def _recurrent(op: str, default: Sequence[str], states: int) -> Converter:
    def convert(c: NodeContext) -> Sequence[str]:
        direction = direction_of(c)
        count = 2 if direction == "bidirectional" else 1
        attrs: dict[str, Any] = asdict(cell_of(c, default, count))
        if op == "lstm":
            attrs["input_forget"] = bool(c.attr("input_forget", 0))
        if op == "gru":
            attrs["linear_before_reset"] = bool(c.attr("linear_before_reset", 0))
        c.ignore("output_sequence")  # of opset 1: which outputs are wanted, as their names say too
        _check_shapes(c, c.attr("hidden_size"), count)
        batch_first = c.attr("layout", 0) == 1
        x = _of_rank_three(c, c.input(0))
        initial = [_of_rank_three(c, c.optional(5 + i)) for i in range(states)]
        if batch_first:
            x, initial = _swap(c, x), [_swap(c, s) for s in initial]
        if x != c.input(0) or any(not c.ranked(5 + i) for i in range(states) if c.has(5 + i)):
            x, initial = _sized(c, x, initial)
        inputs = [x, c.input(1), c.input(2), c.optional(3), _lengths(c, 4), *initial]
        if op == "lstm":
            inputs.append(c.optional(7))
        y, *final = c.b.emit_many(op, inputs, {"direction": direction, **attrs})
        if not batch_first:
            return (y, *final)
        # [T, D, B, H] is [B, T, D, H] in this layout.
        return (c.emit("permute_dims", y, axes=(2, 0, 1, 3)), *(_swap(c, s) for s in final))

    return convert


def _check_shapes(c: NodeContext, hidden: int | None, directions: int) -> None:
    """Refuse weights that are not of rank 3, or not for this hidden size and number of directions."""
    for index in range(3):
        if c.ranked(index) and c.rank(index) != 3:
            raise c.refuse(f"its input {index} has {c.rank(index)} dimensions, not 3")
    if not c.ranked(2):
        return
    have, _, size = c.shape(2)
    if isinstance(have, int) and have != directions:
        raise c.refuse(f"its weight has {have} directions, not {directions}")
    if hidden is not None and isinstance(size, int) and size != hidden:
        raise c.refuse(f"its hidden_size is {hidden}, but its weight is for {size}")


RECURRENT: dict[str, Converter] = {
    "LSTM": _recurrent("lstm", ("Sigmoid", "Tanh", "Tanh"), 2),
    "GRU": _recurrent("gru", ("Sigmoid", "Tanh"), 1),
    "RNN": _recurrent("rnn", ("Tanh",), 1),
}
