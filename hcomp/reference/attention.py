"""Reference function of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hcomp.reference.numeric import Array, Function, narrow, quiet_table, widen
from hcomp.reference.reduce import softmax


def attention(
    q: Array, k: Array, v: Array, *inputs: Array,
    axes: Sequence[str], output: str, scale: float = 1.0, masks: Sequence[str] = (),
    fill: float = -np.inf, zero_nan: bool = False,
) -> Array:  # fmt: skip
    """Return softmax(mask(scale * q @ k^T)) @ v over named axes; see the operator's row."""
    rows, keys, values = (_read(x, own) for x, own in zip((q, k, v), axes, strict=False))
    named = [own.translate(_NO_DIGITS) for own in axes]
    batch = "".join(c for c in named[0] if c not in "sd")
    whole = f"{batch}sl"
    scores: Any = np.einsum(f"{named[0]},{named[1]}->{whole}", rows, keys, optimize=True) * np.asarray(
        scale, rows.dtype
    )
    for kind, mask, own in zip(masks, inputs, axes[3:], strict=True):
        spread = _spread(_read(mask, own), own.translate(_NO_DIGITS), whole)
        scores = scores + spread if kind == "add" else np.where(spread, scores, np.asarray(fill, scores.dtype))
    weights = softmax(scores, axis=-1)
    if zero_nan:
        weights = np.where(np.isnan(weights), np.asarray(0, weights.dtype), weights)
    made = np.einsum(f"{whole},{named[2]}->{output}", weights, values, optimize=True)
    return narrow(made, q.dtype)


_NO_DIGITS = str.maketrans("", "", "0123456789")


def _read(x: Array, axes: str) -> Array:
    """Return a tensor at the indices of its axes that are digits."""
    return widen(x)[tuple(int(c) if c.isdigit() else slice(None) for c in axes)]


def _spread(x: Array, axes: str, whole: str) -> Array:
    """Return a tensor with the axes of `whole`, those that it does not have of size 1."""
    ordered = np.transpose(x, [axes.index(c) for c in whole if c in axes])
    return ordered.reshape([x.shape[axes.index(c)] if c in axes else 1 for c in whole])


TABLE: dict[str, Function] = quiet_table({"attention": attention})
