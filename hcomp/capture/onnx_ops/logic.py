"""Comparisons, boolean operators, choice by condition."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import binary, refuse_text, unary


def _where(c: NodeContext) -> str:
    refuse_text(c)
    return c.emit("where", 0, 1, 2)


def _isinf(c: NodeContext) -> str:
    return c.emit(
        "isinf",
        0,
        negative=bool(c.attr("detect_negative", 1)),
        positive=bool(c.attr("detect_positive", 1)),
    )


LOGIC: dict[str, Converter] = {
    "Equal": binary("equal"),
    "Less": binary("less"),
    "LessOrEqual": binary("less_equal"),
    "Greater": binary("greater"),
    "GreaterOrEqual": binary("greater_equal"),
    "And": binary("logical_and"),
    "Or": binary("logical_or"),
    "Xor": binary("logical_xor"),
    "Not": unary("logical_not"),
    "IsNaN": unary("isnan"),
    "IsInf": _isinf,
    "Where": _where,
}
