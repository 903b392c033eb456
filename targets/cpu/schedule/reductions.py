"""Schedule of a reduction stage: sum, max, mean, pooling, argmax, any axes.

Two forms. When the reduced axis is the contiguous one, it is innermost and `lanes.py` turns the loop
into vector accumulators. Otherwise the contiguous kept axis is innermost, so that one row of
accumulators is updated by vector operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tvm.s_tir.schedule.schedule import ScheduleError

from hcomp.targets.cpu.schedule.maps import _adjacent, worth_threads
from hcomp.targets.cpu.schedule.nest import as_int, loads, used_vars
from hcomp.targets.cpu.schedule.stages import REDUCTION, Stage

_ROW = 256
PLANE_AXES = 2
"""Leading axes (image, channel) that pooling takes one by one."""


def schedule_reduction(sch: Any, block: Any, stage: Stage, producers: Sequence[Any] = ()) -> None:
    """Order, merge and parallelise the loops of one reduction stage, in place.

    Args:
        sch: the schedule that holds the function.
        block: the stage's block in `sch`.
        stage: the same block as read before scheduling.
        producers: blocks that only this stage reads (a padded image): computed plane by plane when
            the form allows it, otherwise left where they are.
    """
    loops = list(sch.get_loops(block))
    kinds = [int(v.iter_type) == REDUCTION for v in stage.block.iter_vars]
    if len(kinds) != len(loops):
        return
    variables = [v.var for v in stage.block.iter_vars]
    kept = [k for k, reduced in enumerate(kinds) if not reduced]
    reduced = [k for k, is_reduced in enumerate(kinds) if is_reduced]
    inner = contiguous(stage, variables)
    parallel = stage.store is None or worth_threads(stage)
    if inner is None or inner in reduced or stage.store is None:
        _reduce_innermost(sch, block, stage, loops, kept, reduced, parallel=parallel)
    else:
        if producers and keeps_innermost(stage):
            _by_planes(sch, block, loops, kept, reduced, producers, parallel=parallel)
            return
        _keep_innermost(sch, block, stage, loops, kept, reduced, inner, parallel=parallel)


def keeps_innermost(stage: Stage) -> bool:
    """Return whether the stage pools over planes: more kept axes, the last one contiguous."""
    variables = [v.var for v in stage.block.iter_vars]
    kept = [k for k, v in enumerate(stage.block.iter_vars) if int(v.iter_type) != REDUCTION]
    return len(kept) > PLANE_AXES and contiguous(stage, variables) == kept[-1]


def _reduce_innermost(
    sch: Any,
    block: Any,
    stage: Stage,
    loops: Sequence[Any],
    kept: Sequence[int],
    reduced: Sequence[int],
    *,
    parallel: bool,
) -> None:
    outer = [loops[k] for k in kept]
    inner = [loops[k] for k in reduced]
    if outer and inner:
        sch.reorder(*outer, *inner)
    if len(inner) > 1 and stage.store is not None and mergeable(stage):
        inner = [sch.fuse(*inner)]
    if outer and parallel:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
    sch.decompose_reduction(block, inner[0])


def _keep_innermost(
    sch: Any,
    block: Any,
    stage: Stage,
    loops: Sequence[Any],
    kept: Sequence[int],
    reduced: Sequence[int],
    inner: int,
    *,
    parallel: bool,
) -> None:
    outer = [loops[k] for k in kept if k != inner]
    row = loops[inner]
    extent = as_int(stage.block.iter_vars[inner].dom.extent)
    if extent is not None and extent % _ROW == 0 and extent > _ROW:
        head, row = sch.split(row, [None, _ROW])
        outer.append(head)
    sch.reorder(*outer, *[loops[k] for k in reduced], row)
    if outer and parallel:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
    sch.decompose_reduction(block, loops[reduced[0]])


def _by_planes(
    sch: Any,
    block: Any,
    loops: Sequence[Any],
    kept: Sequence[int],
    reduced: Sequence[int],
    producers: Sequence[Any],
    *,
    parallel: bool,
) -> None:
    """Pooling: one (image, channel) plane after the other, with its padded copy in cache."""
    outer = [loops[k] for k in kept[:PLANE_AXES]]
    rows = [loops[k] for k in kept[PLANE_AXES:-1]]
    sch.reorder(*outer, *rows, *[loops[k] for k in reduced], loops[kept[-1]])
    # A row of sums of its own: LLVM sees that it overlaps nothing and needs no checks.
    finished = sch.cache_write(block, 0, "global")
    plane = sch.fuse(*outer)
    if parallel:
        sch.parallel(plane)
    sch.reverse_compute_at(finished, rows[-1] if rows else plane)
    for producer in producers:
        sch.compute_at(producer, plane, preserve_unit_loops=True)
        _fill_then_copy(sch, producer)
    sch.decompose_reduction(block, loops[reduced[0]])


def _fill_then_copy(sch: Any, producer: Any) -> None:
    """Split a padded copy into a constant fill and a copy without conditions.

    A producer that is no padding (some other choice of values) stays one loop with its condition.
    """
    try:
        sch.decompose_padding(producer, sch.get_loops(producer)[1])
    except ScheduleError:
        return


def contiguous(stage: Stage, variables: Sequence[Any]) -> int | None:
    """Return the number of the variable that walks the largest input contiguously."""
    if stage.store is None:
        return None
    best, rank = None, -1
    for item in loads(stage.store.value):
        if item.source.same_as(stage.store.buffer) or len(item.indices) <= rank:
            continue
        used = used_vars(item.indices[-1], variables)
        wide = [k for k, v in enumerate(variables) if v in used and as_int(stage.block.iter_vars[k].dom.extent) != 1]
        if wide:
            best, rank = _widest(stage, wide), len(item.indices)
    return best


def _widest(stage: Stage, candidates: Sequence[int]) -> int:
    """Return the candidate with the largest extent (an output column beats a pooling window)."""

    def size(k: int) -> int:
        known = as_int(stage.block.iter_vars[k].dom.extent)
        return 1 << 30 if known is None else known

    return max(candidates, key=size)


def mergeable(stage: Stage) -> bool:
    """Return whether the reduced loops are static, adjacent and contiguous in every input."""
    variables = [v for v in stage.block.iter_vars if int(v.iter_type) == REDUCTION]
    if any(as_int(v.dom.extent) is None for v in variables):
        return False
    return all(
        _adjacent(item.source, list(item.indices), p.var, q.var, q.dom.extent)
        for item in loads(stage.store.value)
        for p, q in pairwise(variables)
    )
