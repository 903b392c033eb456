"""Trees as arrays: every branch made one of `x <= threshold`, checked, and laid out for the kernel.

A node here is a number; the arrays of `Forest` say what it is. Branches of other kinds are rewritten:

- x < t is x <= the number before t, and x > t and x >= t are those with the branches exchanged;
- x == t is two nodes: x <= t, and behind it x <= the number before t;
- membership in a set is a search in its members, in order, with x == t at the end.

NaN fails every comparison but `!=`, and goes to the true branch where the node says that missing
values do; a rewritten node sends it to where the original one would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.errors import CaptureError

Array = NDArray[Any]

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""In the order of their numbers in TreeEnsemble-5."""
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(len(MODES))

MAX_NODES = 1 << 30
"""Node numbers are int32, and a node may be laid out twice."""


@dataclass(frozen=True)
class Forest:
    """Trees as a model gives them: nodes by number.

    Attributes:
        feature, threshold, mode: of each node; mode -1 is a leaf, else a place in MODES.
        missing: whether a node's missing values go to the true branch.
        true, false: the node's children, as numbers.
        leaf: the leaf's number, -1 for other nodes.
        roots: the trees' first nodes.
        members: for a node of the mode BRANCH_MEMBER, its set.
    """

    feature: Array
    threshold: Array
    mode: Array
    missing: Array
    true: Array
    false: Array
    leaf: Array
    roots: Array
    members: dict[int, Array]


@dataclass(frozen=True)
class Layout:
    """The arrays that the operator tree_ensemble reads, and its attributes."""

    nodes: Array
    thresholds: Array
    roots: Array
    features: int
    depth: int
    missing: bool


def lay_out(forest: Forest) -> Layout:
    """Return the forest with children side by side.

    Raises:
        CaptureError: a child or root is none of the nodes, a feature is negative, a node is its own
            descendant, or there are too many nodes.
    """
    count = forest.mode.size
    inner = forest.mode >= 0
    if forest.roots.size == 0 or count == 0:
        raise CaptureError("it has no trees")
    for name, ids in (("child", forest.true[inner]), ("child", forest.false[inner]), ("root", forest.roots)):
        if ids.size and (ids.min() < 0 or ids.max() >= count):
            raise CaptureError(f"a {name} is none of the {count} nodes")
    features = forest.feature[inner]
    if features.size and (features.min() < 0 or features.max() >= np.iinfo(np.int32).max):
        raise CaptureError(f"a feature is {int(features.min())} to {int(features.max())}")
    depth = _depth(forest.true, forest.false, inner)
    plain = _rewritten(forest)
    inner = plain.mode >= 0
    branches = np.flatnonzero(inner)
    if 2 * branches.size + forest.roots.size > MAX_NODES:
        raise CaptureError(f"it has {count} nodes, at most {MAX_NODES // 2} are possible")
    # Record r of the result is node `order[r]`: the roots, then the children of each branch in pairs.
    order = np.empty(forest.roots.size + 2 * branches.size, np.int64)
    order[: forest.roots.size] = forest.roots
    order[forest.roots.size :: 2] = plain.true[branches]
    order[forest.roots.size + 1 :: 2] = plain.false[branches]
    child = -1 - plain.leaf
    child[branches] = forest.roots.size + 2 * np.arange(branches.size)
    feature = np.where(inner, np.where(plain.missing, -1 - plain.feature, plain.feature), 0)
    return Layout(
        nodes=np.stack([feature[order], child[order]], axis=1).astype(np.int32),
        thresholds=np.where(inner, plain.threshold, 0)[order].astype(forest.threshold.dtype),
        roots=np.arange(forest.roots.size, dtype=np.int32),
        features=int(features.max(initial=0)) + 1,
        depth=depth,
        missing=bool(plain.missing[inner].any()),
    )


def _depth(true: Array, false: Array, inner: Array) -> int:
    """Return the longest walk; refuse a node that is its own descendant."""
    branches = np.flatnonzero(inner)
    children = np.stack([true[branches], false[branches]], axis=1)
    parents = np.bincount(children.ravel(), minlength=inner.size)
    slot = np.full(inner.size, -1)
    slot[branches] = np.arange(branches.size)
    front, steps, done = branches[parents[branches] == 0], 0, 0
    while front.size:
        steps, done = steps + 1, done + front.size
        below = children[slot[front]].ravel()
        np.subtract.at(parents, below, 1)
        below = np.unique(below)
        front = below[inner[below] & (parents[below] == 0)]
    if done < branches.size:
        raise CaptureError("a node is its own descendant")
    return steps


class _Plain:
    """The nodes while they are rewritten: arrays of the same names as Forest's, with room for more."""

    def __init__(self, forest: Forest, extra: int) -> None:
        self.dtype = forest.threshold.dtype
        self.size = forest.mode.size

        def grown(array: Array, dtype: Any = np.int64) -> Array:
            return np.concatenate([array.astype(dtype), np.zeros(extra, dtype)])

        self.feature, self.mode, self.leaf = grown(forest.feature), grown(forest.mode), grown(forest.leaf)
        self.true, self.false = grown(forest.true), grown(forest.false)
        self.threshold, self.missing = grown(forest.threshold, self.dtype), grown(forest.missing, bool)

    def add(self) -> int:
        """Return the number of a new node."""
        self.size += 1
        return self.size - 1

    def put(self, node: int, feature: int, threshold: Any, children: tuple[int, int], *, nan_first: bool) -> None:
        """Make a node that of x <= threshold."""
        self.mode[node], self.feature[node], self.threshold[node] = _LEQ, feature, threshold
        self.true[node], self.false[node] = children
        self.missing[node], self.leaf[node] = nan_first, -1


def _rewritten(forest: Forest) -> _Plain:
    """Return the forest with nothing but branches of x <= threshold."""
    sets = {int(node): np.unique(np.asarray(values)) for node, values in forest.members.items()}
    equal = np.flatnonzero(np.isin(forest.mode, (_EQ, _NEQ)))
    # A search has a pair of nodes for every half, and one more for each x == t at its end.
    extra = equal.size + sum(3 * members.size - 2 for members in sets.values())
    plain = _Plain(forest, extra)
    mode, threshold = plain.mode, plain.threshold
    strict = np.isin(mode, (_LT, _GTE))
    turned = np.isin(mode, (_GTE, _GT))
    # Nothing is greater than NaN: all go to what was the false branch and now is the first.
    never = turned & np.isnan(threshold)
    threshold[strict] = _before(threshold[strict])
    threshold[never] = np.inf
    plain.true[turned], plain.false[turned] = plain.false[turned].copy(), plain.true[turned].copy()
    # NaN went to the false branch, which now is the first, unless missing values go to the true one.
    plain.missing[turned] = ~plain.missing[turned]
    mode[strict | turned] = _LEQ
    for node in equal.tolist():
        _make_equal(plain, node, forest.mode[node] == _NEQ)
    for node, members in sets.items():
        _make_member(plain, node, members)
    return plain


def _before(values: Array) -> Array:
    """Return the largest number below each; NaN, which nothing is <= of, for minus infinity."""
    below: Array = np.nextafter(values, values.dtype.type(-np.inf))
    below[np.isneginf(values)] = np.nan
    return below


def _make_equal(plain: _Plain, node: int, unequal: bool) -> None:
    """Make x == t; for x != t the branches are exchanged, and NaN, unequal to all, goes to the true one."""
    hit, miss = int(plain.true[node]), int(plain.false[node])
    nan_hits = bool(plain.missing[node])
    if unequal:
        hit, miss, nan_hits = miss, hit, False
    _equality(plain, node, int(plain.feature[node]), plain.threshold[node], (hit, miss), nan_hits=nan_hits)


def _equality(plain: _Plain, node: int, feature: int, value: Any, targets: tuple[int, int], *, nan_hits: bool) -> None:
    hit, miss = targets
    inside = plain.add()
    plain.put(node, feature, value, (inside, miss), nan_first=nan_hits)
    plain.put(inside, feature, _before(np.asarray([value]))[0], (miss, hit), nan_first=False)


def _make_member(plain: _Plain, node: int, members: Array) -> None:
    """Search the sorted members by halves; NaN takes the last one, which knows where it belongs."""
    feature, nan_hits = int(plain.feature[node]), bool(plain.missing[node])
    targets = int(plain.true[node]), int(plain.false[node])
    parts = [(node, 0, members.size)]
    while parts:
        here, low, high = parts.pop()
        if high - low == 1:
            _equality(plain, here, feature, members[low], targets, nan_hits=nan_hits)
            continue
        middle = (low + high) // 2
        below, above = plain.add(), plain.add()
        plain.put(here, feature, members[middle - 1], (below, above), nan_first=False)
        parts += [(below, low, middle), (above, middle, high)]
