"""Reference functions of classical models (hcomp.ir.ops.ml)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from hcomp.dtypes import numpy_dtype
from hcomp.errors import RunError
from hcomp.reference.numeric import Array, Function, quiet_table


def tree_ensemble(
    x: Array,
    nodes: Array,
    thresholds: Array,
    roots: Array,
    starts: Array,
    entry_targets: Array,
    weights: Array,
    *,
    features: int,
    targets: int,
    depth: int,
    combine: str = "sum",
    missing: bool = False,
    reached: bool = False,
) -> Any:
    """Return what the leaves give to each target, [N, targets], and where `reached` a mask of that shape.

    Entries are taken tree by tree and in their order, each in the type of `x`.

    Raises:
        RunError: the data has too few features.
    """
    del depth, missing
    if x.shape[1] < features:
        raise RunError(f"the trees read {features} features, the data has {x.shape[1]}")
    total = np.zeros((x.shape[0], targets), x.dtype)
    seen = np.zeros(total.shape, bool)
    rows = np.arange(x.shape[0])
    for root in roots:
        leaf = _leaves(x, nodes, thresholds, np.full(x.shape[0], root))
        first, count = starts[leaf], starts[leaf + 1] - starts[leaf]
        for step in range(int(count.max(initial=0))):
            here = rows[count > step]
            entry = first[here] + step
            place = here, entry_targets[entry]
            total[place] = _combined(total[place], weights[entry], seen[place], combine)
            seen[place] = True
    return (total, seen) if reached else total


def _leaves(x: Array, nodes: Array, thresholds: Array, at: Array) -> Array:
    """Return the number of the leaf that each row reaches from its node in `at`."""
    rows = np.arange(x.shape[0])
    while True:
        feature, child = nodes[at, 0], nodes[at, 1]
        inner = child >= 0
        if not inner.any():
            found: Array = -1 - child
            return found
        value = x[rows, np.where(inner, np.where(feature < 0, -1 - feature, feature), 0)]
        goes_first = (value <= thresholds[at]) | ((feature < 0) & np.isnan(value))
        at = np.where(inner, child + ~goes_first, at)


def _combined(old: Array, new: Array, seen: Array, combine: str) -> Array:
    if combine == "sum":
        return old + new
    better = new < old if combine == "min" else new > old
    kept: Array = np.where(~seen | better, new, old)
    return kept


def map_labels(
    x: Array,
    *,
    keys: Sequence[Any],
    values: Sequence[Any],
    default: Any,
    dtype: str,
    nan_is_key: bool = False,
) -> Array:
    """Return values[k] where x equals keys[k], else `default`; of equal keys the first counts."""
    table = dict(reversed(list(zip(keys, values, strict=True))))
    found = [table.get(item, default) for item in x.ravel().tolist()]
    if nan_is_key and x.dtype.kind == "f":
        for_nan = next((v for k, v in zip(keys, values, strict=True) if k != k), default)
        found = [for_nan if item != item else made for item, made in zip(x.ravel().tolist(), found, strict=True)]
    if dtype == "string":
        texts = np.empty(x.size, object)
        texts[:] = found
        return texts.reshape(x.shape)
    return np.array(found, numpy_dtype(dtype)).reshape(x.shape)


def zip_map(x: Array, *, keys: Sequence[Any]) -> list[dict[Any, float]]:
    """Return one dictionary a row, from keys[k] to the row's number k.

    Raises:
        RunError: the rows do not have one number for each key.
    """
    if x.ndim not in (1, 2) or x.shape[-1] != len(keys):
        raise RunError(f"expected rows of {len(keys)} numbers, found the shape {list(x.shape)}")
    rows = x.tolist() if x.ndim == 2 else [x.tolist()]
    return list(map(dict, map(zip, repeat(keys), rows)))  # a comprehension takes half as long again


TABLE: dict[str, Function] = quiet_table({"tree_ensemble": tree_ensemble}) | {
    "map_labels": map_labels,
    "zip_map": zip_map,
}
