"""Whole graphs by the reference interpreter: symbols, branches, loops, extern nodes, errors."""

import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hcomp.dims import symbol
from hcomp.errors import RunError
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.flat import program_constants, to_program
from hcomp.ir.graph import Graph, Origin
from hcomp.ir.types import TensorType
from hcomp.reference import REFERENCE
from hcomp.reference.interpreter import Interpreter
from hcomp.testing import assert_close, interpret, random_inputs, tolerance

N = symbol("N")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _rows(dtype: str = "float32") -> TensorType:
    return TensorType(dtype, (N, 3))


def _two_layers() -> Graph:
    b = GraphBuilder("two")
    x = b.input("x", _rows())
    w = b.constant(np.full((3, 4), 0.5, np.float32), "w")
    h = b.emit("matmul", x, w, hint="h")
    flat = b.emit("reshape", h, shape=(N * 4,), hint="flat")
    top, index = b.emit_many("topk", [flat], {"k": 2}, ["top", "index"])
    return b.finish([flat, top, index])


def test_a_program_is_json_and_runs_the_same_after_it() -> None:
    graph = _two_layers()
    program = json.loads(json.dumps(to_program(graph)))
    values = [X, *program_constants(graph).values()]
    flat, top, index = Interpreter(program).run(values)
    assert flat.tolist() == [1.5] * 4 + [6.0] * 4
    assert top.tolist() == [6, 6]
    assert index.tolist() == [4, 5]
    assert interpret(graph, {"x": X})["flat"].tolist() == flat.tolist()


def test_infinite_attributes_and_nested_tuples_survive_json() -> None:
    b = GraphBuilder("inf")
    x = b.input("x", _rows())
    low = b.emit("clip", x, min=float("-inf"), max=float("inf"))
    nan = b.emit("full", shape=(N,), value=float("nan"), dtype="float32", hint="nan")
    graph = b.finish([low, nan])
    text = json.dumps(to_program(graph), allow_nan=False)
    low_value, nan_value = Interpreter(json.loads(text)).run([X])
    assert low_value.tolist() == X.tolist()
    assert np.isnan(nan_value).tolist() == [True, True]


def test_sizes_of_results_are_known_afterwards() -> None:
    b = GraphBuilder("late")
    x = b.input("x", TensorType("int64", (N,)))
    found = b.emit("nonzero", x, hint="found")
    found_type = b.types[found]
    assert isinstance(found_type, TensorType)
    assert found_type.shape is not None
    ones = b.emit("full", shape=(found_type.shape[1],), value=1, dtype="int64", hint="ones")
    graph = b.finish([ones])
    assert interpret(graph, {"x": np.array([0, 5, 7, 0])})["ones"].tolist() == [1, 1]


def test_sizes_that_no_value_brings_are_asked_for() -> None:
    b = GraphBuilder("asked")
    x = b.input("x", TensorType("float32", (N * 2,)))
    y = b.emit("reshape", x, shape=(N, 2), hint="y")
    graph = b.finish([y])
    program = to_program(graph)
    assert program["symbols"] == ["N"]
    assert Interpreter(program).run([np.zeros(6, np.float32)], [3])[0].shape == (3, 2)
    with pytest.raises(RunError, match="1 sizes, found 1 values and 0 sizes"):
        Interpreter(program).run([np.zeros(6, np.float32)])


def _loop(trips: bool = True) -> Graph:
    """total += x until 10 is reached or the trips are over; scans the running total."""
    b = GraphBuilder("loop")
    x = b.input("x", _rows())
    trip = b.input("trip", TensorType("int64", ())) if trips else ""
    inner = GraphBuilder("body", b.names)
    inner.input("iteration", TensorType("int64", ()))
    inner.input("go", TensorType("bool", ()))
    total = inner.input("total", _rows())
    step = inner.input("step", _rows())
    more = inner.emit("add", total, step, hint="more")
    peak = inner.emit("max", more, hint="peak")
    limit = inner.constant(np.array(10, np.float32), "w")
    go = inner.emit("less", peak, limit, hint="below")
    flat = inner.emit("reshape", more, shape=(N * 3,), hint="row")
    body = inner.finish([go, more, flat])
    types = [_rows(), TensorType("float32", (symbol("T"), N * 3))]
    done, rows = b.emit_typed(
        "loop", [trip, "", x, x], types,
        attrs={"carried": 1}, graphs={"body": body}, hints=["done", "rows"],
    )  # fmt: skip
    return b.finish([done, rows])


@pytest.mark.parametrize(("trips", "turns"), [(0, 0), (1, 1), (100, 1)])
def test_loop_stops_at_its_trips_or_condition(trips: int, turns: int) -> None:
    found = interpret(_loop(), {"x": X, "trip": np.array(trips)})
    # 5 + 5 is not below 10: one turn.
    assert found["rows"].shape == (turns, 6)
    assert found["done"].tolist() == (X * (turns + 1)).tolist()


def test_loop_without_trips_runs_by_its_condition() -> None:
    found = interpret(_loop(trips=False), {"x": X / 2})
    assert found["rows"].shape == (3, 6)
    assert_close(found["rows"][2], (X / 2 * 4).reshape(-1))


def test_constants_of_subgraphs_may_share_names() -> None:
    b = GraphBuilder("outer")
    x = b.input("x", _rows())
    w = b.constant(np.array(100, np.float32), "w")
    y = b.emit("add", x, w, hint="y")
    condition = b.input("c", TensorType("bool", ()))
    graphs = {}
    for name, number in (("then", 1.0), ("else", 2.0)):
        inner = GraphBuilder(name)
        a = inner.input("a", _rows())
        graphs[name] = inner.finish([inner.emit("add", a, inner.constant(np.array(number, np.float32), "w"))])
    (z,) = b.emit_typed("if", [condition, y], [_rows()], graphs=graphs, hints=["z"])
    graph = b.finish([z])
    assert to_program(graph)["constants"] == ["w", "w_2", "w_3"]
    yes, no = (interpret(graph, {"x": X, "c": np.array(c)})["z"] for c in (True, False))
    assert (yes - X).tolist() == [[101] * 3] * 2
    assert (no - X).tolist() == [[102] * 3] * 2


def test_extern_nodes_run_through_the_callback() -> None:
    b = GraphBuilder("ext")
    x = b.input("x", _rows())
    with b.at(Origin("/odd", "Odd", "com.example")):
        (y,) = b.emit_typed("extern", [x, ""], [_rows()], payload=b"\x00model", hints=["y"])
    graph = b.finish([y])
    seen: list[Any] = []

    def run(payload: bytes, inputs: list[Any]) -> list[Any]:
        seen.append((payload, inputs[1]))
        return [inputs[0] + 1]

    assert interpret(graph, {"x": X}, extern=run)["y"].tolist() == (X + 1).tolist()
    assert seen == [(b"\x00model", None)]
    with pytest.raises(RunError, match="node '/odd': extern: nothing here runs"):
        interpret(graph, {"x": X})


def test_an_error_names_the_users_node() -> None:
    b = GraphBuilder("bad")
    x = b.input("x", _rows())
    i = b.input("i", TensorType("int64", ()))
    with b.at(Origin("/embed/Gather", "Gather")):
        y = b.emit("take", x, i)
    graph = b.finish([y])
    with pytest.raises(RunError) as caught:
        interpret(graph, {"x": X, "i": np.array(2)})
    assert str(caught.value) == ("node '/embed/Gather': take: index 2 is outside axis 0 of size 2")


def test_inputs_that_do_not_fit_are_refused() -> None:
    b = GraphBuilder("fit")
    x, y = b.input("x", _rows()), b.input("y", TensorType("float32", (N,)))
    graph = b.finish([b.emit("add", x, b.emit("expand_dims", y, axis=(1,)))])
    with pytest.raises(RunError, match=r"input 'x': expected \[N, 3\], found \[2, 4\]"):
        interpret(graph, {"x": np.zeros((2, 4), np.float32), "y": np.zeros(2, np.float32)})
    with pytest.raises(RunError, match=r"input 'y': expected \[N\] with N = 2, found \[5\]"):
        interpret(graph, {"x": X, "y": np.zeros(5, np.float32)})


def test_dead_values_are_freed_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder("chain")
    x = b.input("x", _rows())
    for _ in range(6):
        x = b.emit("negative", x)
    graph = b.finish([b.emit("exp", x)])
    alive: list[Any] = []
    most = 0

    def negative(value: Any) -> Any:
        nonlocal most
        result = -value
        alive.append(weakref.ref(result))
        gc.collect()
        most = max(most, sum(a() is not None for a in alive))
        return result

    monkeypatch.setitem(REFERENCE, "negative", negative)
    interpret(graph, {"x": X})
    assert most == 2


def test_one_interpreter_serves_many_threads() -> None:
    graph = _loop(trips=False)
    interpreter, constants = Interpreter(to_program(graph)), program_constants(graph)

    def run(rows: int) -> Any:
        return interpreter.run_named([np.ones((rows, 3), np.float32)], constants)[1].shape

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(1, 100))) == [(9, 3 * n) for n in range(1, 100)]


# -- hcomp.testing --------------------------------------------------------------------------------
def test_random_inputs_depend_on_the_seed_only() -> None:
    graph = _loop()
    a, b = (random_inputs(graph, seed, {"N": 4}) for seed in ("one", "two"))
    assert a["x"].shape == (4, 3)
    assert np.array_equal(a["x"], random_inputs(graph, "one", {"N": 4})["x"])
    assert not np.array_equal(a["x"], b["x"])


def test_assert_close_says_where_and_how_much() -> None:
    expected = np.ones((3, 4), np.float32)
    actual = expected.copy()
    actual[1, 2] = 1.5
    with pytest.raises(AssertionError, match=r"x: 1 of 12 elements differ.*0.5 .*at \[1, 2\]"):
        assert_close(actual, expected, context="x")
    for wrong in (expected.astype(np.float64), expected[:2], expected * np.nan):
        with pytest.raises(AssertionError):
            assert_close(wrong, expected)
    with pytest.raises(AssertionError):
        assert_close(np.array([1, 3]), np.array([1, 2]))
    nan = np.array([np.nan, np.inf], np.float32)
    assert_close(nan, nan.copy())


def test_tolerance_grows_with_the_root_of_the_terms() -> None:
    assert tolerance("int8") == 0
    assert tolerance("float32", 100) == pytest.approx(10 * tolerance("float32"))
    # float16 is rounded once, whatever the number of terms summed in float32.
    assert tolerance("float16", 100) < 1.5 * tolerance("float16")
