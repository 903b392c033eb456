"""Activations, in the operators of the graph; formulas are those of the ONNX standard."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like, rounded_once, unary


def _exponential_below_zero(c: NodeContext, x: str, alpha: float, scale: float = 1.0) -> str:
    """Return alpha * (exp(x * scale) - 1) for x below 0, 0 above: no overflow on the way."""
    below = c.emit("minimum", x, like(c, 0, x))
    if scale != 1:
        below = c.emit("multiply", below, like(c, scale, x))
    grown = c.emit("expm1", below)
    return grown if alpha == 1 else c.emit("multiply", grown, like(c, alpha, x))


def _elu(c: NodeContext, x: str) -> str:
    grown = _exponential_below_zero(c, x, c.attr("alpha", 1.0))
    return c.emit("where", c.emit("greater", x, like(c, 0, x)), x, grown)


def _celu(c: NodeContext, x: str) -> str:
    alpha = c.attr("alpha", 1.0)
    grown = _exponential_below_zero(c, x, alpha, 1 / alpha)
    return c.emit("add", c.emit("relu", x), grown)


def _selu(c: NodeContext, x: str) -> str:
    alpha = c.attr("alpha", 1.67326319217681884765625 if c.opset >= 6 else 1.6732)
    gamma = like(c, c.attr("gamma", 1.05070102214813232421875 if c.opset >= 6 else 1.0507), x)
    grown = _exponential_below_zero(c, x, alpha)
    picked = c.emit("where", c.emit("greater", x, like(c, 0, x)), x, grown)
    return c.emit("multiply", gamma, picked)


def _hard_sigmoid_of(c: NodeContext, x: str, alpha: float, beta: float) -> str:
    scaled = c.emit("add", c.emit("multiply", x, like(c, alpha, x)), like(c, beta, x))
    return c.emit("clip", scaled, min=0.0, max=1.0)


def _hard_sigmoid(c: NodeContext, x: str) -> str:
    return _hard_sigmoid_of(c, x, c.attr("alpha", 0.2), c.attr("beta", 0.5))


def _hard_swish(c: NodeContext, x: str) -> str:
    return c.emit("multiply", x, _hard_sigmoid_of(c, x, 1 / 6, 0.5))


def _mish(c: NodeContext, x: str) -> str:
    return c.emit("multiply", x, c.emit("tanh", c.emit("softplus", x)))


def _swish(c: NodeContext, x: str) -> str:
    alpha = c.attr("alpha", 1.0)
    if alpha == 1:
        return c.emit("silu", x)
    scaled = c.emit("multiply", x, like(c, alpha, x))
    return c.emit("multiply", x, c.emit("sigmoid", scaled))


def _gelu(c: NodeContext) -> str:
    approximate = c.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise c.refuse(f"its approximation {approximate!r} is neither 'none' nor 'tanh'")
    return c.emit("gelu" if approximate == "none" else "gelu_tanh", 0)


def _thresholded_relu(c: NodeContext) -> str:
    above = c.emit("greater", 0, like(c, c.attr("alpha", 1.0), 0))
    return c.emit("where", above, 0, like(c, 0, 0))


def _leaky_relu(c: NodeContext) -> str:
    return c.emit("leaky_relu", 0, alpha=float(c.attr("alpha", 0.01)))


def _prelu(c: NodeContext) -> str:
    """PRelu: the slope broadcasts to the data; before opset 7 it belongs to the channels."""
    slope = c.input(1)
    if c.opset < 7 and len(c.shape(slope)) == 1 and c.rank(0) > 1 and c.shape(slope) != (1,):
        slope = c.reshape(slope, c.shape(slope) + (1,) * (c.rank(0) - 2))
    negative = c.emit("less", 0, like(c, 0, 0))
    return c.emit("where", negative, c.emit("multiply", slope, 0), 0)


ACTIVATIONS: dict[str, Converter] = {
    "Relu": unary("relu"),
    "Sigmoid": unary("sigmoid"),
    "Tanh": unary("tanh"),
    "Softplus": unary("softplus"),
    "Elu": rounded_once(_elu),
    "Celu": rounded_once(_celu),
    "Selu": rounded_once(_selu),
    "HardSigmoid": rounded_once(_hard_sigmoid),
    "HardSwish": rounded_once(_hard_swish),
    "Mish": rounded_once(_mish),
    "Swish": rounded_once(_swish),
    "Gelu": _gelu,
    "ThresholdedRelu": _thresholded_relu,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
}
