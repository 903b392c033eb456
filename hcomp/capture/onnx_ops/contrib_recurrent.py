"""com.microsoft.DynamicQuantizeLSTM: a loop over time, because each step quantises its own state.

As in ONNX Runtime on one thread: the input is quantised once over all of it, and the hidden state
of the whole batch at each step, to uint8 with ONNX's DynamicQuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.contrib_quantized_matmul import dynamic_product
from hcomp.capture.onnx_ops.math_common import like
from hcomp.capture.onnx_ops.recurrent import Cell, cell_of, direction_of
from hcomp.capture.onnx_ops.recurrent_loop import TimeLoop
from hcomp.dims import DimLike

Activation: TypeAlias = Callable[[NodeContext, str], str]


@dataclass(frozen=True)
class Direction:
    """One direction's inputs, as values of the outer graph; "" is absent.

    Attributes:
        projected: the input's products with its weights and all biases, [T, B, 4H], in the
            order of the steps.
        weight: [H, 4H], 8-bit.
        scale: [] or [1, 4H].
        zero: likewise.
        peepholes: [3H].
        lengths: int32 [B].
    """

    projected: str
    weight: str
    scale: str
    zero: str
    peepholes: str
    lengths: str


def _dynamic_quantize_lstm(c: NodeContext) -> Sequence[str]:
    direction = direction_of(c)
    count = 2 if direction == "bidirectional" else 1
    cell = cell_of(c, ("Sigmoid", "Tanh", "Tanh"), count)
    coupled = bool(c.attr("input_forget", 0))
    c.ignore("hidden_size")  # the weights say it
    done = []
    for d in range(count):
        reverse = direction == "reverse" or d == 1
        done.append(_one_direction(c, d, reverse, _functions(cell, d), coupled))
    y = c.emit("concat", *(c.emit("expand_dims", r[0], axis=(1,)) for r in done), axis=1)
    h, memory = (c.emit("concat", *(c.emit("expand_dims", r[i], axis=(0,)) for r in done), axis=0) for i in (1, 2))
    return y, h, memory


def _part(c: NodeContext, index: int, d: int) -> str:
    """Return entry `d` of an input along its first axis; "" where it is absent."""
    if not c.has(index):
        return ""
    data, size = c.const(index), c.shape(index)[1:]
    if data is not None:
        return c.tensor(data[d], c.dtype(index))
    cut = c.emit("strided_slice", index, axes=(0,), begin=(d,), size=(1,), strides=(1,))
    return c.reshape(cut, size)


def _columns(c: NodeContext, index: int, d: int) -> str:
    """Return a scale or zero point of direction `d` as [] or [1, 4H]."""
    value = _part(c, index, d)
    return c.reshape(value, (1, c.shape(value)[0])) if value and c.shape(value) else value


def _one_direction(
    c: NodeContext, d: int, reverse: bool, functions: Sequence[Activation], coupled: bool
) -> tuple[str, str, str]:  # fmt: skip
    """Return Y [T, B, H] and the final states [B, H]."""
    weight, recurrent = _part(c, 1, d), _part(c, 2, d)
    hidden = c.shape(recurrent)[0]
    projected = dynamic_product(c, c.input(0), weight, _columns(c, 8, d), _columns(c, 9, d))
    if c.has(3):
        bias = _part(c, 3, d)
        cut = [
            c.emit("strided_slice", bias, axes=(0,), begin=(i * 4 * hidden,), size=(4 * hidden,), strides=(1,))
            for i in (0, 1)
        ]
        projected = c.emit("add", projected, c.emit("add", *cut))
    lengths = c.cast(4, "int32") if c.has(4) else ""
    if reverse:
        projected = _backwards(c, projected, lengths)
    given = Direction(projected, recurrent, _columns(c, 10, d), _columns(c, 11, d), _part(c, 7, d), lengths)
    states = [_initial(c, index, d, hidden) for index in (5, 6)]
    y, h, memory = _loop(c, given, states, functions, coupled)
    return (_backwards(c, y, lengths) if reverse else y), h, memory


def _backwards(c: NodeContext, x: str, lengths: str) -> str:
    """Return [T, B, ...] with each sequence reversed within its own length."""
    if not lengths:
        return c.emit("flip", x, axis=(0,))
    steps, batch, width = c.shape(x)
    time = c.b.emit("arange", size=steps, dtype="int64")
    time = c.emit("expand_dims", time, axis=(1,))
    end = c.cast(lengths, "int64")
    mirrored = c.emit("subtract", c.emit("subtract", end, c.scalar(1, "int64")), time)
    index = c.emit("where", c.emit("less", time, end), mirrored, time)
    index = c.emit("broadcast_to", c.emit("expand_dims", index, axis=(2,)), shape=(steps, batch, width))
    return c.emit("gather_elements", x, index, axis=0)


def _initial(c: NodeContext, index: int, d: int, hidden: DimLike) -> str:
    found = _part(c, index, d)
    if found:
        return found
    return c.b.emit("full", shape=(c.shape(0)[1], hidden), value=0.0, dtype="float32")


def _loop(
    c: NodeContext,
    given: Direction,
    states: Sequence[str],
    functions: Sequence[Activation],
    coupled: bool,
) -> tuple[str, ...]:
    """Emit the loop over time; return the stacked states and the final ones.

    Where sequences end before the others, the last states that they really had are carried apart.
    """
    loop = TimeLoop(c, c.shape(given.projected)[0], [*states, *states] if given.lengths else states)
    inner = loop.c
    held = Direction(*(loop.carry_in(getattr(given, n)) for n in Direction.__dataclass_fields__))
    hidden, memory = _step(inner, held, loop.step, loop.states[:2], functions, coupled)
    if not held.lengths:
        last, (y,) = loop.finish([hidden, memory], [hidden])
        return y, *last
    alive = inner.emit("less", inner.cast(loop.step, "int32"), held.lengths)
    alive = inner.emit("expand_dims", alive, axis=(1,))
    final = [inner.emit("where", alive, new, old) for new, old in zip((hidden, memory), loop.states[2:], strict=True)]
    # What a finished sequence hands on is 0, as in ONNX Runtime: the batch is quantised as one.
    hidden = inner.emit("where", alive, hidden, inner.scalar(0, "float32"))
    last, (y,) = loop.finish([hidden, memory, *final], [hidden])
    return y, *last[2:]


def _step(
    c: NodeContext, d: Direction, step: str, states: Sequence[str],
    functions: Sequence[Activation], coupled: bool,
) -> tuple[str, str]:  # fmt: skip
    """Return the new hidden state and memory."""
    f, g, h = functions
    hidden, memory = states
    width = c.shape(hidden)[1]
    gates = c.emit("take", d.projected, step, axis=0)
    gates = c.emit("add", gates, dynamic_product(c, hidden, d.weight, d.scale, d.zero))
    i, o, forget, new = c.emit_many("split", gates, sizes=(width,) * 4, axis=1)
    holes = c.emit_many("split", d.peepholes, sizes=(width,) * 3, axis=0) if d.peepholes else None

    def peep(gate: str, place: int, state: str) -> str:
        return c.emit("add", gate, c.emit("multiply", holes[place], state)) if holes else gate

    i = f(c, peep(i, 0, memory))
    rest = c.emit("subtract", c.scalar(1, "float32"), i) if coupled else ""
    forget = rest or f(c, peep(forget, 2, memory))
    memory = c.emit("add", c.emit("multiply", forget, memory), c.emit("multiply", i, g(c, new)))
    return c.emit("multiply", f(c, peep(o, 1, memory)), h(c, memory)), memory


# -- activations ------------------------------------------------------------------------------
def _functions(cell: Cell, d: int) -> list[Activation]:
    """Return f, g and h of direction `d`; the clip bounds what enters f and g."""
    found = []
    for place, clip in enumerate((cell.clip, cell.clip, None), start=3 * d):
        found.append(_function(cell.activations[place], cell.alpha[place], cell.beta[place], clip))
    return found


def _function(name: str, alpha: float, beta: float, clip: float | None) -> Activation:
    def apply(c: NodeContext, x: str) -> str:
        if clip is not None:
            x = c.emit("clip", x, min=-clip, max=clip)
        return ACTIVATIONS[name](c, x, alpha, beta)

    return apply


def _one_node(op: str) -> Callable[[NodeContext, str, float, float], str]:
    return lambda c, x, alpha, beta: c.emit(op, x)


def _affine(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    return c.emit("add", c.emit("multiply", x, like(c, alpha, x)), like(c, beta, x))


def _hard_sigmoid(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    return c.emit("clip", _affine(c, x, alpha, beta), min=0.0, max=1.0)


def _thresholded_relu(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    return c.emit("where", c.emit("greater", x, like(c, alpha, x)), x, like(c, 0, x))


def _scaled_tanh(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    inner = c.emit("tanh", c.emit("multiply", x, like(c, beta, x)))
    return c.emit("multiply", inner, like(c, alpha, x))


def _elu(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    low = c.emit("multiply", c.emit("expm1", x), like(c, alpha, x))
    return c.emit("where", c.emit("less", x, like(c, 0, x)), low, x)


def _softsign(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    return c.emit("divide", x, c.emit("add", c.emit("abs", x), like(c, 1, x)))


ACTIVATIONS: dict[str, Callable[[NodeContext, str, float, float], str]] = {
    "relu": _one_node("relu"),
    "tanh": _one_node("tanh"),
    "sigmoid": _one_node("sigmoid"),
    "softplus": _one_node("softplus"),
    "affine": _affine,
    "hardsigmoid": _hard_sigmoid,
    "leakyrelu": lambda c, x, alpha, beta: c.emit("leaky_relu", x, alpha=alpha),
    "thresholdedrelu": _thresholded_relu,
    "scaledtanh": _scaled_tanh,
    "elu": _elu,
    "softsign": _softsign,
}
"""The activations of ONNX's recurrent layers: (context, x, alpha, beta) -> value."""

CONTRIB_RECURRENT: dict[str, Converter] = {"DynamicQuantizeLSTM": _dynamic_quantize_lstm}
