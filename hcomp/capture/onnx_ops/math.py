"""Elementwise arithmetic."""

from hcomp.capture.context import Converter, NodeContext


def _unary(op: str) -> Converter:
    return lambda c: c.emit(op, 0)


def _binary(op: str) -> Converter:
    return lambda c: c.emit(op, 0, 1)


def _shape(c: NodeContext) -> str:
    """Shape: the sizes as a tensor, with start and end of opset 15."""
    shape = c.shape(0)
    start, end = c.attr("start", 0), c.attr("end")
    return c.b.shape_value(shape[start:end])


MATH: dict[str, Converter] = {
    "Relu": _unary("relu"),
    "Add": _binary("add"),
    "Mul": _binary("multiply"),
    "MatMul": _binary("matmul"),
    "Shape": _shape,
}
