"""The activation functions of ONNX's recurrent operators, as expressions on one element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.errors import CodegenError

Expr = Any


@dataclass(frozen=True)
class Activation:
    """One activation: its ONNX name and its two parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Expr) -> Expr:
        """Return the activation of `x`."""
        dtype = str(x.ty.dtype)
        return _TABLE[self.name].make(x, tirx.const(self.alpha, dtype), tirx.const(self.beta, dtype))


@dataclass(frozen=True)
class _Row:
    make: Callable[[Expr, Expr, Expr], Expr]
    alpha: float | None = None
    beta: float | None = None


def _one(x: Expr) -> Expr:
    return tirx.const(1.0, str(x.ty.dtype))


def _zero(x: Expr) -> Expr:
    return tirx.const(0.0, str(x.ty.dtype))


def _sigmoid(x: Expr, a: Expr, b: Expr) -> Expr:
    """Return (1 + tanh(x / 2)) / 2: 1e-7 absolute, which is what a gate needs, and half the work of an exp."""
    del a, b
    half = tirx.const(0.5, str(x.ty.dtype))
    return half + half * tirx.tanh(half * x)


def _hard_sigmoid(x: Expr, a: Expr, b: Expr) -> Expr:
    return tirx.max(_zero(x), tirx.min(_one(x), a * x + b))


def _elu(x: Expr, a: Expr, b: Expr) -> Expr:
    del b
    return tirx.Select(x >= _zero(x), x, a * (tirx.exp(x) - _one(x)))


def _softplus(x: Expr, a: Expr, b: Expr) -> Expr:
    del a, b
    return tirx.max(x, _zero(x)) + tirx.log1p(tirx.exp(_zero(x) - tirx.abs(x)))


_TABLE = {
    "relu": _Row(lambda x, a, b: tirx.max(x, _zero(x))),
    "tanh": _Row(lambda x, a, b: tirx.tanh(x)),
    "sigmoid": _Row(_sigmoid),
    "affine": _Row(lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": _Row(lambda x, a, b: tirx.Select(x >= _zero(x), x, a * x), 0.01),
    "thresholdedrelu": _Row(lambda x, a, b: tirx.Select(x > a, x, _zero(x)), 1.0),
    "scaledtanh": _Row(lambda x, a, b: a * tirx.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": _Row(_hard_sigmoid, 0.2, 0.5),
    "elu": _Row(_elu, 1.0),
    "softsign": _Row(lambda x, a, b: x / (_one(x) + tirx.abs(x))),
    "softplus": _Row(_softplus),
}


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Return an activation with ONNX's default for a parameter that is None.

    Raises:
        CodegenError: a name that ONNX does not define.
    """
    row = _TABLE.get(name.lower())
    if row is None:
        raise CodegenError(f"recurrent operator: unknown activation {name!r}")
    a = row.alpha if alpha is None else alpha
    b = row.beta if beta is None else beta
    return Activation(name.lower(), a or 0.0, b or 0.0)


def resolve_activations(
    names: Sequence[str], alphas: Sequence[float] = (), betas: Sequence[float] = ()
) -> tuple[Activation, ...]:
    """Return activations with parameters, taken in order by those that have them (ONNX's rule).

    Raises:
        CodegenError: a name that ONNX does not define.
    """
    left_alpha, left_beta = list(alphas), list(betas)
    found = []
    for name in names:
        row = _TABLE.get(name.lower())
        alpha = left_alpha.pop(0) if row and row.alpha is not None and left_alpha else None
        beta = left_beta.pop(0) if row and row.beta is not None and left_beta else None
        found.append(activation(name, alpha, beta))
    return tuple(found)
