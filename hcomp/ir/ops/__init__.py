"""The operator table: one row an operator, in Relax's names where Relax has the operator."""

from hcomp.ir.ops.attention import ATTENTION
from hcomp.ir.ops.control import CONTROL, UNTYPED
from hcomp.ir.ops.core import REQUIRED, Infer, Op, TypeRuleError
from hcomp.ir.ops.elementwise import ELEMENTWISE
from hcomp.ir.ops.host import HOST
from hcomp.ir.ops.host_onnx import HOST_ONNX
from hcomp.ir.ops.index import INDEX
from hcomp.ir.ops.linear import LINEAR
from hcomp.ir.ops.ml import ML
from hcomp.ir.ops.reduce import REDUCE
from hcomp.ir.ops.shape import SHAPE
from hcomp.ir.ops.vision import VISION

_ROWS = (*ELEMENTWISE, *SHAPE, *REDUCE, *LINEAR, *ATTENTION, *INDEX, *HOST, *HOST_ONNX, *VISION, *ML)

OPS: dict[str, Op] = {op.name: op for op in _ROWS}

__all__ = ["CONTROL", "OPS", "REQUIRED", "UNTYPED", "Infer", "Op", "TypeRuleError"]
