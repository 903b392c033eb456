"""What TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble compute from their trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.ml_scores import (
    TRANSFORMS,
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
from hcomp.capture.onnx_ops.ml_tree_attributes import (
    Array,
    Ensemble,
    Reach,
    float_attribute,
    tree_dtype,
    tree_of_lists,
    tree_of_tensors,
)

_AGGREGATES = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}


def _emit(c: NodeContext, ensemble: Ensemble, count: int, combine: str, *, reached: bool) -> tuple[str, str]:
    """Return the combined weights [N, count] and, where `reached`, the mask of targets that got one, else ""."""
    if combine != "sum" and not np.isfinite(ensemble.weights).all():
        raise c.refuse("a weight is not finite")
    layout, dtype = ensemble.layout, tree_dtype(c)
    starts = np.searchsorted(ensemble.entry_leaf, np.arange(ensemble.leaves + 1))
    made = c.emit_many(
        "tree_ensemble",
        matrix(c, dtype),
        c.b.constant(layout.nodes, "nodes"),
        c.b.constant(layout.thresholds, "thresholds"),
        c.b.constant(layout.roots, "roots"),
        c.b.constant(starts.astype(np.int32), "leaves"),
        c.b.constant(ensemble.targets.astype(np.int32), "targets"),
        c.b.constant(ensemble.weights.astype(dtype), "weights"),
        features=layout.features, targets=count, combine=combine, missing=layout.missing,
        reached=reached, depth=layout.depth,
    )  # fmt: skip
    return (made[0], made[1]) if reached else (made[0], "")


def _aggregated(c: NodeContext, ensemble: Ensemble, count: int, aggregate: str, base: Array) -> str:
    """Return what the trees together give to the targets, and the base values, [N, count].

    A target that a row gets nothing for is 0: ONNX Runtime leaves its base value out.
    """
    if count == 1 and np.unique(ensemble.entry_leaf).size != ensemble.entry_leaf.size:
        raise c.refuse("a leaf has several weights for the only target")
    combine = _AGGREGATES[aggregate]
    unsure = base.size > 0 and any(ensemble.reach(k) != "always" for k in range(count))
    y, reached = _emit(c, ensemble, count, combine, reached=unsure or combine != "sum")
    if aggregate == "AVERAGE":
        y = c.emit("divide", y, c.scalar(ensemble.layout.roots.size, c.dtype(y)))
    y = _added(c, y, base)
    return c.emit("where", reached, y, c.scalar(0, c.dtype(y))) if unsure else y


def _finished(c: NodeContext, scores: str, count: int, transform: str) -> str:
    return transformed(c, scores, transform) if count > 1 else transformed_single(c, scores, transform)


def _base_values(c: NodeContext, sizes: tuple[int, ...]) -> Array:
    values = float_attribute(c, "base_values")
    if values.size not in sizes:
        raise c.refuse(f"it has {values.size} base values, expected one of {sizes}")
    return values


def _added(c: NodeContext, scores: str, values: Array) -> str:
    return c.emit("add", scores, c.tensor(values, c.dtype(scores))) if values.size else scores


def _regressor(c: NodeContext) -> str:
    count = int(c.attr("n_targets", 1))
    ensemble, transform = tree_of_lists(c, "target", count), transform_of(c)
    aggregate = str(c.attr("aggregate_function", "SUM"))
    if aggregate not in _AGGREGATES:
        raise c.refuse(f"its attribute 'aggregate_function' is {aggregate!r}; {', '.join(_AGGREGATES)} exist")
    y = _aggregated(c, ensemble, count, aggregate, _base_values(c, (0, count)))
    return c.cast(_finished(c, y, count, transform), "float32")


def _ensemble(c: NodeContext) -> str:
    """Numbers of transforms are those of the standard: ONNX Runtime 1.32 takes 1 for LOGISTIC and 2 for SOFTMAX."""
    names = ("AVERAGE", "SUM", "MIN", "MAX")
    count = c.attr("n_targets", 1)
    ensemble = tree_of_tensors(c, count)
    aggregate, transform = c.attr("aggregate_function", 1), c.attr("post_transform", 0)
    if not (0 <= aggregate < len(names) and 0 <= transform < len(TRANSFORMS)):
        raise c.refuse(f"it has the aggregate function {aggregate} and the transform {transform}")
    y = _aggregated(c, ensemble, count, names[aggregate], np.zeros(0))
    return _finished(c, y, count, TRANSFORMS[transform])


def _classifier(c: NodeContext) -> tuple[str, str]:
    """Labels [N] and scores [N, classes] float32."""
    labels = class_labels(c, "classlabels_strings", "classlabels_int64s")
    count = len(labels)
    ensemble, transform = tree_of_lists(c, "class", count), transform_of(c)
    if count < 2:
        raise c.refuse("it has a single class")
    reach = [ensemble.reach(k) for k in range(count)]
    if count == 2:
        return _two_classes(c, ensemble, labels, transform, (reach[0], reach[1]))
    base = _base_values(c, (0, count))
    unsure = not base.size and any(r != "always" for r in reach)
    scores, reached = _emit(c, ensemble, count, "sum", reached=unsure)
    scores = judged = _added(c, scores, base)
    if unsure:
        judged = c.emit("where", reached, scores, c.scalar(-np.inf, c.dtype(scores)))
    return labelled(c, best_class(c, judged), labels), c.cast(transformed(c, scores, transform), "float32")


def _two_classes(
    c: NodeContext, ensemble: Ensemble, labels: tuple[Any, ...], transform: str, reach: tuple[Reach, Reach]
) -> tuple[str, str]:
    """Two classes as ONNX Runtime has them: mostly, the leaves give weights to one of them alone.

    The label is decided by the score of the second class, or of the first where the second got
    nothing. Where leaves give weights to both, it is 0 or 1, whatever the labels are.
    """
    base = _base_values(c, (0, 1, 2))
    if "never" in reach:
        return _one_sided(c, ensemble, labels, transform, base, second=reach[0] == "never")
    if base.size == 1 and reach[1] != "always":
        raise c.refuse("with one base value, a row that gives the second class nothing has no score for it")
    sums, mask = _emit(c, ensemble, 2, "sum", reached=reach != ("always", "always"))
    first, second = (_slice(c, sums, k) for k in (0, 1))
    has_first, has_second = (_slice(c, mask, k) if mask else "" for k in (0, 1))

    def where(has: str, yes: str, no: str) -> str:
        return c.emit("where", has, yes, no) if has else yes

    if base.size == 2:
        together = c.emit("add", first, c.scalar(base[1], c.dtype(sums)))
        alone = c.emit("add", first, c.scalar(base[0], c.dtype(sums)))
        # 0 where a class got nothing, as the sums are.
        first = where(has_first, where(has_second, c.emit("negative", together), alone), first)
        second = where(has_second, together, second)
    elif base.size == 1:
        first = where(has_first, c.emit("add", first, c.scalar(base[0], c.dtype(sums))), first)
    above = c.emit("greater", where(has_second, second, first), c.scalar(0, c.dtype(sums)))
    names = labels if isinstance(labels[0], str) else (0, 1)
    label = label_of_two(c, column(c, above, 0), names)
    both = transformed(c, c.emit("concat", first, second, axis=1), transform)
    if mask and base.size == 0:
        both = where(has_second, both, both_classes(c, first, transform, mirrored=True))
    return label, c.cast(both, "float32")


def _one_sided(
    c: NodeContext, ensemble: Ensemble, labels: tuple[Any, ...], transform: str, base: Array, *, second: bool
) -> tuple[str, str]:
    """Two classes, of which all leaves give weights to the same one: the second, or else the first.

    Their sum is the score of the second class in both cases, unless there are two base values.
    """
    only = replace(ensemble, targets=np.zeros_like(ensemble.targets))
    if np.unique(only.entry_leaf).size != only.entry_leaf.size:
        raise c.refuse("a leaf has several weights for the only class that has any")
    score, _ = _emit(c, only, 1, "sum", reached=False)
    dtype = c.dtype(score)
    if base.size == 2 and second:
        # The sum of the first class, which is 0, takes the place of the second one's.
        score = c.emit("add", c.emit("multiply", score, c.scalar(0, dtype)), c.scalar(base[1], dtype))
    elif base.size and not second:
        score = _added(c, score, base[:1])
    positive = bool((ensemble.weights >= 0).all())
    above = c.emit("greater", column(c, score, 0), c.scalar(0.5 if positive else 0.0, dtype))
    if second or base.size == 2:
        padding = (0, 1, 0, 0) if second else (0, 0, 0, 1)
        both = transformed(c, c.emit("pad", score, padding=padding), transform)
    else:
        both = both_classes(c, score, transform, mirrored=not positive)
    return label_of_two(c, above, labels), c.cast(both, "float32")


def _slice(c: NodeContext, pair: str, k: int) -> str:
    """Return column k of [N, 2] as [N, 1]."""
    return c.emit("strided_slice", pair, axes=(1,), begin=(k,), size=(1,), strides=(1,))


ML_TREES: dict[str, Converter] = {
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
}
