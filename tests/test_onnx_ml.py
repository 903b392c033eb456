"""Operators of ai.onnx.ml but trees: hcomp's converters against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import hcomp
from hcomp.capture import capture_model
from hcomp.errors import HcompError
from hcomp.testing import random_array
from tests.ml_case import check as check_model
from tests.ml_case import ml_model
from tests.onnx_case import Case, case, check, params_of

X = random_array("float32", (4, 3), "ml", low=-3, high=3)
ZERO_ROW = np.concatenate([X, np.zeros((1, 3), np.float32)])
WHOLE = np.array([[1, -2, 3], [0, 5, 0]], np.int64)
HOLES = np.array([[1.0, np.nan, -2.0], [np.nan, np.nan, np.nan], [0.0, -0.0, np.inf]], np.float32)
TEXTS = np.array([["a", "b", "é"], ["", "b", "c"]], object)


def ml(op: str, *inputs: np.ndarray, **rest: object) -> Case:
    return case(op, *inputs, domain="ai.onnx.ml", **rest)


CASES = [
    *(ml("Scaler", x, offset=[0.5, 1.0, -2.0], scale=[2.0, 0.1, -1.0]) for x in (X, WHOLE, X[0], X.astype("float64"))),
    ml("Scaler", X, offset=[0.5], scale=[3.0], forms=("static",)),
    *(ml("Normalizer", x, norm=n) for x in (X, ZERO_ROW, WHOLE) for n in ("MAX", "L1", "L2")),
    ml("Normalizer", X[1]),
    *(ml("Binarizer", x, threshold=0.5) for x in (X, WHOLE.astype("float32"))),
    ml("Binarizer", X),
    ml("Normalizer", HOLES, norm="MAX"),
    ml("Imputer", HOLES, imputed_value_floats=[9.0], replaced_value_float=float("nan")),
    ml("Imputer", X, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float(X[1, 2]), forms=("static",)),
    ml("Imputer", WHOLE, imputed_value_int64s=[7, 8, 9], replaced_value_int64=0, forms=("static",)),
    *(ml("ArrayFeatureExtractor", x, np.array([2, 0]), params=(1,)) for x in (X, WHOLE, X[0], TEXTS)),
    ml("FeatureVectorizer", X, X[:, :1], inputdimensions=[3, 1], forms=("static",)),
    ml("FeatureVectorizer", WHOLE, WHOLE, inputdimensions=[2, 5], forms=("static",)),
    *(ml("OneHotEncoder", x, cats_int64s=[3, 0, -2, 3]) for x in (WHOLE, WHOLE.astype("float32"), WHOLE[0])),
    ml("OneHotEncoder", TEXTS, cats_strings=["b", "", "b"]),
    ml("CategoryMapper", TEXTS, cats_strings=["b", "é", "b"], cats_int64s=[4, 5, 6], default_int64=-7),
    ml("CategoryMapper", WHOLE, cats_strings=["b", "é", "c"], cats_int64s=[1, 5, 5], default_string="none"),
    ml("LabelEncoder", TEXTS, keys_strings=["b", "é", "b"], values_int64s=[1, 2, 3], default_int64=9),
    ml("LabelEncoder", TEXTS, keys_strings=["b"], values_floats=[0.5]),
    ml("LabelEncoder", WHOLE, keys_int64s=[1, -2, 1], values_strings=["x", "y", "z"]),
    ml("LabelEncoder", WHOLE, keys_int64s=[3, 5, 3], values_floats=[0.5, 1.5, 2.5], default_float=-1.0),
    ml("LabelEncoder", WHOLE, keys_int64s=[3, 1 << 40], values_int64s=[1, 2]),  # too wide a range for a table
    ml("LabelEncoder", HOLES, keys_floats=[1.0, float("nan")], values_int64s=[1, 2]),
]


@pytest.mark.parametrize(**params_of(CASES))
def test_equals_onnxruntime(case: Case, form: str) -> None:
    check(case, form)


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
NUMBERS = {"classlabels_ints": [7, -1, 3]}
WORDS = {"classlabels_strings": ["b", "", "é"]}


@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize(
    ("classes", "transform"), [(k, t) for k in (1, 2, 3) for t in TRANSFORMS if (k, t) != (1, "PROBIT")]
)
def test_linear_classifiers(classes: int, transform: str, dtype: str, rows: int) -> None:
    x = (np.random.default_rng(1).integers(-4, 5, (rows, 2)) / 2).astype(dtype)
    labels = {key: values[: max(classes, 2)] for key, values in (NUMBERS if rows else WORDS).items()}
    attrs = {"coefficients": [0.5, -1.0, 0.5, -1.0, 0.0, 0.25][: 2 * classes], "intercepts": [0.0, 0.0, 1.0][:classes]}
    model = ml_model("LinearClassifier", x, 2, post_transform=transform, **attrs, **labels)
    check_model(model, x, compiled=dtype == "float32" and rows != 1)


def test_a_transform_that_leaves_a_class_without_a_score_is_an_extern_node() -> None:
    labels = {"classlabels_ints": [0, 1]}
    attrs = {"coefficients": [1.0] * 3, "intercepts": [0.0], "post_transform": "PROBIT"}
    graph = capture_model(ml_model("LinearClassifier", X, 2, **attrs, **labels)).graph
    assert ["PROBIT" in str(node.attrs["reason"]) for node in graph.walk() if node.op == "extern"] == [True]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressors(targets: int, transform: str) -> None:
    attrs: dict[str, Any] = {"coefficients": [0.5, -1.0, 0.5, 2.0, 0.0, 0.25, 1.0, 1.5, -2.0][: 3 * targets]}
    for more in ({}, {"intercepts": [0.25, 0.0, 1.0][:targets]}):
        model = ml_model("LinearRegressor", X, 1, post_transform=transform, targets=targets, **attrs, **more)
        check_model(model, X, compiled=False)


@pytest.mark.parametrize("keys", [[5, -3, 9], [1, 2, 1], ["b", "é", "a"], ["a", "b", "c"]])
@pytest.mark.parametrize("shape", [(3,), (0, 3), (1, 3), (4, 3)])
def test_maps(keys: list[Any], shape: tuple[int, ...]) -> None:
    x = random_array("float32", shape, "maps")
    name = "classlabels_strings" if isinstance(keys[0], str) else "classlabels_int64s"
    check_model(ml_model("ZipMap", x, 1, symbolic=len(shape) > 1, **{name: keys}), x)


@pytest.mark.parametrize(
    ("keys", "values"),
    [("float64", "float64"), ("float64", "string"), ("string", "float64"), ("string", "int16"), ("int64", "string")],
)
def test_labels_from_tensors(keys: str, values: str) -> None:
    numbers, words = [1, 2, 1, 3], ["a", "b", "a", "c"]
    k, v = (np.array(words, object) if t == "string" else np.array(numbers, t) for t in (keys, values))
    x = k[[1, 3, 0, 2]]
    attrs = {"keys_tensor": numpy_helper.from_array(k[:3]), "values_tensor": numpy_helper.from_array(v[1:])}
    for more in ({}, {"default_tensor": numpy_helper.from_array(v[2:3])}):
        check_model(ml_model("LabelEncoder", x, 1, opset=4, **attrs, **more), x, compiled=False)


def test_labels_of_the_first_version() -> None:
    model = ml_model("LabelEncoder", TEXTS, 1, opset=1, classes_strings=["b", "é", "b"], default_int64=-5)
    check_model(model, TEXTS, compiled=False)


def test_maps_and_texts_of_a_region_take_the_short_way() -> None:
    model = ml_model("LinearClassifier", X, 2, coefficients=[1.0] * 9, intercepts=[0.0, 1.0, 2.0], **WORDS)
    model.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["y1"], output=["maps"])
    model.graph.node[1].attribute.add(name="classlabels_strings", type=8, strings=[b"b", b"", b"c"])
    del model.graph.output[:]
    for name in ("maps", "y0", "y1"):
        model.graph.output.add(name=name)
    session = hcomp.compile(model, devices=["cpu"], threads=1, cache=False).session
    check_model(model, X)
    assert session._fast is not None
    general = session.run({"x": X})  # the first run of a shape
    short = session._fast({"x": X})
    assert short is not None
    assert list(short) == list(general) == ["maps", "y0", "y1"]
    assert short["maps"] == general["maps"]
    assert short["y0"].tolist() == general["y0"].tolist()
    np.testing.assert_array_equal(short["y1"], general["y1"])


def test_rows_of_another_width_than_the_keys_are_named() -> None:
    model = ml_model("Scaler", X, 1, scale=[2.0])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "F"
    model.graph.node.add(name="zip", op_type="ZipMap", domain="ai.onnx.ml", input=["y0"], output=["maps"])
    model.graph.node[1].attribute.add(name="classlabels_int64s", type=7, ints=[1, 2, 3])
    model.graph.output[0].name = "maps"
    program = hcomp.compile(model, devices=["cpu"], threads=1, cache=False)
    assert program.run({"x": X})["maps"][0].keys() == {1, 2, 3}
    for _ in range(2):  # the second time the shape is a known one
        with pytest.raises(HcompError, match=r"zip.*expected rows of 3 numbers, found the shape \[4, 2\]"):
            program.run({"x": X[:, :2].copy()})


def test_widths_below_zero_are_an_error() -> None:
    with pytest.raises(HcompError, match=r"'inputdimensions' \[-1\]"):
        capture_model(ml_model("FeatureVectorizer", X, 1, inputdimensions=[-1]))
