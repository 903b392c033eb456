"""The attributes of tree ensembles, read and checked: arrays of an Ensemble, whatever the operator.

Trees that are damaged are errors, not extern nodes: ONNX Runtime does not check all of this, and walks
in circles or reads what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcomp.capture.context import NodeContext
from hcomp.capture.onnx_ops.ml_tree_nodes import MODES, Forest, Layout, lay_out
from hcomp.capture.onnx_types import to_array
from hcomp.errors import CaptureError

Array = NDArray[Any]
Reach = Literal["always", "never", "sometimes"]
"""Whether every row gets something for a target from some leaf."""


@dataclass(frozen=True)
class Ensemble:
    """Trees and what their leaves give: entry e gives `weights[e]` to target `targets[e]`.

    Attributes:
        leaves: how many leaves there are.
        entry_leaf: the leaf of each entry, ascending.
        leaf_tree: the tree of each leaf, or None where trees may share leaves.
    """

    layout: Layout
    leaves: int
    entry_leaf: Array
    targets: Array
    weights: Array
    leaf_tree: Array | None

    def reach(self, target: int) -> Reach:
        """Return whether rows get something for `target`."""
        leaves = self.entry_leaf[self.targets == target]
        if leaves.size == 0:
            return "never"
        if self.leaf_tree is None:
            return "sometimes"
        having = np.bincount(self.leaf_tree[np.unique(leaves)], minlength=self.layout.roots.size)
        return "always" if bool((having == np.bincount(self.leaf_tree)).any()) else "sometimes"


def tree_dtype(c: NodeContext) -> str:
    """Return the type that trees are computed in, as ONNX Runtime does."""
    return "float64" if c.dtype(0) == "float64" else "float32"


def float_attribute(c: NodeContext, name: str) -> Array:
    """Return a float attribute or its `_as_tensor` form."""
    plain, tensor = c.attr(name), c.attr(f"{name}_as_tensor")
    if plain is not None and tensor is not None:
        raise CaptureError(f"it has both {name!r} and '{name}_as_tensor'")
    if tensor is None:
        return np.asarray(plain or (), np.float32).astype(tree_dtype(c))
    array = to_array(tensor).ravel()
    if array.dtype != tree_dtype(c):
        raise CaptureError(f"its attribute '{name}_as_tensor' is {array.dtype} for an input of {c.dtype(0)}")
    return array


def _whole(c: NodeContext, name: str, size: int) -> Array:
    values = np.asarray(c.attr(name) or (), np.int64)
    if values.size != size:
        raise CaptureError(f"its attribute {name!r} has {values.size} values, expected {size}")
    return values


def _missing(c: NodeContext, size: int) -> Array:
    """Return for each node whether missing values go to the true branch."""
    name = "nodes_missing_value_tracks_true"
    return _whole(c, name, size) == 1 if c.attr(name) else np.zeros(size, bool)


def tree_of_lists(c: NodeContext, kind: str, count: int) -> Ensemble:
    """Read the attributes of opsets 1 to 3; `kind` is class or target."""
    modes = c.attr("nodes_modes") or ()
    size = len(modes)
    c.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")  # how often training took a branch
    places = {name: k for k, name in enumerate(MODES[:6])} | {"LEAF": -1}
    unknown = [m for m in modes if m not in places]
    if unknown or not size:
        raise CaptureError(f"its node mode {unknown[0]!r} does not exist" if unknown else "it has no nodes")
    tree, ids = _whole(c, "nodes_treeids", size), _whole(c, "nodes_nodeids", size)
    values = float_attribute(c, "nodes_values")
    if values.size != size:
        raise CaptureError(f"it has {values.size} node values for {size} nodes")
    mode = np.array([places[m] for m in modes], np.int64)
    # A tree's first node is its root.
    _, firsts, tree_number = np.unique(tree, return_index=True, return_inverse=True)
    find = _Finder(tree, ids)
    inner = mode >= 0
    children = {}
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        children[name] = np.zeros(size, np.int64)
        children[name][inner] = find(tree[inner], _whole(c, name, size)[inner])
    missing = _missing(c, size)
    leaf = np.where(inner, -1, np.cumsum(~inner) - 1)
    forest = Forest(
        _whole(c, "nodes_featureids", size), values, mode, missing, children["nodes_truenodeids"],
        children["nodes_falsenodeids"], leaf, firsts, {},
    )  # fmt: skip
    layout = _laid_out(c, forest)
    targets = np.asarray(c.attr(f"{kind}_ids") or (), np.int64)
    at = find(_whole(c, f"{kind}_treeids", targets.size), _whole(c, f"{kind}_nodeids", targets.size))
    weights = float_attribute(c, f"{kind}_weights")
    if weights.size != targets.size:
        raise CaptureError(f"it has {weights.size} weights for {targets.size} targets")
    if targets.size and (targets.min() < 0 or targets.max() >= count):
        raise CaptureError(f"a target is {int(targets.min())} to {int(targets.max())}, there are {count}")
    # ONNX Runtime takes a leaf's entries in the order of their trees and nodes; of branches, none.
    order = np.lexsort((np.arange(at.size), ids[at], tree[at]))
    order = order[~inner[at[order]]]
    number = leaf[at[order]]
    order = order[np.argsort(number, kind="stable")]
    number = leaf[at[order]]
    if np.unique(number).size != int((~inner).sum()):
        raise c.refuse("a leaf has no weight")
    return Ensemble(layout, int((~inner).sum()), number, targets[order], weights[order], tree_number[~inner])


class _Finder:
    """Finds nodes by the numbers of their tree and their own."""

    def __init__(self, tree: Array, ids: Array) -> None:
        self.place: dict[tuple[int, int], int] = {}
        for place, key in enumerate(zip(tree.tolist(), ids.tolist(), strict=True)):
            if self.place.setdefault(key, place) != place:
                raise CaptureError(f"tree {key[0]} has two nodes {key[1]}")

    def __call__(self, tree: Array, ids: Array) -> Array:
        try:
            found = [self.place[key] for key in zip(tree.tolist(), ids.tolist(), strict=True)]
        except KeyError as error:
            number, own = error.args[0]
            raise CaptureError(f"tree {number} has no node {own}") from None
        return np.array(found, np.int64)


def tree_of_tensors(c: NodeContext, count: int) -> Ensemble:
    """Read the attributes of TreeEnsemble-5, where branches and leaves are counted apart."""
    mode = to_array(c.required("nodes_modes")).astype(np.int64).ravel()
    size = mode.size
    c.ignore("nodes_hitrates")  # how often training took a branch
    if size and (mode.min() < 0 or mode.max() >= len(MODES)):
        raise CaptureError(f"a node mode is {int(mode.min())} to {int(mode.max())}, 0 to {len(MODES) - 1} exist")
    splits, weights = _typed(c, "nodes_splits"), _typed(c, "leaf_weights")
    targets = _whole(c, "leaf_targetids", weights.size)
    if splits.size != size or weights.size == 0:
        raise CaptureError(f"it has {splits.size} splits for {size} nodes, and {weights.size} leaves")
    if targets.min() < 0 or targets.max() >= count:
        raise CaptureError(f"a target is {int(targets.min())} to {int(targets.max())}, there are {count}")
    children = []
    for side in ("true", "false"):
        ids, leaves = _whole(c, f"nodes_{side}nodeids", size), _whole(c, f"nodes_{side}leafs", size) != 0
        limit = np.where(leaves, weights.size, size)
        if size and ((ids < 0) | (ids >= limit)).any():
            raise CaptureError(f"a child among its 'nodes_{side}nodeids' does not exist")
        children.append(np.where(leaves, size + ids, ids))
    roots = np.asarray(c.required("tree_roots"), np.int64)
    if roots.size == 0 or roots.min() < 0 or roots.max() >= size:
        raise CaptureError(f"a root among its 'tree_roots' is none of the {size} nodes")
    true, false = children
    # A node whose branches both are one leaf stands for a tree of that leaf alone; it may have any feature.
    missing = _missing(c, size)
    leaf_count = weights.size
    none = np.zeros(leaf_count, np.int64)
    forest = Forest(
        np.concatenate([_whole(c, "nodes_featureids", size), none]),
        np.concatenate([splits, none.astype(splits.dtype)]),
        np.concatenate([mode, none - 1]),
        np.concatenate([missing, none != 0]),
        np.concatenate([true, none]),
        np.concatenate([false, none]),
        np.concatenate([np.full(size, -1), np.arange(leaf_count)]),
        np.where(true[roots] == false[roots], true[roots], roots),
        _members(c, mode),
    )
    return Ensemble(_laid_out(c, forest), leaf_count, np.arange(leaf_count), targets, weights, None)


def _laid_out(c: NodeContext, forest: Forest) -> Layout:
    """Return the forest's arrays, whose trees read no more features than there are."""
    layout = lay_out(forest)
    width = c.shape(0)[-1] if c.rank(0) else 0
    if isinstance(width, int) and width < layout.features:
        raise CaptureError(f"its trees read {layout.features} features, the data has {width}")
    return layout


def _typed(c: NodeContext, name: str) -> Array:
    array = to_array(c.required(name)).ravel()
    if array.dtype != tree_dtype(c):
        raise CaptureError(f"its attribute {name!r} is {array.dtype} for an input of {c.dtype(0)}")
    return array


def _members(c: NodeContext, mode: Array) -> dict[int, Array]:
    """Return the sets of the nodes that have one: they stand one behind the other, with NaN between."""
    nodes = np.flatnonzero(mode == MODES.index("BRANCH_MEMBER"))
    tensor = c.attr("membership_values")
    values = np.zeros(0) if tensor is None else to_array(tensor).ravel()
    parts = np.split(values, np.flatnonzero(np.isnan(values)))
    sets = [part[~np.isnan(part)].astype(tree_dtype(c)) for part in parts]
    if len(sets) < nodes.size or any(s.size == 0 for s in sets[: nodes.size]):
        raise CaptureError(f"its 'membership_values' do not give a set for each of {nodes.size} nodes")
    return {int(node): members for node, members in zip(nodes, sets, strict=False)}
