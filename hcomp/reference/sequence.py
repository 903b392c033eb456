"""Reference functions on sequences (Python lists) and optionals (None: nothing).

A function never changes the list that it gets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hcomp.errors import RunError
from hcomp.reference.numeric import Array, Function

Sequence = list[Any]


def sequence_empty(*, dtype: str = "float32") -> Sequence:
    """Return a sequence without elements (of tensors of `dtype`)."""
    return []


def sequence_construct(*inputs: Array) -> Sequence:
    """Return the inputs as a sequence."""
    return list(inputs)


def _position(values: Sequence, position: Array | None, op: str, last: int) -> int:
    """Return a position counted from the front; without one, `last`."""
    if position is None:
        return last
    index, size = int(position.reshape(-1)[0]), len(values)
    if not -size <= index <= last:
        raise RunError(f"{op}: position {index} is outside a sequence of {size}")
    return index + size if index < 0 else index


def sequence_insert(values: Sequence, element: Array, position: Array | None = None) -> Sequence:
    """Return the sequence with `element` put before `position` (default: at the end)."""
    at = _position(values, position, "sequence_insert", len(values))
    return [*values[:at], element, *values[at:]]


def sequence_erase(values: Sequence, position: Array | None = None) -> Sequence:
    """Return the sequence without the element at `position` (default: the last)."""
    if not values:
        raise RunError("sequence_erase: the sequence is empty")
    at = _position(values, position, "sequence_erase", len(values) - 1)
    return [*values[:at], *values[at + 1 :]]


def sequence_at(values: Sequence, position: Array) -> Any:
    """Return the element at `position`; a negative one counts from the end."""
    return values[_position(values, position, "sequence_at", len(values) - 1)]


def sequence_length(values: Sequence) -> Array:
    """Return the number of elements, int64 0-D."""
    return np.array(len(values), np.int64)


def sequence_concat(values: Sequence, *, axis: int, new_axis: bool = False) -> Array:
    """Return the elements behind one another along `axis`, or stacked on a new one."""
    join = np.stack if new_axis else np.concatenate
    result: Array = join(values, axis=axis)
    return result


def split_to_sequence(x: Array, split: Array | None = None, *, axis: int = 0, keepdims: bool = True) -> Sequence:
    """Return pieces of x along `axis`: of the sizes in `split` (0-D: all alike, the last shorter).

    Without `split` the pieces have size 1, and lose the axis where not `keepdims`.
    """
    size = x.shape[axis]
    if split is None:
        pieces = np.split(x, size, axis) if size else []
        return list(pieces) if keepdims else [np.squeeze(p, axis) for p in pieces]
    if split.ndim == 0:
        if split <= 0:
            raise RunError(f"split_to_sequence: pieces of size {int(split)}")
        return list(np.split(x, range(int(split), size, int(split)), axis)) if size else []
    if int(split.sum()) != size:
        raise RunError(f"split_to_sequence: pieces of {split.tolist()} do not fill the size {size}")
    return list(np.split(x, np.cumsum(split)[:-1], axis))


def optional(value: Any = None) -> Any:
    """Return the value as an optional that holds it."""
    return value


def optional_empty(*, dtype: str = "float32", sequence: bool = False) -> None:
    """Return an optional that holds nothing."""


def optional_get(value: Any = None) -> Any:
    """Return what the optional holds.

    Raises:
        RunError: it holds nothing.
    """
    if value is None:
        raise RunError("optional_get: the optional is empty")
    return value


def optional_has(value: Any = None) -> Array:
    """Return whether the optional holds a value; bool 0-D."""
    return np.array(value is not None)


TABLE: dict[str, Function] = {
    "sequence_empty": sequence_empty,
    "sequence_construct": sequence_construct,
    "sequence_insert": sequence_insert,
    "sequence_erase": sequence_erase,
    "sequence_at": sequence_at,
    "sequence_length": sequence_length,
    "sequence_concat": sequence_concat,
    "split_to_sequence": split_to_sequence,
    "optional": optional,
    "optional_empty": optional_empty,
    "optional_get": optional_get,
    "optional_has": optional_has,
}
