"""Attention of ai.onnx (23, 24, 25): masks, caches, grouped heads, windows, soft caps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.attention_core import (
    Attended,
    Bias,
    at_least,
    at_most,
    attend,
    default_scale,
    distances,
    merge_heads,
    split_heads,
    within_length,
)
from hcomp.capture.onnx_types import element_type
from hcomp.dims import DimLike


def _attention(c: NodeContext) -> Sequence[str]:
    q, k, v, flat = _heads(c)
    scale = c.attr("scale")
    scale = default_scale(c, c.shape(q)[3]) if scale is None else float(scale)
    softcap, precision = float(c.attr("softcap", 0.0)), c.attr("softmax_precision")
    mode = c.attr("qk_matmul_output_mode", 0)
    past: DimLike = 0
    if c.has(4):
        past = c.shape(4)[2]
        k = c.emit("concat", c.input(4), k, axis=2)
        v = c.emit("concat", c.input(5), v, axis=2)
    bias = _bias(c, q, k, past)
    done = attend(
        c, q, k, v, bias, scale, softcap=softcap, root_scale=True,
        precision=element_type(precision) if precision else "",
    )  # fmt: skip
    y = merge_heads(c, done.y) if flat else done.y
    return y, k, v, _exposed(c, done, mode)


def _heads(c: NodeContext) -> tuple[str, str, str, bool]:
    """Return q, k and v with four dimensions, and whether they came with three."""
    q_heads, kv_heads = c.attr("q_num_heads"), c.attr("kv_num_heads")
    if c.rank(0) == 4:
        return c.input(0), c.input(1), c.input(2), False
    if q_heads is None or kv_heads is None:
        raise c.refuse("its inputs have three dimensions and it does not say how many heads")
    heads = (q_heads, kv_heads, kv_heads)
    q, k, v = (split_heads(c, c.input(i), n) for i, n in enumerate(heads))
    return q, k, v, True


def _bias(c: NodeContext, q: str, k: str, past: DimLike) -> Bias:
    queries, keys = c.shape(q)[2], c.shape(k)[2]
    causal = bool(c.attr("is_causal", 0))
    left, right = c.attr("left_window_size", -1), c.attr("right_window_size", -1)
    bias, offset, lengths = Bias(), past, ""
    if c.has(6):
        lengths = c.cast(6, "int64")
        below = c.b.shape_value([queries], scalar=True)
        offset = c.emit("subtract", lengths, below)  # type: ignore[assignment]
    if c.has(3):
        bias = _mask(c, bias, keys, c.dtype(q))
    if causal or left >= 0 or right >= 0:
        distance = distances(c, queries, keys, offset)
        if causal:
            # Query 0 sees key 0 where no key is missing in front.
            bias = bias.restricted(c, at_least(c, distance, 0), leaves_one=not lengths and _any_key(keys))
        if left >= 0:
            bias = bias.restricted(c, at_most(c, distance, left))
        if right >= 0:
            bias = bias.restricted(c, at_least(c, distance, -right))
    if lengths:
        bias = bias.restricted(c, within_length(c, lengths, keys))
    return bias


def _any_key(keys: DimLike) -> bool:
    """Say whether there is at least one key; a symbolic size of 0 leaves no query to ask either."""
    return not isinstance(keys, int) or keys > 0


def _mask(c: NodeContext, bias: Bias, keys: DimLike, dtype: str) -> Bias:
    """Return the bias with the attention mask; one that is shorter than the keys hides the rest."""
    mask = c.input(3)
    boolean = c.dtype(mask) == "bool"
    shape = c.shape(mask)
    if not shape:
        raise c.refuse("its mask has no dimension")
    if shape[-1] != keys:
        rank = len(shape)
        padding = (0,) * (2 * rank - 1) + (keys - shape[-1],)
        value = False if boolean else -math.inf
        mask = c.emit("pad", mask, padding=padding, mode="constant", value=value)
    if boolean:
        return bias.restricted(c, mask)
    return bias.plus(c, c.cast(mask, dtype))


def _exposed(c: NodeContext, done: Attended, mode: int) -> str:
    stages = (done.scores, done.capped, done.biased, done.weights)
    if not 0 <= mode < len(stages):
        raise c.refuse(f"its qk_matmul_output_mode {mode} is not one of the standard's")
    return stages[mode]


ATTENTION: dict[str, Converter] = {"Attention": _attention}
