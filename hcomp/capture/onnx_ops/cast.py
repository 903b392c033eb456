"""Changing element types: Cast, CastLike, BitCast."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like
from hcomp.capture.onnx_types import element_type

_OLD_NAMES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "INT64": "int64",
    "INT32": "int32", "INT16": "int16", "INT8": "int8", "UINT64": "uint64", "UINT32": "uint32",
    "UINT16": "uint16", "UINT8": "uint8", "BOOL": "bool", "STRING": "string",
}  # fmt: skip
"""Before opset 6 the attribute `to` was text."""


def _cast(c: NodeContext) -> str:
    to = c.required("to")
    if isinstance(to, str) and to not in _OLD_NAMES:
        raise c.refuse(f"it casts to {to!r}, which is no element type")
    return _to(c, _OLD_NAMES[to] if isinstance(to, str) else element_type(to))


def _cast_like(c: NodeContext) -> str:
    return _to(c, c.dtype(1))


def _to(c: NodeContext, dtype: str) -> str:
    if "string" in (dtype, c.dtype(0)):
        raise c.refuse("it casts from or to text")
    saturate, mode = bool(c.attr("saturate", 1)), c.attr("round_mode", "up")
    if dtype == "float8_e8m0fnu" and c.dtype(0) != dtype:
        return _power_of_two(c, saturate, mode)
    if c.dtype(0) == dtype:
        return c.input(0)
    return c.emit("cast", 0, dtype=dtype, saturate=saturate)


def _power_of_two(c: NodeContext, saturate: bool, mode: str) -> str:
    """Return input 0 as float8_e8m0fnu, which holds only an exponent: the float32's own bits.

    The exponent field of float32 is exactly the byte of that format: 0 is 2**-127, 255 is NaN.
    """
    if mode not in ("up", "down", "nearest"):
        raise c.refuse(f"its round_mode {mode!r} is none of up, down, nearest")
    x = c.cast(0, "float32")
    bits = c.emit("bitcast", x, dtype="int32")
    field = c.emit("right_shift", bits, like(c, 23, bits))
    mantissa = c.emit("bitwise_and", bits, like(c, 0x7FFFFF, bits))
    exponent = c.emit("bitwise_and", field, like(c, 0xFF, bits))
    # Below the smallest normal number the mantissa's top bit is worth 2**-127 itself, which is
    # the format's smallest value; what is above it rounds as any other number does.
    half = like(c, 0x400000, bits)
    subnormal = c.emit("equal", exponent, like(c, 0, bits))
    rest = c.emit("where", subnormal, c.emit("subtract", mantissa, half), mantissa)
    threshold = like(c, {"up": 0, "down": 0x7FFFFF, "nearest": 0x3FFFFF}[mode], bits)
    carry = c.cast(c.emit("greater", rest, threshold), "int32")
    code = c.emit("add", exponent, carry)
    largest, nan = like(c, 254, bits), like(c, 255, bits)
    code = c.emit("minimum", code, largest if saturate else nan)
    if not saturate:
        too_small = c.emit("less", c.emit("abs", x), c.scalar(2.0**-127, "float32"))
        code = c.emit("where", too_small, nan, code)
    code = c.emit("where", c.emit("isnan", x), nan, code)
    return c.emit("bitcast", c.cast(code, "uint8"), dtype="float8_e8m0fnu")


def _bit_cast(c: NodeContext) -> str:
    """BitCast: the same bits as another type of the same width."""
    dtype = element_type(c.required("to"))
    # A bool is a byte that is 0 or 1; as bits it is that number.
    x = c.cast(0, "uint8") if c.dtype(0) == "bool" and dtype != "bool" else c.input(0)
    bits = "uint8" if dtype == "bool" and c.dtype(x) != "bool" else dtype
    return c.cast(x if c.dtype(x) == bits else c.emit("bitcast", x, dtype=bits), dtype)


CAST: dict[str, Converter] = {"Cast": _cast, "CastLike": _cast_like, "BitCast": _bit_cast}
