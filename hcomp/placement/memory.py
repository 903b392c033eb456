"""Bytes as whole numbers for CP-SAT."""

from __future__ import annotations

import math
from collections.abc import Sequence

FINE = 2**40
"""What a memory that is no whole number, or too large a one, counts as."""


def whole_sizes(sizes: Sequence[float], memory: float) -> tuple[list[int], int]:
    """Return sizes and a limit such that everything that fits still does; whole numbers stay as they are."""
    exact = all(size == int(size) for size in sizes) and memory <= 2**55
    unit = 1.0 if exact else FINE / max(memory, 1e-30)
    return [min(math.floor(size * unit), 2**56) for size in sizes], math.floor(memory * unit * (1 + 1e-9))
