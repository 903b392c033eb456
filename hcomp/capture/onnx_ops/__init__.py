"""The converters of ONNX operators: one row an operator, (domain, operator) -> converter."""

from hcomp.capture.context import Converter
from hcomp.capture.onnx_ops.math import MATH

CONVERTERS: dict[tuple[str, str], Converter] = {
    **{("", op): convert for table in (MATH,) for op, convert in table.items()},
}
