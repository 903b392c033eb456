"""What converters of arithmetic share: constants of a value's type, one rounding of half floats."""

from __future__ import annotations

from collections.abc import Callable

from hcomp.capture.context import Converter, NodeContext
from hcomp.dtypes import is_float, is_integer

HALF = ("float16", "bfloat16")


def like(c: NodeContext, number: float, value: int | str) -> str:
    """Return `number` as a 0-D constant of the element type of `value`."""
    return c.scalar(number, c.dtype(value))


def wide(c: NodeContext, value: int | str) -> str:
    """Return a half-precision value in float32, any other as it is."""
    return c.cast(value, "float32") if c.dtype(value) in HALF else c.name(value)


def as_float(c: NodeContext, value: int | str) -> str:
    """Return a value in a float type that loses least: integers in float64, halves in float32."""
    return c.cast(value, "float64") if not is_float(c.dtype(value)) else wide(c, value)


def rounded_once(function: Callable[[NodeContext, str], str]) -> Converter:
    """Return a converter that computes `function(c, x)` of input 0, half floats by way of float32.

    A formula of several operators would round half floats after each of them.
    """

    def convert(c: NodeContext) -> str:
        return c.cast(function(c, wide(c, 0)), c.dtype(0))

    return convert


def unary(op: str) -> Converter:
    """Return the converter of an operator that is one node with one input."""
    return lambda c: c.emit(op, 0)


def lowest(dtype: str) -> float | int:
    """Return the smallest value of an element type: the identity of max."""
    if dtype == "bool":
        return 0
    if is_integer(dtype):
        return 0 if dtype.startswith("uint") else -(1 << (int(dtype[3:]) - 1))
    return float("-inf")


def highest(dtype: str) -> float | int:
    """Return the largest value of an element type: the identity of min."""
    if dtype == "bool":
        return 1
    if is_integer(dtype):
        bits = int(dtype.removeprefix("u")[3:])
        return (1 << bits) - 1 if dtype.startswith("uint") else (1 << (bits - 1)) - 1
    return float("inf")


def refuse_text(c: NodeContext) -> None:
    """Refuse the node where an input or output holds text."""
    for index in range(len(c.inputs)):
        if c.has(index) and c.dtype(index) == "string":
            raise c.refuse("it works on text")


def axis_of(c: NodeContext, axis: int, value: int | str = 0) -> int:
    """Return `axis` counted from the front, or as it is where the rank comes at run time."""
    return c.axis(axis, value) if c.ranked(value) else axis


def operands(c: NodeContext) -> tuple[str, str]:
    """Return both inputs of a binary operator, ready to broadcast as numpy does.

    Before opset 7 the attribute `broadcast` allowed it and `axis` said where the second input's
    dimensions start.
    """
    refuse_text(c)
    first, second = c.input(0), c.input(1)
    if c.opset >= 7:
        return first, second
    axis, broadcast = c.attr("axis"), c.attr("broadcast", 0)
    if broadcast and axis is not None:
        shape = c.shape(second)
        trailing = c.rank(first) - c.axis(axis, first) - len(shape)
        if trailing < 0:
            raise c.refuse(f"its second input does not fit behind axis {axis}")
        second = c.reshape(second, shape + (1,) * trailing)
    return first, second


def binary(op: str) -> Converter:
    """Return the converter of an operator that is one node with two inputs of one type."""
    return lambda c: c.emit(op, *operands(c))
