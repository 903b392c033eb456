"""The com.microsoft operators that exporters and ONNX Runtime's optimizers emit."""

from hcomp.capture.context import Converter
from hcomp.capture.onnx_ops.contrib_alias import ALIASES
from hcomp.capture.onnx_ops.contrib_attention import CONTRIB_ATTENTION
from hcomp.capture.onnx_ops.contrib_fused import FUSED
from hcomp.capture.onnx_ops.contrib_group_query import GROUP_QUERY
from hcomp.capture.onnx_ops.contrib_nbits import NBITS
from hcomp.capture.onnx_ops.contrib_norm import CONTRIB_NORM
from hcomp.capture.onnx_ops.contrib_qlinear import QLINEAR
from hcomp.capture.onnx_ops.contrib_quantized_matmul import QUANTIZED_MATMUL
from hcomp.capture.onnx_ops.contrib_recurrent import CONTRIB_RECURRENT

CONTRIB: dict[str, Converter] = {
    **ALIASES,
    **CONTRIB_ATTENTION,
    **FUSED,
    **GROUP_QUERY,
    **NBITS,
    **CONTRIB_NORM,
    **QLINEAR,
    **QUANTIZED_MATMUL,
    **CONTRIB_RECURRENT,
}
