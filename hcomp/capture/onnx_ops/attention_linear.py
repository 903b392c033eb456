"""LinearAttention and CausalConvWithState (opset 27): recurrences over tokens with a state."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.attention_core import default_scale, number_of
from hcomp.capture.onnx_ops.recurrent_loop import TimeLoop
from hcomp.dims import DimLike, floordiv

GATED = ("gated", "gated_delta")
DELTA = ("delta", "gated_delta")


def _linear_attention(c: NodeContext) -> Sequence[str]:
    """The state [B, G, K, V] is float32 whatever the inputs are."""
    heads, groups = c.required("q_num_heads"), c.required("kv_num_heads")
    rule, scale = c.attr("update_rule", "gated_delta"), float(c.attr("scale", 0.0))
    c.ignore("chunk_size")  # how it may be computed, not what
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise c.refuse(f"its update_rule {rule!r} is not one of the standard's")
    if heads % groups or (rule in GATED) != c.has(4) or (rule in DELTA) != c.has(5):
        raise c.refuse(f"its heads, decay or beta do not fit its update_rule {rule!r}")
    key_size = floordiv(c.shape(0)[2], heads)
    state = _first_state(c, groups, key_size)
    loop = TimeLoop(c, c.shape(0)[1], [state])
    q = _at_step(c, loop, 0, heads)
    k, v = _at_step(c, loop, 1, groups), _at_step(c, loop, 2, groups)
    memory = loop.states[0]
    if rule in GATED:
        decay = loop.c.emit("exp", _at_step(c, loop, 4, groups))
        memory = loop.c.emit("multiply", memory, loop.c.emit("expand_dims", decay, axis=(-1,)))
    column = loop.c.emit("expand_dims", k, axis=(-1,))
    if rule in DELTA:
        v = _corrected(loop.c, memory, k, v, _at_step(c, loop, 5, 0))
    outer = loop.c.emit("multiply", column, loop.c.emit("expand_dims", v, axis=(-2,)))
    memory = loop.c.emit("add", memory, outer)
    y = _read(loop.c, q, memory, heads, groups)
    (last,), (stack,) = loop.finish([memory], [y])
    factor = number_of(c, scale or default_scale(c, key_size), "float32")
    y = c.emit("multiply", c.emit("permute_dims", stack, axes=(1, 0, 2)), factor)
    return c.cast(y, c.dtype(0)), c.cast(last, c.dtype(3) if c.has(3) else c.dtype(0))


def _first_state(c: NodeContext, groups: int, key_size: DimLike) -> str:
    if c.has(3):
        return c.cast(3, "float32")
    shape = (c.shape(0)[0], groups, key_size, floordiv(c.shape(2)[2], groups))
    return c.b.emit("full", shape=shape, value=0.0, dtype="float32")


def _at_step(c: NodeContext, loop: TimeLoop, index: int, heads: int) -> str:
    """Return one token of input `index` [B, T, heads * D] as float32 [B, heads, D]; 0: as many as it has."""
    batch, _, width = c.shape(index)
    steps_first = c.emit("permute_dims", c.cast(index, "float32"), axes=(1, 0, 2))
    token = loop.c.emit("take", loop.carry_in(steps_first), loop.step, axis=0)
    size = floordiv(width, heads) if heads else 1
    return loop.c.reshape(token, (batch, heads or width, size))


def _corrected(c: NodeContext, memory: str, k: str, v: str, beta: str) -> str:
    """Return beta * (v - memory^T k)."""
    row = c.emit("expand_dims", k, axis=(-2,))
    found = c.emit("squeeze", c.emit("matmul", row, memory), axis=(-2,))
    return c.emit("multiply", beta, c.emit("subtract", v, found))


def _read(c: NodeContext, q: str, memory: str, heads: int, groups: int) -> str:
    """Return q^T memory as [B, heads * V]; a group's heads read the same state."""
    batch, _, size = c.shape(q)
    rows = c.reshape(q, (batch, groups, heads // groups, size))
    y = c.emit("matmul", rows, memory)
    return c.reshape(y, (batch, heads * c.shape(memory)[3]))


def _causal_conv(c: NodeContext) -> Sequence[str]:
    activation = c.attr("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise c.refuse(f"its activation {activation!r} is not one of the standard's")
    channels, kernel = c.shape(1)[0], c.shape(1)[2]
    if not isinstance(channels, int) or not isinstance(kernel, int):
        raise c.refuse("its weight's sizes are known only at run time")
    length = c.shape(0)[2]
    padding = (0, 0, kernel - 1, 0, 0, 0)
    padded = c.emit("concat", 3, 0, axis=2) if c.has(3) else c.emit("pad", 0, padding=padding)
    y = c.emit("conv", padded, 1, strides=(1,), padding=(0, 0), dilation=(1,), groups=channels)
    if c.has(2):
        y = c.emit("add", y, c.reshape(2, (1, channels, 1)))
    if activation != "none":
        y = c.emit("silu", y)
    state = c.emit("strided_slice", padded, axes=(2,), begin=(length,), size=(kernel - 1,), strides=(1,))
    return c.reshape(y, c.shape(0)), state


ATTENTION_LINEAR: dict[str, Converter] = {
    "LinearAttention": _linear_attention,
    "CausalConvWithState": _causal_conv,
}
