"""Regions that are one call run without the VM once a shape is known: with the same results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import hcomp
from hcomp.errors import RunError

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(5)


def model(nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, int], **constants: Any) -> ModelProto:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, I64 if n.startswith("i") else F32, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"the {op}", **attrs)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


SMALL = floats(3, 4)
"""A constant of the module itself."""
LARGE = floats(4, 300)
"""A constant of the artifact."""
TABLE: dict[str, tuple[ModelProto, list[dict[str, np.ndarray]]]] = {
    "one kernel": (
        model([node("Relu", "x", "y")], {"x": [3, 4]}, {"y": F32}), [{"x": floats(3, 4)}, {"x": floats(3, 4)}]),
    "free sizes": (
        model([node("MatMul", "x w", "a"), node("Softmax", "a", "b"), node("CumSum", "b one", "y")],
              {"x": ["n", 4]}, {"y": F32}, w=LARGE, one=np.int64(1)),
        [{"x": floats(n, 4)} for n in (2, 5, 2, 1)]),
    "constants of both kinds": (
        model([node("Add", "x c", "a"), node("CumSum", "a one", "b"), node("MatMul", "b w", "y")],
              {"x": [3, 4]}, {"y": F32}, c=SMALL, w=LARGE, one=np.int64(0)),
        [{"x": floats(3, 4)}, {"x": floats(3, 4)}]),
    "several results": (
        model([node("TopK", "x k", "v i"), node("Neg", "v", "n")], {"x": ["n", 9]}, {"i": I64, "n": F32}, k=[3]),
        [{"x": floats(n, 9)} for n in (4, 2)]),
    "inputs in another order": (
        model([node("Sub", "b a", "s"), node("CumSum", "s one", "t"), node("Exp", "t", "y")],
              {"a": ["n"], "b": ["n"]}, {"y": F32}, one=np.int64(0)),
        [{"a": floats(n), "b": floats(n)} for n in (4, 7)]),
    "sizes of two inputs": (
        model([node("MatMul", "x y", "a"), node("CumSum", "a one", "z")],
              {"x": ["n", "k"], "y": ["k", "m"]}, {"z": F32}, one=np.int64(0)),
        [{"x": floats(n, k), "y": floats(k, m)} for n, k, m in ((2, 3, 4), (4, 3, 2), (2, 4, 3))]),
    "a scalar": (
        model([node("ReduceMean", "x", "y", keepdims=0)], {"x": ["n", 4]}, {"y": F32}),
        [{"x": floats(n, 4)} for n in (2, 9)]),
    "a view of the input": (
        model([node("Flatten", "x", "y", axis=0)], {"x": ["n", 4]}, {"y": F32}), [{"x": floats(n, 4)} for n in (2, 9)]),
    "a result and a view of it": (
        model([node("Relu", "x", "y"), node("Flatten", "y", "z", axis=0)], {"x": ["n", 4]}, {"y": F32, "z": F32}),
        [{"x": floats(n, 4)} for n in (2, 9)]),
    "no elements": (
        model([node("CumSum", "x one", "a"), node("Exp", "a", "y")], {"x": ["n", 4]}, {"y": F32}, one=np.int64(0)),
        [{"x": floats(n, 4)} for n in (0, 2, 0)]),
}  # fmt: skip


def compiled(given: ModelProto) -> Any:
    return hcomp.compile(given, devices=["cpu"], threads=1, cache=False).session


@pytest.mark.parametrize("name", TABLE)
def test_runs_of_a_shape_give_what_onnx_runtime_gives(name: str) -> None:
    given, feeds = TABLE[name]
    session = compiled(given)
    reference = onnxruntime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in reference.get_outputs()]
    kept = []
    for feed in feeds + feeds:
        for _ in range(2):
            found = session.run(feed)
            wanted = reference.run(None, feed)
            assert list(found) == names
            for array, want in zip(found.values(), wanted, strict=True):
                assert array.dtype == want.dtype
                np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-6)
            kept.append((found, {n: a.copy() for n, a in found.items()}))
    for found, before in kept:  # no run has written into the results of another, or into its inputs
        for n, array in found.items():
            np.testing.assert_array_equal(array, before[n])


@pytest.mark.parametrize("name", ["one kernel", "free sizes", "constants of both kinds", "several results"])
def test_later_runs_of_a_shape_need_no_vm(name: str) -> None:
    given, feeds = TABLE[name]
    session = compiled(given)
    for feed in feeds:
        # What the VM returns are views of its pool; numpy owns what it has allotted itself.
        for _ in range(2):  # one checks the shape, one learns the results'
            session.run(feed)
        assert all(a.flags.owndata for a in session.run(feed).values())


def test_large_results_are_left_to_the_vm() -> None:
    given, _ = TABLE["free sizes"]
    session = compiled(given)
    feed = {"x": floats(300, 4)}
    for _ in range(3):
        assert not session.run(feed)["y"].flags.owndata


def test_an_index_outside_is_an_error_there_too() -> None:
    given = model(
        [node("Gather", "x i", "a"), node("CumSum", "a one", "b"), node("Exp", "b", "y")],
        {"x": [5, 4], "i": ["n"]}, {"y": F32}, one=np.int64(0),
    )  # fmt: skip
    session = compiled(given)
    x = floats(5, 4)
    want = np.exp(np.cumsum(x[[1, 2]], 0))
    for _ in range(3):
        np.testing.assert_allclose(session.run({"x": x, "i": np.array([1, 2])})["y"], want, rtol=1e-5)
        with pytest.raises(RunError, match=r"region r0 .*the Gather: .*index"):
            session.run({"x": x, "i": np.array([1, 5])})


def test_other_types_and_layouts_take_the_long_way() -> None:
    given, feeds = TABLE["free sizes"]
    session = compiled(given)
    x = feeds[0]["x"]
    want = session.run({"x": x})["y"]
    turned = np.asfortranarray(x)
    for value in (x, turned, x[::-1][::-1], x.tolist()):
        np.testing.assert_allclose(session.run({"x": value})["y"], want, rtol=1e-6)
    with pytest.raises(RunError, match="expected float32"):
        session.run({"x": x.astype(np.float64)})
    with pytest.raises(RunError, match="axis 1 is 5, not 4"):
        session.run({"x": floats(2, 5)})


def test_many_threads_at_once() -> None:
    given, _ = TABLE["constants of both kinds"]
    session = compiled(given)
    feeds = [{"x": floats(3, 4)} for _ in range(8)]
    wanted = [session.run(f)["y"] for f in feeds]
    with ThreadPoolExecutor(4) as pool:
        for feed, want in zip(feeds * 50, wanted * 50, strict=True):
            pool.submit(lambda f=feed, w=want: np.testing.assert_array_equal(session.run(f)["y"], w)).result()
        runs = [pool.submit(lambda f=f: session.run(f)["y"]) for f in feeds * 100]
        for run, want in zip(runs, wanted * 100, strict=True):
            np.testing.assert_array_equal(run.result(), want)
