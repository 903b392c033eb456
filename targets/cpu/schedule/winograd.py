"""Winograd's minimal filtering F(m, 3): m outputs of a filter of three taps by m + 2 products.

    y = AT ((G g) * (BT d))

Matrices as in A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2015): the
points 0, 1, -1 and infinity for m = 2, and 2, -2 as well for m = 4. In two dimensions (m = 4) a tile of
16 outputs takes 36 products instead of 144.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Filtering:
    """One algorithm.

    Attributes:
        data: BT, [m + 2, m + 2].
        taps: G, [m + 2, 3].
        result: AT, [m, m + 2].
    """

    data: Matrix
    taps: Matrix
    result: Matrix


FILTERING = {
    2: Filtering(
        data=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        taps=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
        result=((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: Filtering(
        data=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        taps=(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        result=((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
"""By m."""


def transformed_taps(weight: NDArray[np.float32], m: int) -> NDArray[np.float32]:
    """Return G g GT of a weight [O, C, 3, 3] as [m + 2, m + 2, C, O], computed in float64."""
    g = np.array(FILTERING[m].taps)
    made: NDArray[np.float64] = np.einsum("ai,ocij,bj->abco", g, weight.astype(np.float64), g, optimize=True)
    return made.astype(np.float32)


def largest_error(weight: NDArray[np.float32], m: int, tiles: int = 4) -> float:
    """Return the error of F(m, 3) in float32 on normal data, relative to the largest result.

    The direct sum in float64 is what it is compared with.
    """
    matrices = FILTERING[m]
    bt, at = (np.array(x, np.float32) for x in (matrices.data, matrices.result))
    data = np.random.default_rng(0).standard_normal((tiles, m + 2, m + 2, weight.shape[1])).astype(np.float32)
    spread = np.einsum("ai,tijc,bj->tabc", bt, data, bt, optimize=True).astype(np.float32)
    products = np.matmul(spread.transpose(1, 2, 0, 3), transformed_taps(weight, m))
    found = np.einsum("ia,abto,jb->tijo", at, products, at, optimize=True)
    windows = np.lib.stride_tricks.sliding_window_view(data.astype(np.float64), (3, 3), (1, 2))
    exact = np.einsum("tijcxy,ocxy->tijo", windows, weight.astype(np.float64), optimize=True)
    return float(np.abs(found - exact).max() / max(float(np.abs(exact).max()), 1e-30))
