"""Losses: NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like, wide


def _likelihood(c: NodeContext, scores: str) -> str:
    """Return minus the score of the target class, weighted, then summed or averaged.

    Targets equal to ignore_index count nothing, neither in the sum nor in the mean's divisor.
    """
    reduction, ignored = c.attr("reduction", "mean"), c.attr("ignore_index")
    if reduction not in ("none", "sum", "mean"):
        raise c.refuse(f"its reduction {reduction!r} is none of none, sum, mean")
    target = c.cast(1, "int64")
    shape = c.shape(target)
    kept = ""
    if ignored is not None:
        kept = c.emit("not_equal", target, like(c, ignored, target))
        target = c.emit("where", kept, target, like(c, 0, target))
    spread = c.reshape(target, (shape[0], 1, *shape[1:]))
    picked = c.reshape(c.emit("gather_elements", scores, spread, axis=1), shape)
    loss = c.emit("negative", picked)
    weight = ""
    if c.has(2):
        weight = c.emit("take", c.cast(wide(c, 2), c.dtype(loss)), target, axis=0)
    if kept:
        ones = weight or like(c, 1, loss)
        weight = c.emit("where", kept, ones, like(c, 0, loss))
    if weight:
        loss = c.emit("multiply", loss, weight)
    if reduction == "none":
        return loss
    if reduction == "mean" and not weight:
        return c.emit("mean", loss)
    total = c.emit("sum", loss)
    return total if reduction == "sum" else c.emit("divide", total, c.emit("sum", weight))


def _negative_log_likelihood(c: NodeContext) -> str:
    return c.cast(_likelihood(c, wide(c, 0)), c.dtype(0))


def _softmax_cross_entropy(c: NodeContext) -> Sequence[str]:
    """SoftmaxCrossEntropyLoss: the second output is the logarithm of the probabilities."""
    logs = c.emit("log_softmax", wide(c, 0), axis=1)
    return [c.cast(_likelihood(c, logs), c.dtype(0)), c.cast(logs, c.dtype(0))]


LOSS: dict[str, Converter] = {
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
}
