"""A PrimFunc read as stages: one perfect loop nest around one block, in order of execution.

Rules decide on stages (what a block computes), and rules that write their own loops put them back
in place of the stages that they cover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from hcomp.targets.cpu.schedule.nest import Expr, as_int, loads, seq

DATA_PARALLEL = 0
REDUCTION = 2

SYMBOLIC_GUESS = 32
"""What a symbolic size counts as where work is estimated."""


@dataclass(frozen=True)
class Stage:
    """One top-level statement of the root block.

    Attributes:
        statement: the whole nest.
        block: the only block in it, or None when the statement is not a perfect nest.
        store: the block's single store, or None when it does something else.
    """

    statement: Any
    block: Any
    store: Any

    @property
    def spatial(self) -> list[Any]:
        """The block's data-parallel variables, outermost first."""
        return [v.var for v in self.block.iter_vars if int(v.iter_type) == DATA_PARALLEL]

    @property
    def reduced(self) -> list[Any]:
        """The block's reduction variables, outermost first."""
        return [v.var for v in self.block.iter_vars if int(v.iter_type) == REDUCTION]

    @property
    def extents(self) -> dict[Any, Expr]:
        """The extent of every variable of the block."""
        return {v.var: v.dom.extent for v in self.block.iter_vars}

    @property
    def iterations(self) -> int:
        """How often the block runs; a symbolic size counts as `SYMBOLIC_GUESS`."""
        known = (as_int(extent) for extent in self.extents.values())
        return prod(SYMBOLIC_GUESS if extent is None else extent for extent in known)

    @property
    def is_map(self) -> bool:
        """Whether the stage computes each element on its own."""
        return self.store is not None and not self.reduced and self.block.init is None

    @property
    def is_reduction(self) -> bool:
        """Whether the stage reduces into one buffer."""
        return self.store is not None and bool(self.reduced) and self.block.init is not None

    @property
    def annotations(self) -> dict[str, Any]:
        """The block's annotations by name."""
        return {str(k): v for k, v in self.block.annotations.items()} if self.block else {}


def root_block(func: tirx.PrimFunc) -> Any | None:
    """Return the root block of a schedulable function, or None (hand-written loops)."""
    body = func.body
    return body.block if isinstance(body, s_tir.SBlockRealize) else None


def stages(func: tirx.PrimFunc) -> list[Stage]:
    """Return the stages of a schedulable function."""
    root = root_block(func)
    assert root is not None
    body = root.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return [_stage(statement) for statement in statements]


def _stage(statement: Any) -> Stage:
    inner = statement
    while isinstance(inner, tirx.For):
        inner = inner.body
    if not isinstance(inner, s_tir.SBlockRealize):
        return Stage(statement, None, None)
    block = inner.block
    regular = {DATA_PARALLEL, REDUCTION}.issuperset(int(v.iter_type) for v in block.iter_vars)
    single = isinstance(block.body, tirx.BufferStore) and not block.alloc_buffers
    return Stage(statement, block, block.body if regular and single else None)


def replace_stages(func: tirx.PrimFunc, replacements: Mapping[int, Any], dropped: list[Any]) -> tirx.PrimFunc:
    """Return `func` with some stages replaced by statements.

    Args:
        func: a schedulable function.
        replacements: stage number to statement, or to None to leave the stage out.
        dropped: intermediate buffers that no longer exist.
    """
    root = root_block(func)
    assert root is not None
    kept = [replacements.get(number, stage.statement) for number, stage in enumerate(stages(func))]
    block = s_tir.SBlock(
        iter_vars=[],
        reads=[],
        writes=[],
        name_hint="root",
        body=seq([statement for statement in kept if statement is not None]),
        alloc_buffers=[b for b in root.alloc_buffers if not any(b.same_as(d) for d in dropped)],
    )
    body = s_tir.SBlockRealize([], tvm.tirx.const(True, "bool"), block)
    return func.with_body(body)


def consumers(all_stages: list[Stage], source: Any) -> list[int]:
    """Return the numbers of the stages that read `source`, apart from reducing into it."""
    found = []
    for number, stage in enumerate(all_stages):
        node = stage.statement if stage.block is None else stage.block
        writes_it = stage.store is not None and stage.store.buffer.same_as(source)
        if not writes_it and any(item.source.same_as(source) for item in loads(node)):
            found.append(number)
    return found
