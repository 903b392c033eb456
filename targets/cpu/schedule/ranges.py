"""Loops for a map that chooses by its innermost index: concatenation and padding of the last axis.

`if_then_else(c < 64, a[.., c], b[.., c - 64])` would be asked for every element, and keeps LLVM from
using vectors. Here each range of the index has a loop of its own, without the question.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from hcomp.targets.cpu.schedule.maps import worth_threads
from hcomp.targets.cpu.schedule.nest import Expr, Stmt, as_int, imm, loop, same, seq, substitute, task_loops
from hcomp.targets.cpu.schedule.stages import Stage

_LT = tvm.ir.prim.expr.LT
_MOST = 64
"""More ranges than this stay one loop."""


def emit_ranges(stage: Stage) -> Stmt | None:
    """Return the loops of a map stage whose choices are by constants on its last axis, else None."""
    if len(stage.spatial) < 2:
        return None
    last = stage.spatial[-1]
    extent = as_int(stage.extents[last])
    if extent is None:
        return None
    cuts = sorted({0, extent, *_cuts(stage.store.value, last, extent)})
    if not 2 < len(cuts) <= _MOST:
        return None
    outer = stage.spatial[:-1]

    def task(indices: list[Expr]) -> Stmt:
        bound = dict(zip(outer, indices, strict=True))
        return seq([_range(stage, bound, last, low, high) for low, high in pairwise(cuts)])

    return task_loops([stage.extents[v] for v in outer], task, parallel=worth_threads(stage))


def _range(stage: Stage, bound: dict[Any, Expr], last: Any, low: int, high: int) -> Stmt:
    value = _chosen(stage.store.value, last, low)

    def element(i: Expr) -> Stmt:
        point = {**bound, last: imm(low) + i}
        indices = [substitute(index, point) for index in stage.store.indices]
        return tirx.BufferStore(stage.store.buffer, substitute(value, point), indices)

    return loop(imm(high - low), element, "c")


def _cuts(value: Any, last: Any, extent: int) -> list[int]:
    """Return the constants below which a choice in `value` goes one way."""
    found: list[int] = []

    def visit(call: Any) -> None:
        cut = _cut(call, last)
        if cut is not None and 0 < cut < extent:
            found.append(cut)

    tvm_ffi.structural_walk(value, (tvm.ir.Call, visit))
    return found


def _cut(call: Any, last: Any) -> int | None:
    """Return the constant of `if_then_else(last < constant, ...)`, or None for anything else."""
    if getattr(call.op, "name", "") != "prim.if_then_else" or not isinstance(call.args[0], _LT):
        return None
    condition = call.args[0]
    return as_int(condition.b) if same(condition.a, last) else None


def _chosen(value: Any, last: Any, low: int) -> Any:
    """Return `value` with every choice made as for an index of `low`."""

    def visit(call: Any) -> Any:
        cut = _cut(call, last)
        if cut is None:
            return call
        return _chosen(call.args[1] if low < cut else call.args[2], last, low)

    return tvm_ffi.structural_map(value, (tvm.ir.Call, visit), order="pre")
