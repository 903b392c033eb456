"""If whose branches give values of other ranks: what follows is compiled for each, and right for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hcomp
from hcomp.capture import capture_model
from hcomp.errors import RunError
from hcomp.ir.types import TensorType
from hcomp.testing import assert_close
from hcomp.verify import onnxruntime_session

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, info = helper.make_node, helper.make_tensor_value_info
DEVICES = ["cpu", "null"]
WEIGHTS = {
    "one": np.array([1], np.int64), "last": np.array([-1], np.int64), "two": np.array(2, np.int64),
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
}  # fmt: skip


def branch(name: str, *nodes: Any) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [info(nodes[-1].output[0], F, None)])


def model(nodes: list[Any], outputs: list[str], inputs: list[Any] | None = None) -> onnx.ModelProto:
    constants = [onnx.numpy_helper.from_array(v, k) for k, v in WEIGHTS.items()]
    taken = inputs or [info("x", F, ["n", 3, "t"])]
    graph = helper.make_graph(nodes, "g", taken, [info(o, F, None) for o in outputs], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def is_one(of: str, into: str) -> list[Any]:
    """Nodes that say whether the last axis of a value has size 1."""
    return [
        node("Shape", [of], [f"{into}_shape"]), node("Gather", [f"{into}_shape", "last"], [f"{into}_size"]),
        node("Equal", [f"{into}_size", "one"], [into]),
    ]  # fmt: skip


def squeezed(of: str, into: str, condition: str) -> Any:
    """An If that takes the last axis away where the condition holds."""
    then = branch("t", node("Squeeze", [of, "last"], [f"{into}_squeezed"]))
    other = branch("e", node("Identity", [of], [f"{into}_same"]))
    return node("If", [condition], [into], name=f"/{into}/If", then_branch=then, else_branch=other)


def x(n: int, t: int) -> np.ndarray:
    return np.linspace(-2, 3, n * 3 * t, dtype=np.float32).reshape(n, 3, t)


def check(made: onnx.ModelProto, *feeds: dict[str, Any], devices: list[str] = DEVICES) -> None:
    """Compare with ONNX Runtime; where that fails, the program must too."""
    theirs = onnxruntime_session(made.SerializeToString())
    for device in devices:
        program = hcomp.compile(made, devices=[device])
        assert program.summary()["extern_nodes"] == []
        for feed in feeds:
            arrays = {k: np.asarray(v) for k, v in feed.items()}
            try:
                wanted = theirs.run(None, arrays)
            except Exception:
                with pytest.raises(RunError):
                    program.run(arrays)
                continue
            for mine, want in zip(program.run(arrays).values(), wanted, strict=True):
                assert mine.shape == want.shape
                assert_close(mine, want)


def all_ranks_are_known(made: onnx.ModelProto) -> bool:
    graph = capture_model(made).graph
    inner = [v.type for n in graph.walk() if n.op != "if" for v in n.outputs]
    return all(isinstance(t, TensorType) and t.shape is not None for t in inner)


def test_what_follows_is_compiled_for_either_rank() -> None:
    made = model(
        [*is_one("x", "c"), squeezed("x", "y", "c"), node("Exp", ["y"], ["a"]), node("Sin", ["x"], ["s"]),
         node("ReduceSum", ["s"], ["r"], keepdims=0), node("Mul", ["a", "r"], ["z"])],
        ["z", "y", "s"],
    )  # fmt: skip
    assert all_ranks_are_known(made)
    assert hcomp.compile(made).summary()["host_nodes"] == []
    # What does not need the branches' results stays outside, once.
    assert sum(n.op == "sin" for n in capture_model(made).graph.walk()) == 1
    check(made, *({"x": x(n, t)} for n in (1, 2) for t in (1, 2, 5)))


@pytest.mark.parametrize("negated", [False, True])
def test_a_branch_that_can_only_fail_becomes_a_requirement(negated: bool) -> None:
    """Gemm takes two dimensions, so that the last axis must have size 1."""
    then = branch("t", node("Squeeze", ["x", "last"], ["b"]))
    other = branch("e", node("Identity", ["x"], ["d"]))
    if negated:
        choice = [node("Not", ["c"], ["k"]), node("If", ["k"], ["y"], name="if", then_branch=other, else_branch=then)]
    else:
        choice = [node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)]
    made = model([*is_one("x", "c"), *choice, node("Gemm", ["y", "w"], ["z"])], ["z"])
    ops = [n.op for n in capture_model(made).graph.walk()]
    assert "if" not in ops
    assert "require" in ops
    check(made, {"x": x(2, 1)}, {"x": x(2, 2)}, {"x": x(5, 1)}, {"x": x(1, 3)})
    for device in DEVICES:
        program = hcomp.compile(made, devices=[device])
        for _ in range(2):
            with pytest.raises(RunError, match=r"node 'if': .*condition must be .*Gemm.*t = 4"):
                program.run({"x": x(2, 4)})


def test_a_condition_that_is_asked_again_has_the_same_answer() -> None:
    """A layer that drops an axis and gives it back, as scripted recurrent layers do."""
    back = node(
        "If", ["c2"], ["v"], then_branch=branch("t2", node("Unsqueeze", ["u", "last"], ["u1"])),
        else_branch=branch("e2", node("Identity", ["u"], ["u2"])),
    )  # fmt: skip
    either = model(
        [*is_one("x", "c"), squeezed("x", "y", "c"), node("Exp", ["y"], ["u"]), *is_one("x", "c2"), back], ["v"]
    )
    assert all_ranks_are_known(either)
    check(either, *({"x": x(2, t)} for t in (1, 2)))
    only_one = model(
        [*is_one("x", "c"), squeezed("x", "y", "c"), node("Gemm", ["y", "w"], ["u"]), *is_one("x", "c2"), back], ["v"]
    )
    assert "if" not in [n.op for n in capture_model(only_one).graph.walk()]
    check(only_one, *({"x": x(2, t)} for t in (1, 2)))


def test_two_of_them_in_one_graph() -> None:
    given = [info("x", F, ["n", 3, "t"]), info("v", F, [3, "k"])]
    made = model(
        [*is_one("x", "c"), squeezed("x", "y", "c"), *is_one("v", "d"), squeezed("v", "u", "d"),
         node("ReduceSum", ["u"], ["m"], keepdims=0), node("Add", ["y", "m"], ["z"])],
        ["z", "u"], given,
    )  # fmt: skip
    assert all_ranks_are_known(made)
    check(made, *({"x": x(2, t), "v": x(1, k)[0]} for t in (1, 2) for k in (1, 3)))


@pytest.mark.parametrize("follows", ["Exp", "Gemm"])
def test_a_rank_that_depends_on_data(follows: str) -> None:
    """With Gemm one branch can only fail, which is known when the condition is."""
    given = [info("x", F, ["n", 3, 1]), info("c", B, [])]
    last = node(follows, ["y", "w"] if follows == "Gemm" else ["y"], ["z"])
    made = model([squeezed("x", "y", "c"), last], ["z"], given)
    assert all_ranks_are_known(made) or follows == "Gemm"
    theirs = onnxruntime_session(made.SerializeToString())
    for device in DEVICES:
        program = hcomp.compile(made, devices=[device])
        for flag in (True, False):
            feed = {"x": x(2, 1), "c": np.array(flag)}
            if follows == "Gemm" and not flag:
                with pytest.raises(RunError):
                    program.run(feed)
            else:
                assert_close(program.run(feed)["z"], theirs.run(None, feed)[0])


def test_inside_of_a_branch_that_data_chooses() -> None:
    """As a voice detector has it: the sample rate chooses a model, in which a size decides."""
    rate = [info("x", F, ["n", 3, "t"]), info("sr", INT, [])]

    def network(name: str, first: str) -> onnx.GraphProto:
        made = squeezed(f"{name}_a", f"{name}_y", f"{name}_c")
        return branch(
            name, node(first, ["x"], [f"{name}_a"]), *is_one(f"{name}_a", f"{name}_c"), made,
            node("Gemm", [f"{name}_y", "w"], [f"{name}_z"]),
        )  # fmt: skip

    choice = node("If", ["k"], ["z"], then_branch=network("t", "Exp"), else_branch=network("e", "Relu"))
    made = model([node("Equal", ["sr", "two"], ["k"]), choice, node("Neg", ["z"], ["out"])], ["out"], rate)
    assert all_ranks_are_known(made)
    check(made, *({"x": x(n, t), "sr": np.array(sr)} for n in (1, 4) for t in (1, 2) for sr in (1, 2)))
    program = hcomp.compile(made)
    # Arrays are made fit for kernels where they enter, also those that only branches read.
    assert program.session._code.kernel_inputs == (True, True)


def test_a_comparison_of_sizes_is_a_number() -> None:
    nodes = [*is_one("x", "c"), node("Cast", ["c"], ["i"], to=INT), node("ConstantOfShape", ["i"], ["z"])]
    made = model(nodes, ["z"])
    assert all_ranks_are_known(made)
    check(made, *({"x": x(1, t)} for t in (1, 2)))


@pytest.mark.parametrize("joined", ["And", "Or"])
@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
def test_requirements_of_every_kind(op: str, joined: str) -> None:
    """The size is compared with another one, and with 1."""
    given = [info("x", F, ["n", 3, "t"]), info("v", F, ["k"])]
    condition = [
        node("Shape", ["x"], ["s"], start=2), node("Shape", ["v"], ["q"]), node(op, ["s", "q"], ["left"]),
        node("Equal", ["s", "one"], ["right"]), node(joined, ["left", "right"], ["c"]),
    ]  # fmt: skip
    then = branch("t", node("ReduceMean", ["x", "last"], ["b"], keepdims=0))
    other = branch("e", node("Identity", ["x"], ["d"]))
    choice = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    made = model([*condition, choice, node("Gemm", ["y", "w"], ["z"])], ["z"], given)
    assert "if" not in [n.op for n in capture_model(made).graph.walk()]
    feeds = [{"x": x(2, t), "v": np.zeros(k, np.float32)} for t in (1, 2, 3) for k in (1, 2, 3)]
    check(made, *feeds, devices=["cpu"])


@pytest.mark.parametrize("divided", [False, True])
def test_the_short_way_gives_what_the_general_way_gives(divided: bool) -> None:
    """Several outputs, inputs in another order than the region's, a number given as [1], any alignment."""
    nodes = [node("Equal", ["k", "two"], ["c"])]
    if divided:
        then, other = branch("t", node("Sin", ["x"], ["a"])), branch("e", node("Exp", ["x"], ["b"]))
        nodes += [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    else:
        nodes += [node("Where", ["c", "v", "x"], ["y"])]
    nodes += [node("Neg", ["y"], ["z"]), node("ReduceSum", ["v"], ["s"], keepdims=0), node("Cast", ["k"], ["f"], to=F)]
    given = [info("k", INT, []), info("v", F, ["n", 3, "t"]), info("x", F, ["n", 3, "t"])]
    session = hcomp.compile(model(nodes, ["z", "f", "s"], given)).session
    assert session._fast is not None
    for n, k in [(1, 2), (3, 2), (3, 1), (1, 1)]:
        for offset in range(3):
            room = np.zeros(n * 6 + offset, np.float32)
            room[offset:] = x(n, 2).ravel()
            feed = {"x": room[offset:].reshape(n, 3, 2), "v": x(n, 2) + 1, "k": np.array([k] if offset else k)}
            wanted = session._run_any(feed)
            found = session.run(feed)
            assert list(found) == ["z", "f", "s"]
            for name in found:
                np.testing.assert_array_equal(found[name], wanted[name])
            assert session._fast(feed) is not None
    assert session._fast({**feed, "x": feed["x"].astype(np.float64)}) is None
