"""LinearClassifier and LinearRegressor of ai.onnx.ml: a matrix product and what is made of it."""

from __future__ import annotations

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.ml_scores import (
    best_class,
    both_classes,
    class_labels,
    column,
    label_of_two,
    labelled,
    matrix,
    transform_of,
    transformed,
    transformed_single,
)


def _scores(c: NodeContext, targets: int, intercepts: np.ndarray) -> str:
    """Return x @ coefficients' + intercepts, [N, targets] float32.

    The data says how many features there are, and coefficients beyond those of all targets count
    for nothing, as in ONNX Runtime.
    """
    flat = np.asarray(c.required("coefficients"), np.float32)
    x = matrix(c)
    features = c.shape(x)[1]
    if not isinstance(features, int):
        features = flat.size // targets if targets > 0 else 0
    if targets < 1 or features < 1 or flat.size < targets * features:
        raise c.refuse(f"its {flat.size} coefficients do not fit {targets} targets of {features} features")
    weight = flat[: targets * features].reshape(targets, features)
    y = c.emit("matmul", x, c.tensor(np.ascontiguousarray(weight.T), "float32"))
    return c.emit("add", y, c.tensor(intercepts, "float32")) if intercepts.size else y


def _classifier(c: NodeContext) -> tuple[str, str]:
    """Labels [N] and scores [N, classes]; one score of two classes is the second one's."""
    c.ignore("multi_class")  # ONNX Runtime does not read it, and the standard does not say what it changes
    transform = transform_of(c)
    labels = class_labels(c, "classlabels_strings", "classlabels_ints")
    intercepts = np.asarray(c.attr("intercepts", ()), np.float32)
    targets = intercepts.size
    if targets == 0:
        raise c.refuse("its attribute 'intercepts' is missing, whose size is the number of classes")
    if len(labels) != max(targets, 2):
        raise c.refuse(f"it has {len(labels)} labels for {targets} scores")
    scores = _scores(c, targets, intercepts)
    if targets > 1:
        return labelled(c, best_class(c, scores), labels), transformed(c, scores, transform)
    positive = c.emit("greater", column(c, scores, 0), c.scalar(0, "float32"))
    return label_of_two(c, positive, labels), both_classes(c, scores, transform, mirrored=False)


def _regressor(c: NodeContext) -> str:
    """Targets [N, targets]."""
    transform, targets = transform_of(c), int(c.attr("targets", 1))
    intercepts = np.asarray(c.attr("intercepts", ()), np.float32)
    scores = _scores(c, targets, intercepts if intercepts.size == targets else intercepts[:0])
    return transformed(c, scores, transform) if targets > 1 else transformed_single(c, scores, transform)


ML_LINEAR: dict[str, Converter] = {"LinearClassifier": _classifier, "LinearRegressor": _regressor}
