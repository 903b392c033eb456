"""Which products of dequantised tensors are faster in integers."""

from __future__ import annotations

import numpy as np

from hcomp.ir.graph import Node
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.conv_int8 import conv_is_faster_in_bytes
from hcomp.targets.cpu.heavy.matmul_int8 import takes_pairs


def is_faster_in_bytes(node: Node, weight: np.ndarray, cpu: CpuFeatures) -> bool:
    """Say whether a convolution (channels first) or product with a weight of bytes is faster in integers."""
    if node.op == "matmul":
        return weight.ndim == 2 and 0 not in weight.shape and takes_pairs(weight, cpu)
    made = node.outputs[0].type
    assert isinstance(made, TensorType)
    sizes = [size if isinstance(size, int) else None for size in (made.shape or ())[2:]]
    return conv_is_faster_in_bytes(weight, node.attrs, sizes, cpu)
