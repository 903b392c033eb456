"""Lays the data of convolutions out channels last, and lets the layout flow through the graph.

Each convolution with a constant float32 weight, or of bytes that the target takes, becomes

    permute_dims(conv(permute_dims(x), w, channels_last), back)

and what reads the result is computed before the permutation instead of after it, wherever that is the
same thing: elementwise, pooling, concatenation, reductions, slices, reshapes that split or join axes.
So a permutation stays only where data enters or leaves such a part of the graph. Targets whose kernels
want this layout run the pass on their own regions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import DimLike
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops.elementwise import ELEMENTWISE
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.types import Shape
from hcomp.passes.base import Pass
from hcomp.passes.canonicalize import canonicalize
from hcomp.passes.merge_duplicates import merge_duplicates

Axes: TypeAlias = tuple[int, ...]
Takes: TypeAlias = Callable[[NDArray[np.generic], Mapping[str, Any]], bool]
Turned: TypeAlias = tuple[str, Axes]
"""(source, axes): the value is permute_dims(source, axes)."""


def channels_last(graph: Graph, integers: Takes = lambda weight, attrs: False) -> Graph:
    """Return `graph` with convolutions channels last; without any, the graph itself.

    `integers` says of the constant weight and the attributes of a convolution of bytes whether it takes part.
    """
    moved = rewrite(graph, _Layout(integers).rule)
    if moved is graph:
        return graph
    # Permutations that meet become one, or none, or a view where they only move axes of size 1.
    return canonicalize(merge_duplicates(canonicalize(moved)))


class _Layout:
    """What is known of the values so far: those that are a permutation of another one.

    `turned` holds those that this pass has made so; `copies` those that it has copied into another
    layout, for readers that meet turned values.
    """

    def __init__(self, integers: Takes) -> None:
        self.integers = integers
        self.turned: dict[str, Turned] = {}
        self.copies: dict[str, Turned] = {}

    def rule(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """Return what takes the place of the node's outputs."""
        if node.op in ("conv", "conv_transpose"):
            return self._conv(node, edit)
        handle = _RULES.get(node.op)
        if handle is None or not any(name in self.turned for name in node.used_inputs):
            return None
        return handle(self, node, edit)

    def turn(self, edit: Editor, source: str, axes: Axes, hint: str) -> str:
        """Return permute_dims(source, axes), and remember that it is."""
        if axes == tuple(range(len(axes))):
            return source
        name = edit.emit("permute_dims", source, hint=hint, axes=axes)
        self.turned[name] = (source, axes)
        return name

    def _conv(self, node: Node, edit: Editor) -> Sequence[str] | None:
        x, weight = edit.tensor(node.inputs[0]), edit.constant_value(node.inputs[1])
        attrs: Mapping[str, Any] = node.attrs
        plain = all(isinstance(p, int) and p >= 0 for p in attrs["padding"])
        if x is None or x.shape is None or weight is None or 0 in weight.shape or not plain:
            return None
        types = (x.dtype, str(weight.dtype), attrs.get("out_dtype", "") or x.dtype)
        are_bytes = node.op == "conv" and {*types[:2]} <= {"int8", "uint8"} and types[2] == "int32"
        if types != ("float32",) * 3 and not (are_bytes and self.integers(weight, attrs)):
            return None
        inputs = weight.shape[0] if node.op == "conv_transpose" else weight.shape[1] * attrs["groups"]
        if attrs["channels_last"] or x.shape[1] != inputs:
            return None
        source = self._last(edit, node.inputs[0], len(x.shape))
        made = edit.emit(node.op, source, node.inputs[1], hint=node.output, **{**attrs, "channels_last": True})
        return (self.turn(edit, made, _first(len(x.shape)), node.output),)

    def _last(self, edit: Editor, name: str, rank: int) -> str:
        """Return a value of `rank` with its channels last."""
        first = _first(rank)
        for known in (self.turned, self.copies):
            if name in known and known[name][1] == first:
                return known[name][0]
        copy = edit.emit("permute_dims", name, hint=f"{name}.last", axes=_inverse(first))
        self.copies[name] = (copy, first)
        return copy

    def pool(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """Pooling of a value whose channels are last already."""
        source, axes = self.turned[node.inputs[0]]
        if axes != _first(len(axes)):
            return None
        made = edit.emit(node.op, source, hint=node.output, **{**node.attrs, "channels_last": True})
        return (self.turn(edit, made, axes, node.output),)

    def elementwise(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """Any elementwise operator, all operands brought into the layout of the turned ones."""
        axes = self._layout(node)
        operands = []
        for name in node.inputs:
            operand = self._operand(name, axes, edit)
            if operand is None:
                return None
            operands.append(operand)
        made = edit.emit(node.op, *operands, hint=node.output, **node.attrs)
        return (self.turn(edit, made, axes, node.output),)

    def _layout(self, node: Node) -> Axes:
        """Return the permutation of the first turned operand."""
        return next(self.turned[name][1] for name in node.inputs if name in self.turned)

    def _operand(self, name: str, axes: Axes, edit: Editor) -> str | None:
        """Return what stands for the operand `name` where the result's layout is `axes`; None if nothing cheap."""
        for known in (self.turned, self.copies):
            if name in known and known[name][1] == axes:
                return known[name][0]
        kind = edit.tensor(name)
        if kind is None or kind.shape is None or len(kind.shape) > len(axes):
            return None
        rank = len(kind.shape)
        padded = (*(1,) * (len(axes) - rank), *kind.shape)
        back = _inverse(axes)
        value = edit.constant_value(name)
        if value is not None:
            full = value.reshape((1,) * (len(axes) - rank) + value.shape)
            return name if rank == 0 else edit.constant(full.transpose(back), name)
        if sum(d != 1 for d in padded) > 1:
            if rank < len(axes):
                return None
            copy = edit.emit("permute_dims", name, hint=f"{name}.turned", axes=back)
            self.copies.setdefault(name, (copy, axes))
            return copy
        return edit.emit("reshape", name, hint=f"{name}.turned", shape=tuple(padded[a] for a in back))

    def concat(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """Concatenation, if at least half of what it joins is in one layout."""
        axes = self._layout(node)
        if 2 * sum(self.turned.get(name, ("", ()))[1] == axes for name in node.inputs) < len(node.inputs):
            return None
        operands = [self._operand(name, axes, edit) for name in node.inputs]
        if any(o is None for o in operands):
            return None
        attrs: Mapping[str, Any] = node.attrs
        axis = axes[attrs["axis"] % len(axes)]
        made = edit.emit("concat", *(o for o in operands if o), hint=node.output, axis=axis)
        return (self.turn(edit, made, axes, node.output),)

    def same_rank(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """One turned input, and outputs of its rank: only the attributes that name axes change."""
        source, axes = self.turned[node.inputs[0]]
        attrs = _AXES[node.op](dict(node.attrs), axes)
        hints = [v.name for v in node.outputs]
        made = edit.emit_many(node.op, (source, *node.inputs[1:]), attrs, hints)
        return tuple(self.turn(edit, name, axes, hint) for name, hint in zip(made, hints, strict=True))

    def take(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """Elements picked along one axis by a list of indices."""
        kind = edit.tensor(node.inputs[1])
        if node.inputs[0] not in self.turned or kind is None or len(kind.shape or ()) != 1:
            return None
        return self.same_rank(node, edit)

    def reduce(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """A reduction; without `keepdims` the axes that are left may stand in order already."""
        source, axes = self.turned[node.inputs[0]]
        attrs: dict[str, Any] = dict(node.attrs)
        rank = len(axes)
        given = range(rank) if attrs["axis"] is None else np.atleast_1d(attrs["axis"]).tolist()
        gone = {a % rank for a in given}
        attrs["axis"] = tuple(sorted(axes[a] for a in gone))
        if node.op in ("argmax", "argmin"):
            (attrs["axis"],) = attrs["axis"]
        made = edit.emit(node.op, source, hint=node.output, **attrs)
        if attrs["keepdims"]:
            return (self.turn(edit, made, axes, node.output),)
        left = [axes[a] for a in range(rank) if a not in gone]
        order = sorted(left)
        return (self.turn(edit, made, tuple(order.index(a) for a in left), node.output),)

    def norm(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """A layer norm without scale and shift, over axes that may not be the last any more."""
        if len(node.used_inputs) > 1:
            return None
        source, axes = self.turned[node.inputs[0]]
        kind = edit.tensor(source)
        rank, attrs = len(axes), dict(node.attrs)
        first: Any = attrs["axis"]
        along = tuple(sorted(axes[a] for a in range(first % rank, rank)))
        if kind is None or along == tuple(range(rank - len(along), rank)):
            made = edit.emit("layer_norm", source, hint=node.output, **{**attrs, "axis": rank - len(along)})
            return (self.turn(edit, made, axes, node.output),)
        one, epsilon = (edit.constant(np.array(value, kind.dtype), "scalar") for value in (1, attrs["epsilon"]))
        centred = edit.emit("subtract", source, edit.emit("mean", source, axis=along, keepdims=True))
        variance = edit.emit("mean", edit.emit("multiply", centred, centred), axis=along, keepdims=True)
        factor = edit.emit("divide", one, edit.emit("sqrt", edit.emit("add", variance, epsilon)))
        made = edit.emit("multiply", centred, factor, hint=node.output)
        return (self.turn(edit, made, axes, node.output),)

    def permute(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """A permutation of a permutation."""
        source, axes = self.turned[node.inputs[0]]
        own: Any = node.attrs["axes"]
        return (self.turn(edit, source, tuple(axes[a] for a in own), node.output),)

    def view(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """A reshape that splits axes or joins neighbours, done on the source.

        Axes that are joined and are no neighbours there are brought together first: a copy, but one
        that leaves all other axes where they are.
        """
        source, axes = self.turned[node.inputs[0]]
        old, new, kind = edit.tensor(node.inputs[0]), node.outputs[0].type, edit.tensor(source)
        shape = getattr(new, "shape", None)
        if old is None or old.shape is None or kind is None or kind.shape is None or shape is None:
            return None
        groups = regrouped(old.shape, shape)
        if groups is None:
            return None
        order = list(range(len(axes)))
        for before, _ in groups:
            together = [axes[a] for a in before]
            if len(together) > 1 and together != list(range(together[0], together[0] + len(together))):
                place = min(order.index(a) for a in together)
                kept = [a for a in order if a not in together]
                left = sum(order.index(a) < place for a in kept)
                order = [*kept[:left], *together, *kept[left:]]
        moved = source if order == sorted(order) else edit.emit("permute_dims", source, axes=tuple(order))
        # The groups in the order in which their axes stand in `moved`; new axes of size 1 come first.
        ranked = sorted(groups, key=lambda g: order.index(axes[g[0][0]]) if g[0] else -1)
        sizes: list[DimLike] = []
        where: dict[int, int] = {}
        for _, after in ranked:
            for axis in after:
                where[axis] = len(sizes)
                sizes.append(shape[axis])
        made = edit.emit("reshape", moved, hint=node.output, shape=tuple(sizes))
        return (self.turn(edit, made, tuple(where[a] for a in range(len(shape))), node.output),)


def _first(rank: int) -> Axes:
    """Return the permutation from channels last to channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def _inverse(axes: Axes) -> Axes:
    return tuple(axes.index(a) for a in range(len(axes)))


def regrouped(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Return which axes of a reshape become which: each group keeps or splits one axis, or joins some.

    An axis of size 1 may come or go alone. None where an axis is neither kept, split nor joined.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        kept = i < len(old) and j < len(new) and old[i] == new[j]
        if kept:
            taken, made = 1, 1
        elif j < len(new) and new[j] == 1:
            taken, made = 0, 1
        elif i < len(old) and old[i] == 1:
            taken, made = 1, 0
        elif i < len(old) and j < len(new):
            joined, split = _run_of(old[i:], new[j]), _run_of(new[j:], old[i])
            if not joined and not split:
                return None
            taken, made = (joined, 1) if joined else (1, split)
        else:
            return None
        groups.append((list(range(i, i + taken)), list(range(j, j + made))))
        i, j = i + taken, j + made
    return groups


def _run_of(sizes: Shape, wanted: DimLike) -> int:
    """Return how many of the first sizes have the product `wanted`; 0 if none have."""
    total: DimLike = 1
    for number, size in enumerate(sizes, start=1):
        total = total * size
        if total == wanted:
            return number
    return 0


def _one_axis(attrs: dict[str, Any], axes: Axes) -> dict[str, Any]:
    return {**attrs, "axis": axes[attrs["axis"] % len(axes)]}


def _padding(attrs: dict[str, Any], axes: Axes) -> dict[str, Any]:
    back, padding, n = _inverse(axes), attrs["padding"], len(axes)
    return {**attrs, "padding": (*(padding[a] for a in back), *(padding[n + a] for a in back))}


def _slice(attrs: dict[str, Any], axes: Axes) -> dict[str, Any]:
    return {**attrs, "axes": tuple(axes[a % len(axes)] for a in attrs["axes"])}


_AXES: Mapping[str, Callable[[dict[str, Any], Axes], dict[str, Any]]] = {
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "cumprod", "split", "take"), _one_axis),
    "pad": _padding,
    "strided_slice": _slice,
}
"""By operator, its attributes where the data is the source of a permutation by `axes`."""

_RULES: Mapping[str, Callable[[_Layout, Node, Editor], Sequence[str] | None]] = {
    **dict.fromkeys((op.name for op in ELEMENTWISE), _Layout.elementwise),
    **dict.fromkeys(_AXES, _Layout.same_rank),
    **dict.fromkeys(("max_pool", "avg_pool"), _Layout.pool),
    **dict.fromkeys(("sum", "mean", "prod", "max", "min", "argmax", "argmin"), _Layout.reduce),
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), _Layout.view),
    "layer_norm": _Layout.norm,
    "concat": _Layout.concat,
    "require": _Layout.elementwise,
    "permute_dims": _Layout.permute,
    "take": _Layout.take,
}

CHANNELS_LAST = Pass("channels-last", channels_last)
