"""com.microsoft MatMulNBits and GatherBlockQuantized: tables of 2, 4 or 8 bits in blocks.

They are unpacked when compiling; scaling them is left to the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.quantize import along_axis, dequantized


def unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the `bits`-wide numbers in the last axis of `packed`, lowest bits first."""
    each, mask = 8 // bits, (1 << bits) - 1
    parts = [(packed >> (bits * i)) & mask for i in range(each)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], packed.shape[-1] * each)


def _matmul_nbits(c: NodeContext) -> str:
    columns, depth = c.required("N"), c.required("K")
    bits, block = c.attr("bits", 4), c.required("block_size")
    c.ignore("accuracy_level")  # how much precision may be given up; none is here
    if bits not in (2, 4, 8) or c.attr("weight_prepacked", 0):
        raise c.refuse(f"its weights of {bits} bits are packed in a way that hcomp does not read")
    if c.has(4):
        raise c.refuse("it orders its groups by g_idx")
    packed = c.const(1)
    if packed is None:
        raise c.refuse("its weights are known only at run time")
    blocks = -(-depth // block)
    values = unpacked(packed.astype(np.uint8).reshape(columns, blocks, -1), bits)
    weight = c.tensor(values, "uint8")
    zero = _zero_points(c, columns, blocks, bits)
    wide = c.emit("subtract", c.cast(weight, "float32"), zero)
    scale = c.cast(c.reshape(2, (columns, blocks, 1)), "float32")
    wide = c.reshape(c.emit("multiply", wide, scale), (columns, blocks * block))
    if blocks * block != depth:
        wide = c.emit("strided_slice", wide, axes=(1,), begin=(0,), size=(depth,), strides=(1,))
    right = c.emit("permute_dims", wide, axes=(1, 0))
    y = c.emit("matmul", c.cast(0, "float32"), right)
    if c.has(5):
        y = c.emit("add", y, c.cast(5, "float32"))
    return c.cast(y, c.dtype(0))


def _zero_points(c: NodeContext, columns: int, blocks: int, bits: int) -> str:
    """Return the zero points as float32 [N, blocks, 1], or one number."""
    if not c.has(3):
        return c.scalar(1 << (bits - 1), "float32")
    if c.dtype(3) != "uint8":
        return c.cast(c.reshape(3, (columns, blocks, 1)), "float32")
    packed: NDArray[Any] | None = c.const(3)
    if packed is None:
        raise c.refuse("its zero points are known only at run time")
    numbers = unpacked(packed.reshape(columns, -1), bits)[:, :blocks]
    return c.tensor(numbers.reshape(columns, blocks, 1), "float32")


def _gather_blocks(c: NodeContext) -> str:
    """Rows of a table, taken and then scaled: each block of the last axis has a scale of its own."""
    bits, block, rank = c.attr("bits", 4), c.attr("block_size", 128), c.rank(0)
    if c.axis(c.attr("gather_axis", 0)) != 0 or c.axis(c.attr("quantize_axis", 1)) != rank - 1:
        raise c.refuse("it does not take rows of a table whose last axis is quantised")
    packed = c.dtype(0) == "uint8"
    if packed and bits not in (4, 8):
        raise c.refuse(f"its table of {bits} bits is packed in a way that hcomp does not read")
    table = _unpacked_table(c, 0, bits) if packed else c.input(0)
    rows = c.emit("take", table, 1, axis=0)
    axis = c.rank(rows) - 1
    scale = along_axis(c, c.emit("take", 2, 1, axis=0), rows, axis, block)
    zero = ""
    if c.has(3):
        zeros = _unpacked_table(c, 3, bits) if packed else c.input(3)
        if c.shape(zeros)[-1] != c.shape(2)[-1]:
            zeros = c.emit("strided_slice", zeros, axes=(rank - 1,), begin=(0,), size=(c.shape(2)[-1],), strides=(1,))
        zero = along_axis(c, c.emit("take", zeros, 1, axis=0), rows, axis, block)
    elif packed:
        zero = c.scalar(1 << (bits - 1), "uint8")
    return c.cast(dequantized(c, rows, scale, zero), c.dtype(2))


def _unpacked_table(c: NodeContext, index: int, bits: int) -> str:
    data = c.const(index)
    if data is None:
        raise c.refuse("its table is known only at run time")
    return c.tensor(unpacked(data.astype(np.uint8), bits), "uint8")


NBITS: dict[str, Converter] = {
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_blocks,
}
