"""ONNX arithmetic, comparisons, activations, casts: hcomp's converters against ONNX Runtime."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from hcomp.errors import CaptureError
from hcomp.testing import assert_close, interpret, random_array
from tests.onnx_case import Case, captured, case, check, params_of


def f32(*shape: int, low: float | None = None, high: float | None = None) -> np.ndarray:
    return random_array("float32", shape, "math", low=low, high=high)


def ints(dtype: str, *shape: int, low: int = -9, high: int = 9) -> np.ndarray:
    return random_array(dtype, shape, "math", low=low, high=high)


X, Y = f32(3, 4), f32(4)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, 2.5, np.inf, -np.inf, np.nan], np.float32)

UNARY = [
    *(case(op, X) for op in ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Neg", "Relu", "Round")),
    *(case(op, X) for op in ("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh")),
    *(case(op, f32(3, 4, low=-0.9, high=0.9)) for op in ("Acos", "Asin", "Atan", "Atanh", "Asinh", "Cosh")),
    *(case(op, f32(3, 4, low=1.1, high=3)) for op in ("Acosh", "Log", "Sqrt", "Reciprocal")),
    *(case(op, SPECIAL) for op in ("Abs", "Ceil", "Round", "Relu", "Sigmoid", "Tanh", "Floor", "Neg")),
    case("Abs", ints("int8", 5)),
    case("Neg", ints("int64", 5)),
    case("Sign", ints("int32", 5)),
    case("Relu", ints("int32", 5), opset=14),
    case("Not", X > 0),
    case("BitwiseNot", ints("uint8", 5, low=0)),
    case("Identity", X),
    case("IsNaN", SPECIAL),
    case("IsInf", SPECIAL),
    case("IsInf", SPECIAL, detect_negative=0),
    case("IsInf", SPECIAL, detect_positive=0),
    case("IsInf", SPECIAL, detect_positive=0, detect_negative=0),
    *(case("Elu", X, opset=v) for v in (7, 21)),
    case("Elu", X, alpha=2.0),
    case("Selu", X),
    case("Selu", X, alpha=2.0, gamma=3.0),
    case("Celu", X, alpha=0.5),
    case("LeakyRelu", X, alpha=0.3),
    case("LeakyRelu", X),
    case("ThresholdedRelu", X, alpha=0.4),
    case("HardSigmoid", X, alpha=0.5, beta=0.6),
    case("HardSigmoid", X),
    case("HardSwish", X * 4),
    case("Mish", X),
    case("Gelu", X),
    case("Gelu", X, approximate="tanh"),
    case("Shrink", X, lambd=0.2, bias=0.1),
    case("Shrink", ints("int32", 9), lambd=1.5, bias=1.0),
    *(case("Elu", v, forms=["static"]) for v in (np.float32([-200.0, 200.0]), SPECIAL[:5])),
]

BINARY = [
    *(case(op, X, Y, opset=v) for op in ("Add", "Sub", "Mul", "Div") for v in (7, 14)),
    *(case(op, ints("int64", 3, 4), ints("int64", 4)) for op in ("Add", "Sub", "Mul")),
    case("Div", np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32), note="truncates"),
    case("Div", np.array([250, 7], np.uint8), np.array([7, 2], np.uint8)),
    case("Add", np.array([250, 7], np.uint8), np.array([7, 2], np.uint8), note="wraps"),
    case("Mod", np.array([7, -7, 7, -7], np.int32), np.array([3, 3, -3, -3], np.int32)),
    case("Mod", np.array([7, -7, 7, -7], np.int64), np.array([3, 3, -3, -3], np.int64), fmod=1),
    case("Mod", np.float32([5.3, -5.3, 5.3, -5.3]), np.float32([2, 2, -2, -2]), fmod=1),
    case("Pow", f32(3, 4, low=0.1, high=2), Y),
    case("Pow", X, np.float32(2)),
    case("Pow", X, np.float32(2), params=[1]),
    case("Pow", X, np.float32([3]), params=[1]),
    case("Pow", f32(3, 4, low=0.1, high=2), np.float32(-0.5), params=[1]),
    case("Pow", X, ints("int64", 4, low=0, high=3)),
    case("Pow", ints("int32", 4), np.float32([2, 0, 1, 3])),
    case("Pow", ints("int64", 4), ints("int64", 4, low=0, high=4)),
    case("Pow", ints("int32", 4), np.int64(2), params=[1]),
    case("Max", X, Y, f32(3, 1)),
    case("Min", X, Y, f32(3, 1)),
    case("Max", X),
    case("Max", np.float32([1, np.nan]), np.float32([np.nan, 2]), note="NaN"),
    case("Max", ints("int64", 4), ints("int64", 4)),
    case("Min", ints("uint8", 4, low=0), ints("uint8", 4, low=0)),
    case("Sum", X, Y, f32(3, 1)),
    case("Mean", X, Y, f32(3, 1)),
    case("Sum", X),
    *(case(op, X, Y) for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")),
    *(case(op, ints("int32", 3, 4), ints("int32", 4)) for op in ("Equal", "Less", "Greater")),
    case("Equal", X > 0, Y > 0),
    *(case(op, X > 0, Y > 0) for op in ("And", "Or", "Xor")),
    *(case(op, ints("uint8", 4, low=0), ints("uint8", 4, low=0)) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(
        case("BitShift", np.array([16, 4, 255], np.uint8), np.array([1, 7, 2], np.uint8), direction=d)
        for d in ("LEFT", "RIGHT")
    ),
    case("PRelu", X, Y),
    case("PRelu", f32(2, 3, 4, 5), f32(3, 1, 1)),
    case("Where", X > 0, X, Y),
    case("Where", np.array([True, False]), np.array([[1], [2]], np.int64), np.array([3, 4], np.int64)),
]

CLIP = [
    case("Clip", X, opset=6, min=-0.5, max=0.5),
    case("Clip", SPECIAL, opset=6, min=-0.5),
    case("Clip", X, np.float32(-0.5), np.float32(0.5), params=[1, 2]),
    case("Clip", X, np.float32(-0.5), params=[1], opset=11),
    case("Clip", X, None, np.float32(0.5), params=[2]),
    case("Clip", X),
    case("Clip", X, np.float32(0.5), np.float32(-0.5), params=[1, 2], note="crossed"),
    case("Clip", ints("int8", 9), np.int8(-3), np.int8(3), params=[1, 2]),
    case("Clip", ints("int64", 9), np.int64(-3), params=[1]),
    case("Clip", SPECIAL, np.float32(-1), np.float32(1), params=[1, 2], note="NaN stays"),
]

FLOAT_VALUES = np.float32([0, 1, -1, 0.1, 3.49, 100, -0.5])
CASTS = [
    *(
        case("Cast", FLOAT_VALUES, to=to, opset=19)
        for to in (TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64)
    ),
    case("Cast", np.float32([0, 1, 3.9, 100]), to=TensorProto.UINT8),
    case("Cast", SPECIAL, to=TensorProto.BOOL, note="NaN is true"),
    case("Cast", np.array([True, False]), to=TensorProto.FLOAT),
    case("Cast", np.array([200, -300, 5], np.int16), to=TensorProto.INT8, note="low bits"),
    case("Cast", np.array([200, 255], np.uint8), to=TensorProto.INT8, note="low bits"),
    case("Cast", X.astype(np.float16), to=TensorProto.FLOAT),
    case("CastLike", X, np.zeros(1, np.int32)),
    case("CastLike", X, np.zeros(1, np.float16)),
]


@pytest.mark.parametrize(**params_of([*UNARY, *BINARY, *CLIP, *CASTS]))
def test_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


def _value(graph_case: Case, form: str = "static") -> np.ndarray:
    graph = captured(graph_case, form)
    assert not any(n.op == "extern" for n in graph.walk())
    given = {f"i{k}": x for k, x in enumerate(graph_case.inputs) if x is not None}
    (found,) = interpret(graph, {v.name: given[v.name] for v in graph.inputs}).values()
    return found


def test_shift_by_the_width_or_more_leaves_nothing() -> None:
    x, amounts = np.array([255, 255, 255], np.uint8), np.array([7, 8, 200], np.uint8)
    assert _value(case("BitShift", x, amounts, direction="LEFT")).tolist() == [128, 0, 0]
    assert _value(case("BitShift", x, amounts, direction="RIGHT")).tolist() == [1, 0, 0]


def test_right_shift_of_signed_numbers_keeps_the_sign() -> None:
    x, amounts = np.array([-8, 4, -1], np.int8), np.array([8, 9, 127], np.int8)
    found = _value(case("BitShift", x, amounts, direction="RIGHT", opset=28))
    assert found.tolist() == [-1, 0, -1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["Elu", "Selu", "Mish", "HardSwish", "Softsign", "Swish", "HardSigmoid"])
def test_half_formulas_are_rounded_once(op: str, dtype: str) -> None:
    narrow = random_array(dtype, (64,), op)
    wide = _value(case(op, narrow.astype(np.float32), opset=24))
    assert_close(_value(case(op, narrow, opset=24)), wide.astype(narrow.dtype), context=op)


@pytest.mark.parametrize(
    ("to", "values"),
    [
        (TensorProto.FLOAT8E4M3FN, [448, 448, -448, np.nan, 0.001953125, 0]),
        (TensorProto.FLOAT8E5M2, [512, 57344, -57344, np.nan, 0.00146484375, 0]),
        (TensorProto.FLOAT8E4M3FNUZ, [240, 240, -240, np.nan, 0.001953125, 0]),
    ],
)
def test_casts_to_eight_bit_floats_saturate(to: int, values: list[float]) -> None:
    x = np.float32([500, 1e6, -np.inf, np.nan, 0.0015, 0])
    found = _value(case("Cast", x, to=to, opset=21)).astype(np.float32)
    np.testing.assert_array_equal(found, np.float32(values))


def test_casts_to_eight_bit_floats_overflow_without_saturation() -> None:
    x = np.float32([500, 1e6, -np.inf, 1])
    found = _value(case("Cast", x, to=TensorProto.FLOAT8E4M3FN, saturate=0, opset=21))
    np.testing.assert_array_equal(found.astype(np.float32), np.float32([np.nan, np.nan, np.nan, 1]))


@pytest.mark.parametrize(("mode", "values"), [("up", [1, 2, 4, 4]), ("down", [1, 1, 2, 2]), ("nearest", [1, 1, 2, 4])])
def test_casts_to_powers_of_two(mode: str, values: list[float]) -> None:
    x = np.float32([1, 1.4, 2.5, 3.5])
    found = _value(case("Cast", x, to=TensorProto.FLOAT8E8M0, round_mode=mode, opset=24))
    np.testing.assert_array_equal(found.astype(np.float32), np.float32(values))


def test_casts_to_four_bits() -> None:
    x = np.float32([0.4, 1.5, 6, 9, -7, -0.5])
    found = _value(case("Cast", x, to=TensorProto.FLOAT4E2M1, opset=23))
    np.testing.assert_array_equal(found.astype(np.float32), np.float32([0.5, 1.5, 6, 6, -6, -0.5]))
    found = _value(case("Cast", np.int8([-8, 7, 3]), to=TensorProto.INT4, opset=23))
    assert found.dtype == ml_dtypes.int4
    assert found.astype(int).tolist() == [-8, 7, 3]


def test_bit_cast_keeps_the_bits() -> None:
    x = np.float32([1, -2])
    found = _value(case("BitCast", x, to=TensorProto.INT32, opset=26))
    assert found.tolist() == x.view(np.int32).tolist()


def test_text_stays_with_onnx_runtime() -> None:
    graph = captured(case("Cast", np.float32([1]), to=TensorProto.STRING), "static")
    assert [n.attrs["reason"] for n in graph.nodes] == ["it casts from or to text"]


def test_an_unknown_attribute_is_never_dropped() -> None:
    with pytest.raises(CaptureError, match="its attribute 'zoom' has no lowering"):
        captured(case("Gelu", X, zoom=2), "static")


def test_broadcast_before_opset_7_starts_at_the_axis() -> None:
    x, y = f32(2, 3, 4), f32(3)
    found = _value(case("Add", x, y, broadcast=1, axis=1, opset=6))
    np.testing.assert_array_equal(found, x + y[:, None])


def test_slopes_before_opset_7_belong_to_channels() -> None:
    x, slope = f32(2, 3, 4), f32(3)
    found = _value(case("PRelu", x, slope, opset=6))
    np.testing.assert_array_equal(found, np.where(x < 0, slope[:, None] * x, x))


def test_swish_scales_inside_the_sigmoid() -> None:
    found = _value(case("Swish", X, alpha=2.0, opset=24))
    assert_close(found, (X / (1 + np.exp(-2.0 * X.astype(np.float64)))).astype(np.float32))
