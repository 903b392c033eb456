"""If, Loop, Scan, sequences and optionals: whole small models, interpreted, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hcomp.capture import capture_model
from hcomp.errors import CaptureError
from hcomp.testing import assert_close, interpret
from hcomp.verify import onnxruntime_session

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, info = helper.make_node, helper.make_tensor_value_info


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 18, **weights: Any) -> onnx.ModelProto:
    constants = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check(made: onnx.ModelProto, **feeds: Any) -> None:
    arrays = {k: np.asarray(v) for k, v in feeds.items()}
    graph = capture_model(made).graph
    assert [n for n in graph.walk() if n.op == "extern"] == []
    found = list(interpret(graph, arrays).values())
    want = onnxruntime_session(made.SerializeToString()).run(None, arrays)
    for mine, theirs in zip(found, want, strict=True):
        if isinstance(theirs, list):
            for a, b in zip(mine, theirs, strict=True):
                assert_close(a, b)
        else:
            assert_close(mine, np.asarray(theirs))


X = np.arange(6, dtype=np.float32).reshape(2, 3)
NO_SHAPE = None


def branch(name: str, nodes: list[Any], shape: Any = NO_SHAPE) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [info(nodes[-1].output[0], F, shape)])


@pytest.mark.parametrize("flag", [True, False])
def test_if_with_captures_and_branches_of_other_shapes(flag: bool) -> None:
    then = branch("t", [node("Relu", ["x"], ["a"])])
    other = branch("e", [node("Transpose", ["x"], ["b0"]), node("Mul", ["b0", "w"], ["b"])])
    made = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [info("c", B, []), info("x", F, ["N", "M"])], [info("y", F, NO_SHAPE)], w=np.float32(2),
    )  # fmt: skip
    check(made, c=flag, x=X)


def test_if_nested_captures_from_two_levels() -> None:
    inner = branch("i", [node("Add", ["x", "h"], ["q"])])
    also = branch("j", [node("Sub", ["x", "h"], ["r"])])
    nested = [node("Neg", ["x"], ["h"]), node("If", ["d"], ["z"], then_branch=inner, else_branch=also)]
    then = branch("t", nested)
    other = branch("e", [node("Exp", ["x"], ["o"])])
    made = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [info("c", B, []), info("d", B, []), info("x", F, ["N", 3])], [info("y", F, NO_SHAPE)],
    )  # fmt: skip
    for c, d in [(True, True), (True, False), (False, True)]:
        check(made, c=c, d=d, x=X)


def body(nodes: list[Any], states: list[str], out: list[str], shape: Any = NO_SHAPE) -> onnx.GraphProto:
    inputs = [info("i", INT, []), info("go", B, []), *(info(s, F, shape) for s in states)]
    outputs = [info(out[0], B, []), *(info(o, F, NO_SHAPE) for o in out[1:])]
    return helper.make_graph(nodes, "body", inputs, outputs)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loop_that_ends_early_and_stacks(trips: int) -> None:
    step = body(
        [node("Add", ["s", "x"], ["t"]), node("ReduceSum", ["t"], ["total"], keepdims=0),
         node("Less", ["total", "limit"], ["more"]), node("Identity", ["t"], ["scan"])],
        ["s"], ["more", "t", "scan"], [2, 3],
    )  # fmt: skip
    made = model(
        [node("Loop", ["n", "", "x"], ["last", "all"], body=step)],
        [info("n", INT, []), info("x", F, [2, 3])],
        [info("last", F, [2, 3]), info("all", F, [None, 2, 3])], limit=np.float32(50),
    )  # fmt: skip
    check(made, n=trips, x=X)


def test_loop_whose_carried_value_grows() -> None:
    step = body([node("Concat", ["s", "x"], ["t"], axis=0), node("Identity", ["go"], ["more"])], ["s"], ["more", "t"])
    made = model(
        [node("Loop", ["n", "", "x"], ["last"], body=step)],
        [info("n", INT, []), info("x", F, ["N", 3])], [info("last", F, [None, 3])],
    )  # fmt: skip
    check(made, n=3, x=X)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan(reverse: int, axis: int) -> None:
    inner = helper.make_graph(
        [node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "two"], ["o"])], "scan",
        [info("s", F, NO_SHAPE), info("e", F, NO_SHAPE)], [info("t", F, NO_SHAPE), info("o", F, NO_SHAPE)],
    )  # fmt: skip
    scan = node(
        "Scan", ["s0", "x"], ["last", "all"], body=inner, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[reverse], scan_output_axes=[axis], scan_output_directions=[reverse],
    )  # fmt: skip
    start = np.zeros(3 if axis == 0 else 2, np.float32)
    made = model([scan], [info("s0", F, list(start.shape)), info("x", F, [2, 3])],
                 [info("last", F, NO_SHAPE), info("all", F, NO_SHAPE)], two=np.float32(2))  # fmt: skip
    check(made, s0=start, x=X)


def test_sequences() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["a"]),
        node("Neg", ["x"], ["n"]),
        node("SequenceInsert", ["a", "n", "one"], ["b"]),
        node("SequenceErase", ["b", "zero"], ["d"]),
        node("SequenceAt", ["d", "zero"], ["first"]),
        node("SequenceLength", ["d"], ["count"]),
        node("ConcatFromSequence", ["d"], ["joined"], axis=0),
        node("ConcatFromSequence", ["d"], ["stacked"], axis=1, new_axis=1),
        node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        node("SequenceAt", ["parts", "one"], ["part"]),
    ]
    outputs = [info(n, F, NO_SHAPE) for n in ("first", "joined", "stacked", "part")] + [info("count", INT, [])]
    made = model(nodes, [info("x", F, ["N", 3])], outputs, one=np.int64(1), zero=np.int64(0), sizes=np.array([1, 2]))
    check(made, x=X)


def test_a_value_that_nothing_defines_is_named() -> None:
    made = model([node("Relu", ["ghost"], ["y"], name="/r")], [info("x", F, [2])], [info("y", F, [2])])
    with pytest.raises(CaptureError, match=r"/r.*'ghost'"):
        capture_model(made)
