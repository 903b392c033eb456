"""com.microsoft Attention, QAttention and MultiHeadAttention, with all of the CPU kernel's masks.

A padding mask is finite: what a query must not see gets `mask_filter_value` (-10000) added. The
causal mask excludes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.attention_core import (
    Bias,
    attend,
    default_scale,
    distances,
    merge_heads,
    positions,
    split_heads,
    within_length,
)
from hcomp.capture.onnx_ops.contrib_quantized_matmul import scaled
from hcomp.capture.onnx_ops.quantize import per_tensor
from hcomp.capture.onnx_ops.quantized_linear import column_zero, integer_matmul
from hcomp.dims import DimLike

FILTER = -10000.0


def _penalty(c: NodeContext, allowed: str, value: float, dtype: str) -> str:
    """Return 0 where `allowed` holds, else `value`."""
    return c.emit("where", allowed, c.scalar(0, dtype), c.scalar(value, dtype))


def padding(c: NodeContext, index: int, batch: DimLike, keys: DimLike) -> str:
    """Return bool, broadcasting with [B, H, S, T]: the keys that the mask in input `index` shows.

    [B] holds the end of each row, [2B] ends then starts; [B, T] and [B, S, T] hold 1 where visible.
    """
    shape = c.shape(index)
    if len(shape) in (2, 3):
        visible = c.emit("greater", index, c.scalar(0, c.dtype(index)))
        return c.emit("expand_dims", visible, axis=(1, 2) if len(shape) == 2 else (1,))
    if len(shape) != 1:
        raise c.refuse(f"its mask has rank {len(shape)}, which the CPU kernel does not know either")
    lengths = c.cast(index, "int64")
    if shape == (batch,):
        return within_length(c, lengths, keys)
    if shape == (2 * batch,):
        ends, starts = c.emit_many("split", lengths, sizes=(batch, batch), axis=0)
        begun = c.emit("greater_equal", positions(c, keys), c.emit("expand_dims", starts, axis=(1, 2, 3)))
        return c.emit("logical_and", within_length(c, ends, keys), begun)
    raise c.refuse(f"its mask of {shape[0]} numbers is of a kind that hcomp does not read")


def bias_of(
    c: NodeContext, q: str, k: str, *, mask: int, added: int, past: DimLike, filtered: float, causal: bool
) -> Bias:  # fmt: skip
    """Return the bias from the mask and the added bias in those inputs (0: the operator has none)."""
    dtype, (batch, _, queries, _), keys = c.dtype(q), c.shape(q), c.shape(k)[2]
    bias = Bias()
    if c.has(mask):
        shown = padding(c, mask, batch, keys)
        bias = bias.plus(c, _penalty(c, shown, filtered, dtype), finite=True)
    if causal and queries != 1:
        ahead = distances(c, queries, keys, past)
        seen = c.emit("greater_equal", ahead, c.scalar(0, "int64"))
        bias = bias.restricted(c, seen, leaves_one=True)
    if added and c.has(added):
        # ONNX Runtime gives no zeros to a row of -inf: what it gives there is not a number.
        bias = bias.plus(c, c.input(added), finite=True)
    return bias


def _parts(c: NodeContext, x: str, sizes: Sequence[int], axis: int) -> tuple[str, ...]:
    return c.emit_many("split", x, sizes=tuple(sizes), axis=axis)


# -- Attention ----------------------------------------------------------------------------------
def _hidden_sizes(c: NodeContext, width: DimLike) -> tuple[int, int, int]:
    given = c.attr("qkv_hidden_sizes")
    if given:
        return int(given[0]), int(given[1]), int(given[2])
    if not isinstance(width, int) or width % 3:
        raise c.refuse(f"its weights of {width} columns do not split into three")
    return (width // 3,) * 3


def _merged(c: NodeContext, projected: str, *, mask: int, past: int, added: int) -> Sequence[str]:
    """Return the outputs of Attention from input @ weights + bias, [B, S, Q + K + V]."""
    heads, filtered = c.required("num_heads"), float(c.attr("mask_filter_value", FILTER))
    causal, scale = bool(c.attr("unidirectional", 0)), float(c.attr("scale", 0.0))
    c.ignore("rotary_embedding_dim")  # of no effect without do_rotary
    if c.attr("do_rotary", 0) or c.attr("past_present_share_buffer", 0):
        raise c.refuse("it rotates, or shares its cache with its caller")
    parts = _parts(c, projected, _hidden_sizes(c, c.shape(projected)[2]), 2)
    q, k, v = (split_heads(c, part, heads) for part in parts)
    length: DimLike = 0
    if c.has(past):
        length = c.shape(past)[3]
        old = [c.emit("squeeze", half, axis=(0,)) for half in _parts(c, c.input(past), (1, 1), 0)]
        k, v = (c.emit("concat", a, b, axis=2) for a, b in zip(old, (k, v), strict=True))
    bias = bias_of(c, q, k, mask=mask, added=added, past=length, filtered=filtered, causal=causal)
    done = attend(c, q, k, v, bias, scale or default_scale(c, c.shape(q)[3]))
    if not c.wants(1):
        return (merge_heads(c, done.y),)
    both = [c.emit("expand_dims", x, axis=(0,)) for x in (k, v)]
    return merge_heads(c, done.y), c.emit("concat", *both, axis=0)


def _attention(c: NodeContext) -> Sequence[str]:
    if c.has(6):
        raise c.refuse("it shares its cache with its caller")
    projected = c.emit("matmul", 0, 1)
    if c.has(2):
        projected = c.emit("add", projected, 2)
    return _merged(c, projected, mask=3, past=4, added=5)


def _quantized_attention(c: NodeContext) -> Sequence[str]:
    """The projection is a product of 8-bit integers, the rest is float32."""
    x_zero, w_zero = per_tensor(c, c.optional(6)), column_zero(c, c.optional(7))
    total = integer_matmul(c, c.input(0), c.input(1), x_zero, w_zero)
    projected = scaled(c, total, per_tensor(c, c.input(3)), column_zero(c, c.input(4)))
    return _merged(c, c.emit("add", projected, 2), mask=5, past=8, added=0)


# -- MultiHeadAttention ---------------------------------------------------------------------------
def _multi_head(c: NodeContext) -> Sequence[str]:
    heads, filtered = c.required("num_heads"), float(c.attr("mask_filter_value", FILTER))
    causal, scale = bool(c.attr("unidirectional", 0)), float(c.attr("scale", 0.0))
    if c.has(8) or c.has(9):
        raise c.refuse("it shares its cache with its caller, or searches with beams")
    q, k, v = _inputs(c, heads)
    past: DimLike = 0
    if c.has(6):
        past = c.shape(6)[2]
        k, v = c.emit("concat", 6, k, axis=2), c.emit("concat", 7, v, axis=2)
    bias = bias_of(c, q, k, mask=4, added=5, past=past, filtered=filtered, causal=causal)
    done = attend(c, q, k, v, bias, scale or default_scale(c, c.shape(q)[3]))
    return merge_heads(c, done.y), k, v, done.biased


def _inputs(c: NodeContext, heads: int) -> tuple[str, str, str]:
    """Return q, k and v as [B, H, S, D], however they are packed, with their biases."""
    if c.rank(0) == 5:  # [B, S, H, 3, D]
        flat = [_flat(c, part) for part in _parts(c, c.input(0), (1, 1, 1), 3)]
    elif not c.has(1):
        raise c.refuse("it has no key")
    elif c.rank(1) == 5:  # [B, L, H, 2, D]
        flat = [c.input(0), *(_flat(c, part) for part in _parts(c, c.input(1), (1, 1), 3))]
    else:
        flat = [c.input(0), c.input(1), c.input(2)]
    biases = _biases(c, flat, heads)
    ready = []
    for value, bias in zip(flat, biases, strict=True):
        if c.rank(value) == 4:  # a cache: [B, H, L, D] already, its bias added before
            ready.append(value)
            continue
        ready.append(split_heads(c, c.emit("add", value, bias) if bias else value, heads))
    return ready[0], ready[1], ready[2]


def _flat(c: NodeContext, part: str) -> str:
    """Return [B, S, H, 1, D] as [B, S, H * D]."""
    batch, length, heads, _, size = c.shape(part)
    return c.reshape(part, (batch, length, heads * size))


def _width(c: NodeContext, value: str, heads: int) -> int:
    width = heads * c.shape(value)[3] if c.rank(value) == 4 else c.shape(value)[2]
    if not isinstance(width, int):
        raise c.refuse("its hidden size is known only at run time")
    return width


def _biases(c: NodeContext, values: Sequence[str], heads: int) -> Sequence[str]:
    if not c.has(3):
        return ("", "", "")
    return _parts(c, c.input(3), [_width(c, v, heads) for v in values], 0)


CONTRIB_ATTENTION: dict[str, Converter] = {
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head,
}
