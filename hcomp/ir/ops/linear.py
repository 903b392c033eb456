"""The heavy operators: matmul, convolution, pooling, recurrent layers."""

from collections.abc import Mapping
from typing import Any

from hcomp.dims import DimLike, ceildiv, dim_min, floordiv
from hcomp.ir.ops.core import (
    REQUIRED,
    Infer,
    Op,
    ShapeRule,
    accumulated,
    broadcast_shapes,
    equal_sizes,
    nonnegative,
    same,
)
from hcomp.ir.types import Shape


def _matmul(context: Infer) -> Shape:
    """numpy.matmul's shapes: 1-D operands are vectors, leading dimensions broadcast."""
    a, b = context.shape(0), context.shape(1)
    if not a or not b:
        raise context.error("operands must have at least one dimension")
    k_a, k_b = a[-1], b[-2] if len(b) > 1 else b[-1]
    equal_sizes(context, k_a, k_b, f"the inner sizes {k_a} and {k_b} differ")
    batch = broadcast_shapes(context, a[:-2], b[:-2])
    return batch + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ())


def spatial_axes(attrs: Mapping[str, Any], rank: int) -> slice:
    """Return which axes of a tensor of `rank` are spatial: behind the channels, or before them."""
    return slice(1, rank - 1) if attrs.get("channels_last") else slice(2, rank)


def window_size(context: Infer, size: DimLike, kernel: DimLike, i: int, n: int) -> DimLike:
    """Return how many windows fit along spatial axis `i` of `n`, by strides, padding, dilation, ceil_mode."""
    attrs = context.attrs
    padding, stride, dilation = attrs["padding"], attrs["strides"][i], attrs["dilation"][i]
    whole, reach = size + padding[i] + padding[i + n], (kernel - 1) * dilation + 1
    room = whole - reach
    if not attrs.get("ceil_mode"):
        axis = i + (1 if attrs.get("channels_last") else 2)
        problem = f"a window of {{{reach}}} does not fit into axis {axis}, which has {{{whole}}} with its padding"
        # No window at all is refused too, as ONNX Runtime does, though a stride may round it up to 0.
        return floordiv(nonnegative(context, room, problem), stride) + 1
    out = ceildiv(room, stride) + 1
    # The last window must start inside the input or the leading padding.
    return dim_min(out, floordiv(size + padding[i] - 1, stride) + 1)


def _conv(context: Infer) -> Shape:
    x, w = context.shape(0), context.shape(1)
    n = len(x) - 2
    if n < 1 or len(w) != len(x):
        raise context.error(f"data of rank {len(x)} and weight of rank {len(w)} do not fit")
    groups, last = context.attrs["groups"], context.attrs["channels_last"]
    channels, sizes = x[-1 if last else 1], x[spatial_axes(context.attrs, len(x))]
    problem = f"{channels} channels, but the weight expects {w[1]} in each of {groups} groups"
    equal_sizes(context, channels, w[1] * groups, problem)
    spatial = tuple(window_size(context, sizes[i], w[i + 2], i, n) for i in range(n))
    return (x[0], *spatial, w[0]) if last else (x[0], w[0], *spatial)


def _conv_transpose(context: Infer) -> Shape:
    x, w, attrs = context.shape(0), context.shape(1), context.attrs
    n = len(x) - 2
    padding, last, axes = attrs["padding"], attrs["channels_last"], spatial_axes(attrs, len(x))
    channels, sizes = x[-1 if last else 1], x[axes]
    equal_sizes(context, channels, w[0], f"{channels} channels, but the weight expects {w[0]}")
    spatial = tuple(
        nonnegative(
            context,
            (sizes[i] - 1) * attrs["strides"][i]
            + (w[i + 2] - 1) * attrs["dilation"][i]
            + 1
            + attrs["output_padding"][i]
            - padding[i]
            - padding[i + n],
            f"the padding [{padding[i]}, {padding[i + n]}] cuts more off axis {axes.start + i} of {{{sizes[i]}}} than "
            "there is",
        )
        for i in range(n)
    )
    made = w[1] * attrs["groups"]
    return (x[0], *spatial, made) if last else (x[0], made, *spatial)


def _pool(context: Infer) -> Shape:
    x, n = context.shape(0), len(context.attrs["pool_size"])
    if len(x) != n + 2:
        raise context.error(f"data of rank {len(x)} does not fit {n} pooled axes")
    kernel, axes = context.attrs["pool_size"], spatial_axes(context.attrs, n + 2)
    sizes = tuple(window_size(context, x[axes][i], kernel[i], i, n) for i in range(n))
    return (*x[: axes.start], *sizes, *x[axes.stop :])


def _recurrent(outputs: int) -> ShapeRule:
    def rule(context: Infer) -> list[Shape]:
        """X [T, B, I], weight [D, G*H, I]: Y [T, D, B, H], then the final states [D, B, H]."""
        x, w, r = context.shape(0), context.shape(1), context.shape(2)
        equal_sizes(context, x[2], w[2], f"{x[2]} inputs a step, but the weight expects {w[2]}")
        states = [(r[0], x[1], r[2])] * (outputs - 1)
        return [(x[0], r[0], x[1], r[2]), *states]

    return rule


_WINDOW = {"strides": REQUIRED, "padding": REQUIRED, "dilation": REQUIRED}
_LAYOUT = {"channels_last": False}
"""channels_last: data is [N, *spatial, C], and so is the result; a weight stays as it is."""
_POOL = {"pool_size": REQUIRED, **_WINDOW, **_LAYOUT, "ceil_mode": False}
_CELL = {"direction": "forward", "activations": REQUIRED, "alpha": (), "beta": (), "clip": None}
"""activations: lower-case names, one group a direction; alpha, beta: as many numbers as activations."""

LINEAR: tuple[Op, ...] = (
    Op("matmul", accumulated, _matmul, {"out_dtype": ""}, "matmul"),
    # Data [N, C, *spatial], weight [O, C/groups, *kernel]; padding: begins, then ends. Bias is a separate add.
    Op("conv", accumulated, _conv, {**_WINDOW, **_LAYOUT, "groups": 1, "out_dtype": ""}, "conv"),
    # Weight [C, O/groups, *kernel].
    Op("conv_transpose", same, _conv_transpose,
       {**_WINDOW, **_LAYOUT, "output_padding": REQUIRED, "groups": 1}, "conv"),
    Op("max_pool", same, _pool, _POOL, "pool"),
    Op("avg_pool", same, _pool, {**_POOL, "count_include_pad": False}, "pool"),
    # Inputs: x [T, B, I], weight [D, 4H, I] (gates i o f c), recurrence [D, 4H, H], bias [D, 8H],
    # lengths [B] int32, initial_h [D, B, H], initial_c [D, B, H], peepholes [D, 3H]; from bias on "" if
    # absent. Outputs Y, Y_h, Y_c. ONNX's LSTM with layout 0.
    Op("lstm", lambda c: (c.dtype(0),) * 3, _recurrent(3), {**_CELL, "input_forget": False}, "recurrent"),
    # weight [D, 3H, I] (gates z r h), recurrence, bias [D, 6H], lengths, initial_h. Outputs Y, Y_h.
    Op("gru", lambda c: (c.dtype(0),) * 2, _recurrent(2), {**_CELL, "linear_before_reset": False}, "recurrent"),
    Op("rnn", lambda c: (c.dtype(0),) * 2, _recurrent(2), _CELL, "recurrent"),
)  # fmt: skip
