"""The converters of ONNX operators: one row an operator, (domain, operator) -> converter."""

from hcomp.capture.context import Converter
from hcomp.capture.onnx_ops.control import CONTROL
from hcomp.capture.onnx_ops.math import MATH
from hcomp.capture.onnx_ops.quantize import QUANTIZE
from hcomp.capture.onnx_ops.quantized_linear import QUANTIZED_LINEAR
from hcomp.capture.onnx_ops.recurrent import RECURRENT
from hcomp.capture.onnx_ops.resize import RESIZE

CONVERTERS: dict[tuple[str, str], Converter] = {
    **{("", op): convert for table in (MATH, CONTROL, QUANTIZE, QUANTIZED_LINEAR, RECURRENT, RESIZE) for op, convert in table.items()},
}
