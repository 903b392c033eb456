"""Cases of tree ensembles that every compiling target must compute as the reference does."""

from typing import Any

from tests.target_cases import Case, Operand

# Trees 0 to 2 of several levels (the second sends NaN to its first child), the fourth a leaf.
_NODES = [[0, 4], [-2, 6], [1, 8], [0, -1], [2, 10], [0, -2], [0, -3], [0, -4], [-1, 12],
          [0, -5], [0, -6], [0, -2], [0, -4], [0, -1]]  # fmt: skip
_THRESHOLDS = [0.5, 0.0, -0.5, 0.0, -1.0, 0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0, 0.0, 0.0]


def _trees(shape: str, trees: int, **attrs: Any) -> Case:
    """Return an ensemble whose trees are the four above, in turns; leaf 2 gives nothing, leaf 1 twice."""
    roots = tuple(k % 4 for k in range(trees))
    starts, targets, weights = (0, 1, 3, 3, 4, 5, 6), (0, 0, 1, 1, 0, 1), (1.5, -2.0, 0.25, 4.0, -1.0, 3.0)
    if attrs["targets"] == 1:
        targets = (0,) * 6
    nodes = [(f if f >= 0 or attrs["missing"] else -1 - f, child) for f, child in _NODES]
    inputs = (
        Operand(shape, fill="special"),
        Operand(f"{len(nodes)}, 2", "int32", values=tuple(n for row in nodes for n in row), constant=True),
        Operand(str(len(_THRESHOLDS)), values=tuple(_THRESHOLDS), constant=True),
        Operand(str(trees), "int32", values=roots, constant=True),
        Operand("7", "int32", values=starts, constant=True),
        Operand("6", "int32", values=targets, constant=True),
        Operand("6", values=weights, constant=True),
    )
    return Case("tree_ensemble", inputs, {"features": 3, "depth": 3, **attrs}, ("float32", "float64"))


# Few rows, more than a block of them, a number known only at run time, none.
_SHAPES = ("N, 3", "130, 4", "40*N, 3", "E, 3")
# Fewer trees than lanes, a full round, and some over; targets; missing values.
_SIZES = ((1, 1, False), (4, 3, True), (8, 2, True), (13, 2, False))
_MORE: tuple[dict[str, Any], ...] = (
    {},
    {"reached": True},
    {"combine": "min", "reached": True},
    {"combine": "max", "reached": True},
)

# A Latin square: every pair of two of the three lists.
TREES = [
    _trees(shape, trees, targets=targets, missing=missing, **_MORE[(i + j) % len(_MORE)])
    for i, shape in enumerate(_SHAPES)
    for j, (trees, targets, missing) in enumerate(_SIZES)
]
