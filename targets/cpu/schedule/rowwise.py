"""Rule for row-wise functions: softmax, layer norm, RMS norm, group norm, any reduce-then-map chain.

All stages are computed for one row (one slice of the reduced axes) before the next, so the row stays
in cache. When the reduced axis is not the last, a slice is a block of contiguous columns.
"""

from __future__ import annotations

from typing import Any

from hcomp.targets.cpu.schedule.maps import worth_threads
from hcomp.targets.cpu.schedule.nest import as_int, loads, same
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
    kinds = [v.var for v in stage.block.iter_vars]
    spatial, reduced = stage.spatial, stage.reduced
    if kinds != [*spatial, *reduced] or len(last.spatial) < len(spatial):
        return None
    kept = len(spatial)
    while kept and as_int(stage.extents[spatial[kept - 1]]) == 1 and kept + len(reduced) > len(last.spatial):
        kept -= 1
    equal = all(
        same(stage.extents[a], last.extents[b]) for a, b in zip(spatial[:kept], last.spatial[:kept], strict=True)
    )
    return kept if equal else None


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
            inner = sch.get_loops(block)[-len(stage.reduced) :]
            sch.decompose_reduction(block, inner[0])
