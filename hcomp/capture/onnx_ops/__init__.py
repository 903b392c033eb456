"""The converters of ONNX operators: one row an operator, (domain, operator) -> converter."""

from hcomp.capture.context import Converter
from hcomp.capture.onnx_ops.attention import ATTENTION
from hcomp.capture.onnx_ops.attention_linear import ATTENTION_LINEAR
from hcomp.capture.onnx_ops.cast import CAST
from hcomp.capture.onnx_ops.contrib_norm import STANDARD_NORM
from hcomp.capture.onnx_ops.contrib_table import CONTRIB
from hcomp.capture.onnx_ops.control import CONTROL
from hcomp.capture.onnx_ops.control_if import BRANCHES
from hcomp.capture.onnx_ops.control_scan import SCANS
from hcomp.capture.onnx_ops.conv import CONV
from hcomp.capture.onnx_ops.creation import CREATION
from hcomp.capture.onnx_ops.detection import DETECTION
from hcomp.capture.onnx_ops.gather import GATHER
from hcomp.capture.onnx_ops.linear import LINEAR
from hcomp.capture.onnx_ops.logic import LOGIC
from hcomp.capture.onnx_ops.math import MATH
from hcomp.capture.onnx_ops.math_activation import ACTIVATIONS
from hcomp.capture.onnx_ops.ml import ML
from hcomp.capture.onnx_ops.norm import NORM
from hcomp.capture.onnx_ops.pool import POOL
from hcomp.capture.onnx_ops.quantize import QUANTIZE
from hcomp.capture.onnx_ops.quantized_linear import QUANTIZED_LINEAR
from hcomp.capture.onnx_ops.random import RANDOM
from hcomp.capture.onnx_ops.recurrent import RECURRENT
from hcomp.capture.onnx_ops.reduce import REDUCE
from hcomp.capture.onnx_ops.reduce_loss import LOSS
from hcomp.capture.onnx_ops.reduce_scan import SCAN
from hcomp.capture.onnx_ops.resize import RESIZE
from hcomp.capture.onnx_ops.rotary import ROTARY
from hcomp.capture.onnx_ops.sequence import SEQUENCE
from hcomp.capture.onnx_ops.shape import SHAPE
from hcomp.capture.onnx_ops.shape_pad import PAD
from hcomp.capture.onnx_ops.shape_parts import PARTS
from hcomp.capture.onnx_ops.signal import SIGNAL
from hcomp.capture.onnx_ops.text import TEXT
from hcomp.capture.onnx_ops.training import TRAINING
from hcomp.capture.onnx_ops.vision import VISION

_STANDARD = (
    ATTENTION,
    ATTENTION_LINEAR,
    CAST,
    STANDARD_NORM,
    CONTROL,
    BRANCHES,
    SCANS,
    SEQUENCE,
    CONV,
    CREATION,
    GATHER,
    LINEAR,
    LOGIC,
    MATH,
    ACTIVATIONS,
    NORM,
    POOL,
    QUANTIZE,
    QUANTIZED_LINEAR,
    RECURRENT,
    REDUCE,
    LOSS,
    SCAN,
    RESIZE,
    ROTARY,
    SHAPE,
    PAD,
    PARTS,
    DETECTION,
    RANDOM,
    SIGNAL,
    TEXT,
    VISION,
)

CONVERTERS: dict[tuple[str, str], Converter] = {
    **{("", op): convert for table in _STANDARD for op, convert in table.items()},
    **{("com.microsoft", op): convert for op, convert in CONTRIB.items()},
    **{("ai.onnx.ml", op): convert for op, convert in ML.items()},
    **{("ai.onnx.preview.training", op): convert for op, convert in TRAINING.items()},
}
