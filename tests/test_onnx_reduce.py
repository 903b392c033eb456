"""ONNX reductions, scans, softmax, top-k and losses: hcomp's converters against ONNX Runtime."""

import numpy as np
import pytest

from hcomp.testing import assert_close, interpret, random_array
from tests.onnx_case import Case, captured, case, check, params_of


def f32(*shape: int, low: float | None = None, high: float | None = None) -> np.ndarray:
    return random_array("float32", shape, "reduce", low=low, high=high)


def ints(dtype: str, *shape: int) -> np.ndarray:
    return random_array(dtype, shape, "reduce", low=-9, high=9)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = f32(3, 4, 5)
POSITIVE = f32(3, 4, 5, low=0.1, high=2)
ALL = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

REDUCTIONS = [
    *(case(op, POSITIVE, i64(1), params=[1], opset=18) for op in ALL),
    *(case(op, POSITIVE, i64(-1, 0), params=[1], opset=18, keepdims=0) for op in ALL),
    *(case(op, POSITIVE, opset=18) for op in ALL),
    *(case(op, POSITIVE, opset=18, keepdims=0) for op in ALL),
    *(case(op, POSITIVE, axes=[0, 2], opset=11, keepdims=0) for op in ALL),
    *(case(op, POSITIVE, axes=[1], opset=7) for op in ALL),
    case("ReduceSum", X, i64(), params=[1], opset=18, noop_with_empty_axes=1),
    case("ReduceSum", X, i64(), params=[1], opset=18),
    case("ReduceSum", X, opset=18, noop_with_empty_axes=1),
    *(case(op, ints("int32", 3, 4), i64(1), params=[1], opset=18) for op in ("ReduceSum", "ReduceMax", "ReduceProd")),
    *(case(op, ints("int64", 3, 4), i64(0), params=[1], opset=18) for op in ("ReduceSum", "ReduceMin")),
    case("ReduceMean", ints("int32", 3, 4), i64(1), params=[1], opset=18),
    case("ReduceL1", ints("int32", 3, 4), i64(1), params=[1], opset=18),
    case("ReduceMax", X > 0, i64(1), params=[1], opset=20),
    case("ReduceMin", X > 0, i64(1), params=[1], opset=20),
    case("ReduceMax", np.array([3, 200], np.uint8), opset=18),
    case("ReduceLogSumExp", np.float32([[1000, 1001], [-1000, -1001]]), i64(1), params=[1], opset=18),
    *(case(op, f32(2, 0, 3), i64(1), params=[1], opset=20) for op in ("ReduceSum", "ReduceProd", "ReduceL1")),
]

SCANS = [
    *(case(op, X, axis=a, keepdims=k) for op in ("ArgMax", "ArgMin") for a in (0, -1) for k in (0, 1)),
    case("ArgMax", np.float32([[1, 3, 3], [2, 2, 2]]), axis=1, select_last_index=1),
    case("ArgMin", np.float32([[1, 3, 3], [2, 2, 2]]), axis=1, select_last_index=1),
    case("ArgMax", X, axis=1, opset=7),
    *(case("CumSum", X, np.int64(1), params=[1], exclusive=e, reverse=r) for e in (0, 1) for r in (0, 1)),
    case("CumSum", X, np.int32(-1), params=[1]),
    case("CumSum", ints("int32", 6), i64(0), params=[1]),
    *(case("Softmax", X, axis=a) for a in (0, 1, -1)),
    *(case("Softmax", X, axis=a, opset=11) for a in (0, 1, 2)),
    *(case("LogSoftmax", X * 50, axis=a) for a in (0, -1)),
    case("LogSoftmax", X, opset=7),
    case("Softmax", X, opset=7),
    case("Hardmax", np.float32([[1, 3, 3], [2, 2, 2]])),
    case("Hardmax", X, axis=1, opset=11),
    case("Hardmax", X, axis=1),
    *(case("LpNormalization", X, p=p, axis=a) for p in (1, 2) for a in (0, -1)),
    case("LpNormalization", np.float32([[0, 0], [3, 4]]), note="zero norm"),
    case("MeanVarianceNormalization", f32(2, 3, 4, 5), opset=13),
    case("MeanVarianceNormalization", f32(2, 3, 4, 5), opset=9, axes=[1, 2]),
    *(case("TopK", X, i64(2), params=[1], outputs=2, axis=a, largest=big) for a in (1, -1) for big in (0, 1)),
    case("TopK", X, k=2, axis=1, outputs=2, opset=7),
    case("TopK", X, i64(3), params=[1], outputs=2, opset=10),
    case("TopK", np.float32([1, 2, 2, 1]), i64(3), params=[1], outputs=2, note="ties"),
    case("TopK", ints("int64", 9), i64(4), params=[1], outputs=2),
]

SCORES, TARGET = f32(3, 5), i64(0, 4, 2)
DEEP, DEEP_TARGET = f32(2, 5, 3), np.array([[0, 4, 2], [1, 1, 3]], np.int64)
WEIGHT = f32(5, low=0.2, high=1)
LOSSES = [
    *(case("SoftmaxCrossEntropyLoss", SCORES, TARGET, opset=13, reduction=r) for r in ("none", "sum", "mean")),
    *(
        case("SoftmaxCrossEntropyLoss", DEEP, DEEP_TARGET, WEIGHT, opset=13, reduction=r, outputs=2)
        for r in ("none", "sum", "mean")
    ),
    case("SoftmaxCrossEntropyLoss", DEEP, DEEP_TARGET, opset=13, ignore_index=1),
    case("SoftmaxCrossEntropyLoss", DEEP, DEEP_TARGET, WEIGHT, opset=13, ignore_index=1),
    *(case("NegativeLogLikelihoodLoss", SCORES, TARGET, opset=13, reduction=r) for r in ("none", "sum", "mean")),
    case("NegativeLogLikelihoodLoss", DEEP, DEEP_TARGET, WEIGHT, opset=13, ignore_index=-1),
]


@pytest.mark.parametrize(**params_of([*REDUCTIONS, *SCANS, *LOSSES]))
def test_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceSum", 0), ("ReduceProd", 1), ("ReduceLogSumExp", -np.inf)],
)
@pytest.mark.parametrize("form", ["static", "symbolic", "late", "symbolic late"])
def test_nothing_reduces_to_the_identity(op: str, expected: float, form: str) -> None:
    values = [np.full((2, 3), expected, np.float32)]
    check(case(op, f32(2, 0, 3), i64(1), params=[1], opset=20, keepdims=0, expected=values), form)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_no_integers_are_those_of_the_type(op: str) -> None:
    limits = np.iinfo(np.int32)
    value = limits.min if op == "ReduceMax" else limits.max
    empty = np.zeros((2, 0), np.int32)
    check(case(op, empty, i64(1), params=[1], opset=20, expected=[np.int32([[value], [value]])]), "static")


def test_maps_apply_where_no_axis_is_reduced() -> None:
    # The standard: with noop_with_empty_axes the squares are still taken.
    node = case("ReduceSumSquare", X, opset=18, noop_with_empty_axes=1, expected=[X * X])
    check(node, "symbolic")


def test_cumulative_products() -> None:
    expected = np.cumprod(X.astype(np.float64), axis=1).astype(np.float32)
    for form in ("static", "symbolic late"):
        check(case("CumProd", X, np.int64(1), params=[1], opset=26, expected=[expected]), form)


def test_ignored_targets_may_lie_outside_the_classes() -> None:
    target = i64(0, -100, 2)
    graph = captured(case("SoftmaxCrossEntropyLoss", SCORES, target, opset=13, ignore_index=-100), "static")
    (found,) = interpret(graph, {"i0": SCORES, "i1": target}).values()
    logs = SCORES - np.log(np.exp(SCORES.astype(np.float64)).sum(1, keepdims=True))
    assert_close(found, np.asarray(-(logs[0, 0] + logs[2, 2]) / 2).astype(np.float32))
