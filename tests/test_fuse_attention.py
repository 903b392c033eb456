"""Attention is found in every spelling, left alone where it may not be, and means the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hcomp.dims import DimLike, symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph, Origin
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.parser import parse_graph
from hcomp.ir.printer import print_graph
from hcomp.ir.types import TensorType
from hcomp.ir.verifier import verify
from hcomp.passes.fuse_attention import fuse_attention
from hcomp.testing import assert_close, interpret, random_array, random_inputs
from tests.test_lowering import runner

B, S, L = symbol("B"), symbol("S"), symbol("L")
SIZES = {"B": 2, "S": 9, "L": 5}
Heads = tuple[str, str, str]


class Model:
    """A graph under construction: attentions of 3 heads of 4 columns over [B, S, 12] and [B, L, 12]."""

    def __init__(self) -> None:
        self.b = GraphBuilder("g")

    def input(self, *shape: DimLike, dtype: str = "float32") -> str:
        return self.b.input("x", TensorType(dtype, shape))

    def number(self, value: float) -> str:
        return self.b.constant(np.float32(value))

    def split(self, x: str, axes: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        batch, length, _ = self.shape(x)
        return self.b.emit("permute_dims", self.b.emit("reshape", x, shape=(batch, length, 3, 4)), axes=axes)

    def shape(self, x: str) -> tuple[DimLike, ...]:
        kind = self.b.types[x]
        assert isinstance(kind, TensorType)
        assert kind.shape is not None
        return kind.shape

    def heads(self) -> Heads:
        """q [B, 3, S, 4], k^T [B, 3, 4, L], v [B, 3, L, 4] of three inputs."""
        q, k, v = self.input(B, S, 12), self.input(B, L, 12), self.input(B, L, 12)
        return self.split(q), self.split(k, (0, 2, 3, 1)), self.split(v)

    def merged(self, y: str) -> str:
        batch, heads, length, size = self.shape(y)
        turned = self.b.emit("permute_dims", y, axes=(0, 2, 1, 3))
        assert isinstance(heads, int)
        return self.b.emit("reshape", turned, shape=(batch, length, heads * size))

    def softmax(self, scores: str, v: str) -> str:
        return self.b.emit("matmul", self.b.emit("softmax", scores), v)


def _plain(m: Model) -> str:
    q, k, v = m.heads()
    return m.merged(m.softmax(m.b.emit("matmul", q, k), v))


def _scale_after(op: str, value: float) -> Callable[[Model], str]:
    def build(m: Model) -> str:
        q, k, v = m.heads()
        return m.merged(m.softmax(m.b.emit(op, m.b.emit("matmul", q, k), m.number(value)), v))

    return build


def _scale_before(m: Model) -> str:
    q, k, v = m.heads()
    q = m.b.emit("multiply", m.number(0.5), q)
    k = m.b.emit("divide", k, m.number(4))
    return m.merged(m.softmax(m.b.emit("matmul", q, k), v))


def _scale_before_heads(m: Model) -> str:
    q, k, v = (m.input(B, n, 12) for n in (S, L, L))
    q = m.split(m.b.emit("multiply", q, m.number(0.5)))
    return m.merged(m.softmax(m.b.emit("matmul", q, m.split(k, (0, 2, 3, 1))), m.split(v)))


def _added(*shape: DimLike, first: bool = False) -> Callable[[Model], str]:
    def build(m: Model) -> str:
        q, k, v = m.heads()
        scores = m.b.emit("divide", m.b.emit("matmul", q, k), m.number(2))
        mask = m.input(*shape)
        return m.merged(m.softmax(m.b.emit("add", *((mask, scores) if first else (scores, mask))), v))

    return build


def _constant_bias(m: Model) -> str:
    q, k, v = m.input(B, 9, 12), m.input(B, 5, 12), m.input(B, 5, 12)
    scores = m.b.emit("matmul", m.split(q), m.split(k, (0, 2, 3, 1)))
    bias = m.b.constant(random_array("float32", (3, 9, 5), "bias"))
    return m.merged(m.softmax(m.b.emit("add", scores, bias), m.split(v)))


def _chosen(*, kept: bool, fill: float = -1e4) -> Callable[[Model], str]:
    def build(m: Model) -> str:
        q, k, v = m.heads()
        scores, mask = m.b.emit("matmul", q, k), m.input(B, 1, S, L, dtype="bool")
        choices = (scores, m.number(fill)) if kept else (m.number(fill), scores)
        return m.merged(m.softmax(m.b.emit("where", mask, *choices), v))

    return build


def _causal_and_padding(m: Model) -> str:
    """As GPT-2 does it: a scale, a choice, then a sum."""
    q, k, v = m.heads()
    scores = m.b.emit("divide", m.b.emit("matmul", q, k), m.number(2))
    scores = m.b.emit("where", m.input(1, 1, S, L, dtype="bool"), scores, m.number(-1e9))
    return m.merged(m.softmax(m.b.emit("add", scores, m.input(B, 1, 1, L)), v))


def _expanded_mask(m: Model) -> str:
    q, k, v = m.heads()
    mask = m.b.emit("broadcast_to", m.b.emit("reshape", m.input(B, L), shape=(B, 1, 1, L)), shape=(B, 1, S, L))
    return m.merged(m.softmax(m.b.emit("add", m.b.emit("matmul", q, k), mask), v))


def _nan_to_zero(m: Model) -> str:
    """As PyTorch exports it: a query that sees no key gets nothing."""
    q, k, v = m.heads()
    mask = m.b.emit("where", m.input(B, 1, S, L, dtype="bool"), m.number(0), m.b.constant(np.float32(-np.inf)))
    weights = m.b.emit("softmax", m.b.emit("add", m.b.emit("matmul", q, k), mask))
    weights = m.b.emit("where", m.b.emit("isnan", weights), m.number(0), weights)
    return m.merged(m.b.emit("matmul", weights, v))


def _joined_heads(m: Model) -> str:
    """k turned as [B * heads, ...], as PyTorch exports it."""
    q, k, v = m.input(B, S, 12), m.input(B, L, 12), m.input(B, L, 12)
    rows = m.b.emit("reshape", m.split(k), shape=(3 * B, L, 4))
    turned = m.b.emit("reshape", m.b.emit("permute_dims", rows, axes=(0, 2, 1)), shape=(B, 3, 4, L))
    return m.merged(m.softmax(m.b.emit("matmul", m.split(q), turned), m.split(v)))


def _sliced(m: Model) -> str:
    """One product of q, k and v, heads split before the slices, as vision transformers do it."""
    whole = m.b.emit("reshape", m.input(B, S, 36), shape=(B, S, 3, 3, 4))
    whole = m.b.emit("permute_dims", whole, axes=(2, 0, 3, 1, 4))

    def part(n: int) -> str:
        cut = m.b.emit("strided_slice", whole, axes=(0,), begin=(n,), size=(1,), strides=(1,))
        return m.b.emit("squeeze", cut, axis=(0,))

    q, v = part(0), m.b.emit("take", whole, m.b.constant(np.int64(2)), axis=0)
    k = m.b.emit("permute_dims", part(1), axes=(0, 1, 3, 2))
    return m.merged(m.softmax(m.b.emit("matmul", q, k), v))


def _cut(m: Model) -> str:
    """One product of q, k and v, split before the heads, as GPT-2 does it."""
    q, k, v = m.b.emit_many("split", (m.input(B, S, 36),), {"sizes": (12, 12, 12), "axis": 2})
    return m.merged(m.softmax(m.b.emit("matmul", m.split(q), m.split(k, (0, 2, 3, 1))), m.split(v)))


def _shared_heads(m: Model) -> str:
    """Two query heads to each of k and v, which are repeated."""
    q, k, v = m.input(B, S, 24), m.input(B, L, 12), m.input(B, L, 12)

    def repeated(x: str) -> str:
        more = m.b.emit("expand_dims", m.split(x), axis=(2,))
        return m.b.emit("reshape", m.b.emit("broadcast_to", more, shape=(B, 3, 2, L, 4)), shape=(B, 6, L, 4))

    rows = m.b.emit("permute_dims", m.b.emit("reshape", q, shape=(B, S, 6, 4)), axes=(0, 2, 1, 3))
    keys = m.b.emit("permute_dims", repeated(k), axes=(0, 1, 3, 2))
    return m.merged(m.softmax(m.b.emit("matmul", rows, keys), repeated(v)))


def _folded_heads(m: Model) -> str:
    """Two query heads to each of k and v, as more rows of the products."""
    q, k, v = m.input(B, S, 24), m.input(B, L, 12), m.input(B, L, 12)
    rows = m.b.emit("permute_dims", m.b.emit("reshape", q, shape=(B, S, 6, 4)), axes=(0, 2, 1, 3))
    rows = m.b.emit("reshape", rows, shape=(B, 3, 2 * S, 4))
    scores = m.b.emit("matmul", rows, m.split(k, (0, 2, 3, 1)))
    scores = m.b.emit("add", m.b.emit("reshape", scores, shape=(B, 6, S, L)), m.input(6, S, L))
    weights = m.b.emit("reshape", m.b.emit("softmax", scores), shape=(B, 3, 2 * S, L))
    y = m.b.emit("reshape", m.b.emit("matmul", weights, m.split(v)), shape=(B, 6, S, 4))
    return m.merged(y)


def _windows(m: Model) -> str:
    """Windows of an image share a mask in turns, as Swin does it: the scores are reshaped around it."""
    q, k, v = (m.input(8, 9, 12) for _ in range(3))
    scores = m.b.emit("matmul", m.split(q), m.split(k, (0, 2, 3, 1)))
    scores = m.b.emit("add", scores, m.input(1, 3, 9, 9))
    scores = m.b.emit("reshape", scores, shape=(2, 4, 3, 9, 9))
    scores = m.b.emit("add", scores, m.b.constant(random_array("float32", (1, 4, 1, 9, 9), "shift")))
    scores = m.b.emit("reshape", scores, shape=(8, 3, 9, 9))
    return m.merged(m.softmax(scores, m.split(v)))


def _one_head(m: Model) -> str:
    q, k, v = m.input(S, 4), m.input(L, 4), m.input(L, 6)
    return m.softmax(m.b.emit("matmul", q, m.b.emit("permute_dims", k, axes=(1, 0))), v)


def _one_query(m: Model) -> str:
    q, k, v = m.input(B, 12), m.input(B, 3, L, 4), m.input(B, 3, L, 4)
    rows = m.b.emit("reshape", q, shape=(B, 3, 1, 4))
    y = m.softmax(m.b.emit("matmul", rows, m.b.emit("permute_dims", k, axes=(0, 1, 3, 2))), v)
    return m.b.emit("reshape", y, shape=(B, 12))


def _many_queries_and_keys(m: Model) -> str:
    q, k, v = m.input(1, 130, 12), m.input(1, 400, 12), m.input(1, 400, 12)
    return m.merged(m.softmax(m.b.emit("matmul", m.split(q), m.split(k, (0, 2, 3, 1))), m.split(v)))


SPELLINGS: dict[str, Callable[[Model], str]] = {
    "plain": _plain,
    "scale after": _scale_after("multiply", 0.5),
    "division after": _scale_after("divide", 2),
    "scales before": _scale_before,
    "scale before the heads": _scale_before_heads,
    "mask of keys": _added(B, 1, 1, L),
    "mask of queries and keys": _added(B, 1, S, L, first=True),
    "mask of heads": _added(1, 3, S, L),
    "mask of lower rank": _added(S, L),
    "constant bias": _constant_bias,
    "where kept": _chosen(kept=True),
    "where dropped": _chosen(kept=False),
    "where -inf": _chosen(kept=True, fill=-np.inf),
    "where, then add": _causal_and_padding,
    "expanded mask": _expanded_mask,
    "NaN to zero": _nan_to_zero,
    "joined heads": _joined_heads,
    "sliced product": _sliced,
    "cut product": _cut,
    "shared heads": _shared_heads,
    "folded heads": _folded_heads,
    "windows": _windows,
    "one head": _one_head,
    "one query": _one_query,
    "many queries and keys": _many_queries_and_keys,
}


def graph_of(build: Callable[[Model], str]) -> Graph:
    m = Model()
    y = build(m)
    return m.b.finish([y])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_one_operator_that_means_the_same(spelling: str) -> None:
    graph = graph_of(SPELLINGS[spelling])
    after = fuse_attention(graph)
    verify(after, WELL_FORMED)
    ops = [node.op for node in after.nodes]
    assert ops.count("attention") == 1
    assert not {"matmul", "softmax", "multiply", "divide", "add", "broadcast_to"} & set(ops)
    inputs = random_inputs(graph, "inputs", SIZES)
    (expected,), (found,) = interpret(graph, inputs).values(), interpret(after, inputs).values()
    assert_close(found, expected, terms=200)
    (computed,) = runner(graph, SIZES)(*inputs.values())
    assert_close(computed, expected, terms=2000)


@pytest.mark.parametrize(
    "spelling", ["plain", "mask of keys", "sliced product", "cut product", "joined heads", "windows"]
)
def test_no_copies_are_left(spelling: str) -> None:
    after = fuse_attention(graph_of(SPELLINGS[spelling]))
    turned = 1 if spelling == "windows" else 0  # the bias that is no constant
    assert sum(node.op in ("permute_dims", "strided_slice", "split", "take") for node in after.nodes) == turned


def test_layers_share_a_turned_mask() -> None:
    m = Model()
    mask = m.input(B, 1, S, S)
    x = m.input(B, S, 12)
    for _ in range(2):
        q, k, v = m.split(x), m.split(x, (0, 2, 3, 1)), m.split(x)
        x = m.merged(m.softmax(m.b.emit("add", m.b.emit("matmul", q, k), mask), v))
    after = fuse_attention(m.b.finish([x]))
    assert [n.op for n in after.nodes if n.op != "reshape"] == ["permute_dims", "attention", "attention"]


# -- what stays as it is --------------------------------------------------------------------------
def _two_readers(m: Model) -> list[str]:
    q, k, v = m.heads()
    weights = m.b.emit("softmax", m.b.emit("matmul", q, k))
    return [m.b.emit("matmul", weights, v), m.b.emit("max", weights)]


def _weights_leave(m: Model) -> list[str]:
    q, k, v = m.heads()
    weights = m.b.emit("softmax", m.b.emit("matmul", q, k))
    return [m.b.emit("matmul", weights, v), weights]


def _scores_leave(m: Model) -> list[str]:
    q, k, v = m.heads()
    scores = m.b.emit("matmul", q, k)
    return [m.softmax(m.b.emit("multiply", scores, m.number(2)), v), scores]


def _other_axis(m: Model) -> list[str]:
    q, k, v = m.heads()
    return [m.b.emit("matmul", m.b.emit("softmax", m.b.emit("matmul", q, k), axis=2), v)]


def _other_type(m: Model) -> list[str]:
    q, k, v = (m.input(2, 3, 4, 4, dtype="float64") for _ in range(3))
    return [m.softmax(m.b.emit("matmul", q, k), v)]


def _scaled_mask(m: Model) -> list[str]:
    q, k, v = m.heads()
    scores = m.b.emit("add", m.b.emit("matmul", q, k), m.input(S, L))
    return [m.softmax(m.b.emit("multiply", scores, m.number(2)), v)]


def _other_scale(m: Model) -> list[str]:
    q, k, v = m.heads()
    return [m.softmax(m.b.emit("multiply", m.b.emit("matmul", q, k), m.input(3, 1, 1)), v)]


def _growing_mask(m: Model) -> list[str]:
    q, k, v = m.input(3, S, 4), m.input(3, 4, L), m.input(3, L, 4)
    return [m.softmax(m.b.emit("add", m.b.emit("matmul", q, k), m.input(B, 3, S, L)), v)]


def _two_fills(m: Model) -> list[str]:
    q, k, v = m.heads()
    scores = m.b.emit("matmul", q, k)
    for fill in (-1e4, -1e9):
        scores = m.b.emit("where", m.input(S, L, dtype="bool"), scores, m.number(fill))
    return [m.softmax(scores, v)]


def _weight_instead_of_k(m: Model) -> list[str]:
    w, v = (m.b.constant(random_array("float32", shape, "w")) for shape in ((4, 6), (6, 5)))
    return [m.softmax(m.b.emit("matmul", m.input(S, 4), w), v)]


def _unknown_width(m: Model) -> list[str]:
    d = symbol("D")
    return [m.softmax(m.b.emit("matmul", m.input(S, d), m.input(d, L)), m.input(L, 4))]


def _sizes_that_may_differ(m: Model) -> list[str]:
    q, k = m.input(B, S, 4), m.input(B, 4, L)
    return [m.softmax(m.b.emit("matmul", q, k), m.input(symbol("C"), L, 4))]


def _wide_heads(m: Model) -> list[str]:
    return [m.softmax(m.b.emit("matmul", m.input(S, 400), m.input(400, L)), m.input(L, 400))]


def _keys_as_columns(m: Model) -> list[str]:
    q, k, v = m.input(B, 3, S, 4), m.input(B, 3, 4, L), m.input(B, 3, L, 4)
    return [m.softmax(m.b.emit("matmul", q, k), v)]


REFUSALS = [
    _two_readers, _weights_leave, _scores_leave, _other_axis, _other_type, _scaled_mask, _other_scale, _growing_mask,
    _two_fills, _weight_instead_of_k, _unknown_width, _sizes_that_may_differ, _wide_heads, _keys_as_columns,
]  # fmt: skip


@pytest.mark.parametrize("build", REFUSALS)
def test_what_is_no_attention_of_ours_stays(build: Callable[[Model], list[str]]) -> None:
    m = Model()
    graph = m.b.finish(build(m))
    assert fuse_attention(graph) is graph


def test_wide_heads_of_one_query_are_fused() -> None:
    m = Model()
    k = m.b.emit("permute_dims", m.input(L, 400), axes=(1, 0))
    after = fuse_attention(m.b.finish([m.softmax(m.b.emit("matmul", m.input(1, 400), k), m.input(L, 400))]))
    assert [n.op for n in after.nodes] == ["attention"]


# -- provenance -----------------------------------------------------------------------------------
def test_the_node_stands_for_all_its_nodes_in_the_text_too() -> None:
    m = Model()
    emit = m.b.emit

    def named(op: str, *inputs: str, **attrs: Any) -> str:
        with m.b.at(Origin(f"/{op}{len(m.b.types)}", op.title())):
            return emit(op, *inputs, **attrs)

    m.b.emit = named  # type: ignore[method-assign]
    graph = m.b.finish([_causal_and_padding(m)])
    after = fuse_attention(graph)
    (node,) = [n for n in after.nodes if n.op == "attention"]
    moved = {"reshape"}  # those that are left are nodes of their own
    wanted = {n.origin.name for n in graph.nodes if n.op not in moved}
    assert wanted <= set(node.labels)
    assert len(node.labels) == len(set(node.labels))
    again = parse_graph(print_graph(after))
    assert print_graph(again) == print_graph(after)
    assert [n.labels for n in again.nodes] == [n.labels for n in after.nodes]
