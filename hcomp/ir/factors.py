"""What a dequantised constant was multiplied from, kept beside it when it is computed at compile time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Factors:
    """The constant is whole.astype(float32) * scale.

    Attributes:
        whole: int8 or uint8, of the constant's shape.
        scale: float32, of a shape that broadcasts to it.
    """

    whole: NDArray[np.generic]
    scale: NDArray[np.generic]


def folded_factors(
    op: str, attrs: Mapping[str, Any], arrays: Sequence[NDArray[Any] | None], factors: Sequence[Factors | None]
) -> Factors | None:
    """Return the factors of what a node makes of constants, or None.

    Args:
        op: the node's operator: a product of bytes, as float32, with one scale or one for each index of an axis;
            or a permutation, as of a weight that is stored transposed, which keeps what is known.
        attrs: its attributes.
        arrays: its inputs' contents.
        factors: what is known of its inputs.
    """
    if op == "permute_dims":
        known, axes = factors[0], attrs["axes"]
        if known is None or known.scale.ndim not in (0, len(axes)):
            return None
        scale = known.scale.transpose(axes) if known.scale.ndim else known.scale
        return Factors(np.ascontiguousarray(known.whole.transpose(axes)), scale)
    if op != "multiply":
        return None
    whole, by = arrays
    if whole is None or by is None or whole.dtype != np.float32 or whole.ndim < 2 or by.size > max(whole.shape):
        return None
    if whole.size == 0 or np.broadcast_shapes(whole.shape, by.shape) != whole.shape:
        return None
    for dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        if info.min <= whole.min() and whole.max() <= info.max:
            narrow = whole.astype(dtype)
            return Factors(narrow, by) if np.array_equal(narrow, whole) else None
    return None
