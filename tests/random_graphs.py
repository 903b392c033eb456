"""Random well-formed graphs for property tests: small, static and symbolic shapes, awkward numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hcomp.dims import symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType

SIZES = {"N": 3}
"""The sizes at which the graphs are run."""

N = symbol("N")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, float("inf"), float("-inf"), float("nan")]


class PlainBuilder(GraphBuilder):
    """A builder that folds nothing, so that passes have something to do."""

    def _fold(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Growing:
    """A graph to which `draw` adds one node after another."""

    def __init__(self, draw: st.DrawFn, builder: GraphBuilder) -> None:
        self.draw = draw
        self.b = builder
        self.values: list[str] = []
        self.last_unranked = "u"

    def pick(self) -> str:
        return self.draw(st.sampled_from(self.values))

    def shape(self, name: str) -> tuple[Any, ...]:
        kind = self.b.types[name]
        assert isinstance(kind, TensorType)
        assert kind.shape is not None
        return kind.shape

    def constant(self, shape: tuple[int, ...]) -> str:
        count = int(np.prod(shape))
        same = self.draw(st.sampled_from([0.0, -0.0, 1.0, None]))
        numbers = st.lists(st.sampled_from(SPECIAL), min_size=count, max_size=count)
        items = self.draw(numbers) if same is None else [same] * count
        return self.b.constant(np.array(items, np.float32).reshape(shape), "c")

    def add(self) -> None:
        """Add a node (or a few) that always fits."""
        step = self.draw(st.sampled_from(STEPS))
        self.values += step(self)


def _unary(g: _Growing) -> list[str]:
    op = g.draw(st.sampled_from(["relu", "negative", "abs", "floor", "tanh"]))
    return [g.b.emit(op, g.pick())]


def _binary(g: _Growing) -> list[str]:
    op = g.draw(st.sampled_from(["add", "subtract", "multiply", "divide", "maximum", "power"]))
    x = g.pick()
    last = g.shape(x)[-1:]
    shape = g.draw(st.sampled_from([(), (1,), last if last and isinstance(last[0], int) else ()]))
    sides = (x, g.constant(shape))
    return [g.b.emit(op, *(sides if g.draw(st.booleans()) else sides[::-1]))]


def _pair(g: _Growing) -> list[str]:
    x = g.pick()
    others = [v for v in g.values if g.shape(v) == g.shape(x)]
    return [g.b.emit("add", x, g.draw(st.sampled_from(others)))]


def _view(g: _Growing) -> list[str]:
    x = g.pick()
    shape = g.shape(x)
    if g.draw(st.booleans()):
        total: Any = 1
        for d in shape:
            total = total * d
        return [g.b.emit("reshape", x, shape=g.draw(st.sampled_from([(total,), (1, total), shape])))]
    wide = g.b.emit("expand_dims", x, axis=(0,))
    return [wide, g.b.emit("squeeze", wide, axis=(0,))]


def _move(g: _Growing) -> list[str]:
    """Two permutations of one value, and one of the second."""
    x = g.pick()
    orders = st.permutations(range(len(g.shape(x)))).map(tuple)
    a, b = (g.b.emit("permute_dims", x, axes=g.draw(orders)) for _ in range(2))
    return [a, b, g.b.emit("permute_dims", b, axes=g.draw(orders))]


def _join(g: _Growing) -> list[str]:
    x = g.pick()
    if not g.shape(x):
        return []
    return [g.b.emit("concat", *[x] * g.draw(st.integers(1, 3)), axis=0)]


def _slice(g: _Growing) -> list[str]:
    x = g.pick()
    if not g.shape(x) or not isinstance(g.shape(x)[0], int):
        return []
    size, stride = g.shape(x)[0], g.draw(st.sampled_from([1, -1]))
    begin = 0 if stride == 1 else size - 1
    attrs: dict[str, Any] = {"axes": (0,), "begin": (begin,), "size": (size,), "strides": (stride,)}
    return [g.b.emit("strided_slice", x, **attrs)]


def _choice(g: _Growing) -> list[str]:
    flag = g.b.constant(np.array(g.draw(st.lists(st.booleans(), min_size=1, max_size=1))), "flag")
    x = g.pick()
    return [g.b.emit("where", flag, x, g.constant(()))]


def _product(g: _Growing) -> list[str]:
    """A matmul with a scale and a shift behind it."""
    x = g.pick()
    if len(g.shape(x)) < 2 or not isinstance(g.shape(x)[-1], int):
        return []
    weight = np.arange(g.shape(x)[-1] * 2, dtype=np.float32).reshape(-1, 2)
    m = g.b.emit("matmul", x, g.b.constant(weight, "w"))
    s = g.b.emit("multiply", m, g.b.constant(np.array([2, 0.5], np.float32), "s"))
    return [g.b.emit("add", s, g.b.constant(np.array([1, 3], np.float32), "t"))]


def _branch(g: _Growing) -> list[str]:
    x = g.pick()
    flag = g.b.constant(np.bool_(g.draw(st.booleans())), "decided")
    bodies = {}
    for name in ("then", "else"):
        inner = PlainBuilder(name, g.b.names)
        a = inner.input("a", g.b.types[x])
        op = g.draw(st.sampled_from(["relu", "negative"]))
        bodies[name] = inner.finish([inner.emit(op, inner.emit("negative", a))])
    return list(g.b.emit_typed("if", (flag, x), [g.b.types[x]], graphs=bodies))


def _unranked(g: _Growing) -> list[str]:
    """Operators on a value whose rank nobody knows when compiling (it is [2, 3])."""
    x = g.draw(st.sampled_from(["u", g.last_unranked]))
    op = g.draw(st.sampled_from(["reshape", "broadcast_to", "multiply", "slice", "where"]))
    if op == "reshape":
        name = g.b.emit("reshape", x, shape=g.draw(st.sampled_from([(3, 2), (2, 3), (6,)])))
        name = g.b.emit("reshape", name, shape=(2, 3))
    elif op == "broadcast_to":
        name = g.b.emit("broadcast_to", x, shape=(2, 3))
    elif op == "multiply":
        name = g.b.emit("multiply", x, g.constant(g.draw(st.sampled_from([(), (1, 3), (1,)]))))
    elif op == "slice":
        attrs: dict[str, Any] = {"axes": (0,), "begin": (0,), "size": (1,), "strides": (1,)}
        name = g.b.emit("strided_slice", x, **attrs)
        name = g.b.emit("broadcast_to", name, shape=(2, 3))
    else:
        name = g.b.emit("where", g.b.constant(np.array([[True], [True]])), x, g.constant(()))
    g.last_unranked = name
    return []


STEPS: list[Callable[[_Growing], list[str]]] = [
    _unary, _binary, _binary, _pair, _view, _view, _move, _join, _slice, _choice, _product, _branch,
    _unranked,
]  # fmt: skip


@st.composite
def random_graphs(draw: st.DrawFn, most: int = 12) -> Graph:
    """Draw a graph of up to about `most` nodes, with inputs of rank 2 and 3."""
    g = _Growing(draw, PlainBuilder("random"))
    g.values = [
        g.b.input("x", TensorType("float32", (N, 4))),
        g.b.input("y", TensorType("float32", (2, 3))),
        g.b.input("z", TensorType("float32", (2, 1, 3))),
        g.constant((2, 3)),
    ]
    g.b.input("u", TensorType("float32", None))
    for _ in range(draw(st.integers(1, most))):
        g.add()
    outputs = draw(st.lists(st.sampled_from(g.values), min_size=1, max_size=3))
    return g.b.finish([*outputs, g.values[-1], g.last_unranked])
