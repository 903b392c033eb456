"""Loops as native code: small models, compiled and run, against ONNX Runtime."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import hcomp
from hcomp.artifact.program import Loop
from hcomp.codegen import loop_buffers
from hcomp.errors import RunError
from hcomp.runtime.kernel_clock import KernelClock
from hcomp.runtime.resources import Resources
from hcomp.runtime.steps import compile_program
from hcomp.testing import assert_close
from hcomp.verify import onnxruntime_session

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@cache
def compiled(text: str, loops: int = 0) -> tuple[hcomp.Program, Any]:
    """Return a model's program, whose runtime itself repeats `loops` bodies, and ONNX Runtime's session."""
    model = onnx.parser.parse_model(HEAD + text)
    program = hcomp.compile(model, threads=1)
    steps = program.artifact.manifest.program.steps
    assert sum(isinstance(step, Loop) for step in steps) == loops
    return program, onnxruntime_session(model.SerializeToString())


def check(text: str, *, loops: int = 0, terms: int = 1, **feeds: Any) -> dict[str, Any]:
    """Raise AssertionError unless both give the same; return what hcomp gives."""
    program, reference = compiled(text, loops)
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    found = program.run(arrays)
    for mine, theirs in zip(found.values(), reference.run(None, arrays), strict=True):
        assert_close(mine, theirs, terms=terms)
    return found


EARLY = """
g (int64 n, bool go, float[2,3] x, float k) => (float[2,3] last, float[T,2,3] all, float[T] sums, int64[T] turns) {
  last, all, sums, turns = Loop(n, go, x) <body =
    b (int64 i, bool c, float[2,3] s) => (bool more, float[2,3] t, float[2,3] a, float u, int64 j) {
      t = Add(s, x)
      a = Mul(t, k)
      u = ReduceSum<keepdims = 0>(t)
      limit = Constant<value = float {300.0}>()
      more = Less(u, limit)
      j = Identity(i)
    }>
}"""


@pytest.mark.parametrize("go", [True, False])
@pytest.mark.parametrize("trips", [-1, 0, 1, 5, 1000])
def test_limit_condition_captures_and_scans_of_several_ranks(trips: int, go: bool) -> None:
    found = check(EARLY, n=trips, go=go, x=X, k=np.float32(2))
    assert not np.shares_memory(found["last"], X)


SIZES = """
g (int64 n, float[N,3] x, float[2,3] w) => (float[N,3] p, float[N,3] q, float[T,M,3] wide, bool[T,N] signs) {
  one = Constant<value = int64[1] {1}>()
  zero = Constant<value = float {0.0}>()
  p, q, wide, signs = Loop(n, , x, x) <body =
    b (int64 i, bool c, float[N,3] s, float[N,3] r) => (bool d, float[N,3] r2, float[N,3] t, float[M,3] v, bool[N] h) {
      d = Identity(c)
      r2 = Identity(r)
      t = Add(s, r)
      v = Concat<axis = 0>(t, w)
      m = ReduceMax<keepdims = 0>(t, one)
      h = Less(m, zero)
    }>
}"""


@pytest.mark.parametrize(("trips", "rows"), [(1, 2), (7, 1), (40, 5), (0, 2)])
def test_states_that_change_places_and_rows_of_computed_sizes(trips: int, rows: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    feeds = {"n": np.asarray(trips), "x": x / 100, "w": X}
    if trips:
        check(SIZES, **feeds)
    else:  # ONNX Runtime takes 0 for sizes of elements that were never made, unless the model has the number
        found = compiled(SIZES)[0].run(feeds)
        assert [v.shape for v in found.values()] == [(rows, 3), (rows, 3), (0, rows + 2, 3), (0, rows)]


def test_buffers_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_buffers, "FIRST_BYTES", 1)
    compiled.cache_clear()
    for trips in (1, 2, 3, 4, 17, 64):
        check(SIZES, n=trips, x=X / 100, w=X)
        check(EARLY, n=trips, go=True, x=X, k=np.float32(2))
    compiled.cache_clear()


@pytest.mark.parametrize("first_bytes", [1, 1 << 20])
def test_a_state_that_nobody_reads_in_the_end(first_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_buffers, "FIRST_BYTES", first_bytes)
    compiled.cache_clear()
    text = """
    g (int64 n, float[2,3] x, float k) => (float[T,2,3] all) {
      last, all = Loop(n, , x) <body =
        b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] t, float[2,3] a) {
          d = Identity(c)
          t = Add(s, x)
          a = Mul(t, k)
        }>
    }"""
    for trips in (0, 1, 50):
        check(text, n=trips, x=X, k=np.float32(2))
    compiled.cache_clear()


def test_controls_that_are_lists_of_one() -> None:
    text = """
    g (int64[1] n, bool[1] go, float[2,3] x) => (float[2,3] last, int64[T,1] turns, bool[T,1] going) {
      last, turns, going = Loop(n, go, x) <body =
        b (int64[1] i, bool[1] c, float[2,3] s) => (bool[1] d, float[2,3] t, int64[1] j, bool[1] e) {
          d = Identity(c)
          t = Add(s, x)
          j = Identity(i)
          e = Identity(c)
        }>
    }"""
    check(text, n=[5], go=[True], x=X)
    check(text, n=[5], go=[False], x=X)


def test_convolutions_in_a_body() -> None:
    text = """
    g (int64 n, float[1,8,6,6] x, float[8,8,3,3] w) => (float[1,8,6,6] last, float[T,1,8,6,6] all) {
      weight = Constant<value = float[8,8,3,3] {WEIGHT}>()
      last, all = Loop(n, , x) <body =
        b (int64 i, bool c, float[1,8,6,6] s) => (bool d, float[1,8,6,6] t, float[1,8,6,6] u) {
          d = Identity(c)
          v = Conv<pads = [1, 1, 1, 1]>(s, weight)
          t = Tanh(v)
          u = Conv<pads = [1, 1, 1, 1]>(t, w)
        }>
    }"""
    numbers = np.random.default_rng(1).normal(size=576, scale=0.1).round(3)
    text = text.replace("WEIGHT", ", ".join(map(str, numbers)))
    check(
        text, n=4, x=np.full((1, 8, 6, 6), 0.1, np.float32), w=numbers.reshape(8, 8, 3, 3).astype(np.float32), terms=72
    )


def test_no_limit() -> None:
    text = """
    g (float x) => (float last, float[T] all) {
      true = Constant<value = bool {1}>()
      last, all = Loop( , true, x) <body =
        b (int64 i, bool c, float s) => (bool more, float t, float u) {
          two = Constant<value = float {2.0}>()
          most = Constant<value = float {1e30}>()
          t = Mul(s, two)
          u = Neg(t)
          more = Less(t, most)
        }>
    }"""
    assert len(check(text, x=np.float32(1))["all"]) == 100
    text = text.replace("1e30", "0.5")
    assert len(check(text, x=np.float32(1))["all"]) == 1


@pytest.mark.parametrize("kind", ["float16", "double", "int8", "uint8", "int32", "bool"])
def test_element_types(kind: str) -> None:
    step = "t = Not(s)" if kind == "bool" else "t = Add(s, s)"
    text = f"""
    g (int64 n, {kind}[3] x) => ({kind}[3] last, {kind}[T,3] all) {{
      last, all = Loop(n, , x) <body =
        b (int64 i, bool c, {kind}[3] s) => (bool d, {kind}[3] t, {kind}[3] u) {{
          {step}
          d = Identity(c)
          u = Identity(t)
        }}>
    }}"""
    dtype = {"double": "float64"}.get(kind, kind)
    check(text, n=4, x=np.array([1, 0, 2], dtype))


def test_an_index_out_of_range_ends_the_loop_and_the_next_run_is_right() -> None:
    text = """
    g (int64 n, float[5] x) => (float last, float[T] all) {
      zero = Constant<value = float {0.0}>()
      last, all = Loop(n, , zero) <body =
        b (int64 i, bool c, float s) => (bool d, float t, float u) {
          d = Identity(c)
          e = Gather(x, i)
          t = Add(s, e)
          u = Identity(t)
        }>
    }"""
    x = np.arange(5, dtype=np.float32)
    check(text, n=5, x=x)
    with pytest.raises(RunError, match="index"):
        compiled(text)[0].run({"n": np.asarray(6), "x": x})
    check(text, n=3, x=x)


NESTED = """
g (int64 n, int64 m, float[2,3] x) => (float[2,3] last, float[T,K,2,3] all) {
  last, all = Loop(n, , x) <body =
    b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] t, float[K,2,3] inner) {
      d = Identity(c)
      t, inner = Loop(m, , s) <body =
        e (int64 j, bool f, float[2,3] r) => (bool h, float[2,3] q, float[2,3] p) {
          h = Identity(f)
          q = Add(r, x)
          p = Mul(q, x)
        }>
    }>
}"""


def test_a_loop_in_a_loop() -> None:
    check(NESTED, loops=1, n=4, m=3, x=X)


ZERO = """
g (int64 n, float[N,3] x) => (float[M,3] last, float[T,N,3] all, int64[T,2,K] places, float[N,3] sum) {
  zero = Constant<value_ints = [0]>()
  last, all, places = Loop(n, , x) <body =
    b (int64 i, bool c, float[J,3] s) => (bool d, float[L,3] t, float[N,3] a, int64[2,K] p) {
      d = Identity(c)
      t = Concat<axis = 0>(s, x)
      a = Neg(x)
      p = NonZero(x)
    }>
  added = ReduceSum<keepdims = 0>(all, zero)
  sum = Add(added, x)
}"""


def test_no_trip_of_a_loop_of_the_runtime() -> None:
    check(ZERO, loops=1, n=3, x=X)
    found = compiled(ZERO, loops=1)[0].run({"n": np.asarray(0), "x": X})
    # The sizes of the type, where a value has them; what follows was compiled for these.
    assert [v.shape for v in found.values()] == [(2, 3), (0, 2, 3), (0, 2, 0), (2, 3)]
    assert_close(found["sum"], X)


def test_what_cannot_be_one_region_stays_with_the_runtime() -> None:
    growing = """
    g (int64 n, float[N,3] x) => (float[M,3] last) {
      last = Loop(n, , x) <body =
        b (int64 i, bool c, float[K,3] s) => (bool d, float[L,3] t) { d = Identity(c) t = Concat<axis = 0>(s, x) }>
    }"""
    check(growing, loops=1, n=3, x=X)
    sequence = """
    g (int64 n, float[2,3] x) => (float[M,3] joined) {
      empty = SequenceEmpty()
      last = Loop(n, , empty) <body =
        b (int64 i, bool c, seq(float[2,3]) s) => (bool d, seq(float[2,3]) t) {
          d = Identity(c)
          t = SequenceInsert(s, x)
        }>
      joined = ConcatFromSequence<axis = 0>(last)
    }"""
    check(sequence, loops=1, n=3, x=X)


def test_many_trips_keep_no_memory() -> None:
    resource = pytest.importorskip("resource")
    text = """
    g (int64 n, float[1000] x) => (float[1000] last) {
      last = Loop(n, , x) <body =
        b (int64 i, bool c, float[1000] s) => (bool d, float[1000] t) { d = Identity(c) t = Sub(x, s) }>
    }"""
    x = np.ones(1000, np.float32)
    check(text, n=10, x=x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check(text, n=100_000, x=x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; states alone are 400 MB


@pytest.mark.parametrize("first_bytes", [1, 1 << 20])
def test_a_profile_times_the_kernels_of_each_trip(first_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_buffers, "FIRST_BYTES", first_bytes)
    compiled.cache_clear()
    for text, feeds in (
        (EARLY, {"n": np.asarray(9), "go": np.asarray(True), "x": X, "k": np.asarray(2, np.float32)}),
        (SIZES, {"n": np.asarray(9), "x": X / 100, "w": X}),
    ):
        program = compiled(text)[0]
        expected = program.run(feeds)
        resources = Resources(program.artifact, 1, clock := KernelClock())
        code = compile_program(program.artifact.manifest.program, resources)
        found = code.run([feeds[v.name] for v in program.session.inputs])
        for mine, theirs in zip(found, expected.values(), strict=True):
            np.testing.assert_array_equal(np.from_dlpack(mine), theirs)
        assert clock.laps
        assert {lap.calls for lap in clock.laps.values()} == {9}
    compiled.cache_clear()


def test_the_plan_shows_the_body() -> None:
    plan = compiled(EARLY)[0].plan
    assert "plan of 'b'" in plan.to_text()
    assert "all of its body runs on cpu" in str(plan.explain("last"))
