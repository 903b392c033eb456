"""StringNormalizer against ONNX Runtime, with a locale that every machine has."""

import numpy as np
import pytest

from tests.onnx_case import Case, case, check, params_of

DAYS = np.array(["Monday", "tuesday", "monday", "TUESDAY", "für"], object)


def normalizer(x: np.ndarray, **attrs: object) -> Case:
    return case("StringNormalizer", x, locale="C.UTF-8", **attrs)


CASES = [
    normalizer(x, case_change_action=action, is_case_sensitive=sensitive, stopwords=["monday", "TUESDAY"])
    for x in (DAYS, DAYS[None])
    for action in ("NONE", "LOWER", "UPPER")
    for sensitive in (0, 1)
] + [
    normalizer(DAYS[:1], is_case_sensitive=1, stopwords=["Monday"]),
    normalizer(DAYS[None, :1], stopwords=["MONDAY"]),
    normalizer(DAYS),
]


@pytest.mark.parametrize(**params_of(CASES))
def test_equals_onnxruntime(case: Case, form: str) -> None:
    check(case, form)
