"""Loops for pooling with channels last: for each output position, vectors of channels over its window.

The window is cut to the image, so that no padded copy is made; what is outside counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
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
    load,
    load_vector,
    loop,
    overlapped,
    register_buffer,
    scratch,
    seq,
    spread,
    store,
    store_vector,
    task_loops,
)
from hcomp.targets.cpu.schedule.pool_shape import Pooling, Window, Windows, divided

_VECTORS = 8
"""Vectors of channels that go through a window together."""


def emit_pool(found: Pooling, epilogue: Epilogue, cpu: CpuFeatures) -> Stmt:
    """Return the loops that compute `found` and finish every element with `epilogue`."""
    return _Emitter(found, epilogue, cpu).statement()


class _Emitter:
    def __init__(self, found: Pooling, epilogue: Epilogue, cpu: CpuFeatures) -> None:
        self.found, self.epilogue, self.shape = found, epilogue, found.shape
        self.windows = Windows(found)
        image = found.image
        channels = as_int(image.shape[-1])
        assert channels is not None
        self.channels = channels
        self.batch, *self.places, self.channel = found.stage.spatial
        self.lanes = min(cpu.lanes(), channels)
        self.vectors = min(_VECTORS, channels // self.lanes)

    def statement(self) -> Stmt:
        """Return one loop over rows of output positions."""
        out = list(self.windows.prelude)
        source = flat_view(self.found.image, out)
        box = [self.found.image.shape[0], *self.windows.outputs]

        def task(indices: list[Expr]) -> Stmt:
            inside: list[Stmt] = []
            image, *position = indices
            windows = [self.windows.at(axis, at, inside) for axis, at in enumerate(position)]
            inside.append(self._position(source, image, position, windows))
            return seq(inside)

        out.append(task_loops(box, task, parallel=self.found.stage.iterations >= GRAIN_ELEMENTS))
        return seq(out)

    def _position(self, source: Any, image: Expr, position: list[Expr], windows: list[Window]) -> Stmt:
        """Return all channels of one output position."""
        width = self.vectors * self.lanes
        out = Block()
        done = scratch("done", imm(self.channels), "float32", out)

        def block(number: Expr) -> Stmt:
            inside: list[Stmt] = []
            first = overlapped(number, width, self.channels, inside)
            held = [register_buffer("held", self.lanes, "float32") for _ in range(self.vectors)]
            inside.extend(tirx.AllocBuffer(h) for h in held)
            inside.extend(store_vector(h, self.lanes, spread(self.shape.start, self.lanes), 0) for h in held)

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
            value = load(done, c)
            if self.shape.kind == "mean":
                value = divided(value, [w.divisor for w in windows])
            return self.epilogue.finish({**point, self.channel: c}, value)

        out.append(loop(imm(self.channels), element, "c"))
        return seq(out)

    def _over(self, windows: list[Window], flat: Expr, axis: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """Return `body` for the flat number of every pixel of a window."""
        if axis == len(windows):
            return body(flat)
        step = imm(self.shape.dilation[axis])

        def inside(k: Expr) -> Stmt:
            return self._over(windows, flat * self.windows.sizes[axis] + windows[axis].pixel + k * step, axis + 1, body)

        return loop(windows[axis].count, inside, "tap")

    def _joined(self, held: Any, source: Any, at: Expr) -> Stmt:
        def lane(k: Expr) -> Stmt:
            return store(held, self.shape.join(load(held, k), load(source, at + k)), k)

        return loop(imm(self.lanes), lane, "lane", VECTORIZED)
