"""Which intermediate stages disappear into their consumers.

A map stage is inlined where its element is computed once a use and that is cheap. It stays a stage of
its own when inlining would multiply work: an expensive value used by several consumers, or a value
that a reduction or contraction reads more than once.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from hcomp.targets.cpu.schedule.bounds import named_bounds
from hcomp.targets.cpu.schedule.conv_shape import CONV
from hcomp.targets.cpu.schedule.maps import cost_of
from hcomp.targets.cpu.schedule.nest import as_int, loads, used_vars
from hcomp.targets.cpu.schedule.stages import Stage, consumers, root_block, stages

_EXPENSIVE = 8
_LARGE = 64


def inlined(func: tirx.PrimFunc) -> Any:
    """Return a schedule of `func` with map stages inlined into their consumers where that does not multiply work."""
    sch = _schedule(func)
    if not _inline_maps(sch):
        # Bounds name their value twice; as calls they cost compile time, so they are only where that matters.
        named = named_bounds(func)
        if named is not func:
            sch = _schedule(named)
            _inline_maps(sch)
    return sch


def _schedule(func: tirx.PrimFunc) -> Any:
    return s_tir.Schedule(func, debug_mask="none", error_render_level="none")


def _inline_maps(sch: Any) -> bool:
    """Inline what is affordable, in place; return whether that was all that one consumer reads."""
    complete = True
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
        open_to_it = all(r.store is not None and CONV not in r.annotations for r in readers)
        if readers and open_to_it and _affordable(stage, readers, cost):
            costs[str(target.name)] = cost
            sch.compute_inline(sch.get_sblock(str(stage.block.name_hint)))
        elif open_to_it and len(readers) == 1 and readers[0].is_map:
            complete = False
    return complete


def _plain(stage: Stage) -> bool:
    """Return whether the stage writes its buffer index by index (what inlining can invert)."""
    indices = list(stage.store.indices)
    variables = stage.spatial
    return len(indices) == len(variables) and all(i.same_as(v) for i, v in zip(indices, variables, strict=True))


def _affordable(stage: Stage, readers: list[Stage], cost: int) -> bool:
    if cost < _EXPENSIVE and len(readers) == 1 and readers[0].is_map:
        return True
    if cost >= _EXPENSIVE and len(readers) > 1 and any(r.reduced for r in readers):
        return False
    uses = 0
    for reader in readers:
        reads = [item for item in loads(reader.store.value) if item.source.same_as(stage.store.buffer)]
        uses += len(reads)
        guarded = cost >= _EXPENSIVE or _has_condition(stage)
        if reader.reduced and guarded and any(_reread(reader, item) for item in reads):
            return False
        if reader.reduced and uses * cost > _LARGE:
            return False
    return uses == 1 or cost * uses <= _LARGE


def _has_condition(stage: Stage) -> bool:
    """Return whether the stage chooses (padding): a branch has no place in a hot loop."""
    found = False

    def look(call: Any) -> None:
        nonlocal found
        found = found or "if_then_else" in str(call.op)

    tvm_ffi.structural_walk(stage.store.value, (tvm.ir.Call, look))
    return found


def _reread(reader: Stage, item: Any) -> bool:
    """Return whether the reader's loops read one element of `item` several times."""
    variables = [v.var for v in reader.block.iter_vars]
    used: set[Any] = set()
    for index in item.indices:
        used |= used_vars(index, variables)
    wide = [v for v in variables if as_int(reader.extents[v]) != 1]
    dims = [d for d in item.source.shape if as_int(d) != 1]
    return len(used) < len(variables) or len(dims) < len(wide)
