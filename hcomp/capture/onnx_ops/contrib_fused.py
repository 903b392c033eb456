"""com.microsoft: products, convolutions and activations that ONNX Runtime's optimizer has fused."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.conv import CONV
from hcomp.capture.onnx_ops.linear import LINEAR
from hcomp.capture.onnx_ops.math_common import like, rounded_once, unary, wide
from hcomp.capture.onnx_ops.pool import POOL


def with_inputs(c: NodeContext, *inputs: str) -> NodeContext:
    """Return the same node with other inputs, to hand it to another operator's converter."""
    other = copy.copy(c)
    other.inputs = inputs
    return other


def one(outputs: str | Sequence[str]) -> str:
    """Return the first output of a converter."""
    return outputs if isinstance(outputs, str) else outputs[0]


# -- products ---------------------------------------------------------------------------------
def _fused_matmul(c: NodeContext) -> str:
    """Alpha * A' @ B'; a batch transposition moves the first axis to just before the last."""
    alpha = float(c.attr("alpha", 1.0))
    a = _turned(c, 0, c.attr("transA", 0), c.attr("transBatchA", 0))
    b = _turned(c, 1, c.attr("transB", 0), c.attr("transBatchB", 0))
    y = c.emit("matmul", a, b)
    return y if alpha == 1 else c.emit("multiply", y, like(c, alpha, y))


def _turned(c: NodeContext, index: int, transpose: int, batch: int) -> str:
    order = list(range(c.rank(index)))
    if batch and len(order) > 2:
        order.insert(len(order) - 2, order.pop(0))
    if transpose and len(order) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    if order == sorted(order):
        return c.input(index)
    return c.emit("permute_dims", index, axes=tuple(order))


def _fused_gemm(c: NodeContext) -> str:
    numbers = [c.attr(f"activation_{n}") for n in ("alpha", "beta", "gamma")]
    activation = c.attr("activation", "")
    return activated(c, one(LINEAR["Gemm"](c)), activation, [n for n in numbers if n is not None])


# -- convolutions -----------------------------------------------------------------------------
def _fused_conv(c: NodeContext) -> str:
    """Conv, then the sum with input 3, then an activation."""
    activation, numbers = c.attr("activation", ""), c.attr("activation_params", ())
    y = one(CONV["Conv"](c))
    if c.has(3):
        y = c.emit("add", y, 3)
    return activated(c, y, activation, numbers)


def channels_first(c: NodeContext, x: str) -> str:
    """Return [N, ..., C] as [N, C, ...]."""
    rank = c.rank(x)
    return c.emit("permute_dims", x, axes=(0, rank - 1, *range(1, rank - 1)))


def channels_last(c: NodeContext, x: str) -> str:
    """Return [N, C, ...] as [N, ..., C]."""
    return c.emit("permute_dims", x, axes=(0, *range(2, c.rank(x)), 1))


def _nhwc_conv(c: NodeContext) -> str:
    """Data are [N, ..., C], weights [O, ..., C / groups]."""
    activation, numbers = c.attr("activation", ""), c.attr("activation_params", ())
    x, w = (channels_first(c, c.input(i)) for i in (0, 1))
    y = channels_last(c, one(CONV["Conv"](with_inputs(c, x, w, c.optional(2)))))
    if c.has(3):
        y = c.emit("add", y, 3)
    return activated(c, y, activation, numbers)


def _nhwc_max_pool(c: NodeContext) -> str:
    return channels_last(c, one(POOL["MaxPool"](with_inputs(c, channels_first(c, c.input(0))))))


# -- activations ------------------------------------------------------------------------------
def activated(c: NodeContext, x: str, name: str, numbers: Sequence[float]) -> str:
    """Return a fused activation of `x`; `numbers` are its parameters in the operator's order."""
    given = [float(n) for n in numbers]
    match name, given:
        case "", _:
            return x
        case (("Relu" | "Sigmoid" | "Tanh"), _):
            return c.emit(name.lower(), x)
        case "LeakyRelu", [alpha, *_]:
            return c.emit("leaky_relu", x, alpha=alpha)
        case "LeakyRelu", []:
            return c.emit("leaky_relu", x, alpha=0.01)
        case "Clip", [low, high]:
            return c.emit("clip", x, min=low, max=high)
        case "HardSigmoid", [alpha, beta, *_]:
            scaled = c.emit("multiply", x, like(c, alpha, x))
            return c.emit("clip", c.emit("add", scaled, like(c, beta, x)), min=0.0, max=1.0)
    raise c.refuse(f"its fused activation {name!r} with {len(given)} parameters has no lowering")


def _fast_gelu(c: NodeContext) -> str:
    x = wide(c, 0)
    if c.has(1):
        x = c.emit("add", x, wide(c, 1))
    return c.cast(c.emit("gelu_tanh", x), c.dtype(0))


def _bias_gelu(c: NodeContext) -> str:
    return c.cast(c.emit("gelu", c.emit("add", wide(c, 0), wide(c, 1))), c.dtype(0))


def _quick_gelu(c: NodeContext, x: str) -> str:
    scaled = c.emit("multiply", x, like(c, float(c.attr("alpha", 1.702)), x))
    return c.emit("multiply", x, c.emit("sigmoid", scaled))


def _bias_add(c: NodeContext) -> str:
    return c.emit("add", c.emit("add", 0, 1), 2)


def _expand_dims(c: NodeContext) -> str:
    axis = c.known(1)
    if axis is None or len(axis) != 1 or not isinstance(axis[0], int):
        raise c.refuse("its axis is known only at run time")
    return c.emit("expand_dims", 0, axis=(axis[0],))


FUSED: dict[str, Converter] = {
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "NhwcConv": _nhwc_conv,
    "NhwcFusedConv": _nhwc_conv,
    "NhwcMaxPool": _nhwc_max_pool,
    "Gelu": unary("gelu"),
    "FastGelu": _fast_gelu,
    "BiasGelu": _bias_gelu,
    "QuickGelu": rounded_once(_quick_gelu),
    "BiasAdd": _bias_add,
    "ExpandDims": _expand_dims,
}
