"""The table of rules: what a PrimFunc computes decides how it is scheduled.

Rules are tried in the order of `RULES`; the first that matches schedules the function. The last one
matches everything that TVM can schedule at all.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.contraction import Contraction, match_contraction
from hcomp.targets.cpu.schedule.conv import emit_conv_loops
from hcomp.targets.cpu.schedule.conv_shape import Convolution, match_conv
from hcomp.targets.cpu.schedule.epilogue import fused_epilogue, plain_epilogue
from hcomp.targets.cpu.schedule.gemm import emit_contraction
from hcomp.targets.cpu.schedule.inline import inlined
from hcomp.targets.cpu.schedule.maps import schedule_map
from hcomp.targets.cpu.schedule.nest import loads
from hcomp.targets.cpu.schedule.pool import emit_pool
from hcomp.targets.cpu.schedule.pool_planes import emit_plane_pool
from hcomp.targets.cpu.schedule.pool_shape import Pooling, match_pool
from hcomp.targets.cpu.schedule.ranges import emit_ranges
from hcomp.targets.cpu.schedule.reductions import (
    PLANE_AXES,
    keeps_innermost,
    schedule_reduction,
)
from hcomp.targets.cpu.schedule.rowwise import match_rowwise, schedule_rowwise
from hcomp.targets.cpu.schedule.stages import (
    Stage,
    consumers,
    replace_stages,
    root_block,
    stages,
)
from hcomp.targets.cpu.schedule.turned import emit_turned


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        name: what a profile shows.
        apply: returns the scheduled function, or None when the rule is not for this function.
    """

    name: str
    apply: Callable[[tirx.PrimFunc, CpuFeatures], tirx.PrimFunc | None]


def opaque(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc | None:
    """Hand-written loops (sort, scan, recurrence, extern calls): kept as they are."""
    del cpu
    if root_block(func) is None:
        return func
    irregular = any(s.block is None or s.block.alloc_buffers for s in stages(func))
    return func if irregular else None


def heavy(match: Callable[[Stage], Any]) -> Callable[[tirx.PrimFunc, CpuFeatures], tirx.PrimFunc | None]:
    """Return the rule of functions with a stage that `match` recognises, and the elementwise work around it."""

    def apply(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc | None:
        return _staged(func, cpu) if any(match(s) for s in stages(func)) else None

    return apply


def row_wise(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc | None:
    """Reductions over trailing axes whose result goes back over the same rows."""
    del cpu
    if len(stages(func)) < 2:
        return None
    sch = inlined(func)
    count = match_rowwise(stages(sch.mod["main"]))
    if count is None:
        return None
    schedule_rowwise(sch, count)
    return _finished(sch, func)


def reduction(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc | None:
    """Any other reduction: pooling, sums over any axes, argmax."""
    return _staged(func, cpu) if any(s.reduced for s in stages(func)) else None


def elementwise(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc | None:
    """Only maps: elementwise, broadcast, transpose, gather, slice, pad, concatenate."""
    return _staged(func, cpu) if all(s.is_map for s in stages(func)) else None


def default(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc | None:
    """Everything else: each stage by itself, irregular blocks in their own order."""
    return _staged(func, cpu)


RULES = (
    Rule("opaque", opaque),
    # A convolution with a packed constant weight, channels last.
    Rule("convolution", heavy(match_conv)),
    # Of float32; the others are reductions.
    Rule("pooling", heavy(match_pool)),
    # Matrix products and the other convolutions.
    Rule("contraction", heavy(match_contraction)),
    Rule("row-wise", row_wise),
    Rule("reduction", reduction),
    Rule("elementwise", elementwise),
    Rule("default", default),
)


def _finished(sch: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.with_body(sch.mod["main"].body)


def _staged(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc:
    """Schedule each stage by what it computes; heavy stages get hand-written loops."""
    sch = inlined(func)
    before = stages(sch.mod["main"])
    heavy = {n: found for n, s in enumerate(before) if (found := _heavy(s))}
    fused = {n: _epilogue(before, n, func) for n in heavy}
    inside = {n + 1 for n, epilogue in fused.items() if epilogue.last is not None}
    written = _written_maps(before, {*heavy, *inside}, cpu)
    for number, stage in enumerate(before):
        if number in heavy or number in inside or number in written or stage.block is None:
            continue
        block = sch.get_sblock(str(stage.block.name_hint))
        if stage.reduced:
            pools = stage.store is not None and keeps_innermost(stage)
            own = _own_producers(before, number, heavy) if pools else []
            planes = [sch.get_sblock(str(before[n].block.name_hint)) for n in own]
            schedule_reduction(sch, block, stage, planes)
        elif stage.is_map and not _feeds_pooling(before, number, heavy):
            schedule_map(sch, block, stage)
    result = _finished(sch, func)
    if not heavy and not written:
        return result
    replaced: dict[int, Any] = {**dict.fromkeys(inside), **written}
    dropped = []
    for number, found in heavy.items():
        if isinstance(found, Convolution):
            replaced[number] = emit_conv_loops(found, fused[number], cpu)
        elif isinstance(found, Pooling):
            emit = emit_pool if found.shape.channels_last else emit_plane_pool
            replaced[number] = emit(found, fused[number], cpu)
        else:
            replaced[number] = emit_contraction(found, fused[number], cpu)
        if fused[number].last is not None:
            dropped.append(found.stage.store.buffer)
    return replace_stages(result, replaced, dropped)


def _written_maps(all_stages: list[Stage], taken: Container[int], cpu: CpuFeatures) -> dict[int, Any]:
    """Return the loops of the map stages that choose by their last index, or turn their input."""
    free = [n for n, stage in enumerate(all_stages) if n not in taken and stage.is_map]
    found = {
        n: emit_ranges(all_stages[n]) or emit_turned(all_stages[n], cpu)
        for n in free
        if not _feeds_pooling(all_stages, n, taken)
    }
    return {n: loops for n, loops in found.items() if loops is not None}


def _own_producers(all_stages: list[Stage], number: int, heavy: Container[int]) -> list[int]:
    """Return the map stages that only reduction `number` reads."""
    return [
        n
        for n, stage in enumerate(all_stages[:number])
        if stage.is_map
        and n not in heavy
        and consumers(all_stages, stage.store.buffer) == [number]
        and len(stage.spatial) > PLANE_AXES
    ]


def _feeds_pooling(all_stages: list[Stage], number: int, heavy: Container[int]) -> bool:
    """Return whether the map stage is scheduled together with the reduction that reads it."""
    readers = consumers(all_stages, all_stages[number].store.buffer)
    if len(readers) != 1 or readers[0] in heavy:
        return False
    reader = all_stages[readers[0]]
    return reader.is_reduction and number in _own_producers(all_stages, readers[0], heavy) and (keeps_innermost(reader))


def _heavy(stage: Stage) -> Convolution | Pooling | Contraction | None:
    return match_conv(stage) or match_pool(stage) or match_contraction(stage)


def _epilogue(all_stages: list[Stage], number: int, func: tirx.PrimFunc) -> Any:
    """Return the fused epilogue when the next stage is the only reader of the anchor's result."""
    anchor = all_stages[number]
    out = anchor.store.buffer
    is_output = any(out.same_as(p) for p in func.params)
    readers = consumers(all_stages, out)
    if is_output or readers != [number + 1]:
        return plain_epilogue(anchor)
    last = all_stages[number + 1]
    if any(r.store is None for r in all_stages[number + 1 :]):
        return plain_epilogue(anchor)
    reads_later = [item.source for item in loads(last.store.value)]
    produced_later = [s.store.buffer for s in all_stages[number + 1 :]]
    if any(a.same_as(b) for a in reads_later for b in produced_later):
        return plain_epilogue(anchor)
    return fused_epilogue(anchor, last) or plain_epilogue(anchor)
