"""The kernel of tree ensembles: several trees are walked at once, so that their loads overlap.

A walk is a chain of loads, each at the place that the one before has given. `LANES` independent
walks keep the processor busy. Rows are taken in blocks, and a block's rows one after the other by
the same trees, whose nodes so stay in the cache. The sums are taken in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as script

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, constant
from hcomp.codegen.relax_table.loops import Buffer, local, repeat_while, statements, store, when
from hcomp.codegen.relax_table.shape import int64

LANES = 8
"""Walks at a time."""
BLOCK = 64
"""Rows; one thread takes a block."""


def _wide(value: Expr) -> Expr:
    return value.astype("int64")


class _Walks:
    """The walks of one row through some trees, `lanes` at a time."""

    def __init__(self, kernel: Kernel, ins: Sequence[Buffer], trees: int) -> None:
        self.x, self.nodes, self.thresholds, self.roots, *_ = ins
        self.missing = bool(kernel.attrs["missing"])
        self.trees, self.lanes = trees, min(LANES, trees)
        # Where each walk is, and the child of that node.
        self.at = [local("int64") for _ in range(self.lanes)]
        self.child = [local("int64") for _ in range(self.lanes)]

    def start(self, group: Expr) -> None:
        """Put the walks on the roots; past the last tree, on that of the last."""
        for lane, at in enumerate(self.at):
            tree = tirx.min(group * int64(self.lanes) + int64(lane), int64(self.trees - 1))
            store(at, [int64(0)], _wide(self.roots[tree]))
        self._look()

    def _look(self) -> None:
        for at, child in zip(self.at, self.child, strict=True):
            store(child, [int64(0)], _wide(self.nodes[at[0], int64(1)]))

    def run(self, row: Expr) -> None:
        """Walk until all are in leaves."""
        ends = self.child[0][0]
        for child in self.child[1:]:
            ends = tirx.bitwise_and(ends, child[0])
        with repeat_while(ends >= int64(0)):
            for at, child in zip(self.at, self.child, strict=True):
                step = tirx.Select(self._goes_first(row, at[0]), int64(0), int64(1))
                store(at, [int64(0)], tirx.Select(child[0] < int64(0), at[0], child[0] + step))
            self._look()

    def _goes_first(self, row: Expr, at: Expr) -> Expr:
        feature = _wide(self.nodes[at, int64(0)])
        if not self.missing:
            return self.x[row, feature] <= self.thresholds[at]
        marked = feature < int64(0)
        value = self.x[row, tirx.Select(marked, int64(-1) - feature, feature)]
        return tirx.Or(value <= self.thresholds[at], tirx.And(marked, tirx.isnan(value)))


@contextmanager
def _rows(kernel: Kernel, block: Expr, count: Expr) -> Iterator[Expr]:
    low = block * int64(BLOCK)
    with script.serial(int64(0), tirx.min(int64(BLOCK), count - low)) as row:
        yield low + row


def _emit_block(kernel: Kernel, ins: Sequence[Buffer], outs: Sequence[Buffer], block: Expr, count: Expr) -> None:
    targets, dtype = int(kernel.attrs["targets"]), kernel.out_dtype
    trees = kernel.shape(3)[0]
    assert isinstance(trees, int)
    with _rows(kernel, block, count) as row, script.serial(int64(0), int64(targets)) as target:
        store(outs[0], [row, target], constant(0, dtype))
        if kernel.attrs["reached"]:
            store(outs[1], [row, target], tirx.const(False, "bool"))
    with script.serial(int64(0), int64(-(-trees // min(LANES, trees)))) as group, _rows(kernel, block, count) as row:
        walks = _Walks(kernel, ins, trees)
        walks.start(group)
        walks.run(row)
        for lane, child in enumerate(walks.child):
            # Walks past the last tree count for nothing.
            if trees % walks.lanes == 0 or lane == 0:
                _give(kernel, ins, outs, row, child[0])
                continue
            with when(group * int64(walks.lanes) + int64(lane) < int64(trees)):
                _give(kernel, ins, outs, row, child[0])


def _give(kernel: Kernel, ins: Sequence[Buffer], outs: Sequence[Buffer], row: Expr, child: Expr) -> None:
    """Add what a leaf has to the row's targets."""
    starts, entry_targets, weights = ins[4:]
    leaf = int64(-1) - child
    entry, end = local("int64"), local("int64")
    store(entry, [int64(0)], _wide(starts[leaf]))
    store(end, [int64(0)], _wide(starts[leaf + int64(1)]))
    with repeat_while(entry[0] < end[0]):
        target = _wide(entry_targets[entry[0]]) if int(kernel.attrs["targets"]) > 1 else int64(0)
        place = [row, target]
        new, old = weights[entry[0]], outs[0][tuple(place)]
        store(outs[0], place, _combined(kernel, new, old, outs, place))
        if kernel.attrs["reached"]:
            store(outs[1], place, tirx.const(True, "bool"))
        store(entry, [int64(0)], entry[0] + int64(1))


def _combined(kernel: Kernel, new: Expr, old: Expr, outs: Sequence[Buffer], place: Sequence[Expr]) -> Expr:
    combine = kernel.attrs["combine"]
    if combine == "sum":
        return old + new
    better = new < old if combine == "min" else new > old
    return tirx.Select(tirx.Or(tirx.Not(outs[1][tuple(place)]), better), new, old)


def _tree_ensemble(kernel: Kernel) -> Any:
    rows, width = kernel.shape(0)
    needed = kernel.attrs["features"]
    if not isinstance(width, int):
        problem = f"the trees read {needed} features, the data has {width}"
        kernel.require(problem, lambda k: k.dim(width) >= int64(needed))

    def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        count = kernel.dim(rows)
        blocks = tirx.floordiv(count + int64(BLOCK - 1), int64(BLOCK))
        if isinstance(rows, int) and rows <= BLOCK:
            _emit_block(kernel, ins, outs, int64(0), count)
            return
        # A parallel loop costs a start, which few rows are not worth.
        with when(count <= int64(BLOCK)):
            _emit_block(kernel, ins, outs, int64(0), count)
        with when(count > int64(BLOCK)), script.parallel(int64(0), blocks) as block:
            _emit_block(kernel, ins, outs, block, count)

    shapes = [(t.shape or (), t.dtype) for t in kernel.outputs]
    made = statements(kernel, [kernel.tensor(n) for n in range(7)], shapes, emit, "trees")
    return made if len(made) > 1 else made[0]


KERNELS: dict[str, KernelBody] = {"tree_ensemble": _tree_ensemble}
