"""The times of all contiguous parts of an order of items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hcomp.placement.coarse import Items


def part_times(items: Items, memory: float, order: Sequence[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the load of each contiguous part [from, to) on an accelerator; infinite where it cannot be."""
    count = len(order)
    rank = {item: i for i, item in enumerate(order)}
    times = np.zeros((count + 1, count + 1))
    bytes_ = np.zeros((count + 1, count + 1))
    bad = np.zeros((count + 1, count + 1), dtype=bool)
    # A part [a, b) holds position i where a <= i < b.
    for item, i in rank.items():
        times[: i + 1, i + 1 :] += items.accelerator[item]
        bytes_[: i + 1, i + 1 :] += items.size[item]
        if not items.supported[item]:
            bad[: i + 1, i + 1 :] = True
    for net in items.nets:
        source = rank[net.source]
        readers = sorted(rank[r] for r in net.readers)
        low, high = min(source, readers[0]), max(source, readers[-1])
        # The cost counts where the source is inside and not all readers are, or a reader is and the source is not.
        times[: source + 1, source + 1 :] += net.cost
        times[: low + 1, high + 1 :] -= net.cost
        entering = np.zeros((count + 1, count + 1), dtype=bool)
        for r in readers:
            entering[: r + 1, r + 1 :] = True
        entering[: source + 1, source + 1 :] = False
        times[entering] += net.cost
    times[np.tril_indices(count + 1, -1)] = np.inf
    times[bad | (bytes_ > memory * (1 + 1e-9))] = np.inf
    return times
