"""com.microsoft GroupQueryAttention and RotaryEmbedding: the attention of exported language models.

Each row of the batch may have its own number of cached tokens: `seqlens_k` says how many keys a
row has in the end, less one; its new keys go right behind the old ones, and what is behind is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.attention_core import (
    Bias,
    at_least,
    at_most,
    attend,
    default_scale,
    distances,
    merge_heads,
    positions,
)
from hcomp.capture.onnx_ops.rotary import even_size, rotate
from hcomp.dims import DimLike, dim_max

PLAIN = {
    "causal": 1, "sliding_window_cache": 0, "kv_cache_bit_width": 0, "qk_output": 0,
    "k_quant_type": "NONE", "v_quant_type": "NONE",
}  # fmt: skip
"""Attributes of newer forms of the operator, and the values that mean none of them."""


@dataclass(frozen=True)
class Cache:
    """Where the new tokens stand.

    Attributes:
        past: int64 [B], how many old keys a row has; "" is none, for all rows.
        first: bool [], whether this is the first prompt; "" is certainly.
        keys: how many keys the present cache holds.
    """

    past: str
    first: str
    keys: DimLike


def _group_query(c: NodeContext) -> Sequence[str]:
    heads, groups = c.required("num_heads"), c.required("kv_num_heads")
    scale, softcap = float(c.attr("scale", 0.0)), float(c.attr("softcap", 0.0))
    window, smooth = c.attr("local_window_size", -1), bool(c.attr("smooth_softmax", 0))
    rotary, interleaved = bool(c.attr("do_rotary", 0)), bool(c.attr("rotary_interleaved", 0))
    _only_plain(c)
    q, k, v = _inputs(c, heads, groups)
    cache = _cache(c)
    if rotary:
        where = _positions(c, cache, c.shape(q)[1])
        q, k = (_turned(c, x, where, interleaved) for x in (q, k))
    q, k, v = (c.emit("permute_dims", x, axes=(0, 2, 1, 3)) for x in (q, k, v))
    k, v = _present(c, k, 3, cache), _present(c, v, 4, cache)
    sink = c.optional(11)
    if smooth and not sink:
        sink = c.tensor([0.0] * heads, c.dtype(0))
    bias = _bias(c, cache, c.shape(q)[2], window)
    done = attend(
        c, q, k, v, bias, scale or default_scale(c, c.shape(q)[3]), softcap=softcap,
        precision="float32", sink=sink,
    )  # fmt: skip
    return merge_heads(c, done.y), k, v


def _only_plain(c: NodeContext) -> None:
    for name, value in PLAIN.items():
        if c.attr(name, value) != value:
            raise c.refuse(f"its attribute {name!r} has no lowering")
    c.ignore("q_norm_epsilon", "k_norm_epsilon", "qk_norm_epsilon")  # of the inputs refused here
    for index in range(12, 17):
        if c.has(index):
            raise c.refuse(f"its input {index} (scales, norms or query lengths) has no lowering")


def _inputs(c: NodeContext, heads: int, groups: int) -> tuple[str, str, str]:
    """Return q [B, S, H, D], k and v [B, S, G, D]."""
    width = c.shape(0)[2]
    if c.has(1):
        flat = [c.input(0), c.input(1), c.input(2)]
    else:
        if not isinstance(width, int):
            raise c.refuse("its packed width is known only at run time")
        size = width // (heads + 2 * groups)
        flat = list(c.emit_many("split", 0, sizes=(heads * size, groups * size, groups * size), axis=2))
    counts = (heads, groups, groups)
    q, k, v = (c.reshape(x, (*c.shape(x)[:2], n, c.shape(x)[2] // n)) for x, n in zip(flat, counts, strict=True))
    return q, k, v


def _cache(c: NodeContext) -> Cache:
    length = c.shape(0)[1]
    if not c.has(3):
        return Cache("", "", length)
    known = c.known(6)
    if known is None:
        raise c.refuse("its total_sequence_length comes at run time, not from a size")
    total = known[0]
    keys = dim_max(total, c.shape(3)[2])
    if total == length:
        return Cache("", "", keys)
    ends = c.emit("add", c.cast(5, "int64"), c.scalar(1, "int64"))
    past = c.emit("subtract", ends, c.b.shape_value([length], scalar=True))
    first = c.emit("equal", c.b.shape_value([length], scalar=True), c.b.shape_value([total], scalar=True))
    return Cache(c.emit("where", first, c.scalar(0, "int64"), past), first, keys)


def _positions(c: NodeContext, cache: Cache, length: DimLike) -> str:
    """Return the place of each token, int64 [B, S] or [1, S]."""
    step = c.emit("expand_dims", positions(c, length), axis=(0,))
    if c.has(9):
        begin = c.emit("strided_slice", 9, axes=(0, 1), begin=(0, 0), size=(1, 1), strides=(1, 1))
        counted = c.emit("add", begin, step)
        return c.emit("where", cache.first, counted, c.input(9)) if cache.first else counted
    if not cache.past:
        return step
    return c.emit("add", c.emit("expand_dims", cache.past, axis=(1,)), step)


def _turned(c: NodeContext, x: str, where: str, interleaved: bool) -> str:
    """Return x [B, S, H, D] rotated by the caches in inputs 7 and 8."""
    cos, sin = (c.emit("expand_dims", c.emit("take", i, where, axis=0), axis=(2,)) for i in (7, 8))
    half = c.shape(7)[1]
    size = even_size(c, 2 * half if isinstance(half, int) else 0, c.shape(x)[3])
    return rotate(c, x, cos, sin, size, interleaved=interleaved)


def _present(c: NodeContext, new: str, index: int, cache: Cache) -> str:
    """Return the cache [B, G, keys, D]: old keys, new keys, zeros."""
    length = c.shape(new)[2]
    if not c.has(index):
        return new
    if not cache.past:
        return _padded(c, new, cache.keys - length)
    old = c.shape(index)[2]
    # Row j of the present is old row j, or new row j - past, or the row of zeros at the end.
    rows = _padded(c, c.emit("concat", c.input(index), new, axis=2), 1)
    j = positions(c, cache.keys)
    past = c.emit("expand_dims", cache.past, axis=(1,))
    fresh = c.emit("subtract", j, past)
    inside = c.emit("less", fresh, c.b.shape_value([length], scalar=True))
    moved = c.emit("add", fresh, c.b.shape_value([old], scalar=True))
    moved = c.emit("where", inside, moved, c.b.shape_value([old + length], scalar=True))
    source = c.emit("where", c.emit("less", j, past), j, moved)
    batch, groups, _, size = c.shape(new)
    source = c.emit("expand_dims", source, axis=(1, 3))
    source = c.emit("broadcast_to", source, shape=(batch, groups, cache.keys, size))
    return c.emit("gather_elements", rows, source, axis=2)


def _padded(c: NodeContext, x: str, count: DimLike) -> str:
    if count == 0:
        return x
    return c.emit("pad", x, padding=(0, 0, 0, 0, 0, 0, count, 0), mode="constant", value=0)


def _bias(c: NodeContext, cache: Cache, length: DimLike, window: int) -> Bias:
    """A token sees itself and what is before it, at most `window` tokens back."""
    distance = distances(c, length, cache.keys, cache.past or 0)
    bias = Bias().restricted(c, at_least(c, distance, 0), leaves_one=True)
    if window > 0:
        bias = bias.restricted(c, at_most(c, distance, window - 1))
    if c.has(10):
        bias = bias.plus(c, _aligned(c, cache), finite=True)
    return Bias(bias.allowed, bias.added, leaves_one=True)


def _aligned(c: NodeContext, cache: Cache) -> str:
    """Return the bias in input 10, [., ., S, T], as wide as the present cache."""
    more = cache.keys - c.shape(10)[3]
    return _padded_last(c, c.input(10), more)


def _padded_last(c: NodeContext, x: str, count: DimLike) -> str:
    if count == 0:
        return x
    return c.emit("pad", x, padding=(0,) * 7 + (count,), mode="constant", value=0)


# -- RotaryEmbedding ------------------------------------------------------------------------------
def _rotary(c: NodeContext) -> str:
    heads, wanted = c.attr("num_heads", 0), c.attr("rotary_embedding_dim", 0)
    interleaved = bool(c.attr("interleaved", 0))
    if c.attr("scale", 1.0) != 1 or c.attr("is_packed_batching", 0):
        raise c.refuse("it scales, or packs rows of a batch that differ in length")
    half = c.shape(2)[1]
    if c.rank(0) == 4:
        x = c.emit("permute_dims", 0, axes=(0, 2, 1, 3))
    else:
        batch, length, width = c.shape(0)
        size = width // heads if heads else 2 * half
        x = c.reshape(0, (batch, length, width // size, size))
    where = c.cast(1, "int64")
    if c.rank(1) == 1:
        step = positions(c, c.shape(x)[1])
        where = c.emit("expand_dims", c.emit("add", where, step), axis=(0,))
    cos, sin = (c.emit("expand_dims", c.emit("take", i, where, axis=0), axis=(2,)) for i in (2, 3))
    whole = 2 * half if isinstance(half, int) else 0
    size = even_size(c, wanted or whole, c.shape(x)[3])
    y = rotate(c, x, cos, sin, size, interleaved=interleaved)
    return c.emit("permute_dims", y, axes=(0, 2, 1, 3)) if c.rank(0) == 4 else c.reshape(y, c.shape(0))


GROUP_QUERY: dict[str, Converter] = {
    "GroupQueryAttention": _group_query,
    "RotaryEmbedding": _rotary,
}
