"""What the classifiers of ai.onnx.ml share: rows, class labels, and the transforms of scores.

Where the standard is silent, ONNX Runtime's way is the meaning: models were made and tested with it.
"""

from __future__ import annotations

import math
from typing import Any

from hcomp.capture.context import NodeContext
from hcomp.capture.onnx_ops.math_common import like

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NEARLY_ZERO = 1e-7
_WINITZKI = 0.147
"""The constant of Winitzki's formula for the inverse of erf."""


def matrix(c: NodeContext, dtype: str = "float32") -> str:
    """Return the input as rows [N, features] of `dtype`; one of rank 1 is a single row."""
    shape = c.shape(0)
    if len(shape) not in (1, 2):
        raise c.refuse(f"its input has rank {len(shape)}, and the operator is defined for 1 and 2")
    x = c.cast(0, dtype)
    return x if len(shape) == 2 else c.reshape(x, (1, shape[0]))


def transform_of(c: NodeContext) -> str:
    """Return the attribute post_transform."""
    transform = str(c.attr("post_transform", "NONE"))
    if transform not in TRANSFORMS:
        raise c.refuse(f"its attribute 'post_transform' is {transform!r}; {', '.join(TRANSFORMS)} exist")
    return transform


def class_labels(c: NodeContext, texts: str, numbers: str) -> tuple[Any, ...]:
    """Return the classes' labels, all texts or all integers, from the one of two attributes that is there."""
    labels = c.attr(texts) or c.attr(numbers) or ()
    if c.attr(texts) and c.attr(numbers):
        raise c.refuse(f"it has both {texts!r} and {numbers!r}")
    if not labels:
        raise c.refuse(f"it has neither {texts!r} nor {numbers!r}")
    return tuple(labels)


def labelled(c: NodeContext, index: str, labels: tuple[Any, ...]) -> str:
    """Return labels[index]: numbers by arithmetic or a table, texts by the host."""
    if isinstance(labels[0], str):
        keys = tuple(range(len(labels)))
        return c.emit("map_labels", index, keys=keys, values=labels, default="", dtype="string")
    first, step = int(labels[0]), int(labels[1]) - int(labels[0])
    if all(int(label) == first + k * step for k, label in enumerate(labels)):
        scaled = c.emit("multiply", index, c.scalar(step, "int64")) if step != 1 else index
        return c.emit("add", scaled, c.scalar(first, "int64")) if first else scaled
    return c.emit("take", c.tensor(labels, "int64"), index)


def label_of_two(c: NodeContext, positive: str, labels: tuple[Any, ...]) -> str:
    """Return labels[1] where `positive`, bool, else labels[0]."""
    if isinstance(labels[0], str):
        return labelled(c, c.cast(positive, "int64"), labels)
    return c.emit("where", positive, c.scalar(labels[1], "int64"), c.scalar(labels[0], "int64"))


def column(c: NodeContext, scores: str, k: int) -> str:
    """Return column k of [N, columns] as [N]."""
    return c.emit("take", scores, c.scalar(k, "int64"), axis=1)


def best_class(c: NodeContext, scores: str) -> str:
    """Return the column of each row's largest score, int64 [N]: the first of equals, never a later NaN.

    The search starts with the first score and goes on to what is greater: a NaN in front stays.
    """
    return c.emit("argmax", scores, axis=-1, nan_wins=False)


def transformed(c: NodeContext, scores: str, transform: str) -> str:
    """Return scores [N, columns], of two columns or more, after a post transform."""
    match transform:
        case "SOFTMAX":
            return c.emit("softmax", scores, axis=-1)
        case "LOGISTIC":
            return c.emit("sigmoid", scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(c, scores)
        case "PROBIT":
            return _probit(c, scores)
    return scores


def transformed_single(c: NodeContext, scores: str, transform: str) -> str:
    """Return scores [N, 1] after a post transform: of one number, only PROBIT is more than itself."""
    return _probit(c, scores) if transform == "PROBIT" else scores


def both_classes(c: NodeContext, scores: str, transform: str, *, mirrored: bool) -> str:
    """Return [N, 2] from the scores [N, 1] of the second of two classes.

    The first one's is 1 - s, or -s where `mirrored`; with LOGISTIC it is the probability of that.
    """
    if transform == "PROBIT":
        raise c.refuse("PROBIT of a single score leaves the other class without one")
    if transform == "LOGISTIC":
        scores = c.emit("concat", c.emit("negative", scores), scores, axis=1)
        return c.emit("sigmoid", scores)
    one = like(c, 1, scores)
    other = c.emit("negative", scores) if mirrored else c.emit("subtract", one, scores)
    return c.emit("concat", other, scores, axis=1)


def _softmax_zero(c: NodeContext, scores: str) -> str:
    """Softmax that leaves zeros zero: they count neither in the sum nor as exp(0)."""
    most = c.emit("max", scores, axis=(-1,), keepdims=True)
    near = c.emit("less_equal", c.emit("abs", scores), like(c, _NEARLY_ZERO, scores))
    power = c.emit("exp", c.emit("subtract", scores, most))
    zero = like(c, 0, scores)
    total = c.emit("sum", c.emit("where", near, zero, power), axis=(-1,), keepdims=True)
    small = c.emit("multiply", scores, c.emit("exp", c.emit("negative", most)))
    return c.emit("divide", c.emit("where", near, small, power), total)


def _probit(c: NodeContext, scores: str) -> str:
    """sqrt(2) * erfinv(2 s - 1), by Winitzki's formula as ONNX Runtime has it."""
    x = c.emit("subtract", c.emit("multiply", scores, like(c, 2, scores)), like(c, 1, scores))
    one = like(c, 1, scores)
    log = c.emit("log", c.emit("multiply", c.emit("subtract", one, x), c.emit("add", one, x)))
    half = c.emit("multiply", log, like(c, 0.5, log))
    v = c.emit("add", half, like(c, 2 / (math.pi * _WINITZKI), log))
    rest = c.emit("multiply", log, like(c, 1 / _WINITZKI, log))
    root = c.emit("sqrt", c.emit("subtract", c.emit("square", v), rest))
    size = c.emit("sqrt", c.emit("subtract", root, v))
    sign = c.emit("where", c.emit("less", x, like(c, 0, x)), like(c, -1, x), one)
    return c.emit("multiply", c.emit("multiply", sign, size), like(c, math.sqrt(2), size))
