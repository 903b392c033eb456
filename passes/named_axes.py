"""Axes with names: following a value up through views and copies of views to where its elements lie.

A layout says, for each axis of a value, which named axes it is made of, outermost first. Views join axes, and
split a named axis into new ones; a slice at one index is an axis that is read at that index only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hcomp.dims import DimLike, floordiv
from hcomp.ir.graph import Graph, Node
from hcomp.ir.types import Shape, TensorType


@dataclass(frozen=True)
class Fixed:
    """An axis of `size` elements that is read at `index` only."""

    index: int
    size: DimLike


Item: TypeAlias = str | Fixed
Entry: TypeAlias = tuple[Item, ...]
Layout: TypeAlias = tuple[Entry, ...]


@dataclass(frozen=True)
class Place:
    """A value and its layout."""

    name: str
    layout: Layout


@dataclass(frozen=True)
class Operand:
    """A value with one letter or digit an axis, after a reshape to `shape` where there is one."""

    name: str
    axes: str
    shape: tuple[DimLike, ...] | None


@dataclass
class Axes:
    """The named axes of one pattern: their sizes, and what those have become that views split.

    `whole` are names that no view may split.
    """

    whole: str
    sizes: dict[str, DimLike] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def name(self, letter: str, size: DimLike) -> Entry:
        """Return an axis with a given name."""
        self.sizes[letter] = size
        return (letter,)

    def new(self, size: DimLike) -> Entry:
        """Return an axis with a name of its own, none for size 1."""
        if size == 1:
            return ()
        letter = next(c for c in "bhgrtuwxyzacfijkmnopqv" if c not in self.sizes and c not in self.whole)
        return self.name(letter, size)

    def size(self, item: Item) -> DimLike:
        """Return the elements of an axis."""
        return item.size if isinstance(item, Fixed) else self.sizes[item]

    def extent(self, entry: Entry) -> DimLike:
        """Return the elements of an axis of a value."""
        total: DimLike = 1
        for item in entry:
            total = total * self.size(item)
        return total

    def settled(self, layout: Layout) -> Layout:
        """Return a layout with the parts of the axes that were split."""
        return tuple(tuple(part for item in entry for part in self._parts(item)) for entry in layout)

    def _parts(self, item: Item) -> Entry:
        if isinstance(item, Fixed) or item not in self.parts:
            return (item,)
        return tuple(part for own in self.parts[item] for part in self._parts(own))

    def regrouped(self, layout: Layout, shape: Shape) -> Layout | None:
        """Return the layout of the same elements in another shape, or None where its axes do not say."""
        queue = [item for entry in self.settled(layout) for item in entry]
        found: list[Entry] = []
        for wanted in shape:
            entry: list[Item] = []
            rest: DimLike = wanted
            if rest == 1 and queue and self.size(queue[0]) == 1:
                entry.append(queue.pop(0))
            while rest != 1:
                if not queue:
                    return None
                item = queue.pop(0)
                left = _quotient(rest, self.size(item))
                if left is not None:
                    entry.append(item)
                    rest = left
                    continue
                left = _quotient(self.size(item), rest)
                if left is None or isinstance(item, Fixed) or item in self.whole:
                    return None
                outer, inner = self.new(rest), self.new(left)
                self.parts[item] = (*map(str, outer), *map(str, inner))
                entry += outer
                queue[:0] = inner
                rest = 1
            found.append(tuple(entry))
        return tuple(found) if all(self.size(item) == 1 for item in queue) else None

    def matched(self, layout: Layout, shape: Shape) -> Layout | None:
        """Return the layout of a value of `shape` that broadcasts with one of `layout`; None if it may not."""
        if len(shape) > len(layout):
            return None
        found: list[Entry] = []
        for entry, size in zip(self.settled(layout)[len(layout) - len(shape) :], shape, strict=True):
            extent = self.extent(entry)
            if size not in (extent, 1):
                return None
            found.append(entry if size == extent else ())
        return tuple(found)

    def last(self, layout: Layout) -> Item | None:
        """Return the innermost axis of more than one element."""
        items = [item for entry in self.settled(layout) for item in entry if self.size(item) != 1]
        return items[-1] if items else None

    def letters(self, layout: Layout) -> str:
        """Return the names in a layout."""
        return "".join(item for entry in self.settled(layout) for item in entry if isinstance(item, str))

    def operand(self, place: Place, needed: str = "") -> Operand | None:
        """Return a value with one letter or digit an axis; names that are `needed` may be put in if of size 1."""
        layout = self.settled(place.layout)
        absent = [c for c in needed if c not in self.letters(layout)]
        items = [item for entry in layout for item in entry]
        if any(self.sizes[c] != 1 for c in absent) or any(isinstance(i, Fixed) and i.index > 9 for i in items):
            return None
        plain = not absent and all(len(entry) <= 1 for entry in layout)
        spelled: Sequence[Item | None] = (
            [entry[0] if entry else None for entry in layout] if plain else [*absent, *items]
        )
        axes = "".join("0" if i is None else str(i.index) if isinstance(i, Fixed) else i for i in spelled)
        return Operand(place.name, axes, None if plain else tuple(self.size(i) for i in spelled if i is not None))


def _quotient(a: DimLike, b: DimLike) -> DimLike | None:
    """Return a / b where it certainly is whole."""
    if a == b:
        return 1
    if b == 1:
        return a
    if b == 0 or (isinstance(a, int) and not isinstance(b, int)):
        return None
    found = floordiv(a, b)
    return found if found * b == a else None


@dataclass(frozen=True)
class Views:
    """Steps over the operators of a graph that only move elements."""

    graph: Graph
    axes: Axes

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor of known rank, else None."""
        found = self.graph.types[name]
        return found.shape if isinstance(found, TensorType) else None

    def above(self, node: Node, layout: Layout, name: str = "") -> Layout | None:
        """Return the layout of a node's first input, given that of its output `name`; None if it does more."""
        shape = self.shape(node.inputs[0]) if node.inputs else None
        if shape is None:
            return None
        attrs: Any = node.attrs
        match node.op:
            case "reshape" | "expand_dims" | "squeeze":
                return self.axes.regrouped(layout, shape)
            case "permute_dims":
                return tuple(layout[attrs["axes"].index(i)] for i in range(len(shape)))
            case "broadcast_to":
                own = layout[len(layout) - len(shape) :]
                made = (self.shape(node.output) or ())[len(layout) - len(shape) :]
                return tuple(e if a == b else () for e, a, b in zip(own, shape, made, strict=True))
            case "strided_slice":
                cuts = zip(attrs["axes"], attrs["begin"], attrs["size"], attrs["strides"], strict=True)
                return self._cut(layout, shape, [(a % len(shape), b, n, step) for a, b, n, step in cuts])
            case "split":
                number = [v.name for v in node.outputs].index(name or node.output)
                begin = sum(attrs["sizes"][:number])
                return self._cut(layout, shape, [(attrs["axis"] % len(shape), begin, attrs["sizes"][number], 1)])
            case "take":
                return self._taken(node, layout, shape)
        return None

    def below(self, node: Node, layout: Layout) -> Layout | None:
        """Return the layout of a node's output, given that of its input; None if it does more than move."""
        shape = self.shape(node.output)
        if shape is None:
            return None
        if node.op == "permute_dims":
            axes: Any = node.attrs["axes"]
            return tuple(layout[a] for a in axes)
        return self.axes.regrouped(layout, shape) if node.op in ("reshape", "expand_dims", "squeeze") else None

    def _cut(self, layout: Layout, shape: Shape, cuts: Sequence[tuple[int, Any, Any, int]]) -> Layout | None:
        """Return the layout before slices: each is one of the equal parts of its axis."""
        found = list(layout)
        for axis, begin, size, step in cuts:
            whole = shape[axis]
            if (begin, size) == (0, whole) and step == 1:
                continue
            if not all(isinstance(n, int) for n in (begin, size, whole)) or (step != 1 and size != 1):
                return None
            assert isinstance(whole, int)
            if size == 0 or begin % size or whole % size or not 0 <= begin < whole:
                return None
            found[axis] = (Fixed(begin // size, whole // size), *found[axis])
        return tuple(found)

    def _taken(self, node: Node, layout: Layout, shape: Shape) -> Layout | None:
        """Return the layout before one index is taken."""
        index, attrs = self.graph.constant.get(node.inputs[1]), node.attrs
        axis: Any = attrs["axis"]
        if index is None or index.size != 1 or index.ndim > 1 or not isinstance(axis, int):
            return None
        axis, number = axis % len(shape), int(index.reshape(()))
        size = shape[axis]
        if not isinstance(size, int) or not -size <= number < size:
            return None
        rest = layout[axis + index.ndim :]
        return (*layout[:axis], (Fixed(number % size, size),), *rest)
