"""Schedule of a map stage (elementwise, broadcast, transpose, gather, pad, slice ...).

The loops are left as clean serial nests with a contiguous innermost loop: LLVM vectorises those, tails
and symbolic extents included, better than a split with predicates. What matters is which loops are
merged, so that the innermost loop is long, and that the outer ones run in parallel above a grain.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi

from hcomp.targets.cpu.schedule.bounds import is_bound
from hcomp.targets.cpu.schedule.nest import as_int, loads, same, used_vars
from hcomp.targets.cpu.schedule.stages import Stage

GRAIN_ELEMENTS = 1 << 15
"""Below this many element operations one thread is faster than two."""

_CALL_COST = 8
_SYMBOLIC_GUESS = 64


def schedule_map(sch: Any, block: Any, stage: Stage) -> None:
    """Merge, order and parallelise the loops of one map stage, in place.

    Args:
        sch: the schedule that holds the function.
        block: the stage's block in `sch`.
        stage: the same block as read before scheduling.
    """
    loops = list(sch.get_loops(block))
    if not loops:
        return
    parallel = worth_threads(stage)
    groups = _merge(sch, loops, mergeable_runs(stage))
    if len(groups) == 1:
        if parallel:
            sch.parallel(groups[0])
        return
    outer = sch.fuse(*groups[:-1]) if len(groups) > 2 else groups[0]
    if parallel:
        sch.parallel(outer)


def _merge(sch: Any, loops: Sequence[Any], runs: Sequence[int]) -> list[Any]:
    groups = []
    start = 0
    for length in runs:
        part = loops[start : start + length]
        groups.append(sch.fuse(*part) if length > 1 else part[0])
        start += length
    return groups


def mergeable_runs(stage: Stage) -> list[int]:
    """Return the lengths of runs of adjacent loops that every access walks contiguously."""
    variables = [v.var for v in stage.block.iter_vars]
    accesses = [(item.source, list(item.indices)) for item in loads(stage.store.value)]
    accesses.append((stage.store.buffer, list(stage.store.indices)))
    free = _outside_indices(stage, variables)
    runs = [1]
    for p, q in pairwise(variables):
        together = p not in free and q not in free
        together = together and all(_adjacent(source, indices, p, q, stage.extents[q]) for source, indices in accesses)
        if together:
            runs[-1] += 1
        else:
            runs.append(1)
    return runs


def _outside_indices(stage: Stage, variables: Sequence[Any]) -> set[Any]:
    """Return the variables used in values (conditions, casts), not only as plain indices."""

    def count(node: Any) -> dict[Any, int]:
        totals: dict[Any, int] = {}

        def visit(v: Any) -> None:
            totals[v] = totals.get(v, 0) + 1

        tvm_ffi.structural_walk(node, (tvm.ir.Var, visit))
        return totals

    everywhere = count(stage.store.value)
    plain: dict[Any, int] = {}
    for item in loads(stage.store.value):
        for index in item.indices:
            if isinstance(index, tvm.ir.Var):
                plain[index] = plain.get(index, 0) + 1
    return {v for v in variables if everywhere.get(v, 0) > plain.get(v, 0)}


def _adjacent(source: Any, indices: Sequence[Any], p: Any, q: Any, extent: Any) -> bool:
    at_p = [d for d, index in enumerate(indices) if used_vars(index, [p])]
    at_q = [d for d, index in enumerate(indices) if used_vars(index, [q])]
    if not at_p and not at_q:
        return True
    if len(at_p) != 1 or len(at_q) != 1 or at_q[0] != at_p[0] + 1:
        return False
    if not (indices[at_p[0]].same_as(p) and indices[at_q[0]].same_as(q)):
        return False
    return bool(same(source.shape[at_q[0]], extent))


def worth_threads(stage: Stage) -> bool:
    """Return whether the stage has enough work for more than one thread."""
    total, symbolic = 1, False
    for extent in stage.extents.values():
        known = as_int(extent)
        symbolic = symbolic or known is None
        total *= _SYMBOLIC_GUESS if known is None else known
    return symbolic or total * cost_of(stage.store.value) >= GRAIN_ELEMENTS


def cost_of(value: Any) -> int:
    """Return a rough number of operations of one element."""
    total = 1 + len(loads(value))

    def visit(call: Any) -> None:
        nonlocal total
        total += 1 if is_bound(call) else _CALL_COST

    tvm_ffi.structural_walk(value, (tvm.ir.Call, visit))
    return total
