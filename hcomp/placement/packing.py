"""A lower bound on the largest load from the heaviest items alone: they are packed exactly."""

from __future__ import annotations

import numpy as np

MAX_ITEMS = 17
"""Items that are packed: tables have 2^MAX_ITEMS entries."""
STEPS = 40


def packing_bound(times: list[float], bins: int, low: float, high: float) -> float:
    """Return a lower bound on the largest load of any distribution of `times` over `bins`.

    Args:
        times: of items that have to be in a bin; the heaviest are looked at.
        bins: how many there are.
        low: a bound that is known already.
        high: a largest load that is reached; no result is above it.
    """
    heavy = np.sort(np.array(times, dtype=np.float64))[::-1][:MAX_ITEMS]
    if bins == 0 or len(heavy) <= bins:
        return max(low, float(heavy[0]) if len(heavy) and bins else low)
    for _ in range(STEPS):
        if high - low <= 1e-7 * high:
            break
        middle = (low + high) / 2
        if _fits(heavy, bins, middle):
            high = middle
        else:
            low = middle
    return low


def _fits(heavy: np.ndarray[tuple[int], np.dtype[np.float64]], bins: int, capacity: float) -> bool:
    """Say whether the items fit: for every subset the fewest bins, and the least load of the last of them.

    A subset's best packing ends with one of its items, put into the last bin or into a new one.
    """
    capacity *= 1 + 1e-9  # sums are rounded: what fits exactly must not be refused
    if heavy[0] > capacity:
        return False
    count = len(heavy)
    full = 1 << count
    # One number orders packings: bins that are full, then the load of the last (below the capacity).
    width = 2.0 * capacity
    state = np.full(full, np.inf)
    state[0] = 0.0
    masks = np.arange(full, dtype=np.int64)
    sizes = np.zeros(full, dtype=np.int8)
    for bit in range(count):
        sizes += ((masks >> bit) & 1).astype(np.int8)
    for size in range(1, count + 1):
        layer = masks[sizes == size]
        best = np.full(len(layer), np.inf)
        for bit in range(count):
            inside = ((layer >> bit) & 1).astype(bool)
            before = state[layer[inside] ^ (1 << bit)]
            closed = np.floor(before / width)
            load = before - closed * width
            fits = load + heavy[bit] <= capacity
            after = np.where(fits, before + heavy[bit], (closed + 1) * width + heavy[bit])
            best[inside] = np.minimum(best[inside], after)
        state[layer] = best
    return bool(state[-1] < bins * width)
