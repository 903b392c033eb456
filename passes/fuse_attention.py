"""Makes one operator of each attention: two products with softmax between them, and what moves data around them.

    y = softmax(mask(scale * q @ k^T)) @ v

Scales may stand before or after the first product; masks are added, or chosen by `where`; permutations,
reshapes, slices at one index and repetitions on the way of q, k, v, the masks and the result become the order
in which the operator names the axes. The scores must have no other reader. Targets with a kernel for it run
this pass on their own regions.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops.attention import COLUMN, INNER, KEY, QUERY
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.types import Shape, TensorType
from hcomp.passes.base import Pass
from hcomp.passes.canonicalize import canonicalize
from hcomp.passes.merge_duplicates import merge_duplicates
from hcomp.passes.named_axes import Axes, Entry, Layout, Operand, Place, Views

_WIDEST = 512
"""Columns of k and v together: where heads are wider, the products take so long that softmax does not matter."""

_FEW = 8
"""Queries that are so few that reading k and v in place pays whatever their width."""

_VIEWS = ("reshape", "expand_dims", "squeeze", "permute_dims")


def fuse_attention(graph: Graph) -> Graph:
    """Return `graph` with each attention as one node; without any, the graph itself."""
    found: dict[str, _Attention] = {}
    for node in graph.nodes:
        if node.op == "softmax" and (match := _match(graph, node, found)) is not None:
            found[match.result] = match
    if not found:
        return graph

    def rule(node: Node, edit: Editor) -> Sequence[str] | None:
        here = found.get(node.output) if edit.before is graph and node.outputs else None
        return None if here is None else (here.emit(edit),)

    # Masks that several layers share are turned once.
    return canonicalize(merge_duplicates(rewrite(graph, rule)))


@dataclass(frozen=True)
class _Mask:
    """One mask: how it changes the scores, the value that it reads, whether that is to be negated."""

    kind: str
    place: Place
    negated: bool = False


@dataclass(frozen=True)
class _Attention:
    """One attention in a graph: `result` is the value that it makes, of `shape`; `names` are its nodes'."""

    operands: tuple[Operand, ...]
    masks: tuple[_Mask, ...]
    scale: float
    fill: float
    zero_nan: bool
    result: str
    shape: Shape
    output: str
    names: tuple[str, ...]

    def emit(self, edit: Editor) -> str:
        """Add the new nodes and return the result."""
        found = [self._read(edit, o) for o in self.operands[:3]]
        for mask, operand in zip(self.masks, self.operands[3:], strict=True):
            name, axes = _queries_last(edit, *self._read(edit, operand))
            if mask.negated:
                name = edit.emit("logical_not", name, hint=f"{name}.not")
            found.append((name, axes))
        own = edit.origin
        edit.origin = replace(own, others=tuple(n for n in self.names if n != own.name))
        made = edit.emit(
            "attention", *(name for name, _ in found), hint=self.result, axes=tuple(axes for _, axes in found),
            output=self.output, scale=self.scale, masks=tuple(m.kind for m in self.masks), fill=self.fill,
            zero_nan=self.zero_nan,
        )  # fmt: skip
        edit.origin = own
        kind = edit.tensor(made)
        if kind is not None and kind.shape == self.shape:
            return made
        return edit.emit("reshape", made, hint=self.result, shape=self.shape)

    @staticmethod
    def _read(edit: Editor, operand: Operand) -> tuple[str, str]:
        if operand.shape is None:
            return operand.name, operand.axes
        return edit.emit("reshape", operand.name, hint=f"{operand.name}.axes", shape=operand.shape), operand.axes


def _queries_last(edit: Editor, name: str, axes: str) -> tuple[str, str]:
    """Return a mask with its queries innermost: they are the lanes of the kernels."""
    place = axes.find(QUERY)
    if place in (-1, len(axes) - 1):
        return name, axes
    order = (*(i for i in range(len(axes)) if i != place), place)
    value = edit.constant_value(name)
    if value is None:
        name = edit.emit("permute_dims", name, hint=f"{name}.turned", axes=order)
    else:
        name = edit.constant(np.ascontiguousarray(value.transpose(order)), name)
    return name, "".join(axes[i] for i in order)


@dataclass
class _Search:
    """The walk through one attention, and what it has found so far; it goes no further up than `others` make."""

    graph: Graph
    axes: Axes
    others: Container[str]
    names: list[str] = field(default_factory=list)
    masks: list[_Mask] = field(default_factory=list)
    scale: float = 1.0
    fill: float | None = None

    def __post_init__(self) -> None:
        self.views = Views(self.graph, self.axes)

    def shape(self, name: str, dtype: str = "float32") -> Shape | None:
        """Return the shape of a value of known rank and of `dtype`, without empty axes, else None."""
        found = self.graph.types[name]
        known = isinstance(found, TensorType) and found.dtype == dtype and 0 not in (found.shape or ())
        return found.shape if isinstance(found, TensorType) and known else None

    def reader(self, name: str) -> Node | None:
        """Return the node that reads a value, if it is the only one and nobody else gets the value."""
        users = self.graph.users.get(name, ())
        once = len(users) == 1 and users[0].inputs.count(name) == 1 and name not in self.graph.outputs
        return users[0] if once else None

    def producer(self, name: str) -> Node | None:
        """Return the node that makes a value, unless it is another attention's result."""
        return None if name in self.others else self.graph.producer.get(name)

    def number(self, name: str) -> float | None:
        """Return a constant of one element, else None."""
        value = self.graph.constant.get(name)
        return float(value.reshape(())) if value is not None and value.size == 1 and value.dtype.kind == "f" else None

    # -- from softmax up to the first product ---------------------------------------------------
    def scores(self, name: str, layout: Layout) -> tuple[Node, Layout] | None:
        """Return the product that the logits `name` are made of, and the layout of its result."""
        node = self.producer(name)
        if node is None or self.reader(name) is None:
            return None
        self.names.append(node.label)
        if node.op == "matmul":
            return node, layout
        if node.op in _VIEWS:
            above = self.views.above(node, layout)
            return None if above is None else self.scores(node.inputs[0], above)
        if node.op == "add":
            first, second = node.inputs
            return self._masked(node, first, second, layout) or self._masked(node, second, first, layout)
        if node.op == "where":
            condition, yes, no = node.inputs
            kept, negated = (no, True) if self.number(yes) is not None else (yes, False)
            fill = self.number(yes if negated else no)
            if fill is None or self.fill not in (None, fill):
                return None
            self.fill = fill
            return self._masked(node, kept, condition, layout, negated=negated)
        return self._scaled(node, layout)

    def _scaled(self, node: Node, layout: Layout) -> tuple[Node, Layout] | None:
        """A scale, which must stand before the masks."""
        taken, masks = self.factor(node), len(self.masks)
        found = None if taken is None else self.scores(taken[0], layout)
        if taken is None or found is None or len(self.masks) != masks:
            return None
        self.scale *= taken[1]
        return found

    def _masked(
        self, node: Node, chain: str, mask: str, layout: Layout, *, negated: bool = False
    ) -> tuple[Node, Layout] | None:
        """A mask on the values that `chain` makes; without success everything is as before."""
        kind, dtype = ("add", "float32") if node.op == "add" else ("where", "bool")
        shape = self.shape(mask, dtype)
        before = list(self.names), list(self.masks), self.scale, self.fill
        if shape is not None and self.shape(chain) is not None and self.shape(chain) == self.shape(node.output):
            found = self.scores(chain, layout)
            own = None if found is None else self.axes.matched(layout, shape)
            if found is not None and own is not None:
                self.masks.append(_Mask(kind, self._source(mask, own), negated))
                return found
        self.names, self.masks, self.scale, self.fill = before
        return None

    def _source(self, name: str, layout: Layout) -> Place:
        """Return the value that a mask is a view or a repetition of."""
        node = self.producer(name)
        while node is not None and node.op in (*_VIEWS, "broadcast_to"):
            above = self.views.above(node, layout)
            if above is None:
                break
            name, layout = node.inputs[0], above
            node = self.producer(name)
        return Place(name, layout)

    def factor(self, node: Node) -> tuple[str, float] | None:
        """Return the value that a node scales, and by how much; None if it does something else."""
        if node.op not in ("multiply", "divide"):
            return None
        (name, other), number = node.inputs, self.number(node.inputs[1])
        if number is None and node.op == "multiply":
            name, other = other, name
            number = self.number(other)
        if number is None or self.shape(name) is None or self.shape(name) != self.shape(node.output):
            return None
        if node.op == "multiply":
            return name, number
        return (name, 1.0 / number) if number else None

    # -- from softmax down to the result --------------------------------------------------------
    def weights(self, softmax: Node) -> tuple[str, bool]:
        """Return the weights that softmax gives, and whether their NaN become 0."""
        name = softmax.output
        users = sorted(self.graph.users.get(name, ()), key=lambda n: n.op)
        if name in self.graph.outputs or [n.op for n in users] != ["isnan", "where"]:
            return name, False
        test, choice = users
        condition, yes, no = choice.inputs
        if (condition, no) != (test.output, name) or self.number(yes) != 0 or self.reader(condition) is None:
            return name, False
        self.names += [test.label, choice.label]
        return choice.output, True

    def product(self, weights: str, layout: Layout) -> tuple[Node, Layout] | None:
        """Return the product that takes the weights, and their layout there."""
        node = self.reader(weights)
        while node is not None and node.op in _VIEWS:
            below = self.views.below(node, layout)
            if below is None:
                return None
            self.names.append(node.label)
            weights, layout = node.output, below
            node = self.reader(weights)
        if node is None or node.op != "matmul" or node.inputs[0] != weights:
            return None
        self.names.append(node.label)
        return node, layout

    def result(self, name: str, layout: Layout) -> Place:
        """Return the value that the new node makes: behind the last permutation that leaves rows contiguous."""
        best, passed = Place(name, layout), []
        node = self.reader(name)
        while node is not None and node.op in _VIEWS:
            below = self.views.below(node, layout)
            if below is None:
                break
            name, layout = node.output, below
            passed.append(node.label)
            if node.op == "permute_dims" and self.axes.last(layout) == COLUMN:
                best = Place(name, layout)
                self.names += passed
                passed = []
            node = self.reader(name)
        return best

    # -- operands -------------------------------------------------------------------------------
    def operand(self, name: str, layout: Layout, last: str) -> Place | None:
        """Return where q, k or v is read: as far up as its rows, along the axis `last`, are contiguous.

        Scales on the way of q and k are noted.
        """
        best: Place | None = None
        scale, passed = 1.0, list[str]()
        while True:
            if self.axes.last(layout) == last:
                best = Place(name, layout)
                self.scale, scale = self.scale * scale, 1.0
                self.names += passed
                passed = []
            node = self.producer(name)
            if node is None:
                return best
            taken = None if last == COLUMN else self.factor(node)
            if taken is not None:
                name, scale = taken[0], scale * taken[1]
            else:
                above = self.views.above(node, layout, name)
                if above is None:
                    return best
                name, layout = node.inputs[0], above
            passed.append(node.label)


def _match(graph: Graph, softmax: Node, others: Container[str]) -> _Attention | None:
    """Return the attention around a softmax, or None; `others` are the results of those before it."""
    axes = Axes(QUERY + KEY + INNER + COLUMN)
    search = _Search(graph, axes, others)
    shape, axis = search.shape(softmax.output), softmax.attrs["axis"]
    if shape is None or len(shape) < 2 or not isinstance(axis, int) or axis % len(shape) != len(shape) - 1:
        return None
    layout = (*map(axes.new, shape[:-2]), axes.name(QUERY, shape[-2]), axes.name(KEY, shape[-1]))
    weights, zero_nan = search.weights(softmax)
    search.names.append(softmax.label)
    second = search.product(weights, layout)
    first = None if second is None else search.scores(softmax.inputs[0], layout)
    if first is None or second is None:
        return None
    places = _operands(search, first, second)
    if places is None:
        return None
    *read, made = places
    needed = (QUERY, KEY, KEY, *[""] * len(search.masks))
    found = [axes.operand(p, c) for p, c in zip([*read, *(m.place for m in search.masks)], needed, strict=True)]
    operands = tuple(o for o in found if o is not None)
    result = search.shape(made.name)
    output = axes.letters(made.layout)
    if len(operands) != len(found) or result is None or not _fits([o.axes for o in operands], output):
        return None
    fill = float("-inf") if search.fill is None else search.fill
    names = tuple(dict.fromkeys(search.names))
    scale = float(np.float32(search.scale))
    return _Attention(operands, tuple(search.masks), scale, fill, zero_nan, made.name, result, output, names)


def _operands(
    search: _Search, first: tuple[Node, Layout], second: tuple[Node, Layout]
) -> tuple[Place, Place, Place, Place] | None:
    """Return where q, k and v are read and what is made, of the two products and the layouts of scores and weights."""
    axes = search.axes
    (scores, above), (values, below) = first, second
    shapes = [search.shape(name) for name in (*scores.inputs, values.inputs[1])]
    q, k, v = (s if s is not None and len(s) > 1 else None for s in shapes)
    if q is None or k is None or v is None:
        return None
    inner, column = q[-1], v[-1]
    # A product with a constant has kernels of its own.
    constant = any(name in search.graph.constant for name in (*scores.inputs, values.inputs[1]))
    if (
        constant
        or inner != k[-2]
        or not isinstance(inner, int)
        or not isinstance(column, int)
        or min(inner, column) < 2
    ):
        return None
    rows = q[-2]
    few = isinstance(rows, int) and rows <= _FEW
    if not few and inner + column > _WIDEST:
        return None
    d, e = axes.name(INNER, inner), axes.name(COLUMN, column)
    *above_batch, above_rows, keys = above
    *below_batch, below_rows, weighed = below
    layouts: list[tuple[list[Entry], Shape]] = [
        ([*above_batch, above_rows, d], q),
        ([*above_batch, d, keys], k),
        ([*below_batch, weighed, e], v),
    ]
    places = []
    for name, (layout, shape), last in zip(
        (*scores.inputs, values.inputs[1]), layouts, (INNER, INNER, COLUMN), strict=True
    ):
        own = axes.matched(tuple(layout), shape)
        place = None if own is None else search.operand(name, own, last)
        if place is None or place.name in search.graph.constant:
            return None
        places.append(place)
    return places[0], places[1], places[2], search.result(values.output, (*below_batch, below_rows, e))


def _fits(axes: Sequence[str], output: str) -> bool:
    """Say whether the axes of q, k, v, masks and the result are those of an attention."""
    q, k, v, *masks = ({c for c in own if c.isalpha()} for own in axes)
    batch = q - {QUERY, INNER}
    return (
        QUERY in q
        and {KEY, INNER} <= k <= batch | {KEY, INNER}
        and {KEY, COLUMN} <= v <= batch | {KEY, COLUMN}
        and all(m <= batch | {QUERY, KEY} for m in masks)
        and sorted(output) == sorted(batch | {QUERY, COLUMN})
    )


FUSE_ATTENTION = Pass("fuse-attention", fuse_attention)
