"""Loops for a packed convolution: a GEMM over a flat, padded image.

The image is copied once into padded planes whose rows follow each other, so output position
`p = row * pitch + column` reads the input of tap (r, q) at `p + r * pitch + q`: one constant offset
for every tap, contiguous vectors, no predicate. A stride is turned into phases (even and odd columns in
planes of their own), so that strided convolutions read contiguous vectors too. The positions between
the end of an output row and the pitch are computed and thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as cartesian
from typing import Any

import tvm
from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.conv_shape import CONV, ConvShape
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.gemm import GRAIN_OPERATIONS
from hcomp.targets.cpu.schedule.nest import (
    PARALLEL,
    SERIAL,
    VECTORIZED,
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    imm,
    let,
    load,
    loads,
    loop,
    product,
    register_buffer,
    seq,
    simple,
    store,
    task_loops,
    unravel,
)
from hcomp.targets.cpu.schedule.stages import Stage

_CHUNK = 512
"""Output positions that one task computes before it stores them; its sums stay in L1."""

_UNROLLED_TAPS = 3


@dataclass(frozen=True)
class Convolution:
    """A recognised stage: its shape and its two inputs."""

    stage: Stage
    shape: ConvShape
    image: Any
    weight: Any

    @property
    def operations(self) -> int:
        """About how many operations it takes (32 for a symbolic size)."""
        total = 2
        for extent in self.stage.extents.values():
            total *= as_int(extent) or 32
        return total


def match_conv(stage: Stage) -> Convolution | None:
    """Return the packed convolution that `stage` computes, or None."""
    text = stage.annotations.get(CONV)
    if text is None or stage.store is None:
        return None
    value = stage.store.value
    term = value.b if isinstance(value.b, tvm.ir.prim.expr.Mul) else value.a
    image, weight = loads(term.a)[0].source, loads(term.b)[0].source
    return Convolution(stage, ConvShape.parse(str(text)), image, weight)


def emit_conv_loops(found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute `found` and finish every element with `epilogue`."""
    return _Emitter(found, epilogue, cpu).statement()


class _Emitter:
    """One convolution; the fields are its flat geometry."""

    def __init__(self, found: Convolution, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.epilogue, self.cpu = found, epilogue, cpu
        self.shape = shape = found.shape
        self.images = found.image.shape[0]
        sizes = list(found.image.shape[2:])
        outputs = list(found.stage.store.buffer.shape[2:])
        self.folded = shape.pointwise and all(as_int(e) is not None for e in sizes)
        self.outputs = [product(outputs)] if self.folded else outputs
        padded = [
            simple(size + imm(b + e))
            for size, b, e in zip(sizes, shape.begin, shape.end, strict=True)
        ]
        pitches = [ceil_div(p, s) for p, s in zip(padded, shape.strides, strict=True)]
        self.pitches = [product(pitches)] if self.folded else pitches
        self.plane = simple(product(self.pitches))
        self.lanes = cpu.lanes()
        self.vectors = self._vectors()
        self.width = self.vectors * self.lanes
        flat = as_int(simple(product(sizes)))
        self.direct = shape.pointwise and flat is not None and flat >= self.width
        self.private = shape.tiles == 1 and not self.direct
        self.phases = list(cartesian(*[range(s) for s in shape.strides]))
        self.channels = shape.inputs * (1 if self.private else shape.groups)
        self.inner = simple(product(self.pitches[1:]))
        self.chunk_rows = self._chunk_rows()

    def _vectors(self) -> int:
        """Return vectors of a register tile: fill the accumulators, but do not exceed the image."""
        budget = self.cpu.registers * 3 // 4
        vectors = max(1, min(8, budget // self.shape.rows))
        length = as_int(simple(self._flat_length(self.outputs)))
        if length is not None:
            vectors = min(vectors, -(-length // self.lanes))
        return vectors

    def _flat_length(self, extents: list[Expr]) -> Expr:
        """Return one more than the last flat position of a box of output positions."""
        last: Expr = imm(0)
        for extent, pitch in zip(extents, self.pitches, strict=True):
            last = last * pitch + (extent - imm(1))
        return last + imm(1)

    def _chunk_rows(self) -> int:
        """Return positions of the first axis that one task covers."""
        inner, first = as_int(self.inner), as_int(self.outputs[0])
        rows = 4 if inner is None else max(1, _CHUNK // inner)
        return rows if first is None else min(rows, first)

    def statement(self) -> Stmt:
        """Return: for every image, pad; then one parallel loop over (chunk, channel tile) tasks."""
        return loop(self.images, self._image, "image")

    def _image(self, image: Expr) -> Stmt:
        shape = self.shape
        kind = PARALLEL if self.found.operations >= GRAIN_OPERATIONS else SERIAL
        chunks = ceil_div(self.outputs[0], self.chunk_rows)
        out: list[Stmt] = []
        if self.private:
            return loop(imm(shape.groups), lambda g: self._group(image, g, chunks), "group", kind)
        planes = self.found.image
        if not self.direct:
            planes = self._planes()
            out.append(tirx.AllocBuffer(planes))
            out.append(
                loop(
                    imm(self.channels),
                    lambda c: self._pad(planes, image, c, c),
                    "channel",
                    kind,
                )
            )
        parallel = kind == PARALLEL
        channels = imm(shape.groups), imm(shape.tiles)
        if as_int(chunks) is not None:
            box, order = [channels[0], chunks, channels[1]], (0, 1, 2)
        elif shape.groups * shape.tiles >= 2 * self.cpu.cores:
            box, order = [*channels, chunks], (0, 2, 1)
        else:
            box, order = [chunks, *channels], (1, 0, 2)

        def task(indices: list[Expr]) -> Stmt:
            group, chunk, tile = (indices[k] for k in order)
            return self._chunk(planes, image, group, chunk, tile)

        out.append(task_loops(box, task, parallel=parallel))
        return seq(out)

    def _group(self, image: Expr, group: Expr, chunks: Expr) -> Stmt:
        """Return one group of a depthwise-like convolution, with planes of its own."""
        planes = self._planes()
        first = group * imm(self.shape.inputs)
        return seq(
            [
                tirx.AllocBuffer(planes),
                loop(
                    imm(self.channels), lambda c: self._pad(planes, image, first + c, c), "channel"
                ),
                loop(chunks, lambda k: self._chunk(planes, image, group, k, imm(0)), "chunk"),
            ]
        )

    def _planes(self) -> Any:
        """Return the flat padded image; the slack lets the last tile read past the end."""
        total = imm(self.channels * len(self.phases)) * self.plane + imm(self.width)
        return buffer("planes", [simple(total)], "float32")

    def _pad(self, planes: Any, image: Expr, channel: Expr, slot: Expr) -> Stmt:
        """Return the copy of one channel into its planes, one plane a phase."""
        sizes = list(self.found.image.shape[2:])
        if self.folded:
            source = [image, channel]
            base = slot * self.plane
            return loop(
                self.plane,
                lambda p: store(planes, load(self.found.image, *source, *unravel(p, sizes)), base + p),
                "p",
            )
        return seq([self._phase(planes, image, channel, slot, n) for n in range(len(self.phases))])

    def _phase(self, planes: Any, image: Expr, channel: Expr, slot: Expr, number: int) -> Stmt:
        shape, phase = self.shape, self.phases[number]
        sizes = list(self.found.image.shape[2:])
        base = (slot * imm(len(self.phases)) + imm(number)) * self.plane
        zero = tirx.const(0, "float32")
        last = len(sizes) - 1

        def source(axis: int, q: Expr) -> Expr:
            return q * imm(shape.strides[axis]) + imm(phase[axis] - shape.begin[axis])

        def bounds(axis: int) -> tuple[Expr, Expr]:
            """Return the first q and the first q after those that fall inside the image."""
            stride, shift = shape.strides[axis], shape.begin[axis] - phase[axis]
            low = max(0, -(-shift // stride))
            high = tirx.floordiv(sizes[axis] + imm(shift + stride - 1), imm(stride))
            pitch = self.pitches[axis]
            return imm(low), simple(tirx.max(imm(low), tirx.min(high, pitch)))

        def row(axis: int, position: Expr, indices: list[Expr]) -> Stmt:
            pitch = self.pitches[axis]
            low, high = bounds(axis)

            def copy(q: Expr) -> Stmt:
                at = (position * pitch) + q
                if axis == last:
                    where = [*indices, source(axis, q)]
                    return store(planes, load(self.found.image, image, channel, *where), base + at)
                return row(axis + 1, at, [*indices, source(axis, q)])

            def clear(q: Expr) -> Stmt:
                count = simple(product(self.pitches[axis + 1 :]))
                at = (position * pitch + q) * count
                return loop(count, lambda z: store(planes, zero, base + at + z), "z")

            low_clear = tirx.min(low, pitch)
            return seq(
                [
                    loop(simple(low_clear), clear, "q"),
                    loop(simple(high - low), lambda q: copy(low + q), "q"),
                    loop(simple(pitch - high), lambda q: clear(high + q), "q"),
                ]
            )

        return row(0, imm(0), [])

    def _chunk(self, planes: Any, image: Expr, group: Expr, chunk: Expr, tile: Expr) -> Stmt:
        """Return one task: all positions of a chunk for one tile of output channels."""
        shape, rows = self.shape, self.chunk_rows
        out: list[Stmt] = []
        first = let("first", chunk * imm(rows), out)
        known = as_int(self.outputs[0])
        exact = known is not None and known % rows == 0
        count = imm(rows) if exact else tirx.min(imm(rows), self.outputs[0] - first)
        count = let("count", count, out)
        box = [count, *self.outputs[1:]]
        length = let("length", simple(self._flat_length(box)), out)
        start = let("start", first * self.inner, out)
        longest = simple(self._flat_length([imm(rows), *self.outputs[1:]]))
        row_pitch = simple(ceil_div(longest, self.width) * imm(self.width) + imm(self.width))
        sums = buffer("sums", [imm(shape.rows), row_pitch], "float32")
        out.append(tirx.AllocBuffer(sums))
        tiles = simple(ceil_div(length, self.width))

        def one(t: Expr) -> Stmt:
            inside: list[Stmt] = []
            at = t * imm(self.width)
            if self.direct:
                at = tirx.min(at, self.plane - imm(self.width) - start)
            at = let("at", at, inside)
            target = at + imm(self.width if self.direct else 0)
            inside.append(self._register_tile(planes, image, group, tile, start + at, sums, target))
            return seq(inside)

        out.append(loop(tiles, one, "positions"))
        out.append(self._finish(sums, image, group, tile, first, box))
        return seq(out)

    def _register_tile(
        self,
        planes: Any,
        image: Expr,
        group: Expr,
        tile: Expr,
        position: Expr,
        sums: Any,
        target: Expr,
    ) -> Stmt:
        shape, lanes, vectors = self.shape, self.lanes, self.vectors
        held = [register_buffer("held", self.width, "float32") for _ in range(shape.rows)]
        zero = tirx.const(0, "float32")
        spots = [(r, v) for r in range(shape.rows) for v in range(vectors)]

        def lane(body: Callable[[Expr], Stmt]) -> Stmt:
            return loop(imm(lanes), body, "lane", VECTORIZED)

        def slot(v: int, l: Expr) -> Expr:
            return imm(v * lanes) + l

        out: list[Stmt] = [tirx.AllocBuffer(row) for row in held]
        for r, v in spots:
            out.append(lane(lambda l, r=r, v=v: store(held[r], zero, slot(v, l))))

        def tap(channel: Expr, taps: list[Expr]) -> list[Stmt]:
            where = self._source(planes, image, group, channel, taps, position)
            body = []
            for r, v in spots:
                scalar = load(self.found.weight, group, tile, channel, *taps, imm(r))

                def add(l: Expr, r: int = r, v: int = v, scalar: Expr = scalar) -> Stmt:
                    vector = where(imm(v * lanes) + l)
                    return store(held[r], load(held[r], slot(v, l)) + scalar * vector, slot(v, l))

                body.append(lane(add))
            return body

        out.append(
            loop(imm(shape.inputs), lambda c: self._over_taps([], lambda t: tap(c, t)), "channel")
        )
        for r, v in spots:
            out.append(
                lane(
                    lambda l, r=r, v=v: store(
                        sums, load(held[r], slot(v, l)), imm(r), target + imm(v * lanes) + l
                    )
                )
            )
        return seq(out)

    def _over_taps(self, taps: list[Expr], body: Callable[[list[Expr]], list[Stmt]]) -> Stmt:
        """Return loops over the taps; a short last axis is unrolled."""
        axis = len(taps)
        if axis == len(self.shape.kernel):
            return seq(body(taps))
        count = self.shape.kernel[axis]
        if axis == len(self.shape.kernel) - 1 and count <= _UNROLLED_TAPS:
            return seq([s for q in range(count) for s in body([*taps, imm(q)])])
        return loop(imm(count), lambda r: self._over_taps([*taps, r], body), "tap")

    def _source(
        self,
        planes: Any,
        image: Expr,
        group: Expr,
        channel: Expr,
        taps: list[Expr],
        position: Expr,
    ) -> Callable[[Expr], Expr]:
        """Return the load of the input that belongs to output `position + offset` at a tap."""
        shape = self.shape
        if self.direct:
            sizes = list(self.found.image.shape[2:])
            whole = group * imm(shape.inputs) + channel
            if self.folded and len(sizes) > 1:
                return lambda o: load(planes, image, whole, *_split(position + o, sizes))
            return lambda o: load(planes, image, whole, position + o)
        if self.folded:
            flat: Expr = imm(0)
            phase: Expr = imm(0)
        else:
            flat, phase = imm(0), imm(0)
            for axis, t in enumerate(taps):
                stride, step = shape.strides[axis], shape.dilation[axis]
                reach = simple(t * imm(step))
                flat = flat * self.pitches[axis] + tirx.floordiv(reach, imm(stride))
                phase = phase * imm(stride) + tirx.floormod(reach, imm(stride))
        own = channel if self.private else group * imm(shape.inputs) + channel
        base = (own * imm(len(self.phases)) + phase) * self.plane + flat + position
        base = simple(base)
        return lambda o: load(planes, base + o)

    def _finish(
        self, sums: Any, image: Expr, group: Expr, tile: Expr, first: Expr, box: list[Expr]
    ) -> Stmt:
        """Return the stores of a chunk: every channel of the tile, every position of the box."""
        shape, anchor = self.shape, self.found.stage
        batch, channel_var, *axes = anchor.spatial
        extents = [anchor.extents[v] for v in axes]
        shift = imm(self.width if self.direct else 0)

        def channel(r: Expr) -> Stmt:
            whole = group * imm(shape.outputs) + tile * imm(shape.rows) + r
            point = {batch: image, channel_var: whole}

            def positions(done: list[Expr], flat: Expr) -> Stmt:
                axis = len(done)
                if axis == len(box):
                    where = [first + done[0], *done[1:]]
                    places = _split(where[0], extents) if self.folded else where
                    here = {**point, **dict(zip(axes, places, strict=True))}
                    return self.epilogue.finish(here, load(sums, r, flat + shift))
                return loop(
                    box[axis],
                    lambda o: positions([*done, o], flat * self.pitches[axis] + o),
                    "o",
                )

            return positions([], imm(0))

        whole_tiles = shape.outputs % shape.rows == 0
        count = (
            imm(shape.rows)
            if whole_tiles
            else tirx.min(imm(shape.rows), imm(shape.outputs) - tile * imm(shape.rows))
        )
        return loop(count, channel, "r")


def _split(position: Expr, extents: list[Expr]) -> list[Expr]:
    return unravel(position, extents)
