"""com.microsoft operators that were the standard's before the standard had them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.creation import CREATION
from hcomp.capture.onnx_ops.gather import GATHER
from hcomp.capture.onnx_ops.quantize import QUANTIZE
from hcomp.capture.onnx_ops.quantized_linear import QUANTIZED_LINEAR
from hcomp.capture.onnx_ops.shape_pad import PAD
from hcomp.capture.onnx_ops.vision import VISION


def _as_of(convert: Converter, opset: int) -> Converter:
    """Return a converter of the standard that reads the node as of one of the standard's versions."""

    def alias(c: NodeContext) -> str | Sequence[str]:
        standard = copy.copy(c)
        standard.opset = opset
        return convert(standard)

    return alias


def _range(c: NodeContext) -> str | Sequence[str]:
    """Range, whose step may be absent: 1."""
    standard = copy.copy(c)
    step = c.optional(2) or c.scalar(1, c.dtype(0))
    standard.inputs = (c.input(0), c.input(1), step)
    standard.opset = 11
    return CREATION["Range"](standard)


def _unique(c: NodeContext) -> Sequence[str]:
    """Values in the order of their first occurrence, where each element went, and the counts."""
    values, _, inverse, counts = c.emit_many("unique", 0, axis=None, sorted=False)
    return values, inverse, counts


def _matmul_integer_16(c: NodeContext) -> str:
    return c.emit("matmul", 0, 1, out_dtype="int32")


ALIASES: dict[str, Converter] = {
    "QuantizeLinear": _as_of(QUANTIZE["QuantizeLinear"], 21),
    "DequantizeLinear": _as_of(QUANTIZE["DequantizeLinear"], 21),
    "QLinearConv": _as_of(QUANTIZED_LINEAR["QLinearConv"], 10),
    "Trilu": _as_of(PAD["Trilu"], 14),
    "Pad": _as_of(PAD["Pad"], 11),
    "GatherND": _as_of(GATHER["GatherND"], 11),
    "GridSample": _as_of(VISION["GridSample"], 16),
    "Range": _range,
    "Unique": _unique,
    "MatMulInteger16": _matmul_integer_16,
}
