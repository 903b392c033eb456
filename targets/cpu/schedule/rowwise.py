"""Rule for row-wise functions: softmax, layer norm, RMS norm, group norm, any reduce-then-map chain.

All stages are computed for one row (one slice of the reduced axes) before the next, so the row stays
in cache. When the reduced axis is not the last, a slice is a block of contiguous columns.
"""

from __future__ import annotations

from typing import Any

from hcomp.targets.cpu.schedule.maps import worth_threads
from hcomp.targets.cpu.schedule.nest import as_int, loads, same, used_vars
from hcomp.targets.cpu.schedule.reductions import contiguous, mergeable
from hcomp.targets.cpu.schedule.stages import Stage, stages


def match_rowwise(all_stages: list[Stage]) -> int | None:
    """Return the number of leading loops that all stages share, or None.

    The last stage must be a map over the whole domain; every reduction keeps the same leading axes
    and reduces trailing ones.
    """
    last = all_stages[-1]
    if len(all_stages) < 2 or not last.is_map:
        return None
    reductions = [s for s in all_stages if s.is_reduction]
    if not reductions or any(s.store is None for s in all_stages):
        return None
    counts = {_leading(s, last) for s in reductions}
    if None in counts or len(counts) != 1:
        return None
    (count,) = counts
    assert count is not None
    for stage in all_stages[:-1]:
        if stage.is_map and len(stage.spatial) < count:
            return None
    return count if count > 0 and _feeds(all_stages) else None


def _leading(stage: Stage, last: Stage) -> int | None:
    """Return how many axes a trailing-axes reduction keeps; None when it is of another form."""
    variables = [v.var for v in stage.block.iter_vars]
    spatial, reduced = stage.spatial, stage.reduced
    if variables != [*spatial, *reduced] or len(last.spatial) < len(spatial):
        return None
    kept = min(len(spatial), _first_reduced(stage, len(last.spatial)))
    while kept and as_int(stage.extents[spatial[kept - 1]]) == 1 and kept + len(reduced) > len(last.spatial):
        kept -= 1
    equal = all(
        same(stage.extents[a], last.extents[b]) for a, b in zip(spatial[:kept], last.spatial[:kept], strict=True)
    )
    inner = contiguous(stage, variables)
    if inner is not None and inner < kept:  # a row would be one column of the input
        return None
    return kept if equal else None


def _first_reduced(stage: Stage, rank: int) -> int:
    """Return the first axis of a tensor of `rank` axes that a reduction runs along; `rank` if none is seen to."""
    along = list(stage.reduced)
    first = rank
    for item in loads(stage.store.value):
        if len(item.indices) == rank:
            first = min([first, *(n for n, index in enumerate(item.indices) if used_vars(index, along))])
    return first


def _feeds(all_stages: list[Stage]) -> bool:
    """Return whether every stage but the last is read by a later one."""
    for number, stage in enumerate(all_stages[:-1]):
        later = all_stages[number + 1 :]
        if not any(item.source.same_as(stage.store.buffer) for reader in later for item in loads(reader.store.value)):
            return False
    return True


def schedule_rowwise(sch: Any, count: int) -> None:
    """Compute every stage at the row loop of the last one, in place."""
    all_stages = stages(sch.mod["main"])
    blocks = [sch.get_sblock(str(s.block.name_hint)) for s in all_stages]
    last = blocks[-1]
    loops = sch.get_loops(last)
    row = sch.fuse(*loops[:count]) if count > 1 else loops[0]
    if any(worth_threads(s) for s in all_stages):
        sch.parallel(row)
    for block in reversed(blocks[:-1]):
        sch.compute_at(block, row, preserve_unit_loops=True)
    for block, stage in zip(blocks[:-1], all_stages[:-1], strict=True):
        if stage.is_reduction:
            own, depth = sch.get_loops(block), len(stage.reduced)
            inner, columns = own[-depth:], len(stage.spatial) - count
            if columns > 0:
                sch.reorder(*inner, *own[-depth - columns : -depth])
            elif depth > 1 and mergeable(stage):
                inner = [sch.fuse(*inner)]
            sch.decompose_reduction(block, inner[0])
