"""The store at the end of a heavy kernel: its own output, or the elementwise work fused after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from hcomp.targets.cpu.schedule.nest import (
    Expr,
    Stmt,
    as_int,
    loads,
    replace_loads,
    same,
    substitute,
)
from hcomp.targets.cpu.schedule.stages import Stage


@dataclass(frozen=True)
class Epilogue:
    """How one finished element leaves the kernel.

    Attributes:
        anchor: the heavy stage.
        last: the map stage that consumes it, or None when the anchor writes the output.
        origin: for every variable of `last`, the anchor variable that it equals (or a constant).
    """

    anchor: Stage
    last: Stage | None
    origin: Mapping[Any, Any]

    @property
    def cheap(self) -> bool:
        """Whether it is a few instructions, which may be written out for each register of a tile."""
        calls: list[Any] = []
        if self.last is not None:
            tvm_ffi.structural_walk(self.last.store.value, (tvm.ir.Call, calls.append))
        return not calls

    def finish(self, point: Mapping[Any, Expr], value: Expr) -> Stmt:
        """Return the store of the element at `point` (anchor variables) with sum `value`."""
        target = self.anchor.store if self.last is None else self.last.store
        out = self.anchor.store.buffer
        if self.last is None:
            indices = [substitute(i, point) for i in target.indices]
            return tirx.BufferStore(out, _as(value, str(out.dtype)), indices)
        where = {v: substitute(o, point) for v, o in self.origin.items()}
        body = replace_loads(target.value, out, lambda _: _as(value, str(out.dtype)))
        indices = [substitute(i, where) for i in target.indices]
        return tirx.BufferStore(target.buffer, substitute(body, where), indices)


def _as(value: Expr, dtype: str) -> Expr:
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def plain_epilogue(anchor: Stage) -> Epilogue:
    """Return the epilogue of an anchor that writes its own buffer."""
    return Epilogue(anchor, None, {})


def fused_epilogue(anchor: Stage, last: Stage) -> Epilogue | None:
    """Return the epilogue that computes `last` where `anchor` finishes, or None.

    `last` must visit every element of the anchor exactly once: each of its variables is one index of
    the anchor's buffer (in any order), so the mapping can be inverted.
    """
    if not last.is_map:
        return None
    out = anchor.store.buffer
    reads = [item for item in loads(last.store.value) if item.source.same_as(out)]
    if not reads or any(_differ(reads[0], item) for item in reads[1:]):
        return None
    origin = _origin(anchor, last, list(reads[0].indices))
    if origin is None or not _visits_all(anchor, list(origin.values())):
        return None
    return Epilogue(anchor, last, origin)


def _origin(anchor: Stage, last: Stage, indices: list[Any]) -> dict[Any, Any] | None:
    """Return the anchor variable behind each variable of `last`, or None if there is not one."""
    origin: dict[Any, Any] = {}
    for index, own in zip(indices, anchor.store.indices, strict=True):
        if isinstance(index, tvm.ir.Var) and index in last.extents:
            origin[index] = own
        elif as_int(index) is None:
            return None
    for variable, extent in last.extents.items():
        if variable not in origin:
            if as_int(extent) != 1:
                return None
            origin[variable] = tirx.IntImm("int64", 0)
    return origin


def _visits_all(anchor: Stage, reached: list[Any]) -> bool:
    """Return whether every wide variable of the anchor is reached."""
    wide = [own for own in anchor.store.indices if isinstance(own, tvm.ir.Var) and as_int(anchor.extents.get(own)) != 1]
    return all(any(own.same_as(r) for r in reached) for own in wide)


def _differ(first: Any, second: Any) -> bool:
    return not all(same(a, b) for a, b in zip(first.indices, second.indices, strict=True))
