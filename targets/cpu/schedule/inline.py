"""Which intermediate stages disappear into their consumers.

A map stage is inlined where its element is computed once a use and that is cheap. It stays a stage of
its own when inlining would multiply work: an expensive value used by several consumers, or a value
that a reduction or contraction reads more than once.
"""

from __future__ import annotations

from typing import Any

from hcomp.targets.cpu.schedule.conv_shape import CONV
from hcomp.targets.cpu.schedule.maps import cost_of
from hcomp.targets.cpu.schedule.nest import loads, used_vars
from hcomp.targets.cpu.schedule.stages import Stage, consumers, root_block, stages

_EXPENSIVE = 8
_LARGE = 64


def inline_maps(sch: Any) -> None:
    """Inline map stages into their consumers wherever that does not multiply work, in place."""
    func = sch.mod["main"]
    all_stages = stages(func)
    root = root_block(func)
    assert root is not None
    costs: dict[str, int] = {}
    for stage in all_stages:
        if not stage.is_map or not _plain(stage):
            continue
        target = stage.store.buffer
        cost = cost_of(stage.store.value) + sum(
            costs.get(str(item.source.name), 0) for item in loads(stage.store.value)
        )
        if not any(target.same_as(b) for b in root.alloc_buffers):
            continue
        readers = [all_stages[n] for n in consumers(all_stages, target)]
        if readers and all(r.store is not None and CONV not in r.annotations for r in readers):
            if _affordable(stage, readers, cost):
                costs[str(target.name)] = cost
                sch.compute_inline(sch.get_sblock(str(stage.block.name_hint)))


def _plain(stage: Stage) -> bool:
    """Return whether the stage writes its buffer index by index (what inlining can invert)."""
    indices = list(stage.store.indices)
    variables = stage.spatial
    return len(indices) == len(variables) and all(
        i.same_as(v) for i, v in zip(indices, variables, strict=True)
    )


def _affordable(stage: Stage, readers: list[Stage], cost: int) -> bool:
    if cost < _EXPENSIVE and len(readers) == 1 and readers[0].is_map:
        return True
    uses = 0
    for reader in readers:
        reads = [
            item for item in loads(reader.store.value)
            if item.source.same_as(stage.store.buffer)
        ]
        uses += len(reads)
        if reader.reduced and cost >= _EXPENSIVE and any(_reread(reader, item) for item in reads):
            return False
        if reader.reduced and uses * cost > _LARGE:
            return False
    return uses == 1 or cost * uses <= _LARGE


def _reread(reader: Stage, item: Any) -> bool:
    """Return whether the reader's loops read one element of `item` several times."""
    variables = [v.var for v in reader.block.iter_vars]
    used: set[Any] = set()
    for index in item.indices:
        used |= used_vars(index, variables)
    return len(used) < len(variables)
