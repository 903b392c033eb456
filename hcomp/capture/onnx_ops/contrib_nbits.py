"""com.microsoft.MatMulNBits: weights of 2, 4 or 8 bits in blocks, unpacked when compiling."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.capture.context import Converter, NodeContext


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


NBITS: dict[str, Converter] = {"MatMulNBits": _matmul_nbits}
