"""Channels last: the same values, and permutations only where data enters or leaves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcomp.dims import symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.types import TensorType
from hcomp.ir.verifier import verify
from hcomp.passes.channels_last import channels_last, regrouped
from hcomp.testing import assert_close, interpret, random_array, random_inputs
from tests.test_lowering import runner

N, H = symbol("N"), symbol("H")
SIZES = {"N": 2, "H": 6}
WINDOW = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
Step = Callable[[GraphBuilder, str], Any]


def _conv(b: GraphBuilder, x: str, channels: int = 6, **attrs: Any) -> str:
    kind = b.types[x]
    assert isinstance(kind, TensorType)
    rank, inputs = len(kind.shape or ()), (kind.shape or ())[1]
    weight = random_array("float32", (channels, int(str(inputs)), *(3,) * (rank - 2)), "weight")
    window = {"strides": (1,) * (rank - 2), "padding": (1,) * (2 * rank - 4), "dilation": (1,) * (rank - 2)}
    return b.emit("conv", x, b.constant(weight), **{**window, **attrs})


def _const(b: GraphBuilder, *shape: int) -> str:
    return b.constant(random_array("float32", shape, "constant"))


def _shuffled(b: GraphBuilder, y: str) -> str:
    """Channels in another order, as ShuffleNet does it."""
    split = b.emit("reshape", y, shape=(N, 2, 3, H, 7))
    turned = b.emit("permute_dims", split, axes=(0, 2, 1, 3, 4))
    return _conv(b, b.emit("reshape", turned, shape=(N, 6, H, 7)))


def _through_matmul(b: GraphBuilder, y: str) -> str:
    rows = b.emit("permute_dims", b.emit("reshape", y, shape=(N, 6, H * 7)), axes=(0, 2, 1))
    return b.emit("matmul", rows, _const(b, 6, 4))


# Name, what follows a convolution, how many permutations are left; the first one is that of the input.
STEPS: list[tuple[str, Step, int]] = [
    ("nothing", lambda b, y: y, 2),
    ("bias and activation", lambda b, y: b.emit("relu", b.emit("add", y, _const(b, 1, 6, 1, 1))), 2),
    ("constants of lower rank", lambda b, y: b.emit("multiply", b.emit("add", y, _const(b)), _const(b, 7)), 2),
    ("transposed convolution", lambda b, y: b.emit("conv_transpose", y, _const(b, 6, 2, 3, 3), **WINDOW,
                                                   output_padding=(0, 0)), 2),
    ("norm of planes", lambda b, y: b.emit("layer_norm", y, axis=2), 2),
    ("norm of a last axis", lambda b, y: b.emit("layer_norm", b.emit("permute_dims", y, axes=(0, 2, 3, 1)),
                                                axis=-1), 1),
    ("two convolutions", lambda b, y: _conv(b, b.emit("tanh", y)), 2),
    ("residual of the input", lambda b, y: b.emit("add", _conv(b, y, 3), "x"), 2),
    ("where", lambda b, y: b.emit("where", b.emit("less", y, _const(b)), y, _const(b, 6, 1, 1)), 2),
    ("pools", lambda b, y: b.emit("avg_pool", b.emit("max_pool", y, pool_size=(3, 3), **WINDOW),
                                  pool_size=(3, 3), **WINDOW), 2),
    ("concat", lambda b, y: b.emit("concat", y, _conv(b, y, 2), axis=1), 2),
    ("concat with the input", lambda b, y: b.emit("concat", y, "x", axis=-3), 2),
    ("split", lambda b, y: b.emit("add", *b.emit_many("split", (y,), {"sizes": (3, 3), "axis": 1})), 2),
    ("slice and pad", lambda b, y: b.emit("pad", b.emit("strided_slice", y, axes=(1, 3), begin=(1, 0), size=(4, 3),
                                                        strides=(1, 2)), padding=(0, 1, 0, 2, 0, 0, 1, 0)), 2),
    ("softmax over channels", lambda b, y: b.emit("softmax", y, axis=1), 2),
    ("take", lambda b, y: b.emit("take", y, b.constant(np.array([0, 0, 2, 1])), axis=3), 2),
    ("global mean", lambda b, y: b.emit("mean", y, axis=(2, 3)), 1),
    ("mean that keeps axes", lambda b, y: b.emit("reshape", b.emit("mean", y, axis=(2, 3), keepdims=True),
                                                 shape=(N, 6)), 1),
    ("maximum over channels", lambda b, y: b.emit("max", y, axis=(1,)), 1),
    ("argmax", lambda b, y: b.emit("argmax", y, axis=1), 1),
    ("sum over rows", lambda b, y: b.emit("sum", y, axis=(2,)), 2),
    ("squeeze and excite", lambda b, y: b.emit("multiply", y, b.emit("sigmoid", _conv(
        b, b.emit("mean", y, axis=(2, 3), keepdims=True), 6))), 2),
    ("flatten", lambda b, y: b.emit("reshape", y, shape=(N, 6 * H * 7)), 2),
    ("rows of pixels for a product", _through_matmul, 1),
    ("shuffle", _shuffled, 3),
    ("cast", lambda b, y: b.emit("cast", y, dtype="int32"), 2),
]  # fmt: skip


def _graph(step: Step) -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", TensorType("float32", (N, 3, H, 7)))
    return b.finish([step(b, _conv(b, x))])


def _same(graph: Graph, after: Graph) -> None:
    verify(after, WELL_FORMED)
    inputs = random_inputs(graph, "inputs", SIZES)
    (expected,), (found,) = interpret(graph, inputs).values(), interpret(after, inputs).values()
    assert_close(found, expected, terms=200)


@pytest.mark.parametrize(("step", "left"), [pytest.param(s, n, id=name) for name, s, n in STEPS])
def test_same_values_and_few_permutations(step: Step, left: int) -> None:
    graph = _graph(step)
    after = channels_last(graph)
    _same(graph, after)
    assert sum(node.op == "permute_dims" for node in after.nodes) == left
    assert all(node.attrs["channels_last"] for node in after.nodes if node.op in ("conv", "max_pool", "avg_pool"))


@pytest.mark.parametrize("shape", [(N, 3, 9), (1, 3, 4, 5, 6)])
def test_other_ranks(shape: tuple[Any, ...]) -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType("float32", shape))
    graph = b.finish([b.emit("relu", _conv(b, _conv(b, x)))])
    _same(graph, channels_last(graph))


def test_other_convolutions_stay() -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType("float32", (1, 3, 5, 5)))
    w = b.input("w", TensorType("float32", (2, 3, 3, 3)))
    graph = b.finish([b.emit("conv", x, w, **WINDOW), _conv(b, b.emit("cast", x, dtype="float64"))][:1])
    assert channels_last(graph) is graph


def test_layers_that_share_a_weight_pack_it_each_in_its_own_way() -> None:
    b = GraphBuilder("g")
    x = b.input("x", TensorType("float32", (1, 32, 20, 20)))
    weight = b.constant(random_array("float32", (32, 32, 3, 3), "shared"))
    y = b.emit("conv", b.emit("conv", x, weight, **{**WINDOW, "strides": (2, 2)}), weight, **WINDOW)
    graph = b.finish([y])
    data = random_array("float32", (1, 32, 20, 20), "data")
    assert_close(runner(graph)(data)[0], interpret(graph, {"x": data})[graph.outputs[0]], terms=10_000)


@settings(max_examples=200)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_regrouped_says_what_numpy_does(old: list[int], data: st.DataObject) -> None:
    """Each group has as many elements on both sides, in order, and one axis on one side at least."""
    cut = sorted(data.draw(st.sets(st.integers(1, max(1, len(old) - 1)), max_size=2)))
    parts = np.split(np.array(old), cut)
    new = [int(np.prod(p)) for p in parts if len(p)] + [1] * data.draw(st.integers(0, 2))
    for a, b in ((old, new), (new, old)):
        groups = regrouped(tuple(a), tuple(b))
        assert groups is not None
        assert sorted(i for g in groups for i in g[0]) == list(range(len(a)))
        assert sorted(j for g in groups for j in g[1]) == list(range(len(b)))
        for before, after in groups:
            assert np.prod([a[i] for i in before]) == np.prod([b[j] for j in after])
            assert min(len(before), len(after)) <= 1


def test_regrouped_gives_up() -> None:
    assert regrouped((4, 6), (6, 4)) is None
    assert regrouped((N, 3), (3, N)) is None
    assert regrouped((4, H), (H, 4)) is None


def test_regrouped_joins_symbols() -> None:
    assert regrouped((N, 6, H, 7), (N, 6, H * 7)) == [([0], [0]), ([1], [1]), ([2, 3], [2])]
    assert regrouped((N * H, 6), (N, H, 6)) == [([0], [0, 1]), ([1], [2])]


def test_one_position() -> None:
    """Everything of such a kernel stands in one scope: buffers that TVM could take for one another."""
    b = GraphBuilder("g")
    x = b.input("x", TensorType("float32", (1, 4, 1)))
    weight = b.constant(random_array("float32", (4, 4, 5), "weight"))
    y = b.emit("conv", x, weight, strides=(1,), padding=(2, 2), dilation=(1,))
    graph = b.finish([b.emit("add", y, b.constant(random_array("float32", (1, 4, 1), "bias")))])
    data = random_array("float32", (1, 4, 1), "data")
    assert_close(runner(graph)(data)[0], interpret(graph, {"x": data})[graph.outputs[0]], terms=20)
