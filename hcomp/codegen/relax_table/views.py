"""Rows for operators that only read the same memory under another shape."""

from __future__ import annotations

from typing import Any

from tvm import relax

from hcomp.codegen.lowering import Lowering, Rule
from hcomp.ir.graph import Node
from hcomp.ir.types import TensorType


def _view(lowering: Lowering, node: Node) -> Any:
    """Emit a reshape to the node's own output shape; at run time it costs no copy."""
    out = node.outputs[0].type
    assert isinstance(out, TensorType)
    shape = relax.ShapeExpr([lowering.dim(d) for d in out.shape or ()])
    return lowering.builder.emit(relax.op.reshape(lowering.expr(node.inputs[0]), shape))


RULES: dict[str, Rule] = dict.fromkeys(("reshape", "expand_dims", "squeeze"), _view)
