"""Matrix products: MatMul, Gemm, Det."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.linear_einsum import einsum
from hcomp.capture.onnx_ops.math_common import like


def _matmul(c: NodeContext) -> str:
    return c.emit("matmul", 0, 1)


def _gemm(c: NodeContext) -> str:
    """Gemm: alpha * A' B' + beta * C; constant operands are transposed and scaled when compiling."""
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    c.ignore("broadcast")  # before opset 7; the addition broadcasts in any case
    a, b = c.input(0), c.input(1)
    for operand in (a, b):
        if c.ranked(operand) and c.rank(operand) != 2:
            raise c.refuse(f"its operand {operand} has {c.rank(operand)} dimensions, not 2")
    if c.attr("transA", 0):
        a = c.emit("permute_dims", a, axes=(1, 0))
    if c.attr("transB", 0):
        b = c.emit("permute_dims", b, axes=(1, 0))
    if alpha != 1 and c.const(b) is not None:
        b = c.emit("multiply", b, like(c, alpha, b))
        alpha = 1.0
    y = c.emit("matmul", a, b)
    if alpha != 1:
        y = c.emit("multiply", y, like(c, alpha, y))
    if not c.has(2) or beta == 0:
        return y
    bias = c.input(2)
    return c.emit("add", y, bias if beta == 1 else c.emit("multiply", bias, like(c, beta, bias)))


def _det(c: NodeContext) -> str:
    return c.emit("det", 0)


LINEAR: dict[str, Converter] = {"MatMul": _matmul, "Gemm": _gemm, "Det": _det, "Einsum": einsum}
