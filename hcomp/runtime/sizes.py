"""Refusing sizes that a region cannot have, before it takes memory or runs a kernel.

What must hold is in the artifact (see `hcomp.ir.needs`). Shapes that have passed are remembered, so
that a call costs one look-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hcomp.artifact.program import BRACED, Need
from hcomp.dims import evaluate, parse_dim
from hcomp.errors import RunError

MAX_PASSED = 4096
"""So many shapes are remembered for a region."""

Check = Callable[[Sequence[Any]], None]


def size_check(needs: Sequence[Need], places: Mapping[str, tuple[int, int]]) -> Check | None:
    """Return what checks a region's sizes, or None where nothing needs to be.

    The function takes the slots of a run. `places` gives the slot and the axis of every symbol.
    """
    if not needs:
        return None
    slots = tuple(dict.fromkeys(slot for slot, _ in places.values()))
    at = {name: (slots.index(slot), axis) for name, (slot, axis) in places.items()}
    only = slots[0] if len(slots) == 1 else None
    passed: set[Any] = set()

    def check(values: Sequence[Any]) -> None:
        try:
            # One value has all the symbols, mostly: then its shape is the key as it is.
            key = values[only].shape if only is not None else tuple([values[i].shape for i in slots])
            if key in passed:
                return
            shapes = [key] if only is not None else key
            sizes = {name: int(shapes[i][axis]) for name, (i, axis) in at.items()}
        except (IndexError, AttributeError):
            raise RunError("the artifact asks for a size on an axis that a value does not have") from None
        for need in needs:
            if not _holds(need, sizes):
                raise _error(need, sizes)
        if len(passed) < MAX_PASSED:
            passed.add(key)

    return check


def _holds(need: Need, sizes: Mapping[str, int]) -> bool:
    try:
        return evaluate(need.dim, sizes) >= 0
    except ZeroDivisionError:  # a size of 0 divides another
        return False


def _error(need: Need, sizes: Mapping[str, int]) -> RunError:
    problem = re.sub(BRACED, lambda dim: _number(dim[1], sizes), need.problem)
    found = ", ".join(f"{name} = {sizes[name]}" for name in sorted(need.dim.symbols))
    return RunError(f"node {need.node!r}: {problem} (with {found})")


def _number(text: str, sizes: Mapping[str, int]) -> str:
    try:
        return str(evaluate(parse_dim(text), sizes))
    except ZeroDivisionError:
        return text
