"""Heavy operators with constant weights: packed forms that the schedules turn into fast kernels."""

from hcomp.targets.cpu.heavy.conv import emit_conv
from hcomp.targets.cpu.heavy.matmul import emit_matmul

__all__ = ["emit_conv", "emit_matmul"]
