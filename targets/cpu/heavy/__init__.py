"""Heavy operators with constant weights: packed forms that the schedules turn into fast kernels."""

from hcomp.targets.cpu.heavy.conv import emit_conv
from hcomp.targets.cpu.heavy.conv_transpose import emit_conv_transpose
from hcomp.targets.cpu.heavy.matmul import emit_matmul
from hcomp.targets.cpu.heavy.matmul_int8 import emit_matmul_int8
from hcomp.targets.cpu.heavy.recurrent import Recurrence, emit_gru, emit_lstm, emit_rnn

__all__ = [
    "Recurrence",
    "emit_conv",
    "emit_conv_transpose",
    "emit_gru",
    "emit_lstm",
    "emit_matmul",
    "emit_matmul_int8",
    "emit_rnn",
]
