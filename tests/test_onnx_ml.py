"""The arithmetic operators of ai.onnx.ml: hcomp's converters against ONNX Runtime."""

import numpy as np
import pytest

from hcomp.testing import random_array
from tests.onnx_case import Case, case, check, params_of

X = random_array("float32", (4, 3), "ml", low=-3, high=3)
ZERO_ROW = np.concatenate([X, np.zeros((1, 3), np.float32)])
WHOLE = np.array([[1, -2, 3], [0, 5, 0]], np.int64)


def ml(op: str, x: np.ndarray, **rest: object) -> Case:
    return case(op, x, domain="ai.onnx.ml", **rest)


CASES = [
    *(ml("Scaler", x, offset=[0.5, 1.0, -2.0], scale=[2.0, 0.1, -1.0]) for x in (X, WHOLE, X[0], X.astype("float64"))),
    ml("Scaler", X, offset=[0.5], scale=[3.0], forms=("static",)),
    *(ml("Normalizer", x, norm=n) for x in (X, ZERO_ROW, WHOLE) for n in ("MAX", "L1", "L2")),
    ml("Normalizer", X[1]),
    *(ml("Binarizer", x, threshold=0.5) for x in (X, WHOLE.astype("float32"))),
    ml("Binarizer", X),
]


@pytest.mark.parametrize(**params_of(CASES))
def test_equals_onnxruntime(case: Case, form: str) -> None:
    check(case, form)
