"""Computes products of dequantised tensors in integers, and scales their sums instead of their operands.

    (x - zero) sx  *  w sw   =   (x * w  -  zero sum w)  sx sw

for convolutions and matrix products whose data is a dequantised tensor of bytes and whose weight is a constant
that was dequantised. The sums are exact, where those of float32 are rounded. Targets with integer kernels run this
pass on their own regions, for the products for which integers are faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.ir.factors import Factors
from hcomp.ir.graph import Graph, Node
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.passes.base import Pass

Faster: TypeAlias = Callable[[Node, NDArray[np.generic]], bool]
"""Says of a convolution or product of float32 and its weight in bytes whether the same in integers is faster."""

BYTES = ("int8", "uint8")

_WIDER = ("int32", "float32")

_LARGEST_SUM = 1 << 31


def integer_products(graph: Graph, faster: Faster = lambda node, weight: True) -> Graph:
    """Return `graph` with products of dequantised tensors in integers; without any, the graph itself."""

    def rule(node: Node, edit: Editor) -> Sequence[str] | None:
        kind = _KINDS.get(node.op)
        factors = edit.factors(node.inputs[1]) if kind and node.inputs[1] else None
        if kind is None or factors is None or not _sums_fit(factors.whole, node.op):
            return None
        data = _dequantised(node.inputs[0], edit)
        if data is None or not faster(node, factors.whole):
            return None
        made = kind(node, edit, data, factors)
        return None if made is None else (made,)

    return rewrite(graph, rule)


@dataclass(frozen=True)
class _Data:
    """A tensor of bytes that stands for (bytes - zero) * scale."""

    name: str
    zero: int
    scale: np.float32


def _sums_fit(whole: NDArray[np.generic], op: str) -> bool:
    """Say whether no sum of products with differences of bytes can leave int32."""
    axes = tuple(range(1, whole.ndim)) if op == "conv" else 0
    most = np.abs(whole.astype(np.int64)).sum(axis=axes).max(initial=0)
    return bool(most * 2 * 255 < _LARGEST_SUM)


def _dequantised(name: str, edit: Editor) -> _Data | None:
    """Return what multiply(cast(subtract(cast(bytes), zero)), scale) stands for, its zero and scale single numbers."""
    product = edit.producer(name)
    if product is None or product.op != "multiply":
        return None
    value, scale = product.inputs
    if edit.constant_value(scale) is None:
        value, scale = scale, value
    factor = edit.constant_value(scale)
    if factor is None or factor.size != 1 or factor.dtype != np.float32:
        return None
    value = _uncast(value, edit)
    node, zero = edit.producer(value), 0
    if node is not None and node.op == "subtract":
        known = edit.constant_value(node.inputs[1])
        if known is None or known.size != 1 or known.dtype != np.int32:
            return None
        zero = int(known.reshape(()))
        value = _uncast(node.inputs[0], edit)
    kind = edit.tensor(value)
    if kind is None or kind.dtype not in BYTES or kind.shape != getattr(edit.tensor(name), "shape", None):
        return None
    return _Data(value, zero, np.float32(factor.reshape(())))


def _uncast(name: str, edit: Editor) -> str:
    """Return what a value was before casts that keep bytes, and their differences, as they are."""
    while (node := edit.producer(name)) is not None and node.op == "cast" and node.attrs["dtype"] in _WIDER:
        kind = edit.tensor(node.inputs[0])
        if kind is None or kind.dtype not in (*BYTES, "int32"):
            break
        name = node.inputs[0]
    return name


def _conv(node: Node, edit: Editor, data: _Data, factors: Factors) -> str | None:
    whole, attrs = factors.whole, dict(node.attrs)
    scale = _along(factors.scale, whole.ndim, 0)
    padding: Any = attrs["padding"]
    if scale is None or attrs["channels_last"] or not all(isinstance(p, int) and p >= 0 for p in padding):
        return None
    x, n = data.name, whole.ndim - 2
    if data.zero and any(padding):
        # What stands for 0 is the zero point.
        around = (0, 0, *padding[:n], 0, 0, *padding[n:])
        x, attrs["padding"] = edit.emit("pad", x, padding=around, mode="constant", value=data.zero), (0,) * (2 * n)
    attrs["out_dtype"] = "int32"
    sums = whole.astype(np.int64).sum(axis=tuple(range(1, whole.ndim)))
    made = edit.emit("conv", x, edit.constant(whole, f"{node.inputs[1]}.whole"), hint=node.output, **attrs)
    return _scaled(edit, made, data, sums.reshape(-1, *(1,) * n), scale.reshape(-1, *(1,) * n), node.output)


def _matmul(node: Node, edit: Editor, data: _Data, factors: Factors) -> str | None:
    whole = factors.whole
    scale = _along(factors.scale, whole.ndim, 1)
    if whole.ndim != 2 or scale is None:
        return None
    sums = whole.astype(np.int64).sum(axis=0)
    weight = edit.constant(whole, f"{node.inputs[1]}.whole")
    made = edit.emit("matmul", data.name, weight, hint=node.output, out_dtype="int32")
    return _scaled(edit, made, data, sums, scale, node.output)


def _scaled(
    edit: Editor, made: str, data: _Data, sums: NDArray[Any], scale: NDArray[Any], hint: str
) -> str:  # fmt: skip
    """Return float32 (made - zero sums) sx sw; `sums` and `scale` broadcast with `made`."""
    if data.zero:
        made = edit.emit("subtract", made, edit.constant((data.zero * sums).astype(np.int32), f"{hint}.zero"))
    number = edit.emit("cast", made, dtype="float32")
    return edit.emit("multiply", number, edit.constant(scale * data.scale, f"{hint}.scale"), hint=hint)


def _along(scale: NDArray[Any], rank: int, axis: int) -> NDArray[Any] | None:
    """Return a scale that has one entry, or one for each index along `axis` of `rank`, as a vector; else None."""
    full = scale.reshape((1,) * (rank - scale.ndim) + scale.shape)
    return full.reshape(-1) if full.size == full.shape[axis] or full.size == 1 else None


_Kind: TypeAlias = Callable[[Node, Editor, _Data, Factors], str | None]
_KINDS: Mapping[str, _Kind] = {"conv": _conv, "matmul": _matmul}

INTEGER_PRODUCTS = Pass("integer_products", integer_products)
