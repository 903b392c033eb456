"""Scaled dot-product attention in IR operators: what all attention operators are made of.

q is [B, H, S, D], k [B, G, L, D], v [B, G, L, V]; where H is a multiple of G, each k and v head
serves H / G query heads in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hcomp.capture.context import NodeContext
from hcomp.dims import DimLike, floordiv

NARROW = ("float16", "bfloat16")
SHORT = 32
"""A bfloat16 softmax over at most so many keys sums them one by one."""


@dataclass(frozen=True)
class Bias:
    """What changes the scores before softmax, each broadcasting with [B, H, S, L]; "" is absent.

    Attributes:
        allowed: bool, the keys that a query may see.
        added: float, added to the scores.
        leaves_one: whether every query certainly sees a key.
    """

    allowed: str = ""
    added: str = ""
    leaves_one: bool = True

    def restricted(self, c: NodeContext, allowed: str, *, leaves_one: bool = False) -> Bias:
        """Return the bias with a further condition on the keys."""
        both = c.emit("logical_and", self.allowed, allowed) if self.allowed else allowed
        return Bias(both, self.added, leaves_one and not self.allowed and self.leaves_one)

    def plus(self, c: NodeContext, added: str, *, finite: bool = False) -> Bias:
        """Return the bias with a further addend; `finite`: it certainly holds no -inf."""
        both = c.emit("add", self.added, added) if self.added else added
        return Bias(self.allowed, both, finite and self.leaves_one)


@dataclass(frozen=True)
class Attended:
    """What attention gives: the output [B, H, S, V] and the stages that some operators expose."""

    y: str
    scores: str
    capped: str
    biased: str
    weights: str


def split_heads(c: NodeContext, x: str, heads: int) -> str:
    """Return [B, S, heads * D] as [B, heads, S, D]."""
    batch, length, width = c.shape(x)
    parts = c.reshape(x, (batch, length, heads, floordiv(width, heads)))
    return c.emit("permute_dims", parts, axes=(0, 2, 1, 3))


def merge_heads(c: NodeContext, x: str) -> str:
    """Return [B, H, S, D] as [B, S, H * D]."""
    batch, heads, length, size = c.shape(x)
    return c.reshape(c.emit("permute_dims", x, axes=(0, 2, 1, 3)), (batch, length, heads * size))


def default_scale(c: NodeContext, size: DimLike) -> float | str:
    """Return 1 / sqrt(size), a float32 value where the size is a symbol."""
    if isinstance(size, int):
        return 1 / math.sqrt(size)
    return c.emit("rsqrt", c.cast(c.b.shape_value([size], scalar=True), "float32"))


def number_of(c: NodeContext, value: float | str, dtype: str, *, root: bool = False) -> str:
    """Return a scale, or its root, as a value [] of a dtype."""
    if isinstance(value, str):
        return c.cast(c.emit("sqrt", value) if root else value, dtype)
    return c.scalar(math.sqrt(value) if root else value, dtype)


def _folded(c: NodeContext, x: str, groups: DimLike) -> str:
    """Return [B, H, S, D] as [B, G, (H / G) * S, D]: the query heads that share one key head."""
    batch, heads, length, size = c.shape(x)
    if heads == groups:
        return x
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise c.refuse(f"its {heads} query heads are no multiple of its {groups} key heads")
    return c.reshape(x, (batch, groups, floordiv(heads, groups) * length, size))


def attend(
    c: NodeContext, q: str, k: str, v: str, bias: Bias, scale: float | str,
    *, softcap: float = 0.0, precision: str = "", root_scale: bool = False, sink: str = "",
) -> Attended:  # fmt: skip
    """Return softmax(cap(scale * q @ k^T) + bias) @ v.

    A query that sees no key gives zeros. `precision` is the dtype of softmax ("" is q's);
    `root_scale` scales q and k by the root, so that narrow floats do not overflow; `sink` [H] is
    a score for each head that takes its share of softmax and leads to no value.
    """
    dtype, groups = c.dtype(q), c.shape(k)[1]
    batch, heads, length, _ = c.shape(q)
    if root_scale and dtype in NARROW:
        root = number_of(c, scale, dtype, root=True)
        q, k = c.emit("multiply", q, root), c.emit("multiply", k, root)
    elif scale != 1:
        q = c.emit("multiply", q, number_of(c, scale, dtype))
    scores = c.emit("matmul", _folded(c, q, groups), c.emit("permute_dims", k, axes=(0, 1, 3, 2)))
    scores = c.reshape(scores, (batch, heads, length, c.shape(k)[2]))
    capped = _capped(c, scores, softcap)
    biased = c.emit("add", capped, bias.added) if bias.added else capped
    if bias.allowed:
        biased = c.emit("where", bias.allowed, biased, c.scalar(-math.inf, dtype))
    logits = c.cast(biased, precision or dtype)
    weights = _softmax_with_sink(c, logits, sink) if sink else softmax(c, logits)
    if not bias.leaves_one:
        weights = c.emit("where", _sees_none(c, bias, dtype), c.scalar(0, c.dtype(weights)), weights)
    weights = c.cast(weights, dtype)
    y = c.emit("matmul", _folded(c, weights, groups), v)
    y = c.reshape(y, (batch, heads, length, c.shape(v)[3]))
    return Attended(y, scores, capped, biased, weights)


def _capped(c: NodeContext, scores: str, softcap: float) -> str:
    if not softcap > 0:
        return scores
    cap = c.scalar(softcap, c.dtype(scores))
    return c.emit("multiply", c.emit("tanh", c.emit("divide", scores, cap)), cap)


def softmax(c: NodeContext, x: str) -> str:
    """Return softmax over the last axis; narrow floats are rounded after each step, as ONNX's data are."""
    if c.dtype(x) not in NARROW:
        return c.emit("softmax", x, axis=-1)
    highest = c.emit("max", x, axis=(-1,), keepdims=True)
    powers = c.emit("exp", c.emit("subtract", x, highest))
    return c.emit("divide", powers, _sum(c, powers))


def _softmax_with_sink(c: NodeContext, x: str, sink: str) -> str:
    """Return softmax over the last axis of x [B, H, S, T] and one more score, which is cut off."""
    batch, heads, length, keys = c.shape(x)
    column = c.reshape(c.cast(sink, c.dtype(x)), (1, heads, 1, 1))
    column = c.emit("broadcast_to", column, shape=(batch, heads, length, 1))
    weights = softmax(c, c.emit("concat", x, column, axis=3))
    return c.emit("strided_slice", weights, axes=(3,), begin=(0,), size=(keys,), strides=(1,))


def _sum(c: NodeContext, x: str) -> str:
    """Return the sum over the last axis; a short one of bfloat16 term by term, each sum rounded.

    That is how the standard's own data were made, and at 8 bits of mantissa it shows.
    """
    size = c.shape(x)[-1]
    if c.dtype(x) != "bfloat16" or not isinstance(size, int) or not 1 < size <= SHORT:
        return c.emit("sum", x, axis=(-1,), keepdims=True)
    first, *rest = c.emit_many("split", x, sizes=(1,) * size, axis=-1)
    for term in rest:
        first = c.emit("add", first, term)
    return first


def _sees_none(c: NodeContext, bias: Bias, dtype: str) -> str:
    """Return bool [..., S, 1]: the queries whose bias is -inf for every key."""
    lowest, total = c.scalar(-math.inf, dtype), bias.added
    if bias.allowed:
        total = c.emit("where", bias.allowed, bias.added or c.scalar(0, dtype), lowest)
    return c.emit("equal", c.emit("max", total, axis=(-1,), keepdims=True), lowest)


# -- masks ------------------------------------------------------------------------------------
def positions(c: NodeContext, count: DimLike, dtype: str = "int64") -> str:
    """Return 0, 1, ... count - 1."""
    return c.b.emit("arange", size=count, dtype=dtype)


def distances(c: NodeContext, queries: DimLike, keys: DimLike, offset: DimLike | str) -> str:
    """Return (offset + i) - j as int64, [S, L], or [B, 1, S, L] where `offset` is a value [B]."""
    i = c.emit("expand_dims", positions(c, queries), axis=(1,))
    if isinstance(offset, str):
        i = c.emit("add", i, c.emit("expand_dims", offset, axis=(1, 2, 3)))
    elif offset != 0:
        i = c.emit("add", i, c.b.shape_value([offset], scalar=True))
    return c.emit("subtract", i, positions(c, keys))


def at_least(c: NodeContext, value: str, bound: int) -> str:
    """Return value >= bound for an int64 value."""
    return c.emit("greater_equal", value, c.scalar(bound, "int64"))


def at_most(c: NodeContext, value: str, bound: int) -> str:
    """Return value <= bound for an int64 value."""
    return c.emit("less_equal", value, c.scalar(bound, "int64"))


def within_length(c: NodeContext, lengths: str, keys: DimLike) -> str:
    """Return bool [B, 1, 1, L]: j < lengths[b], for int64 lengths [B]."""
    return c.emit("less", positions(c, keys), c.emit("expand_dims", lengths, axis=(1, 2, 3)))
