"""Loops for pooling with channels last: for each output position, vectors of channels over its window.

The window is cut to the image, so that no padded copy is made; what is outside counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.codegen.relax_table import scalar
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.annotation import Annotation
from hcomp.targets.cpu.schedule.epilogue import Epilogue
from hcomp.targets.cpu.schedule.maps import GRAIN_ELEMENTS
from hcomp.targets.cpu.schedule.nest import (
    VECTORIZED,
    Block,
    Expr,
    Stmt,
    as_int,
    flat_view,
    imm,
    let,
    load,
    load_vector,
    loads,
    loop,
    opaque_let,
    overlapped,
    register_buffer,
    scratch,
    seq,
    simple,
    spread,
    store,
    store_vector,
    task_loops,
)
from hcomp.targets.cpu.schedule.stages import Stage

POOL = "hcomp.pool"
"""Block annotation: the text of a `PoolShape`."""

_VECTORS = 8
"""Vectors of channels that go through a window together."""


@dataclass(frozen=True)
class PoolShape(Annotation):
    """One pooling of [N, *spatial, C].

    Attributes:
        kind: "max" or "sum".
        window, strides, begin, dilation: one number a spatial axis; `begin` is the padding in front.
    """

    kind: str
    window: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class Pooling:
    """A recognised stage, its shape and its input."""

    stage: Stage
    shape: PoolShape
    image: Any


def match_pool(stage: Stage) -> Pooling | None:
    """Return the pooling that `stage` computes, or None."""
    text = stage.annotations.get(POOL)
    if text is None or stage.store is None:
        return None
    out = stage.store.buffer
    (image,) = {item.source for item in loads(stage.store.value) if not item.source.same_as(out)}
    return Pooling(stage, PoolShape.parse(str(text)), image)


def emit_pool_loops(found: Pooling, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute `found` and finish every element with `epilogue`."""
    return _Emitter(found, epilogue, cpu).statement()


class _Emitter:
    def __init__(self, found: Pooling, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.epilogue, self.shape = found, epilogue, found.shape
        self.prelude: list[Stmt] = []
        image, out = found.image, found.stage.store.buffer
        channels = as_int(image.shape[-1])
        assert channels is not None
        self.channels = channels
        self.batch, *self.places, self.channel = found.stage.spatial
        self.sizes = [opaque_let("size", e, self.prelude) for e in image.shape[1:-1]]
        self.outputs = [opaque_let("output", e, self.prelude) for e in out.shape[1:-1]]
        self.lanes = min(cpu.lanes(), channels)
        self.vectors = min(_VECTORS, channels // self.lanes)
        self.start = tirx.const(0, "float32") if self.shape.kind == "sum" else tirx.min_value("float32")

    def statement(self) -> Stmt:
        """Return one loop over rows of output positions."""
        out = list(self.prelude)
        source = flat_view(self.found.image, out)
        box = [self.found.image.shape[0], *self.outputs]

        def task(indices: list[Expr]) -> Stmt:
            inside: list[Stmt] = []
            image, *position = indices
            windows = [self._window(axis, at, inside) for axis, at in enumerate(position)]
            inside.append(self._position(source, image, position, windows))
            return seq(inside)

        out.append(task_loops(box, task, parallel=self.found.stage.iterations >= GRAIN_ELEMENTS))
        return seq(out)

    def _window(self, axis: int, at: Expr, out: list[Stmt]) -> tuple[Expr, Expr]:
        """Return the first pixel of a window inside the image, and how many steps of it are inside."""
        shape = self.shape
        step, taps = shape.dilation[axis], shape.window[axis]
        start = let("start", simple(at * imm(shape.strides[axis]) - imm(shape.begin[axis])), out)
        size = self.sizes[axis]
        before = simple(tirx.max(tirx.floordiv(imm(step - 1) - start, imm(step)), imm(0)))
        after = tirx.min(tirx.floordiv(size - start + imm(step - 1), imm(step)), imm(taps))
        before = let("before", before, out)
        count = let("count", tirx.max(after - before, imm(0)), out)
        return let("pixel", start + before * imm(step), out), count

    def _position(self, source: Any, image: Expr, position: list[Expr], windows: list[tuple[Expr, Expr]]) -> Stmt:
        """Return all channels of one output position."""
        width = self.vectors * self.lanes
        out = Block()
        done = scratch("done", imm(self.channels), "float32", out)

        def block(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            first = overlapped(number, width, self.channels, inside)
            held = [register_buffer("held", self.lanes, "float32") for _ in range(self.vectors)]
            inside.extend(tirx.AllocBuffer(h) for h in held)
            inside.extend(store_vector(h, self.lanes, spread(self.start, self.lanes), 0) for h in held)

            def tap(flat: Expr) -> Stmt:
                base = flat * imm(self.channels) + first
                return seq([self._joined(h, source, base + imm(v * self.lanes)) for v, h in enumerate(held)])

            inside.append(self._over(windows, image, 0, tap))
            for v, h in enumerate(held):
                value = load_vector(h, self.lanes, 0)
                inside.append(store_vector(done, self.lanes, value, first + imm(v * self.lanes)))
            return seq(inside)

        out.append(loop(imm(-(-self.channels // width)), block, "block"))
        point = {self.batch: image, **dict(zip(self.places, position, strict=True))}

        def element(c: Expr) -> Stmt:
            return self.epilogue.finish({**point, self.channel: c}, load(done, c))

        out.append(loop(imm(self.channels), element, "c"))
        return seq(out)

    def _over(self, windows: list[tuple[Expr, Expr]], flat: Expr, axis: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """Return `body` for the flat number of every pixel of a window."""
        if axis == len(windows):
            return body(flat)
        pixel, count = windows[axis]
        step = imm(self.shape.dilation[axis])

        def inside(k: Expr) -> Stmt:
            return self._over(windows, flat * self.sizes[axis] + pixel + k * step, axis + 1, body)

        return loop(count, inside, "tap")

    def _joined(self, held: Any, source: Any, at: Expr) -> Stmt:
        join = scalar.add if self.shape.kind == "sum" else scalar.maximum

        def lane(k: Expr) -> Stmt:
            return store(held, join(load(held, k), load(source, at + k)), k)

        return loop(imm(self.lanes), lane, "lane", VECTORIZED)
