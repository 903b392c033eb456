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
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    flat_view,
    imm,
    let,
    load,
    load_vector,
    loads,
    loop,
    opaque_let,
    product,
    register_buffer,
    seq,
    simple,
    spread,
    store,
    store_vector,
    task_loops,
    unravel,
    vector_loop,
)
from hcomp.targets.cpu.schedule.stages import Stage

_CHUNK = 512
"""Output positions that one task computes before it stores them; its sums stay in L1."""

_IN_FLIGHT = 8
"""Independent sums that hide the latency of a multiply-add (4 cycles, 2 a cycle)."""


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
        self.image: Expr = imm(0)
        self.shape = shape = found.shape
        self.images = found.image.shape[0]
        self.prelude: list[Stmt] = []
        sizes = [self._name("size", e) for e in found.image.shape[2:]]
        outputs = [self._name("output", e) for e in found.stage.store.buffer.shape[2:]]
        self.sizes = sizes
        self.raw_pitches = [
            ceil_div(size + imm(b + e), s)
            for size, b, e, s in zip(found.image.shape[2:], shape.begin, shape.end, shape.strides, strict=True)
        ]
        self.folded = shape.pointwise and all(as_int(e) is not None for e in sizes)
        self.outputs = [simple(product(outputs))] if self.folded else outputs
        pitches = [self._name("pitch", p) for p in self.raw_pitches]
        self.pitches = [simple(product(pitches))] if self.folded else pitches
        self.plane = self._name("plane", product(self.pitches))
        self.lanes = cpu.lanes()
        self.vectors = self._vectors()
        self.width = self.vectors * self.lanes
        flat = as_int(simple(product(sizes)))
        self.direct = shape.pointwise and flat is not None and flat >= self.width
        self.private = shape.tiles == 1 and not self.direct
        self.phases = list(cartesian(*[range(s) for s in shape.strides]))
        self.channels = shape.inputs * (1 if self.private else shape.groups)
        self.inner = self._name("inner", product(self.pitches[1:]))
        self.chunk_rows = self._chunk_rows()
        inner = imm(1) if self.folded else product(self.raw_pitches[1:])
        longest = simple(imm(self.chunk_rows) * inner)
        self.raw_sums_pitch = simple(ceil_div(longest, self.width) * imm(self.width) + imm(self.width))
        self.sums_pitch = self._name("sums_pitch", self.raw_sums_pitch)

    def _name(self, name: str, value: Expr) -> Expr:
        return opaque_let(name, value, self.prelude)

    def _vectors(self) -> int:
        """Return vectors of a register tile: the fewest computed, then the most sums in flight."""
        rows = self.shape.rows
        most = max(1, min(8, self.cpu.registers * 3 // 4 // rows))
        length = as_int(simple(self._flat_length(self.outputs)))
        if length is None:
            return most
        enough = [v for v in range(1, most + 1) if v * rows >= _IN_FLIGHT] or [most]
        return min(enough, key=lambda v: (-(-length // (v * self.lanes)) * v, -v))

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
        body = loop(self.images, self._image, "image")
        return seq([*self.prelude, body])

    def _image(self, image: Expr) -> Stmt:
        shape, self.image = self.shape, image
        kind = PARALLEL if self.found.operations >= GRAIN_OPERATIONS else SERIAL
        chunks = ceil_div(self.outputs[0], self.chunk_rows)
        out: list[Stmt] = []
        if self.private:
            return loop(imm(shape.groups), lambda g: self._group(image, g, chunks), "group", kind)
        if self.direct:
            planes = flat_view(self.found.image, out)
        else:
            planes = self._planes(out)
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
        out: list[Stmt] = []
        planes = self._planes(out)
        first = group * imm(self.shape.inputs)
        return seq(
            [
                *out,
                loop(imm(self.channels), lambda c: self._pad(planes, image, first + c, c), "channel"),
                loop(chunks, lambda k: self._chunk(planes, image, group, k, imm(0)), "chunk"),
            ]
        )

    def _planes(self, out: list[Stmt]) -> Any:
        """Return the flat padded image; the slack lets the last tile read past the end."""
        plane = product(self.raw_pitches)
        total = imm(self.channels * len(self.phases)) * plane + imm(self.width)
        return self._scratch("planes", simple(total), out)

    def _scratch(self, name: str, elements: Expr, out: list[Stmt]) -> Any:
        """Allocate memory and return a view of it.

        Its size is written in the function's own sizes, because TVM moves allocations up, above the
        names of `prelude`. Accesses go through a view, because TVM then does not analyse which part
        of the memory is used (seconds for symbolic sizes).
        """
        memory = buffer(name, [elements], "float32")
        out.append(tirx.AllocBuffer(memory))
        return flat_view(memory, out)

    def _pad(self, planes: Any, image: Expr, channel: Expr, slot: Expr) -> Stmt:
        """Return the copy of one channel into its planes (one a phase), zeros around it."""
        shape, sizes = self.shape, self.sizes
        phases = len(self.phases)
        start = slot * imm(phases) * self.plane
        zero = tirx.const(0, "float32")
        clear = loop(imm(phases) * self.plane, lambda z: store(planes, zero, start + z), "z")

        def axis(number: int, where: list[Expr], flat: Expr, phase: Expr) -> Stmt:
            if number == len(sizes):
                value = load(self.found.image, image, channel, *where)
                return store(planes, value, start + phase * self.plane + flat)

            def inside(at: Expr) -> Stmt:
                stride = imm(shape.strides[number])
                moved = at + imm(shape.begin[number])
                row = flat * self.pitches[number] + tirx.floordiv(moved, stride)
                own = phase * stride + tirx.floormod(moved, stride)
                return axis(number + 1, [*where, at], simple(row), simple(own))

            return loop(sizes[number], inside, "x")

        if self.folded:
            pixels = sizes
            return loop(
                self.plane,
                lambda p: store(
                    planes,
                    load(self.found.image, image, channel, *unravel(p, pixels)),
                    start + p,
                ),
                "p",
            )
        copy = axis(0, [], imm(0), imm(0))
        return copy if self._covers() else seq([clear, copy])

    def _covers(self) -> bool:
        """Return whether the copy writes every position, so that nothing is left to clear."""
        shape = self.shape
        padded = any(shape.begin) or any(shape.end)
        return not padded and all(s == 1 for s in shape.strides)

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
        sums = self._scratch("sums", imm(shape.rows) * self.raw_sums_pitch, out)
        tiles = simple(ceil_div(length, self.width))

        def one(t: Expr) -> Stmt:
            inside: list[Stmt] = []
            at = t * imm(self.width)
            if self.direct:
                at = tirx.min(at, self.plane - imm(self.width) - start)
            at = let("at", at, inside)
            target = at + imm(self.width if self.direct else 0)
            inside.append(self._register_tile(planes, group, tile, start + at, sums, target))
            return seq(inside)

        out.append(loop(tiles, one, "positions"))
        out.append(self._finish(sums, image, group, tile, first, box))
        return seq(out)

    def _register_tile(
        self,
        planes: Any,
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
        out: list[Stmt] = [tirx.AllocBuffer(row) for row in held]
        out.extend(store_vector(held[r], lanes, spread(zero, lanes), v * lanes) for r, v in spots)

        def tap(channel: Expr, taps: list[Expr]) -> list[Stmt]:
            source, base = self._source(planes, group, channel, taps, position)
            body = []
            for r, v in spots:
                scalar = load(self.found.weight, group, tile, channel, *taps, r)
                vector = load_vector(source, lanes, base + imm(v * lanes))
                old = load_vector(held[r], lanes, v * lanes)
                total = old + spread(scalar, lanes) * vector
                body.append(store_vector(held[r], lanes, total, v * lanes))
            return body

        out.append(loop(imm(shape.inputs), lambda c: self._over_taps([], lambda t: tap(c, t)), "channel"))
        for r, v in spots:
            done = load_vector(held[r], lanes, v * lanes)
            out.append(store_vector(sums, lanes, done, imm(r) * self.sums_pitch + target + imm(v * lanes)))
        return seq(out)

    def _over_taps(self, taps: list[Expr], body: Callable[[list[Expr]], list[Stmt]]) -> Stmt:
        """Return loops over the taps."""
        axis = len(taps)
        if axis == len(self.shape.kernel):
            return seq(body(taps))
        count = self.shape.kernel[axis]
        return loop(imm(count), lambda r: self._over_taps([*taps, r], body), "tap")

    def _source(self, planes: Any, group: Expr, channel: Expr, taps: list[Expr], position: Expr) -> tuple[Any, Expr]:
        """Return the flat buffer, and where in it the input of output `position` at a tap is."""
        shape = self.shape
        own = channel if self.private else group * imm(shape.inputs) + channel
        if self.direct:
            first = self.image * imm(self.channels) * self.plane
            return planes, first + own * self.plane + position
        flat: Expr = imm(0)
        phase: Expr = imm(0)
        if not self.folded:
            for axis, t in enumerate(taps):
                stride, step = shape.strides[axis], shape.dilation[axis]
                reach = simple(t * imm(step))
                flat = flat * self.pitches[axis] + tirx.floordiv(reach, imm(stride))
                phase = phase * imm(stride) + tirx.floormod(reach, imm(stride))
        base = (own * imm(len(self.phases)) + phase) * self.plane + flat + position
        return planes, simple(base)

    def _finish(self, sums: Any, image: Expr, group: Expr, tile: Expr, first: Expr, box: list[Expr]) -> Stmt:
        """Return the stores of a chunk: every channel of the tile, every position of the box."""
        shape, anchor = self.shape, self.found.stage
        batch, channel_var, *axes = anchor.spatial
        extents = self.sizes
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
                    return self.epilogue.finish(here, load(sums, r * self.sums_pitch + flat + shift))

                def inside(o: Expr) -> Stmt:
                    return positions([*done, o], flat * self.pitches[axis] + o)

                if axis == len(box) - 1:
                    return vector_loop(box[axis], self.lanes, inside)
                return loop(box[axis], inside, "o")

            return positions([], imm(0))

        whole_tiles = shape.outputs % shape.rows == 0
        count = (
            imm(shape.rows) if whole_tiles else tirx.min(imm(shape.rows), imm(shape.outputs) - tile * imm(shape.rows))
        )
        return loop(count, channel, "r")


def _split(position: Expr, extents: list[Expr]) -> list[Expr]:
    return unravel(position, extents)
