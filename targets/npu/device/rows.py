"""The vector unit's operations on whole rows: reductions, softmax, norms, rotary embedding, compressed blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.targets.npu.device.formats import Floats
from hcomp.targets.npu.device.functions import F, exp, tree_sum
from hcomp.targets.npu.device.isa import block_bytes


def reduce(op: str, x: Floats, scale: np.float32) -> Floats:
    """Return rows [..., n] reduced to [...], times `scale`; of a dot, the rows are the products."""
    match op:
        case "sum" | "dot":
            found = tree_sum(x)
        case "sum_square":
            found = tree_sum(x * x)
        case "amax":
            found = x.max(-1)
        case "amin":
            found = x.min(-1)
        case _:
            found = np.abs(x).max(-1)
    return found * scale


def softmax(x: Floats, mask: Floats, scale: np.float32) -> Floats:
    """Return e^(y - max y) / sum of these along the last axis, for y = x * scale + mask."""
    y = x * scale + mask
    result = exp(y - y.max(-1, keepdims=True))
    result /= tree_sum(result)[..., None]
    return result


def layer_norm(x: Floats, gamma: Floats, beta: Floats, epsilon: np.float32) -> Floats:
    """Return (x - mean) / sqrt(variance + epsilon) * gamma + beta along the last axis."""
    share = F(1) / F(x.shape[-1])
    centred = x - (tree_sum(x) * share)[..., None]
    variance = tree_sum(centred * centred) * share
    factor = F(1) / np.sqrt(variance + epsilon)
    result: Floats = (centred * factor[..., None]) * gamma + beta
    return result


def rms_norm(x: Floats, gamma: Floats, epsilon: np.float32) -> Floats:
    """Return x / sqrt(mean of squares + epsilon) * gamma along the last axis."""
    share = F(1) / F(x.shape[-1])
    factor = F(1) / np.sqrt(tree_sum(x * x) * share + epsilon)
    result: Floats = (x * factor[..., None]) * gamma
    return result


def rope(x: Floats, cosine: Floats, sine: Floats, interleaved: bool) -> Floats:
    """Return the pairs of the last axis turned: (p, q) -> (p cos - q sin, q cos + p sin).

    Interleaved pairs are neighbours; the others are number i of each half.
    """
    half = x.shape[-1] // 2
    p, q = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = p * cosine - q * sine, q * cosine + p * sine
    if interleaved:
        return np.stack(turned, axis=-1).reshape(x.shape)
    return np.concatenate(turned, axis=-1)


def compress(x: Floats, bits: int, block: int) -> NDArray[np.uint8]:
    """Return rows of numbers as blocks of bytes: a float16 scale, then `block` integers of `bits` bits."""
    blocks = -(-x.shape[-1] // block)
    filled = np.zeros((*x.shape[:-1], blocks * block), np.float32)
    filled[..., : x.shape[-1]] = x
    filled = filled.reshape(*x.shape[:-1], blocks, block)
    most = F((1 << (bits - 1)) - 1)
    scale = (np.abs(filled).max(-1) / most).astype("<f2")
    wide = scale.astype(np.float32)[..., None]
    levels = np.where(wide == 0, F(0), np.clip(np.rint(filled / wide), -most, most))
    q: NDArray[Any] = np.nan_to_num(levels, nan=0.0).astype(np.int8).view(np.uint8)
    if bits == 4:
        q = (q[..., 0::2] & 15) | (q[..., 1::2] << 4)
    result = np.empty((*x.shape[:-1], blocks, block_bytes(bits, block)), np.uint8)
    result[..., :2] = scale[..., None].view(np.uint8)
    result[..., 2:] = q
    return result.reshape(*x.shape[:-1], -1)


def expand(packed: NDArray[Any], columns: int, bits: int, block: int) -> Floats:
    """Return what `compress` made of rows of `columns` numbers: scale times integer."""
    size = block_bytes(bits, block)
    blocks = np.ascontiguousarray(packed).reshape(*packed.shape[:-1], -1, size)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    q: NDArray[Any]
    if bits == 4:
        pairs = np.stack((blocks[..., 2:] << 4, blocks[..., 2:] & 0xF0), axis=-1).view(np.int8) >> 4
        q = pairs.reshape(*blocks.shape[:-1], block)
    else:
        q = blocks[..., 2:].view(np.int8)
    values = q.astype(np.float32) * scale
    return values.reshape(*packed.shape[:-1], -1)[..., :columns]
