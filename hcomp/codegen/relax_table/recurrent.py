"""Rows for LSTM, GRU and RNN layers.

The input's products with the weights are one matrix product over all steps. What depends on the
step before is one kernel: for each direction and sequence it walks through time, with the state in
the outputs for the final states and the gates in a buffer of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, Tensor, constant, wide, wide_dtype
from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table import scalar
from hcomp.codegen.relax_table.loops import Buffer, local, nest, statements, store
from hcomp.codegen.relax_table.reduce import reduced, reducer
from hcomp.codegen.relax_table.shape import int64
from hcomp.errors import CodegenError
from hcomp.ir.graph import Node, Value
from hcomp.ir.types import TensorType

Activation: TypeAlias = Callable[[Expr], Expr]

BIAS, LENGTHS, HIDDEN, MEMORY, PEEPHOLES = 3, 4, 5, 6, 7
"""Positions of the optional inputs."""

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
FUNCTIONS = {"lstm": 3, "gru": 2, "rnn": 1}


def _number(x: Expr, value: float) -> Expr:
    return scalar.same(x, float(value))


_ACTIVATIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], float, float]] = {
    "relu": (lambda x, a, b: scalar.relu(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: scalar.libm("tanh")(x), 0.0, 0.0),
    "sigmoid": (lambda x, a, b: scalar.sigmoid(x), 0.0, 0.0),
    "affine": (lambda x, a, b: _number(x, a) * x + _number(x, b), 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: scalar.leaky_relu({"alpha": a}, x), 0.01, 0.0),
    "thresholdedrelu": (
        lambda x, a, b: tirx.Select(tirx.GT(x, _number(x, a)), x, x * _number(x, 0)),
        1.0,
        0.0,
    ),
    "scaledtanh": (
        lambda x, a, b: _number(x, a) * scalar.libm("tanh")(_number(x, b) * x),
        1.0,
        1.0,
    ),
    "hardsigmoid": (
        lambda x, a, b: scalar.clip({"min": 0, "max": 1}, _number(x, a) * x + _number(x, b)),
        0.2,
        0.5,
    ),
    "elu": (
        lambda x, a, b: tirx.Select(tirx.LT(x, _number(x, 0)), _number(x, a) * scalar.libm("expm1")(x), x),
        1.0,
        0.0,
    ),
    "softsign": (lambda x, a, b: x / (_number(x, 1) + tirx.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: scalar.softplus(x), 0.0, 0.0),
}
"""Name -> function of (x, alpha, beta), and the defaults of alpha and beta."""


def _activations(attrs: Any, direction: int, count: int) -> list[Activation]:
    found: list[Activation] = []
    for i in range(direction * count, (direction + 1) * count):
        name = attrs["activations"][i]
        if name not in _ACTIVATIONS:
            raise CodegenError(f"the activation {name!r} is not known")
        function, alpha, beta = _ACTIVATIONS[name]
        alpha = attrs["alpha"][i] if i < len(attrs["alpha"]) else alpha
        beta = attrs["beta"][i] if i < len(attrs["beta"]) else beta
        # An LSTM's clip bounds what enters the gates, not the memory on its way out.
        bounded = not (attrs["cell"] == "lstm" and i % count == 2)
        found.append(_clipped(function, alpha, beta, attrs["clip"] if bounded else None))
    return found


def _clipped(
    function: Callable[[Expr, float, float], Expr], alpha: float, beta: float, clip: float | None
) -> Activation:
    bounds = {"min": None if clip is None else -clip, "max": clip}
    return lambda x: function(scalar.clip(bounds, x), alpha, beta)


@dataclass
class Walk:
    """One direction and one sequence, while it walks through time.

    Attributes:
        kernel: the kernel; its inputs are those of `_STATE`.
        d, b: the direction (a number) and the sequence (a loop's variable).
        hidden: the size of the state.
        gates: a buffer [G * H] of the gates' sums.
        states: the buffers of the final states, [D, B, H].
        buffers: the inputs' buffers, None where one is absent.
        functions: the activations of this direction.
    """

    kernel: Kernel
    d: int
    b: Expr
    hidden: int
    gates: Buffer
    states: Sequence[Buffer]
    buffers: Sequence[Buffer | None]
    functions: list[Activation]

    def state(self, index: int, h: Expr) -> Expr:
        """Return element `h` of a state."""
        return self.states[index][int64(self.d), self.b, h]

    def set_state(self, index: int, h: Expr, value: Expr) -> None:
        """Write element `h` of a state."""
        store(self.states[index], [int64(self.d), self.b, h], value)

    def bias(self, gate: int, h: Expr) -> Expr:
        """Return the recurrent bias of a gate."""
        total = GATES[self.kernel.attrs["cell"]]
        buffer = self.buffers[BIAS]
        if buffer is None:
            return constant(0.0, wide_dtype(self.kernel.out_dtype))
        return wide(buffer[int64(self.d), int64((total + gate) * self.hidden) + h])

    def peephole(self, gate: int, h: Expr) -> Expr:
        """Return the peephole weight of a gate, times the memory; 0 without peepholes."""
        buffer = self.buffers[PEEPHOLES]
        if buffer is None:
            return constant(0.0, wide_dtype(self.kernel.out_dtype))
        return wide(buffer[int64(self.d), int64(gate * self.hidden) + h]) * self.state(1, h)

    def gate(self, gate: int, h: Expr) -> Expr:
        """Return the sum that has been collected for a gate."""
        return self.gates[int64(gate * self.hidden) + h]

    def add_products(self, first: int, last: int, factor: Callable[[Expr], Expr]) -> None:
        """Add to the gates `first` to `last` the recurrence weights times `factor(h)`."""
        recurrence = self.buffers[1]
        width = (last - first) * self.hidden
        assert recurrence is not None
        with nest(self.kernel, [self.hidden]) as (h,):
            value = local(wide_dtype(self.kernel.out_dtype))
            store(value, [int64(0)], factor(h))
            with nest(self.kernel, [width]) as (g,):
                at = int64(first * self.hidden) + g
                product = value[0] * wide(recurrence[int64(self.d), h, at])
                store(self.gates, [at], self.gates[at] + product)


Finish: TypeAlias = Callable[[Walk, Callable[[Expr, Sequence[Expr]], None]], None]
"""Computes one step from the gates; calls its second argument with (h, the new state)."""


def _lstm(walk: Walk, put: Callable[[Expr, Sequence[Expr]], None]) -> None:
    f, g, h = walk.functions
    walk.add_products(0, 4, lambda k: walk.state(0, k))
    with nest(walk.kernel, [walk.hidden]) as (k,):
        memory = walk.state(1, k)
        sums = [walk.gate(n, k) + walk.bias(n, k) for n in range(4)]
        i = local(wide_dtype(walk.kernel.out_dtype))
        store(i, [int64(0)], f(sums[0] + walk.peephole(0, k)))
        coupled = walk.kernel.attrs["input_forget"]
        forget = _number(i[0], 1) - i[0] if coupled else f(sums[2] + walk.peephole(2, k))
        new = local(wide_dtype(walk.kernel.out_dtype))
        store(new, [int64(0)], forget * memory + i[0] * g(sums[3]))
        hole = constant(0.0, str(i.dtype))
        buffer = walk.buffers[PEEPHOLES]
        if buffer is not None:
            hole = wide(buffer[int64(walk.d), int64(walk.hidden) + k]) * new[0]
        put(k, [f(sums[1] + hole) * h(new[0]), new[0]])


def _gru(walk: Walk, put: Callable[[Expr, Sequence[Expr]], None]) -> None:
    f, g = walk.functions
    dtype = wide_dtype(walk.kernel.out_dtype)
    hidden = walk.hidden
    if walk.kernel.attrs["linear_before_reset"]:
        # The product of the third gate is kept apart: the reset gate multiplies it.
        inner = local(dtype, hidden)
        with nest(walk.kernel, [hidden]) as (k,):
            store(inner, [k], walk.gate(2, k))
            store(walk.gates, [int64(2 * hidden) + k], constant(0.0, dtype))
        walk.add_products(0, 3, lambda k: walk.state(0, k))
        with nest(walk.kernel, [hidden]) as (k,):
            reset = f(walk.gate(1, k) + walk.bias(1, k))
            product = walk.gate(2, k) + walk.bias(2, k)
            store(walk.gates, [int64(2 * hidden) + k], inner[k] + reset * product)
    else:
        walk.add_products(0, 2, lambda k: walk.state(0, k))
        with nest(walk.kernel, [hidden]) as (k,):
            reset = f(walk.gate(1, k) + walk.bias(1, k))
            store(walk.gates, [int64(hidden) + k], reset * walk.state(0, k))
            third = walk.gate(2, k) + walk.bias(2, k)
            store(walk.gates, [int64(2 * hidden) + k], third)
        walk.add_products(2, 3, lambda k: walk.gate(1, k))
    with nest(walk.kernel, [hidden]) as (k,):
        update = local(dtype)
        store(update, [int64(0)], f(walk.gate(0, k) + walk.bias(0, k)))
        kept = update[0] * walk.state(0, k)
        put(k, [(_number(update[0], 1) - update[0]) * g(walk.gate(2, k)) + kept])


def _rnn(walk: Walk, put: Callable[[Expr, Sequence[Expr]], None]) -> None:
    (f,) = walk.functions
    walk.add_products(0, 1, lambda k: walk.state(0, k))
    with nest(walk.kernel, [walk.hidden]) as (k,):
        put(k, [f(walk.gate(0, k) + walk.bias(0, k))])


_FINISH: dict[str, Finish] = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}


def _recurrence(kernel: Kernel) -> tuple[Tensor, ...]:
    """Return Y and the final states from projected inputs [T, D, B, G*H] and weights [D, H, G*H]."""
    attrs = kernel.attrs
    cell = attrs["cell"]
    steps, directions, batch, _ = kernel.shape(0)
    hidden = kernel.out_shape[-1]
    assert isinstance(hidden, int)
    assert isinstance(directions, int)
    dtype = wide_dtype(kernel.out_dtype)
    carried = len(kernel.outputs) - 1
    present = [n for n in range(len(kernel.inputs)) if kernel.has(n)]

    def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        found = dict(zip(present, ins, strict=True))
        buffers = [found.get(n) for n in range(PEEPHOLES + 1)]
        for d in range(directions):
            with nest(kernel, [batch]) as (b,):
                walk = Walk(
                    kernel, d, b, hidden, local(dtype, GATES[cell] * hidden), outs[1:], buffers,
                    _activations(attrs, d, FUNCTIONS[cell]),
                )  # fmt: skip
                _start(walk, carried)
                _walk(walk, outs[0], steps)

    shapes = [(v.shape or (), dtype) for v in kernel.outputs]
    made = statements(kernel, [kernel.tensor(n) for n in present], shapes, emit, cell)
    if dtype == kernel.out_dtype:
        return made
    return tuple(_rounded(kernel, m, n) for n, m in enumerate(made))


def _rounded(kernel: Kernel, made: Tensor, output: int) -> Tensor:
    found = kernel.outputs[output]
    return kernel.compute(lambda *i: made(*i), shape=found.shape, dtype=found.dtype, name=f"out{output}")


def _start(walk: Walk, carried: int) -> None:
    """Emit the initial states."""
    zero = constant(0.0, wide_dtype(walk.kernel.out_dtype))
    with nest(walk.kernel, [walk.hidden]) as (h,):
        for index in range(carried):
            given = walk.buffers[HIDDEN + index]
            value = zero if given is None else wide(given[int64(walk.d), walk.b, h])
            walk.set_state(index, h, value)


def _walk(walk: Walk, y: Buffer, steps: Any) -> None:
    """Emit the loop over time."""
    kernel, d, b = walk.kernel, int64(walk.d), walk.b
    backwards = kernel.attrs["direction"] == "reverse" or walk.d == 1
    projected, lengths = walk.buffers[0], walk.buffers[LENGTHS]
    assert projected is not None
    with nest(kernel, [steps]) as (step,):
        t = kernel.dim(steps) - int64(1) - step if backwards else step
        with nest(kernel, [GATES[kernel.attrs["cell"]] * walk.hidden]) as (g,):
            store(walk.gates, [g], wide(projected[t, d, b, g]))
        carried = len(walk.states)
        fresh = [local(wide_dtype(kernel.out_dtype), walk.hidden) for _ in range(carried)]

        def put(h: Expr, new: Sequence[Expr]) -> None:
            for buffer, value in zip(fresh, new, strict=True):
                store(buffer, [h], value)

        _FINISH[kernel.attrs["cell"]](walk, put)
        # The state changes only when all of the step is computed from the old one.
        with nest(kernel, [walk.hidden]) as (h,):
            values = [buffer[h] for buffer in fresh]
            out = values[0]
            if lengths is not None:
                alive = t < lengths[b].astype("int64")
                out = tirx.Select(alive, out, _number(out, 0))
                values = [tirx.Select(alive, v, walk.state(i, h)) for i, v in enumerate(values)]
            store(y, [t, d, b, h], out)
            for index, value in enumerate(values):
                walk.set_state(index, h, value)


def _projection(kernel: Kernel) -> Tensor:
    """Return x [T, B, I] times weight [D, G*H, I] plus the input's bias, [T, D, B, G*H]."""
    x = kernel.shape(0)
    kernel.require_equal(x[2], kernel.shape(1)[2])
    step = kernel.axis(x[2])

    def term(t: Expr, d: Expr, b: Expr, g: Expr) -> Expr:
        return kernel.read(0, (t, b, step)) * kernel.read(1, (d, g, step))

    zero = constant(0.0, kernel.out_dtype)
    total = reduced(kernel, reducer("sum"), term, [step], [x[2]], zero, "projection")
    if not kernel.has(2):
        return total
    return kernel.compute(lambda t, d, b, g: total(t, d, b, g) + kernel.read(2, (d, g)))


def _joined(kernel: Kernel) -> Tensor:
    """Return the directions' products [T, B, G*H], stacked, plus the input's bias."""
    count = len(kernel.inputs) - kernel.attrs["bias"]

    def pick(t: Expr, d: Expr, b: Expr, g: Expr) -> Expr:
        found = kernel.read(count - 1, (t, b, g))
        for n in reversed(range(count - 1)):
            found = tirx.if_then_else(d == int64(n), kernel.read(n, (t, b, g)), found)
        return found + kernel.read(count, (d, g)) if kernel.attrs["bias"] else found

    return kernel.compute(pick)


def _turned(kernel: Kernel) -> Tensor:
    """Return recurrence weights [D, G*H, H] as [D, H, G*H]."""
    return kernel.compute(lambda d, h, g: kernel.read(0, (d, g, h)))


def _projected(lowering: Lowering, node: Node, out: TensorType) -> str:
    """Emit the input's products and return the name of their value."""
    x, weight, *rest = node.inputs
    bias = rest[1] if len(rest) > 1 else ""
    name = f"{node.output}.projected"
    array = lowering.array(weight)
    if array is None:
        made = lowering.call("projection", [x, weight, bias], {}, (out,), _projection)
        lowering.bind(name, out, made)
        return name
    assert out.shape is not None
    steps, directions, batch, width = out.shape
    parts = []
    for d in range(int(directions) if isinstance(directions, int) else 0):
        turned = np.ascontiguousarray(array[d].T)
        lowering.bind_constant(f"{weight}.{d}", turned)
        part = TensorType(out.dtype, (steps, batch, width))
        product = Node(
            "matmul",
            (x, f"{weight}.{d}"),
            (Value(f"{name}.{d}", part),),
            {"out_dtype": out.dtype},
        )
        lowering.bind(f"{name}.{d}", part, lowering.rules["matmul"](lowering, product))
        parts.append(f"{name}.{d}")
    inputs = [*parts, bias] if bias else parts
    made = lowering.call("joined", inputs, {"bias": bool(bias)}, (out,), _joined)
    lowering.bind(name, out, made)
    return name


def _turned_weights(lowering: Lowering, node: Node) -> str:
    """Return the name of the recurrence weights as [D, H, G*H]."""
    weight = node.inputs[2]
    name = f"{weight}.turned"
    array, own = lowering.array(weight), lowering.type(weight)
    assert own.shape is not None
    if array is not None:
        lowering.bind_constant(name, np.ascontiguousarray(array.transpose(0, 2, 1)))
        return name
    turned = TensorType(own.dtype, (own.shape[0], own.shape[2], own.shape[1]))
    lowering.bind(name, turned, lowering.call("turned", [weight], {}, (turned,), _turned))
    return name


def _rule(lowering: Lowering, node: Node) -> Any:
    x, weight = lowering.type(node.inputs[0]), lowering.type(node.inputs[1])
    assert x.shape is not None
    assert weight.shape is not None
    hidden = lowering.type(node.inputs[2]).shape
    if hidden is None or not all(isinstance(d, int) for d in (*hidden, *weight.shape[:2])):
        raise CodegenError(f"{node.label}: a recurrent layer needs weights of known sizes")
    wide_type = TensorType(wide_dtype(x.dtype), (x.shape[0], weight.shape[0], x.shape[1], weight.shape[1]))
    projected = _projected(lowering, node, wide_type)
    turned = _turned_weights(lowering, node)
    attrs = {**node.attrs, "cell": node.op}
    inputs = (projected, turned, "", *node.inputs[3:])
    outputs = tuple(v.type for v in node.outputs if isinstance(v.type, TensorType))
    return lowering.call(node.op, inputs, attrs, outputs, _recurrence)


RULES: dict[str, Rule] = dict.fromkeys(("lstm", "gru", "rnn"), _rule)
