"""Cases of operators of classical models."""

from typing import Any

from tests.op_case import Case, Input, N, case, t, v

# Three trees: two of several levels, one of a leaf; leaf 2 has no entry, leaf 1 has two.
_NODES = [[0, 3], [-2, 5], [0, -1], [2, 7], [0, -2], [0, -3], [0, -4], [0, -5], [0, -6]]
_THRESHOLDS = [0.5, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
_STARTS = [0, 1, 3, 3, 4, 5, 6]
_TARGETS = [0, 0, 1, 1, 0, 1]
_WEIGHTS = [1.5, -2.0, 0.25, 4.0, -1.0, 3.0]


def _trees(x: Input, dtype: str, **attrs: Any) -> Case:
    return case(
        x, v(_NODES, "int32"), v(_THRESHOLDS, dtype), v([0, 1, 2], "int32"), v(_STARTS, "int32"),
        v(_TARGETS, "int32"), v(_WEIGHTS, dtype), features=3, targets=2, depth=2, missing=True, **attrs,
    )  # fmt: skip


ML: dict[str, list[Case]] = {
    "tree_ensemble": [
        _trees(t("float32", N, 3), "float32"),
        _trees(t("float64", 7, 4), "float64", reached=True),
        _trees(t("float32", N, 5), "float32", combine="min", reached=True),
    ],
    "map_labels": [
        case(v(["a", "", "c"], "string"), keys=("a", "c", "a"), values=(1, 2, 3), default=-1, dtype="int64"),
        case(t("int64", N, 3, low=0, high=3), keys=(1, 2), values=("one", "two"), default="?", dtype="string"),
        case(v([1.0, float("nan"), 2.0], "float32"), keys=(float("nan"), 2.0), values=(0.5, 1.5), default=0.0,
             dtype="float32", nan_is_key=True),
    ],
    "zip_map": [
        case(t("float32", N, 3), keys=("a", "b", "c")),
        case(t("float32", 2), keys=(7, -1)),
    ],
}  # fmt: skip
