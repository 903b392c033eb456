"""The optimizers of ai.onnx.preview.training: one step each, as plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext


def _groups(c: NodeContext, parts: int) -> list[tuple[str, ...]]:
    """Return the inputs of each optimised tensor: X1..Xn, then G1..Gn, and so on."""
    names = [c.input(i) for i in range(2, len(c.inputs))]
    count = len(names) // parts
    return [tuple(names[k * count + i] for k in range(parts)) for i in range(count)]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    return [value for column in zip(*rows, strict=True) for value in column]


def _scaled(c: NodeContext, factor: float, value: str) -> str:
    return c.emit("multiply", value, c.scalar(factor, c.dtype(value)))


def _plus(c: NodeContext, a: str, b: str) -> str:
    return c.emit("add", a, b)


def _regularized(c: NodeContext, gradient: str, x: str) -> str:
    return _plus(c, _scaled(c, c.attr("norm_coefficient", 0.0), x), gradient)


def _adagrad(c: NodeContext) -> Sequence[str]:
    decay, epsilon = c.attr("decay_factor", 0.0), c.attr("epsilon", 0.0)
    rows = []
    for x, g, h in _groups(c, 3):
        dtype = c.dtype(x)
        steps = _scaled(c, decay, c.cast(1, dtype))
        rate = c.emit("divide", c.cast(0, dtype), _plus(c, c.scalar(1.0, dtype), steps))
        gradient = _regularized(c, g, x)
        squares = _plus(c, h, c.emit("square", gradient))
        root = _plus(c, c.emit("sqrt", squares), c.scalar(epsilon, dtype))
        step = c.emit("divide", c.emit("multiply", rate, gradient), root)
        rows.append((c.emit("subtract", x, step), squares))
    return _columns(rows)


def _momentum(c: NodeContext) -> Sequence[str]:
    alpha, beta, mode = c.required("alpha"), c.required("beta"), c.required("mode")
    rows = []
    for x, g, v in _groups(c, 3):
        gradient = _regularized(c, g, x)
        # In the first step the gradient enters whole, whatever beta is.
        first = c.emit("equal", 1, c.tensor(0, "int64"))
        weight = c.emit("where", first, c.scalar(1.0, c.dtype(x)), c.scalar(beta, c.dtype(x)))
        moved = _plus(c, _scaled(c, alpha, v), c.emit("multiply", weight, gradient))
        step = moved if mode != "nesterov" else _plus(c, gradient, _scaled(c, alpha, moved))
        rows.append((c.emit("subtract", x, c.emit("multiply", c.cast(0, c.dtype(x)), step)), moved))
    return _columns(rows)


def _adam(c: NodeContext) -> Sequence[str]:
    alpha, beta, epsilon = c.attr("alpha", 0.9), c.attr("beta", 0.999), c.attr("epsilon", 0.0)
    after = c.attr("norm_coefficient_post", 0.0)
    rows = []
    for x, g, v, h in _groups(c, 4):
        dtype = c.dtype(x)
        gradient = _regularized(c, g, x)
        mean = _plus(c, _scaled(c, alpha, v), _scaled(c, 1 - alpha, gradient))
        squares = _plus(c, _scaled(c, beta, h), _scaled(c, 1 - beta, c.emit("square", gradient)))
        rate = _adam_rate(c, alpha, beta, dtype)
        root = _plus(c, c.emit("sqrt", squares), c.scalar(epsilon, dtype))
        new = c.emit("subtract", x, c.emit("divide", c.emit("multiply", rate, mean), root))
        rows.append((_scaled(c, 1 - after, new), mean, squares))
    return _columns(rows)


def _adam_rate(c: NodeContext, alpha: float, beta: float, dtype: str) -> str:
    """Return R sqrt(1 - beta^T) / (1 - alpha^T), and R itself in step T = 0."""
    one, steps = c.scalar(1.0, dtype), c.cast(1, dtype)
    rest = c.emit("subtract", one, c.emit("power", c.scalar(alpha, dtype), steps))
    root = c.emit("sqrt", c.emit("subtract", one, c.emit("power", c.scalar(beta, dtype), steps)))
    given = c.cast(0, dtype)
    bias = c.emit("divide", c.emit("multiply", given, root), rest)
    return c.emit("where", c.emit("greater", 1, c.tensor(0, "int64")), bias, given)


TRAINING: dict[str, Converter] = {"Adagrad": _adagrad, "Momentum": _momentum, "Adam": _adam}
