"""Passes keep the meaning of a graph; the driver checks their order and what they leave behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from hcomp.dims import symbol
from hcomp.errors import InvariantError, PassError
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph, Value
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.parser import parse_graph
from hcomp.ir.quotient import Quotient, is_acyclic
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.types import TensorType
from hcomp.ir.verifier import Invariant, Violation, verify
from hcomp.passes import PASSES, PIPELINE
from hcomp.passes.base import Pass, repeat
from hcomp.passes.clusters import LARGEST, clusters
from hcomp.passes.identities import NO_IDENTITY
from hcomp.pipeline import Dumps, Times, check_order, run_pipeline
from hcomp.testing import assert_close, interpret, random_inputs
from tests.random_graphs import SIZES, SPECIAL, random_graphs

EXACT = [name for name in PASSES if name != "fold_batch_norm"]


def _outputs(graph: Graph, seed: str, *, special: bool = False) -> list[Any]:
    inputs = random_inputs(graph, seed, SIZES)
    if special:
        random = np.random.default_rng(len(seed))
        for array in inputs.values():
            odd = random.random(array.shape) < 0.4
            array[odd] = random.choice(np.array(SPECIAL, np.float32), int(odd.sum()))
    found = interpret(graph, inputs)
    return [found[name] for name in graph.outputs]


def _same_bits(actual: Any, expected: Any) -> None:
    """Raise AssertionError unless two arrays are equal to the bit, but for the payload of NaN."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)
    numbers = ~np.isnan(expected)
    assert (np.signbit(actual) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=25)
@given(graph=random_graphs())
def test_a_pass_keeps_every_bit(name: str, graph: Graph) -> None:
    after = PASSES[name].run(graph)
    verify(after, WELL_FORMED)
    assert [v.name for v in after.inputs] == [v.name for v in graph.inputs]
    expected = _outputs(graph, name, special=True)
    for a, b in zip(_outputs(after, name, special=True), expected, strict=True):
        _same_bits(a, b)


@settings(max_examples=40)
@given(random_graphs())
def test_the_pipeline_keeps_the_meaning(graph: Graph) -> None:
    after = run_pipeline(graph, PIPELINE)
    for a, b in zip(_outputs(after, "pipeline"), _outputs(graph, "pipeline"), strict=True):
        assert_close(a, b, terms=8)


@settings(max_examples=25)
@given(random_graphs())
def test_simplify_leaves_nothing_to_do(graph: Graph) -> None:
    once = PASSES["simplify"].run(graph)
    assert PASSES["simplify"].run(once) is once


def test_a_pass_that_changes_nothing_returns_its_input() -> None:
    graph = parse_graph("graph @g(%x: float32[2]) {\n  %y = relu(%x) : float32[2]\n  return %y\n}")
    for step in PASSES.values():
        assert step.run(graph) is graph, step.name


def test_batch_norm_folds_into_convolutions_within_rounding() -> None:
    b = GraphBuilder("conv")
    x = b.input("x", TensorType("float32", (symbol("N"), 4, 6, 6)))
    random = np.random.default_rng(0)
    w = b.constant(random.standard_normal((8, 2, 3, 3), np.float32), "w")
    attrs: dict[str, Any] = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 2}
    y = b.emit("conv", x, w, **attrs)
    y = b.emit("multiply", y, b.constant(random.uniform(0.5, 2, (8, 1, 1)).astype(np.float32)))
    y = b.emit("add", y, b.constant(random.standard_normal((8, 1, 1)).astype(np.float32)))
    t = b.constant(random.standard_normal((8, 3, 2, 2), np.float32), "t")
    attrs = {"strides": (2, 2), "padding": (0,) * 4, "dilation": (1, 1), "output_padding": (0, 0)}
    y = b.emit("conv_transpose", y, t, **attrs)
    y = b.emit("multiply", y, b.constant(random.uniform(0.5, 2, (1, 3, 1, 1)).astype(np.float32)))
    graph = b.finish([y])
    after = PASSES["fold_batch_norm"].run(graph)
    assert [n.op for n in after.nodes] == ["conv", "add", "conv_transpose"]
    for actual, expected in zip(_outputs(after, "bn"), _outputs(graph, "bn"), strict=True):
        assert_close(actual, expected, terms=36)


def test_small_floats_that_would_vanish_keep_their_scale() -> None:
    b = GraphBuilder("half")
    x = b.input("x", TensorType("float16", (2, 2)))
    m = b.emit("matmul", x, b.constant(np.full((2, 2), 1e-3, np.float16), "w"))
    graph = b.finish([b.emit("multiply", m, b.constant(np.full(2, 1e-3, np.float16)))])
    assert PASSES["fold_batch_norm"].run(graph) is graph or len(graph.nodes) == 2
    assert [n.op for n in PASSES["fold_batch_norm"].run(graph).nodes] == ["matmul", "multiply"]


# -- the driver -----------------------------------------------------------------------------------


def _graph() -> Graph:
    text = 'graph @g(%x: float32[2]) {\n  %y = cast(%x) {dtype = "float32"} : float32[2]\n'
    return parse_graph(text + "  %z = relu(%y) : float32[2]\n  return %z\n}")


def test_a_pass_that_needs_what_nobody_gives_is_refused_before_anything_runs() -> None:
    def never(graph: Graph) -> Graph:
        raise AssertionError

    needs = Pass("needs", never, requires=(NO_IDENTITY,))
    with pytest.raises(PassError, match="needs requires no-identity, which none of the 1 passes"):
        check_order([Pass("first", never), needs])
    with pytest.raises(PassError, match="before it establishes and keeps; canonicalize does"):
        run_pipeline(_graph(), [needs, PASSES["canonicalize"]])
    check_order([PASSES["canonicalize"], needs])


def test_a_pass_that_breaks_what_was_established_is_named() -> None:
    def spoil(graph: Graph) -> Graph:
        return _graph()

    with pytest.raises(InvariantError, match="after spoil: 1 violation in the graph"):
        run_pipeline(_graph(), [PASSES["canonicalize"], Pass("spoil", spoil)])
    declared = Pass("spoil", spoil, breaks=(NO_IDENTITY,))
    run_pipeline(_graph(), [PASSES["canonicalize"], declared])


def test_a_pass_that_makes_nonsense_is_named() -> None:
    def cut(graph: Graph) -> Graph:
        return replace(graph, nodes=graph.nodes[1:])

    with pytest.raises(InvariantError, match="after cut: 1 violation"):
        run_pipeline(_graph(), [Pass("cut", cut)])


def test_a_repetition_without_end_is_an_error() -> None:
    def longer(graph: Graph) -> Graph:
        return replace(graph, name=graph.name + "x")

    with pytest.raises(PassError, match="on: the graph still changes after 5 rounds"):
        repeat("on", Pass("longer", longer), limit=5).run(_graph())


def test_observers_dump_and_time(tmp_path: Path) -> None:
    times = Times()
    passes = [PASSES["canonicalize"], PASSES["drop_dead"]]
    run_pipeline(_graph(), passes, [Dumps(tmp_path / "dumps"), times])
    names = sorted(p.name for p in (tmp_path / "dumps").iterdir())
    assert names == ["0000.input.hir", "0001.canonicalize.changed.hir", "0002.drop_dead.same.hir"]
    text = (tmp_path / "dumps" / names[1]).read_text()
    assert "cast" not in text
    assert "relu" in text
    assert [name for name, _ in times.seconds] == ["canonicalize", "drop_dead"]


# -- rewriting ------------------------------------------------------------------------------------


def test_a_replacement_of_another_type_is_refused() -> None:
    def rule(node: Any, edit: Editor) -> Any:
        return (node.inputs[0],) if node.op == "cast" else None

    text = 'graph @g(%x: float32[2]) {\n  %y = cast(%x) {dtype = "int32"} : int32[2]\n  return %y\n}'
    with pytest.raises(PassError, match=r"%y is int32\[2\], its replacement %x is float32\[2\]"):
        rewrite(parse_graph(text), rule)


def test_two_copies_of_a_body_have_their_own_symbols() -> None:
    graph = parse_graph(
        """graph @g(%x: bool[4]) {
          const %two : int64[] = [2]
          %all = loop(%two, _, %x) {carried = 0} : int64[T, 1, k] with {
            body = graph @body(%i: int64[], %c: bool[], %v: bool[4]) {
              %p = nonzero(%v) : int64[1, found]
              return %c, %p
            }
          }
          return %all
        }"""
    )
    after = PASSES["inline_branches"].run(graph)
    verify(after, WELL_FORMED)
    found = [v.type for n in after.nodes if n.op == "nonzero" for v in n.outputs]
    assert len(set(found)) == 2


# -- clusters -------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(random_graphs(most=20))
def test_clusters_hold_every_node_once_and_close_no_cycle(graph: Graph) -> None:
    found = clusters(graph)
    assert sorted(i for c in found for i in c.nodes) == list(range(len(graph.nodes)))
    assert is_acyclic(graph, [c.nodes for c in found])
    place = {i: k for k, c in enumerate(found) for i in c.nodes}
    maker = {v.name: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    for i, node in enumerate(graph.nodes):
        assert all(place[maker[n]] <= place[i] for n in node.used_inputs if n in maker)


@settings(max_examples=60)
@given(random_graphs(most=20))
def test_a_merge_is_refused_exactly_if_it_closes_a_cycle(graph: Graph) -> None:
    groups = Quotient(graph)
    random = np.random.default_rng(len(graph.nodes))
    for _ in range(30):
        alive = list(groups.members)
        if len(alive) < 2:
            break
        a, b = (alive[i] for i in random.choice(len(alive), 2, replace=False))
        rest = [m for g, m in groups.members.items() if g not in (a, b)]
        possible = is_acyclic(graph, [*rest, groups.members[a] + groups.members[b]])
        assert (groups.merge(a, b) is not None) == possible
        assert is_acyclic(graph, list(groups.members.values()))
        order = {g: i for i, g in enumerate(groups.ordered())}
        assert all(order[m] < order[g] for g in order for m in groups.before[g])


def test_nodes_with_different_keys_are_apart() -> None:
    b = GraphBuilder("keys")
    x = b.input("x", TensorType("float32", (4,)))
    for _ in range(6):
        x = b.emit("relu", b.emit("negative", x))
    graph = b.finish([x])
    assert len(clusters(graph)) == 1
    found = clusters(graph, key=lambda node: node.op)
    assert all(len({graph.nodes[i].op for i in c.nodes}) == 1 for c in found)


def test_a_cluster_has_an_end() -> None:
    b = GraphBuilder("long")
    x = b.input("x", TensorType("float32", (4,)))
    for _ in range(300):
        x = b.emit("relu", x)
    assert max(len(c.nodes) for c in clusters(b.finish([x]))) == LARGEST


def test_an_invariant_is_checked_inside_branches() -> None:
    text = """graph @g(%c: bool[], %x: float32[2]) {
      %y = if(%c, %x) : float32[2] with {
        then = graph @t(%a: float32[2]) {
          %b = cast(%a) {dtype = "float32"} : float32[2]
          return %b
        }
        else = graph @e(%a: float32[2]) {
          return %a
        }
      }
      return %y
    }"""
    graph = parse_graph(text)
    with pytest.raises(InvariantError, match="cast does nothing here"):
        verify(graph, [NO_IDENTITY])
    verify(PASSES["canonicalize"].run(graph), [NO_IDENTITY, *WELL_FORMED])


def test_a_violation_of_an_input_points_at_it() -> None:
    graph = replace(_graph(), inputs=(Value("x", TensorType("float32", (2,))),))
    check = Invariant("inputs", lambda g: [Violation("no inputs wanted", g.inputs[0], "x")])
    with pytest.raises(InvariantError, match=r"\n         \^ error: no inputs wanted \[inputs\]"):
        verify(graph, [check])
