"""Rows for operators that only read the same memory under another shape.

Where only run time can tell that the new shape has as many elements as the old one, a kernel copies
instead, behind a check: a view of fewer elements would pass for a result.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from hcomp.codegen.kernel import Expr, Kernel, Tensor
from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike
from hcomp.ir.graph import Node
from hcomp.ir.types import Shape, TensorType


def _view(lowering: Lowering, node: Node) -> Any:
    """Emit a reshape to the node's own output shape; at run time it costs no copy."""
    out = node.outputs[0].type
    assert isinstance(out, TensorType)
    have, want = lowering.type(node.inputs[0]).elements(), out.elements()
    if have != want and not (isinstance(have, int) and isinstance(want, int)):
        return lowering.kernel(node, _copied)
    shape = relax.ShapeExpr([lowering.dim(d) for d in out.shape or ()])
    return lowering.builder.emit(relax.op.reshape(lowering.expr(node.inputs[0]), shape))


def _copied(kernel: Kernel) -> Tensor:
    """Return the elements in the same order under the output's shape."""
    have, want = kernel.shape(0), kernel.out_shape
    kernel.require_equal(_product(have), _product(want))

    def read(*place: Expr) -> Expr:
        flat: Any = int64(0)
        for i, size in zip(place, want, strict=True):
            flat = flat * kernel.dim(size) + i
        at = []
        for size in reversed(have):
            # Nothing here is below zero: TVM would spell a floored division out, each in terms of the last.
            at.append(tirx.truncmod(flat, kernel.dim(size)))
            flat = tirx.truncdiv(flat, kernel.dim(size))
        return kernel.read(0, at[::-1])

    return kernel.compute(read)


def _product(shape: Shape) -> DimLike:
    total: DimLike = 1
    for dim in shape:
        total = total * dim
    return total


RULES: dict[str, Rule] = dict.fromkeys(("reshape", "expand_dims", "squeeze", "require"), _view)
