"""Reference functions of LSTM, GRU and RNN layers: ONNX's operators with layout 0.

The input's products with the weights are computed for all steps at once; the loop over time
holds only what needs the step before. A sequence that has ended keeps its state and gives zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hcomp.reference.elementwise import TABLE as ELEMENTWISE
from hcomp.reference.numeric import Array, Function, narrow, quiet_table, widen

Activation: TypeAlias = Callable[..., Array]
State: TypeAlias = tuple[Array, ...]
"""What a cell carries from step to step, each [B, H]; the hidden state is the first."""
Step: TypeAlias = Callable[[Array, State], State]
"""From the projected input [B, G*H] and the state to the new state."""

_ACTIVATIONS: dict[str, tuple[Function, float, float]] = {
    "relu": (lambda x, a, b: ELEMENTWISE["relu"](x), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "sigmoid": (lambda x, a, b: ELEMENTWISE["sigmoid"](x), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, x * 0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: ELEMENTWISE["softplus"](x), 0.0, 0.0),
}
"""Name -> function of (x, alpha, beta), and the defaults of alpha and beta."""


def _activations(
    names: Sequence[str], alpha: Sequence[float], beta: Sequence[float], clip: float | None
) -> list[Activation]:
    """Return the functions; `clip` bounds their inputs."""
    found: list[Activation] = []
    for i, name in enumerate(names):
        if name not in _ACTIVATIONS:
            raise ValueError(f"unknown activation {name!r}")
        function, a, b = _ACTIVATIONS[name]
        a = alpha[i] if i < len(alpha) else a
        b = beta[i] if i < len(beta) else b
        found.append(partial(_activate, function=function, alpha=a, beta=b, clip=clip))
    return found


def _activate(x: Array, *, function: Function, alpha: float, beta: float, clip: float | None) -> Array:
    if clip is not None:
        x = np.clip(x, -clip, clip)
    return np.asarray(function(x, alpha, beta))


def _times(direction: str, index: int, steps: int) -> range:
    """Return the order of time of direction `index`."""
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(f"unknown direction {direction!r}")
    backwards = direction == "reverse" or index == 1
    return range(steps - 1, -1, -1) if backwards else range(steps)


def _run(x: Array, step: Step, state: State, times: range, lengths: Array | None, y: Array) -> State:
    """Run one direction over projected inputs x [T, B, G*H]; write y [T, B, H]."""
    for t in times:
        new = step(x[t], state)
        if lengths is not None:
            # Backwards, a sequence shorter than t has not begun: it keeps its initial state.
            alive = (t < lengths)[:, None]
            new = tuple(np.where(alive, n, old) for n, old in zip(new, state, strict=True))
            y[t] = np.where(alive, new[0], 0)
        else:
            y[t] = new[0]
        state = new
    return state


class _Layer:
    """The inputs and attributes that all three layers share, computed wide."""

    def __init__(self, inputs: Sequence[Array | None], attrs: dict[str, Any], per_cell: int):
        x, weight, recurrence, bias, lengths, *states = inputs
        if x is None or weight is None or recurrence is None:
            raise ValueError("data, weight and recurrence weight must be there")
        self.dtype = x.dtype
        self.x, self.weight, self.recurrence = widen(x), widen(weight), widen(recurrence)
        self.bias = None if bias is None else widen(bias)
        self.lengths = lengths
        self.states = [None if s is None else widen(s) for s in states]
        self.directions, _, self.hidden = recurrence.shape
        self.attrs = attrs
        self.per_cell = per_cell
        if len(attrs["activations"]) != per_cell * self.directions:
            raise ValueError(f"{len(attrs['activations'])} activations for {self.directions} directions")

    def run(self, cell: Callable[[_Layer, int, list[Activation]], Step], carried: int) -> Any:
        """Return Y [T, D, B, H] and the final states [D, B, H]."""
        steps, batch = self.x.shape[:2]
        wide = self.x.dtype
        y = np.zeros((steps, self.directions, batch, self.hidden), wide)
        final = np.zeros((carried, self.directions, batch, self.hidden), wide)
        for d, functions in enumerate(self._functions()):
            state = tuple(np.zeros((batch, self.hidden), wide) if s is None else s[d] for s in self.states[:carried])
            times = _times(self.attrs["direction"], d, steps)
            step = cell(self, d, functions)
            last = _run(self._projected(d), step, state, times, self.lengths, y[:, d])
            for i in range(carried):
                final[i, d] = last[i]
        return (narrow(y, self.dtype), *(narrow(f, self.dtype) for f in final))

    def _functions(self) -> Iterator[list[Activation]]:
        alpha, beta, n = self.attrs["alpha"], self.attrs["beta"], self.per_cell
        for d in range(self.directions):
            part = slice(d * n, (d + 1) * n)
            names = self.attrs["activations"][part]
            yield _activations(names, alpha[part], beta[part], self.attrs["clip"])

    def _projected(self, d: int) -> Array:
        """Return x times the weights plus the input's bias, [T, B, G*H]."""
        result: Array = np.matmul(self.x, self.weight[d].T)
        if self.bias is not None:
            result += self.bias[d, : result.shape[-1]]
        return result

    def recurrent_bias(self, d: int) -> Array:
        """Return the second half of the bias, [G*H]."""
        gates = self.weight.shape[1]
        if self.bias is None:
            return np.zeros(gates, self.x.dtype)
        return self.bias[d, gates:]


def _parts(x: Array, count: int) -> list[Array]:
    return list(np.split(x, count, axis=-1))


def lstm(
    x: Array,
    weight: Array,
    recurrence: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    peepholes: Array | None = None,
    *,
    activations: Sequence[str],
    direction: str = "forward",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float | None = None,
    input_forget: bool = False,
) -> tuple[Array, Array, Array]:
    """Return Y [T, D, B, H], Y_h and Y_c [D, B, H]; gates in the order i o f c.

    Peepholes [D, 3H] are those of i, o, f. With `input_forget` the forget gate is 1 - i.
    """
    attrs = {
        "activations": activations,
        "direction": direction,
        "alpha": alpha,
        "beta": beta,
        "clip": clip,
    }
    holes = None if peepholes is None else widen(peepholes)

    def cell(layer: _Layer, d: int, functions: list[Activation]) -> Step:
        f, g, h = functions
        # ONNX Runtime clips what enters the gates, not the cell state on its way out.
        h = partial(h, clip=None)
        matrix, extra = layer.recurrence[d].T, layer.recurrent_bias(d)
        zero = np.zeros(layer.hidden, layer.x.dtype)
        hole_i, hole_o, hole_f = (zero,) * 3 if holes is None else _parts(holes[d], 3)

        def step(projected: Array, state: State) -> State:
            hidden, memory = state
            i, o, forget, c = _parts(projected + hidden @ matrix + extra, 4)
            i = f(i + hole_i * memory)
            forget = 1 - i if input_forget else f(forget + hole_f * memory)
            memory = forget * memory + i * g(c)
            return f(o + hole_o * memory) * h(memory), memory

        return step

    layer = _Layer([x, weight, recurrence, bias, lengths, initial_h, initial_c], attrs, 3)
    result: tuple[Array, Array, Array] = layer.run(cell, 2)
    return result


def gru(
    x: Array,
    weight: Array,
    recurrence: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str],
    direction: str = "forward",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
) -> tuple[Array, Array]:
    """Return Y [T, D, B, H] and Y_h [D, B, H]; gates in the order z r h.

    `linear_before_reset` multiplies the reset gate into the product instead of into the state.
    """
    attrs = {
        "activations": activations,
        "direction": direction,
        "alpha": alpha,
        "beta": beta,
        "clip": clip,
    }

    def cell(layer: _Layer, d: int, functions: list[Activation]) -> Step:
        f, g = functions
        gates = 2 * layer.hidden
        matrix, extra = layer.recurrence[d].T, layer.recurrent_bias(d)

        def step(projected: Array, state: State) -> State:
            (hidden,) = state
            both = projected[:, :gates] + hidden @ matrix[:, :gates] + extra[:gates]
            z, r = (f(part) for part in _parts(both, 2))
            if linear_before_reset:
                inner = r * (hidden @ matrix[:, gates:] + extra[gates:])
            else:
                inner = (r * hidden) @ matrix[:, gates:] + extra[gates:]
            return ((1 - z) * g(projected[:, gates:] + inner) + z * hidden,)

        return step

    layer = _Layer([x, weight, recurrence, bias, lengths, initial_h], attrs, 2)
    result: tuple[Array, Array] = layer.run(cell, 1)
    return result


def rnn(
    x: Array,
    weight: Array,
    recurrence: Array,
    bias: Array | None = None,
    lengths: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str],
    direction: str = "forward",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float | None = None,
) -> tuple[Array, Array]:
    """Return Y [T, D, B, H] and Y_h [D, B, H] of h = f(x W + h R + both biases)."""
    attrs = {
        "activations": activations,
        "direction": direction,
        "alpha": alpha,
        "beta": beta,
        "clip": clip,
    }

    def cell(layer: _Layer, d: int, functions: list[Activation]) -> Step:
        (f,) = functions
        matrix, extra = layer.recurrence[d].T, layer.recurrent_bias(d)
        return lambda projected, state: (f(projected + state[0] @ matrix + extra),)

    layer = _Layer([x, weight, recurrence, bias, lengths, initial_h], attrs, 1)
    result: tuple[Array, Array] = layer.run(cell, 1)
    return result


TABLE: dict[str, Function] = quiet_table({"lstm": lstm, "gru": gru, "rnn": rnn})
