"""Where a channels-last convolution reads and writes: its image, its axes of positions, its chunks.

An image with padding is first copied, zeros around it, so that no tap needs a condition. Output
positions are walked along axes with a constant distance in the image; axes that continue each other
(all of a 1x1 convolution) are one. A chunk is what one task computes: a box of the last two axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.schedule.conv_shape import Convolution
from hcomp.targets.cpu.schedule.nest import (
    PARALLEL,
    SERIAL,
    Block,
    Expr,
    Stmt,
    as_int,
    ceil_div,
    flat_view,
    imm,
    let,
    load,
    loop,
    opaque_let,
    product,
    scratch,
    seq,
    simple,
    store,
    unravel,
)

_DEEP = 64
"""Products in a sum from which on two divisions for each position do not matter."""


@dataclass(frozen=True)
class Axis:
    """One axis of output positions.

    Attributes:
        extent: positions along it.
        step: elements of the image from one position to the next.
        members: the stage's variables that it stands for, with their extents, outermost first.
    """

    extent: Expr
    step: Expr
    members: tuple[tuple[Any, Expr], ...]

    def point(self, position: Expr) -> dict[Any, Expr]:
        """Return the value of each member at `position`."""
        found = unravel(position, [extent for _, extent in self.members])
        return {variable: at for (variable, _), at in zip(self.members, found, strict=True)}


@dataclass(frozen=True)
class Chunk:
    """A box of positions: `rows` of the last axis but one, `length` of the last.

    Attributes:
        point: the stage's variables outside the box.
        first: the first position of the box on each of the two axes.
        rows, length: its extents at run time.
        origin: element of the image that its first position reads at tap zero.
    """

    point: dict[Any, Expr]
    first: tuple[Expr, Expr]
    rows: Expr
    length: Expr
    origin: Expr


class Walk:
    """The geometry of one convolution.

    Attributes:
        prelude: statements that bind sizes; they come before everything else.
        steps: for each spatial axis, elements of the (padded) image from one pixel to the next.
        chunk_rows, chunk_length: the largest box.
    """

    def __init__(
        self, found: Convolution, positions: int, padded: Sequence[Expr] | None = None, *, in_place: bool = False
    ) -> None:
        """Make the geometry.

        Args:
            found: the convolution.
            positions: about how many positions a chunk has.
            padded: the sizes of the padded image where they are not by `shape`.
            in_place: whether the image is not copied, though windows reach over its edge: who reads it knows
                which of a window's elements are there. Positions of different rows are then in different chunks'
                rows.
        """
        stage = found.stage
        image, shape = self.image, self.shape = found.image, found.shape
        # Bytes are widened once, for all panels.
        self.element = "int16" if shape.group else "float32"
        self.copied = not in_place and (shape.padded or padded is not None or shape.group > 0)
        self.prelude: list[Stmt] = []
        self.batch, *places, _ = stage.spatial
        self.sizes = [self._name("size", e) for e in image.shape[1:-1]]
        results = shape.positions_of(image.shape[1:-1]) if shape.phases else stage.store.buffer.shape[1:-1]
        outputs = [self._name("output", e) for e in results]
        self.raw_pitches = list(padded or ()) or [
            simple(size if in_place else size + imm(b + e))
            for size, b, e in zip(image.shape[1:-1], shape.begin, shape.end, strict=True)
        ]
        self.pitches = [self._name("pitch", p) for p in self.raw_pitches]
        self.steps: list[Expr] = [imm(shape.channels)]
        for pitch in reversed(self.pitches[1:]):
            self.steps.insert(0, self._name("step", self.steps[0] * pitch))
        axes = [] if self.copied else [Axis(image.shape[0], self.steps[0] * self.pitches[0], self._batch())]
        for place, extent, stride, step in zip(places, outputs, shape.strides, self.steps, strict=True):
            axes.append(Axis(extent, simple(imm(stride) * step), ((place, extent),)))
        # What phases write lies on other places on each axis.
        if not (shape.phases or in_place):
            axes = _merged(axes, self._total if self._is_dense() else None)
        # Where tap zero of the first position is, which is outside of an image that is not copied.
        begins = zip(shape.begin, self.steps, strict=True) if in_place else ()
        self.start = simple(-sum((imm(b) * step for b, step in begins), imm(0)))
        self.outer = axes[:-2]
        self.second = axes[-2] if len(axes) > 1 else Axis(imm(1), imm(0), ())
        self.last = axes[-1]
        self.chunk_rows, self.chunk_length = self._chunk_box(positions)

    def _is_dense(self) -> bool:
        """Return whether positions of free sizes are to be one axis: all are neighbours, and sums are long."""
        shape = self.shape
        plain = {*shape.kernel, *shape.strides} == {1} and not shape.padded and not self.copied
        return plain and shape.depth >= _DEEP

    def _total(self, extents: Sequence[Expr]) -> Expr:
        return self._name("total", product(extents))

    def _batch(self) -> tuple[tuple[Any, Expr], ...]:
        return ((self.batch, self.image.shape[0]),)

    def _name(self, name: str, value: Expr) -> Expr:
        return opaque_let(name, value, self.prelude)

    def _chunk_box(self, positions: int) -> tuple[int, int]:
        """Return the largest box of about `positions`: whole rows where they are short."""
        length, rows = as_int(self.last.extent), as_int(self.second.extent)
        if length is None:
            return 1, positions
        if 3 * length > 4 * positions:
            return 1, -(-length // -(-length // positions))
        most = max(1, positions // max(1, length))
        if rows is None:
            return most, length
        return -(-rows // -(-rows // most)), length

    @property
    def positions(self) -> int:
        """Positions of the largest chunk."""
        return self.chunk_rows * self.chunk_length

    @property
    def extents(self) -> list[Expr]:
        """The box of chunks."""
        chunks = (ceil_div(self.second.extent, self.chunk_rows), ceil_div(self.last.extent, self.chunk_length))
        return [*(axis.extent for axis in self.outer), *chunks]

    def chunk(self, indices: list[Expr], image: dict[Any, Expr], out: list[Stmt]) -> Chunk:
        """Return the chunk at `indices` of `extents`."""
        *outer, row, segment = indices
        point, origin = dict(image), self.start
        for axis, at in zip(self.outer, outer, strict=True):
            point.update(axis.point(at))
            origin = origin + at * axis.step
        first, counts = [], []
        for axis, number, most in (
            (self.second, row, self.chunk_rows),
            (self.last, segment, self.chunk_length),
        ):
            start = let("first", simple(number * imm(most)), out)
            known = as_int(axis.extent)
            whole = known is not None and known % most == 0
            counts.append(imm(most) if whole else let("count", tirx.min(imm(most), axis.extent - start), out))
            origin = origin + start * axis.step
            first.append(start)
        return Chunk(point, (first[0], first[1]), counts[0], counts[1], let("origin", simple(origin), out))

    def reach(self, taps: Sequence[Expr]) -> Expr:
        """Return the distance in the image from tap zero to `taps`, one an axis from the first on."""
        total: Expr = imm(0)
        for tap, dilation, step in zip(taps, self.shape.dilation, self.steps, strict=False):
            total = total + tap * imm(dilation) * step
        return total

    def point(self, chunk: Chunk, row: Expr, column: Expr) -> dict[Any, Expr]:
        """Return the stage's variables at a position of a chunk (all but the output channel)."""
        second = self.second.point(chunk.first[0] + row)
        return {**chunk.point, **second, **self.last.point(chunk.first[1] + column)}

    def over_images(self, body: Callable[[Any, dict[Any, Expr]], Stmt], *, parallel: bool) -> Stmt:
        """Return `body(flat image, variables bound so far)`, for every image where each is copied first."""
        if not self.copied:
            out = list(self.prelude)
            source = flat_view(self.image, out)
            return seq([*out, body(source, {})])

        def one(image: Expr) -> Stmt:
            out = Block()
            total = simple(product(self.raw_pitches) * imm(self.shape.channels))
            # Written in the function's own sizes, because TVM moves allocations above `prelude`.
            # A run's last group may read behind the image.
            planes = scratch("padded", simple(total + imm(self.shape.group)), self.element, out)
            source = flat_view(self.image, out)
            out.append(self._pad(source, planes, image, parallel=parallel))
            out.append(body(planes, {self.batch: image}))
            return seq(out)

        return seq([*self.prelude, loop(self.image.shape[0], one, "image")])

    def _widened(self, value: Expr) -> Expr:
        return tirx.Cast(self.element, value) if self.shape.group else value

    def _pad(self, source: Any, planes: Any, image: Expr, *, parallel: bool) -> Stmt:
        """Return the copy of one image into `planes`, zeros around it, row by row."""
        shape, channels = self.shape, imm(self.shape.channels)
        zero = tirx.const(0, self.element)

        def row(inside: list[Expr], start: Expr, read: Expr) -> Stmt:
            out: list[Stmt] = []
            start = let("start", simple(start), out)
            read = let("read", simple(read), out)
            left = imm(shape.begin[-1] * shape.channels)
            middle = self.sizes[-1] * channels
            right = simple(self.pitches[-1] * channels - left - middle)
            copy = seq([
                *_fill(planes, zero, start, left),
                loop(middle, lambda i: store(planes, self._widened(load(source, read + i)), start + left + i), "i"),
                *_fill(planes, zero, start + left + middle, right),
            ])  # fmt: skip
            if not inside:
                return seq([*out, copy])
            empty = seq(_fill(planes, zero, start, self.pitches[-1] * channels))
            return seq([*out, tirx.IfThenElse(tirx.all(*inside), copy, empty)])

        def axis(number: int, inside: list[Expr], flat: Expr, read: Expr) -> Stmt:
            if number == len(self.sizes) - 1:
                return row(inside, flat * self.pitches[-1] * channels, read * self.sizes[-1] * channels)
            begin, size = imm(shape.begin[number]), self.sizes[number]
            edges = as_int(simple(self.pitches[number] - size)) != 0

            def at(y: Expr) -> Stmt:
                own = [y >= begin, y < begin + size] if edges else []
                return axis(
                    number + 1, [*inside, *own], flat * self.pitches[number] + y, read * size + (y - begin)
                )  # fmt: skip

            kind = PARALLEL if parallel and number == 0 else SERIAL
            return loop(self.pitches[number], at, "y", kind)

        return axis(0, [], imm(0), image)


def _fill(target: Any, value: Expr, start: Expr, count: Expr) -> list[Stmt]:
    if as_int(count) == 0:
        return []
    return [loop(count, lambda i: store(target, value, start + i), "z")]


def _merged(axes: list[Axis], total: Callable[[Sequence[Expr]], Expr] | None) -> list[Axis]:
    """Return the axes with those merged that continue each other; at least one is left.

    Of sizes that are not known, axes are only taken to continue each other where all do; `total` then names a
    product of extents.
    """
    wide = [axis for axis in axes if as_int(axis.extent) != 1]
    single = tuple(m for axis in axes if as_int(axis.extent) == 1 for m in axis.members)
    found = wide[-1:] or [Axis(imm(1), imm(0), ())]
    for axis in reversed(wide[:-1]):
        inner = found[0]
        numbers = [as_int(simple(x)) for x in (axis.extent, axis.step, inner.extent, inner.step)]
        outer_extent, outer_step, extent, step = numbers
        if None not in numbers and outer_step == extent * step:  # type: ignore[operator]
            size = imm(outer_extent * extent)  # type: ignore[operator]
        elif None in numbers and total is not None:
            size = total([axis.extent, inner.extent])
        else:
            found.insert(0, axis)
            continue
        found[0] = Axis(size, inner.step, (*axis.members, *inner.members))
    # Members of extent 1 are zero wherever they stand.
    found[-1] = Axis(found[-1].extent, found[-1].step, (*single, *found[-1].members))
    return found
