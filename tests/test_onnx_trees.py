"""Tree ensembles: compiled code and the reference against ONNX Runtime, and against a walk of our own."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import hcomp
from hcomp.capture import capture_model
from hcomp.errors import CaptureError, HcompError
from hcomp.testing import assert_close, interpret
from tests.ml_case import Array, check, expected, ml_model
from tests.tree_models import MODES, Trees, attributes, data

ALL = {"modes": MODES, "missing": True}


REGRESSORS = [
    (Trees(1), {}),
    (Trees(2, trees=1, depth=1), {"base_values": [0.5]}),
    (Trees(3, trees=19, depth=6, features=5, **ALL), {"post_transform": "LOGISTIC"}),
    (Trees(4, targets=4, per_leaf=(1, 4), **ALL), {"base_values": [0.5, -1.0, 2.0, 0.0]}),
    (Trees(5, targets=3, per_leaf=(3, 3)), {"aggregate_function": "AVERAGE", "post_transform": "SOFTMAX"}),
    (Trees(6, targets=3, per_leaf=(1, 2)), {"aggregate_function": "MIN"}),
    (Trees(7, targets=2, per_leaf=(1, 2), trees=9), {"aggregate_function": "MAX", "base_values": [1.0, 2.0]}),
    (Trees(8, trees=8), {"aggregate_function": "MIN", "base_values": [3.0]}),
    (Trees(9, trees=3), {"aggregate_function": "AVERAGE", "base_values": [3.0]}),
]


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("trees", "more"), REGRESSORS, ids=str)
def test_regressors(trees: Trees, more: dict[str, Any], dtype: str, rows: int) -> None:
    x = data(trees, rows, dtype, nan=True)
    attrs = attributes(trees, "target")
    model = ml_model("TreeEnsembleRegressor", x, 1, n_targets=trees.targets, symbolic=rows > 1, **attrs, **more)
    check(model, x, compiled=dtype == "float32")


CLASSIFIERS = [
    (Trees(1, targets=3, per_leaf=(3, 3), positive=True), 3, {}),
    (Trees(2, targets=4, per_leaf=(1, 2), **ALL), 4, {"post_transform": "SOFTMAX"}),
    (Trees(3, targets=3, per_leaf=(1, 1), trees=9), 3, {"base_values": [0.1, -0.2, 0.3], "post_transform": "LOGISTIC"}),
    (Trees(4, targets=5, per_leaf=(1, 1), trees=2), 5, {"post_transform": "SOFTMAX_ZERO"}),
    (Trees(5, targets=2, only=0, positive=True), 2, {}),
    (Trees(6, targets=2, only=0), 2, {"post_transform": "LOGISTIC"}),
    (Trees(7, targets=2, only=1), 2, {"post_transform": "SOFTMAX"}),
    (Trees(8, targets=2, only=0, trees=30), 2, {"base_values": [0.3], "post_transform": "LOGISTIC"}),
    (Trees(9, targets=2, per_leaf=(2, 2), positive=True), 2, {}),
    (Trees(10, targets=2, per_leaf=(1, 2), trees=2), 2, {"post_transform": "LOGISTIC"}),
    (Trees(11, targets=2, per_leaf=(1, 1), trees=2), 2, {"base_values": [0.5, 0.25]}),
]


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize(("trees", "classes", "more"), CLASSIFIERS, ids=str)
def test_classifiers(trees: Trees, classes: int, more: dict[str, Any], dtype: str, texts: bool) -> None:
    x = data(trees, 70, dtype, nan=True)
    labels: dict[str, Any] = {"classlabels_int64s": [7, -1, 3, 12, 5][:classes]}
    if texts:
        labels = {"classlabels_strings": ["b", "a", "é", "", "c"][:classes]}
    model = ml_model("TreeEnsembleClassifier", x, 2, **attributes(trees, "class"), **labels, **more)
    check(model, x, compiled=dtype == "float32" and texts)


def one_by_one(attrs: dict[str, Any], x: Array, targets: int) -> Array:
    """Return the sums of a regressor from its attributes, node by node, in float64."""
    ids = zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True)
    place = {key: k for k, key in enumerate(ids)}
    given: dict[tuple[int, int], list[tuple[int, float]]] = {}
    columns = (attrs[f"target_{name}"] for name in ("treeids", "nodeids", "ids", "weights"))
    for tree, node, target, weight in zip(*columns, strict=True):
        given.setdefault((tree, node), []).append((target, weight))
    compare = {
        "BRANCH_LEQ": np.less_equal, "BRANCH_LT": np.less, "BRANCH_GTE": np.greater_equal,
        "BRANCH_GT": np.greater, "BRANCH_EQ": np.equal, "BRANCH_NEQ": np.not_equal,
    }  # fmt: skip
    missing = attrs.get("nodes_missing_value_tracks_true", [0] * len(place))
    total = np.zeros((len(x), targets))
    for number, row in enumerate(x):
        for tree in dict.fromkeys(attrs["nodes_treeids"]):
            at = attrs["nodes_treeids"].index(tree)
            while (mode := attrs["nodes_modes"][at]) != "LEAF":
                value = row[attrs["nodes_featureids"][at]]
                holds = compare[mode](value, row.dtype.type(attrs["nodes_values"][at]))
                side = "true" if holds or (missing[at] and np.isnan(value)) else "false"
                at = place[tree, attrs[f"nodes_{side}nodeids"][at]]
            for target, weight in given[tree, attrs["nodes_nodeids"][at]]:
                total[number, target] += weight
    return total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_mode_walks_as_its_comparison_says(seed: int, dtype: str) -> None:
    trees = Trees(100 + seed, trees=3, depth=5, targets=2, per_leaf=(1, 2), **ALL)
    attrs, x = attributes(trees, "target"), data(trees, 80, dtype, nan=True)
    x[0], x[1], x[2] = np.inf, -np.inf, -0.0
    graph = capture_model(ml_model("TreeEnsembleRegressor", x, 1, n_targets=2, **attrs)).graph
    (found,) = interpret(graph, {"x": x}).values()
    assert_close(found, one_by_one(attrs, x, 2).astype(np.float32), terms=64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threshold", [np.inf, -np.inf, np.nan, 0.0, -0.0])
@pytest.mark.parametrize("tracks", [0, 1])
def test_thresholds_at_the_ends(mode: str, threshold: float, tracks: int) -> None:
    attrs = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [threshold, 0.0, 0.0], "nodes_modes": [mode, "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "nodes_missing_value_tracks_true": [tracks, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2],
        "target_ids": [0, 0], "target_weights": [1.0, 2.0],
    }  # fmt: skip
    tiny = np.finfo(np.float32).smallest_subnormal
    x = np.array([[np.inf], [-np.inf], [np.nan], [0.0], [-0.0], [tiny], [-tiny], [1.0]], np.float32)
    graph = capture_model(ml_model("TreeEnsembleRegressor", x, 1, n_targets=1, **attrs)).graph
    (found,) = interpret(graph, {"x": x}).values()
    assert_close(found, one_by_one(attrs, x, 1).astype(np.float32))


def _ensemble(dtype: str, **changed: Any) -> dict[str, Any]:
    """Return the attributes of a TreeEnsemble-5 of two trees: a comparison and a small set, and a wider set."""
    attrs: dict[str, Any] = {
        "n_targets": 2, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0, 2],
        "nodes_modes": np.array([0, 6, 6], np.uint8), "nodes_featureids": [0, 1, 1],
        "nodes_splits": np.array([0.5, 0.0, 0.0], dtype),
        "nodes_truenodeids": [1, 1, 3], "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [0, 2, 4], "nodes_falseleafs": [1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 1], "leaf_weights": np.array([1.0, 2.0, 4.0, 8.0, 16.0], dtype),
        "membership_values": np.array([1.0, 3.0, np.nan, -2.0, 40.0, 7.0, 1.0, 2.0, np.nan], dtype),
    }  # fmt: skip
    attrs.update(changed)
    tensors = {k: numpy_helper.from_array(v) for k, v in attrs.items() if isinstance(v, np.ndarray)}
    return {**attrs, **tensors}


SET_ROWS = np.array([[a, b] for a in (0.0, 1.0, np.nan) for b in (-2, 0, 0.25, 1, 2, 3, 7, 40, 41, np.nan)])


@pytest.mark.parametrize(
    ("dtype", "more"),
    [
        *((dtype, {"aggregate_function": k}) for dtype in ("float32", "float64") for k in range(4)),
        ("float32", {"post_transform": 3}),  # in float32 with ONNX Runtime, whatever the type is
        ("float32", {"post_transform": 4}),
    ],
)
@pytest.mark.parametrize("tracks", [None, [1, 1, 1]])
def test_tree_ensemble_with_sets(dtype: str, more: dict[str, Any], tracks: Any) -> None:
    x = SET_ROWS.astype(dtype)
    if tracks is not None:
        more = {**more, "nodes_missing_value_tracks_true": tracks}
    check(ml_model("TreeEnsemble", x, 1, opset=5, **_ensemble(dtype, **more)), x, compiled=dtype == "float32")


@pytest.mark.parametrize("transform", [1, 2])
def test_numbers_of_transforms_are_those_of_the_standard(transform: int) -> None:
    """1 is SOFTMAX and 2 LOGISTIC; ONNX Runtime exchanges them."""
    x = SET_ROWS.astype(np.float32)
    (raw,) = expected(ml_model("TreeEnsemble", x, 1, opset=5, **_ensemble("float32")), x)
    power = np.exp(raw - raw.max(1, keepdims=True))
    wanted = power / power.sum(1, keepdims=True) if transform == 1 else 1 / (1 + np.exp(-raw))
    graph = capture_model(
        ml_model("TreeEnsemble", x, 1, opset=5, **_ensemble("float32", post_transform=transform))
    ).graph
    (found,) = interpret(graph, {"x": x}).values()
    assert_close(found, wanted, terms=64)


DAMAGE = [
    ("nodes_truenodeids", lambda v: [99, *v[1:]], "has no node 99"),
    ("nodes_truenodeids", lambda v: [0, *v[1:]], "its own descendant"),
    ("nodes_nodeids", lambda v: [1, 1, *v[2:]], "has two nodes 1"),
    ("nodes_modes", lambda v: ["BRANCH_XOR", *v[1:]], "BRANCH_XOR"),
    ("nodes_featureids", lambda v: [-5, *v[1:]], "a feature is -5"),
    ("nodes_featureids", lambda v: [7, *v[1:]], "read 8 features"),
    ("nodes_values", lambda v: v[1:], "node values"),
    ("target_ids", lambda v: [5, *v[1:]], "a target is"),
    ("target_weights", lambda v: v[1:], "weights for"),
]


@pytest.mark.parametrize(("name", "change", "words"), DAMAGE, ids=[f"{n}-{w}" for n, _, w in DAMAGE])
def test_damaged_trees_are_named(name: str, change: Any, words: str) -> None:
    """They are no extern nodes: ONNX Runtime does not find all of this."""
    trees = Trees(1, trees=2, depth=3)
    attrs = attributes(trees, "target")
    attrs[name] = change(list(attrs[name]))
    model = ml_model("TreeEnsembleRegressor", data(trees, 3, "float32"), 1, n_targets=1, **attrs)
    with pytest.raises(CaptureError, match=rf"^node node \([^\n]*{words}[^\n]*$"):
        capture_model(model)


def test_too_few_features_at_run_time_are_an_error() -> None:
    trees = Trees(1, features=4, trees=9, depth=6)
    x = data(trees, 3, "float32")
    model = ml_model("TreeEnsembleRegressor", x, 1, n_targets=1, **attributes(trees, "target"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "F"
    program = hcomp.compile(model, devices=["cpu"], threads=1, cache=False)
    assert program.run({"x": x})["y0"].shape == (3, 1)
    with pytest.raises(HcompError, match=r"read 4 features, the data has 2"):
        program.run({"x": x[:, :2].copy()})
