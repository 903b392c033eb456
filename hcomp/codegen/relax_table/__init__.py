"""The table LOWER: how each operator becomes Relax, one row an operator.

Most rows are kernels of our own, written as tensor expressions on the graph's shapes; Relax's
operators are used for views only. See `hcomp.codegen.kernel` for what a kernel is given.
"""

from __future__ import annotations

from typing import Any

from hcomp.codegen.kernel import KernelBody
from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table import (
    attention,
    elementwise,
    index,
    linear,
    pool,
    recurrent,
    reduce,
    scans,
    shape,
    topk,
    trees,
    views,
)
from hcomp.ir.graph import Node

KERNELS: dict[str, KernelBody] = {
    **elementwise.KERNELS,
    **shape.KERNELS,
    **reduce.KERNELS,
    **linear.KERNELS,
    **attention.KERNELS,
    **pool.KERNELS,
    **scans.KERNELS,
    **topk.KERNELS,
    **trees.KERNELS,
}
"""Operators that are one kernel and need no more."""


def _kernel_rule(body: KernelBody) -> Rule:
    def rule(lowering: Lowering, node: Node) -> Any:
        return lowering.kernel(node, body)

    return rule


LOWER: dict[str, Rule] = {
    **{name: _kernel_rule(body) for name, body in KERNELS.items()},
    **views.RULES,
    **index.RULES,
    **recurrent.RULES,
}
