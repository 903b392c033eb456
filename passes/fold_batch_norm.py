"""Moves a scale and a shift behind a convolution or a matmul into its weight and one add.

    add(multiply(conv(x, w), s), t)       ->  add(conv(x, w * s), t)
    multiply(add(conv(x, w), b), s)       ->  add(conv(x, w * s), b * s)

for constants w, s, b, t, with s one number for each output channel. The products are computed in
float64 and rounded once. Results differ in the last bits from those of the model as it stands, as
they do in every runtime that folds batch normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dtypes import FLOATS, dtype_name
from hcomp.ir.graph import Graph, Node
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.types import TensorType
from hcomp.passes.base import Pass

HEAVY = ("conv", "conv_transpose", "matmul")


def fold_batch_norm(graph: Graph) -> Graph:
    """Return `graph` with scales folded into weights wherever the product has no other reader."""
    return rewrite(graph, _rule)


def _rule(node: Node, edit: Editor) -> Sequence[str] | None:
    if node.op not in ("multiply", "add"):
        return None
    for side in (0, 1):
        name, other = node.inputs[1 - side], node.inputs[side]
        value = edit.constant_value(other)
        if value is not None and edit.other_reads(name) == 0:
            found = _scale(node, name, value, edit) if node.op == "multiply" else _shift(node, name, value, edit)
            if found is not None:
                return (found,)
    return None


def _scale(node: Node, name: str, scale: NDArray[np.generic], edit: Editor) -> str | None:
    """Fold the factor `scale` into what makes `name`: a heavy node, or a heavy node and an add."""
    maker = edit.producer(name)
    if maker is None or not np.isfinite(scale.astype(np.float64)).all():
        return None
    if maker.op in HEAVY:
        return _scaled(maker, scale, edit, node.output)
    if maker.op != "add":
        return None
    heavy, shift = _heavy_and_constant(maker, edit)
    if heavy is None or shift is None or edit.other_reads(heavy.output) != 1:
        return None
    product = _scaled(heavy, scale, edit, heavy.output)
    if product is None:
        return None
    scaled = _product(shift, scale)
    if scaled is None:
        return None
    total = edit.emit("add", product, edit.constant(scaled, "shift"), hint=node.output)
    return total if edit.types[total] == node.outputs[0].type else None


def _shift(node: Node, name: str, shift: NDArray[np.generic], edit: Editor) -> str | None:
    """Merge two constant shifts behind a heavy node into one."""
    maker = edit.producer(name)
    if maker is None or maker.op != "add" or edit.types[name] != node.outputs[0].type:
        return None
    if dtype_name(shift.dtype) not in FLOATS:
        return None  # sums of integers wrap
    heavy, first = _heavy_and_constant(maker, edit)
    if heavy is None or first is None or edit.types[heavy.output] != node.outputs[0].type:
        return None
    total = first.astype(np.float64) + shift.astype(np.float64)
    if total.size > max(first.size, shift.size):
        return None
    bias = edit.constant(total.astype(first.dtype), "shift")
    return edit.emit("add", heavy.output, bias, hint=node.output)


def _heavy_and_constant(add: Node, edit: Editor) -> tuple[Node | None, NDArray[np.generic] | None]:
    for side in (0, 1):
        heavy = edit.producer(add.inputs[1 - side])
        value = edit.constant_value(add.inputs[side])
        if heavy is not None and heavy.op in HEAVY and value is not None:
            return heavy, value
    return None, None


def _scaled(heavy: Node, scale: NDArray[np.generic], edit: Editor, hint: str) -> str | None:
    """Return the heavy node with its weight times `scale`, or None where that is not the same."""
    weight = edit.constant_value(heavy.inputs[1])
    out = heavy.outputs[0].type
    if weight is None or not isinstance(out, TensorType) or out.rank is None:
        return None
    dtype = edit.types[heavy.inputs[1]]
    if not isinstance(dtype, TensorType) or dtype.dtype not in FLOATS or out.dtype != dtype.dtype:
        return None
    factor = _channel_factor(heavy, scale, weight, out.rank)
    if factor is None:
        return None
    product = _product(weight, factor)
    if product is None:
        return None
    name = edit.constant(product, heavy.inputs[1])
    made = edit.origin
    edit.origin = heavy.origin
    found = edit.emit_many(heavy.op, (heavy.inputs[0], name), heavy.attrs, (hint,))[0]
    edit.origin = made
    return found if edit.types[found] == out else None


def _channel_factor(
    heavy: Node, scale: NDArray[np.generic], weight: NDArray[np.generic], rank: int
) -> NDArray[np.generic] | None:
    """Return `scale` in a shape that multiplies the weight, or None where it is not by channel."""
    if scale.ndim > rank or (heavy.op == "matmul" and weight.ndim < 2):
        return None
    channel_axis = rank - 1 if heavy.op == "matmul" else 1
    shape = (1,) * (rank - scale.ndim) + scale.shape
    if any(d != 1 for axis, d in enumerate(shape) if axis != channel_axis):
        return None
    flat = scale.reshape(-1)
    if flat.size == 1 or heavy.op == "matmul":
        return flat
    if heavy.op == "conv":
        return flat.reshape(-1, *[1] * (weight.ndim - 1))
    # The weight of a transposed convolution has the channels of one group only.
    return flat.reshape(1, -1, *[1] * (weight.ndim - 2)) if heavy.attrs["groups"] == 1 else None


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any] | None:
    """Return a * b in a's dtype, or None where a product leaves the range in which it is exact.

    Small floats (float16) overflow, or lose their bits below the smallest normal number.
    """
    import ml_dtypes  # late: it takes 0.7 s, which a compile that the cache answers does not need

    exact = a.astype(np.float64) * b.astype(np.float64)
    with np.errstate(all="ignore"):
        product = exact.astype(a.dtype)
    tiny = float(ml_dtypes.finfo(a.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    vanished = (np.abs(exact) < tiny) & (exact != 0) & (np.abs(a.astype(np.float64)) >= tiny)
    if vanished.any() or not np.isfinite(product.astype(np.float64)).all():
        return None
    return product


FOLD_BATCH_NORM = Pass("fold_batch_norm", fold_batch_norm)
