"""ONNX quantisation and products of quantised tensors: equal to ONNX Runtime bit for bit."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hcomp.testing import random_array
from tests.onnx_case import Case, captured, case, check, params_of

X = random_array("float32", (3, 5, 8), "quantized") * np.float32(50)


def f32(*shape: int) -> np.ndarray:
    return random_array("float32", shape, "quantized")


def scale(*shape: int) -> np.ndarray:
    return np.abs(f32(*shape)) * np.float32(0.3) + np.float32(0.05)


def whole(dtype: str, *shape: int, low: int = 0, high: int = 100) -> np.ndarray:
    return random_array(dtype, shape, "whole", low=low, high=high)


def along(axis: int | None) -> tuple[int, ...]:
    return () if axis is None else (X.shape[axis],)


def attrs_of(axis: int | None) -> dict[str, int]:
    return {} if axis is None else {"axis": axis}


QDQ = [
    *(
        case("QuantizeLinear", X, scale(*along(a)), whole(d, *along(a)), params=[1, 2], opset=o, **attrs_of(a))
        for o, axes in ((10, (None,)), (13, (None, 1, -1)), (19, (None, 1)), (21, (1,)), (23, (-1,)))
        for a in axes
        for d in ("uint8", "int8", *(("int16", "uint16") if o >= 21 else ()))
    ),
    *(
        case("DequantizeLinear", whole(d, 3, 5, 8), scale(*along(a)), whole(d, *along(a)),
             params=[1, 2], opset=o, **attrs_of(a))
        for o, axes in ((10, (None,)), (13, (None, 1, -1)), (21, (0,)), (23, (1,)))
        for a in axes
        for d in ("uint8", "int8", *(("int16", "uint16") if o >= 21 else ()))
    ),
    case("QuantizeLinear", X, scale(1), params=[1], opset=13, axis=0),
    case("DequantizeLinear", np.array([1_000_000, -5, 2**24 + 1], np.int32), scale(), params=[1], opset=13),
    case("QuantizeLinear", X.astype("float16"), np.array(0.3, "float16"), np.array(3, "uint8"), params=[1, 2]),
    case("DequantizeLinear", whole("uint8", 50), np.array(0.3, "float16"), np.array(3, "uint8"), params=[1, 2]),
    # Halves go to even, before the zero point; everything saturates.
    case("QuantizeLinear", np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9], np.float32), np.float32(1),
         np.uint8(3), params=[1, 2], opset=13),
]  # fmt: skip

BLOCKS = [
    *(
        case(op, x.astype(t), scale(*s), whole(d, *s, high=9), params=[1, 2], axis=axis, block_size=b)
        for d in ("int8", "uint8")
        for op, x, t in (("QuantizeLinear", X, "float32"), ("DequantizeLinear", np.abs(X) % 90, d))
        for axis, b, s in ((1, 5, (3, 1, 8)), (2, 4, (3, 5, 2)))
    ),
    case("QuantizeLinear", X, scale(3, 5, 3), None, params=[1], axis=2, block_size=3,
         expected=[np.clip(np.rint(X / np.repeat(scale(3, 5, 3), 3, 2)[..., :8]), 0, 255).astype(np.uint8)]),
]  # fmt: skip

DYNAMIC = [case("DynamicQuantizeLinear", x, outputs=3, opset=11) for x in (X, X - 500, X * 0, np.abs(X))]


def small(dtype: Any, values: list[float]) -> np.ndarray:
    return np.array(values).astype(dtype)


def narrow_case(op: str, x: np.ndarray, zero: np.ndarray, expected: Any) -> Case:
    opset = 25 if zero.dtype == ml_dtypes.uint2 else 23  # the first one whose schema has two bits
    return case(op, x, np.float32(2), zero, params=[1, 2], expected=[expected], opset=opset)


FOUR, TWO = ml_dtypes.int4, ml_dtypes.uint2
NARROW = [
    narrow_case("QuantizeLinear", np.array([-99, -3, 1, 5, 99], np.float32), small(FOUR, [1])[0],
                small(FOUR, [-8, -1, 1, 3, 7])),
    narrow_case("DequantizeLinear", small(FOUR, [-8, 0, 7]), small(FOUR, [1])[0], np.array([-18, -2, 12], np.float32)),
    narrow_case("DequantizeLinear", small(TWO, [0, 1, 3]), small(TWO, [1])[0], np.array([-2, 0, 4], np.float32)),
    narrow_case("QuantizeLinear", np.array([1e9, -1e9, 3], np.float32), small(ml_dtypes.float8_e4m3fn, [0])[0],
                small(ml_dtypes.float8_e4m3fn, [448, -448, 1.5])),
    narrow_case("QuantizeLinear", np.array([99, -3], np.float32), small(ml_dtypes.float4_e2m1fn, [0])[0],
                small(ml_dtypes.float4_e2m1fn, [6, -1.5])),
]  # fmt: skip


def product(a: str, b: str, a_zero: Any, b_zero: Any) -> Case:
    zeros = [None if z is None else np.asarray(z, d) for z, d in ((a_zero, a), (b_zero, b))]
    params = [1, *(i + 2 for i, z in enumerate(zeros) if z is not None)]
    return case("MatMulInteger", whole(a, 2, 3, 5, 8, high=127), whole(b, 8, 6, high=127), *zeros,
                params=params, opset=10)  # fmt: skip


PRODUCTS = [
    *(product(a, b, za, zb) for a in ("uint8", "int8") for b in ("uint8", "int8")
      for za, zb in ((None, None), (7, 9), (7, None), (None, range(6)), (3, range(6)))),
    case("MatMulInteger", whole("uint8", 4), whole("int8", 4, 3), np.uint8(2), np.int8(1), params=[1, 2, 3],
         opset=10, expected=[(whole("uint8", 4).astype(np.int32) - 2) @ (whole("int8", 4, 3).astype(np.int32) - 1)]),
    *(
        case("QLinearMatMul", whole(a, 2, 5, 8), np.float32(0.2), np.asarray(9, a), whole("int8", 8, 6, high=60), s,
             whole("int8", *s.shape, high=9), np.float32(20), np.asarray(11, a), params=range(1, 8), opset=10)
        for a in ("uint8", "int8")
        for s in (scale(), scale(6))
    ),
]  # fmt: skip


def conv(dtype: str, groups: int, zero: int, **attrs: Any) -> Case:
    x, w = whole(dtype, 2, 4, 9, 8, high=127), whole(dtype, 6, 4 // groups, 3, 2, high=127)
    return case("ConvInteger", x, w, np.asarray(13, dtype), np.asarray(zero, dtype), params=[1, 2, 3],
                opset=10, group=groups, **attrs)  # fmt: skip


def qlinear(x_type: str, w_type: str, w_zero: Any, *, groups: int = 1, **attrs: Any) -> Case:
    zero = np.asarray(w_zero, w_type)
    w = whole(w_type, 6, 4 // groups, 3, 2, low=-60 if w_type == "int8" else 0, high=60)
    scales = scale(*zero.shape) * np.float32(0.05)
    return case(
        "QLinearConv", whole(x_type, 2, 4, 9, 8), np.float32(0.02), np.asarray(13, x_type), w, scales, zero,
        np.float32(0.05), np.asarray(3, x_type), whole("int32", 6, low=-900, high=900),
        params=range(1, 9), opset=10, group=groups, **attrs,
    )  # fmt: skip


WINDOWS: list[dict[str, Any]] = [
    {},
    {"pads": [1, 2, 0, 1], "strides": [2, 1]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "SAME_UPPER"},
]
CONVS = [
    *(conv("uint8", g, z, **w) for g in (1, 2) for z in (0, 4, 130) for w in WINDOWS),
    *(
        qlinear(x, w, z, groups=g, **window)
        for x, w in (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))
        for g, z in ((1, 0), (2, 3), (1, range(6)))
        for window in WINDOWS[:3]
    ),
]


@pytest.mark.parametrize(**params_of([*QDQ, *BLOCKS, *DYNAMIC, *NARROW]))
def test_quantisation_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of([*PRODUCTS, *CONVS]))
def test_integer_products_agree_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


def test_the_product_is_of_bytes_with_32_bit_sums() -> None:
    """So that a target can use its byte-product instructions."""
    graph = captured(product("uint8", "int8", 7, None), "static")
    (node,) = [n for n in graph.nodes if n.op == "matmul"]
    assert [graph.types[i].dtype for i in node.inputs] == ["uint8", "int8"]
    assert node.attrs["out_dtype"] == "int32"


def test_a_zero_point_of_constant_weights_moves_into_them() -> None:
    """uint8 weights around 128 become int8 around 0, which saves the correction by sums of rows."""
    weights = whole("uint8", 8, 6, low=60, high=180)
    of_weights = case("MatMulInteger", whole("uint8", 4, 8), weights, None, np.uint8(128), params=[1, 3], opset=10)
    graph = captured(of_weights, "static")
    assert [n.op for n in graph.nodes] == ["matmul"]
    check(of_weights, "static")
