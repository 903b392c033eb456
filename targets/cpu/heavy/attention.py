"""Attention as one kernel: scores of a block of queries stay in the caches, q, k and v are read where they lie.

A task has one block of queries of one head. Where there are at least as many queries as a vector has lanes,
they are the lanes (`attention_blocks.py`); otherwise each query is done by itself (`attention_rows.py`).
Keys are taken in blocks: the largest score so far and the sum of powers are carried along, and what was
added up before is scaled where a larger score comes (Milakov and Gimelshein, arXiv:1805.02867).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from hcomp.codegen.kernel_list import RULE
from hcomp.codegen.kernel_work import BYTES, OPERATIONS, item_bytes
from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table import LOWER
from hcomp.ir.graph import Node
from hcomp.ir.ops.attention import COLUMN, INNER, KEY, QUERY, batch_axes
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.attention_blocks import block_statement, queries_of
from hcomp.targets.cpu.heavy.attention_parts import Attention, Operand
from hcomp.targets.cpu.heavy.attention_rows import rows_of
from hcomp.targets.cpu.schedule.module import finished
from hcomp.targets.cpu.schedule.nest import (
    GRAIN_OPERATIONS,
    PARALLEL,
    SERIAL,
    Block,
    Expr,
    Stmt,
    as_int,
    buffer,
    ceil_div,
    flat_view,
    imm,
    loop,
    opaque_let,
    product,
    seq,
    simple,
    unravel,
    var,
)

_SOFTMAX = 12
"""Operations of one element of softmax, as the cost model counts them."""


def attention_rule(features: CpuFeatures) -> Rule:
    """Return the row of attention: what the kernel does not take has the row of the common table."""
    made: dict[Any, Any] = {}

    def attention(lowering: Lowering, node: Node) -> Any:
        types = [lowering.type(name) for name in node.inputs]
        if not takes_attention(types, node.attrs):
            return LOWER["attention"](lowering, node)
        result = node.outputs[0].type
        assert isinstance(result, TensorType)
        bb = lowering.builder
        key = (id(bb), tuple(types), tuple(node.attrs.items()))
        if key not in made:  # the layers of a model share it
            made[key] = bb.add_func(attention_function(types, node.attrs, features), "attention")
        arguments = [lowering.expr(name) for name in node.inputs]
        return bb.emit(relax.call_tir(made[key], arguments, lowering.relax_type(result)))

    return attention


def takes_attention(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> bool:
    """Say whether the kernel computes an attention: float32, known widths, rows contiguous, sizes certainly equal."""
    axes = attrs["axes"]
    sizes: dict[str, Any] = {}
    for own, kind in zip(axes, types, strict=True):
        if kind.dtype not in ("float32", "bool"):
            return False
        for letter, size in zip(own, kind.shape or (), strict=True):
            if letter.isalpha() and sizes.setdefault(letter, size) != size:
                return False
    ends = [own[-1] for own in (*axes[:3], attrs["output"])]
    known = all(isinstance(sizes[c], int) and sizes[c] > 0 for c in (INNER, COLUMN))
    masks = all(QUERY not in own or own[-1] == QUERY for own in axes[3:])
    return known and ends == [INNER, INNER, COLUMN, COLUMN] and masks and 0 not in sizes.values()


def attention_function(types: Sequence[TensorType], attrs: Mapping[str, Any], cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return the function of one attention; each symbolic size is a variable of its own.

    Parameters: the operator's inputs in order, then the result.
    """
    axes: tuple[str, ...] = attrs["axes"]
    sizes: dict[str, Expr] = {}
    buffers = []
    for number, (own, kind) in enumerate(zip(axes, types, strict=True)):
        shape = []
        for place, (letter, size) in enumerate(zip(own, kind.shape or (), strict=True)):
            known = imm(size) if isinstance(size, int) else None
            if letter.isdigit():
                shape.append(known if known is not None else var(f"n{number}_{place}"))
            else:
                shape.append(sizes.setdefault(letter, known if known is not None else var(letter)))
        buffers.append(buffer(("q", "k", "v")[number] if number < 3 else "mask", shape, kind.dtype))
    result = buffer("out", [sizes[c] for c in attrs["output"]], "float32")
    found = Attention(
        sizes=sizes, scale=attrs["scale"], masks=attrs["masks"], fill=attrs["fill"], zero_nan=attrs["zero_nan"]
    )
    body = _tasks(found, [*axes, attrs["output"]], [*buffers, result], cpu)
    func = tirx.PrimFunc([*buffers, result], body)
    rows = product([sizes[c] for c in attrs["output"] if c != COLUMN])
    operations = rows * sizes[KEY] * imm(2 * found.inner + 2 * found.columns + _SOFTMAX)
    moved = [
        product([sizes[c] for c in own if c.isalpha()]) * imm(item_bytes(b))
        for own, b in zip((*axes, attrs["output"]), (*buffers, result), strict=True)
    ]
    func = func.with_attr(OPERATIONS, simple(operations)).with_attr(BYTES, simple(sum(moved[1:], moved[0])))
    # 8 is Relax's opaque pattern: nothing is fused into the loops. They are long, so no pass need look for blocks.
    func = func.with_attr("tirx.noalias", True).with_attr("op_pattern", 8)
    return finished(func, cpu).with_attr(RULE, "attention")


def _tasks(found: Attention, axes: Sequence[str], buffers: Sequence[Any], cpu: CpuFeatures) -> Stmt:
    """Return the loop over tasks: batch axes in the order of the result, then blocks of queries."""
    batch = [c for c in axes[-1] if c in batch_axes(axes[0])]
    queries, lanes = found.sizes[QUERY], cpu.lanes()
    asked = as_int(queries)
    few = asked is not None and asked < lanes
    each = imm(1) if few else ceil_div(queries, queries_of(found, cpu))
    extents = [found.sizes[c] for c in batch]
    known = [as_int(e) for e in (*extents, queries, found.sizes[KEY])]
    work = 2 * (found.inner + found.columns)
    for size in known:
        work *= size or 1
    small = None not in known and work < GRAIN_OPERATIONS
    total = simple(product([*extents, each]))

    def task(number: Expr) -> Stmt:
        out = Block()
        views = [flat_view(b, out) for b in buffers]
        # TVM takes a divisor that is a plain size for one that may be zero.
        divisors = [e if as_int(e) is not None else opaque_let("extent", tirx.max(e, imm(1)), out) for e in extents]
        blocks = each if as_int(each) is not None else opaque_let("blocks", tirx.max(each, imm(1)), out)
        *places, block = unravel(number, [*divisors, blocks])
        at = {c: opaque_let("at", place, out) for c, place in zip(batch, places, strict=True)}
        operands = [Operand.of(v, own, b.shape, at, out) for v, own, b in zip(views, axes, buffers, strict=True)]
        out.append(_queries(found, operands, opaque_let("block", block, out), cpu))
        return seq(out)

    return loop(total, task, "task", SERIAL if small else PARALLEL)


def _queries(found: Attention, operands: Sequence[Operand], block: Expr, cpu: CpuFeatures) -> Stmt:
    """Return the queries of one block, by themselves where they do not fill a vector."""
    queries, lanes = found.sizes[QUERY], cpu.lanes()
    known = as_int(queries)
    if known is None:
        few, many = rows_of(found, operands, cpu), block_statement(found, operands, block, cpu)
        return tirx.IfThenElse(queries >= imm(lanes), many, few)
    return rows_of(found, operands, cpu) if known < lanes else block_statement(found, operands, block, cpu)
