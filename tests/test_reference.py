"""The reference against ONNX Runtime, and values worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from hcomp.dtypes import numpy_dtype
from hcomp.errors import RunError
from hcomp.reference import REFERENCE
from hcomp.reference.erf import erf
from hcomp.testing import assert_close, generator, random_array
from tests.ort_node import Array, run_node

F32 = "float32"


def _fails(op: str, *inputs: Any, **attrs: Any) -> str:
    with pytest.raises(RunError) as caught:
        REFERENCE[op](*inputs, **attrs)
    return str(caught.value)


# -- one element at a time ------------------------------------------------------------------------
def test_erf_is_exact_to_the_last_bits() -> None:
    x = np.concatenate([np.linspace(-7, 7, 5001), [0.0, np.inf, -np.inf, 1e-300]])
    expected = np.array([math.erf(v) for v in x])
    assert np.abs(erf(x) - expected).max() < 3e-16
    assert np.isnan(erf(np.array([np.nan]))).all()


UNARY = {
    "abs": "Abs", "acosh": "Acosh", "atan": "Atan", "ceil": "Ceil", "cosh": "Cosh", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "log": "Log", "negative": "Neg", "relu": "Relu",
    "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "softplus": "Softplus", "sqrt": "Sqrt",
    "tanh": "Tanh", "gelu": "Gelu", "isnan": "IsNaN", "asin": "Asin", "sin": "Sin", "tan": "Tan",
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, 0.0, np.inf, -np.inf, np.nan], np.float32)
    special = halves if op not in ("sin", "tan", "gelu") else halves[:5]
    x = np.concatenate([random_array(F32, (200,), op), special])
    assert_close(REFERENCE[op](x), run_node(UNARY[op], [x])[0], context=op)


def test_gelu_tanh() -> None:
    x = random_array(F32, (200,), "gelu_tanh")
    assert_close(REFERENCE["gelu_tanh"](x), run_node("Gelu", [x], approximate="tanh")[0], terms=4)


@pytest.mark.parametrize(
    ("op", "onnx", "attrs", "dtype"),
    [
        ("divide", "Div", {}, "int32"),
        ("floor_mod", "Mod", {}, "int32"),
        ("floor_mod", "Mod", {}, "int8"),
        ("truncated_mod", "Mod", {"fmod": 1}, "int64"),
        ("truncated_mod", "Mod", {"fmod": 1}, "float32"),
        ("power", "Pow", {}, "float32"),
        ("maximum", "Max", {}, "float32"),
        ("minimum", "Min", {}, "float16"),
        ("bitwise_xor", "BitwiseXor", {}, "uint8"),
        ("multiply", "Mul", {}, "int8"),
        ("add", "Add", {}, "int32"),
    ],
)
def test_binary(op: str, onnx: str, attrs: dict[str, int], dtype: str) -> None:
    a, b = random_array(dtype, (40, 1), "a"), random_array(dtype, (30,), "b")
    if dtype.startswith("int"):
        b = np.where(b == 0, 3, b).astype(dtype)
    if op == "maximum":
        a[3], b[4] = np.nan, np.nan
    assert_close(REFERENCE[op](a, b), run_node(onnx, [a, b], **attrs)[0], context=op)


def test_integers_wrap_truncate_and_survive_division_by_zero() -> None:
    a, b = np.array([-7, 7, -7, -128, 5], np.int8), np.array([2, -2, -2, -1, 0], np.int8)
    assert REFERENCE["divide"](a, b).tolist() == [-3, -3, 3, -128, 0]
    assert REFERENCE["add"](np.array([127], np.int8), np.array([1], np.int8)).tolist() == [-128]
    four = numpy_dtype("int4")
    assert REFERENCE["add"](np.array([7], four), np.array([2], four)).astype(int).tolist() == [-7]
    power = REFERENCE["power"](np.array([2, -1, -1, 1, 3]), np.array([-1, -3, -2, -5, 4]))
    assert power.tolist() == [0, -1, 1, 1, 81]


def test_shifts_by_the_width_and_more() -> None:
    x, by = np.array([1, 255, 255], np.uint8), np.array([8, 9, 3], np.uint8)
    assert REFERENCE["left_shift"](x, by).tolist() == [0, 0, 248]
    assert REFERENCE["right_shift"](x, by).tolist() == [0, 0, 31]
    negative = np.array([-100, 100], np.int32)
    assert REFERENCE["right_shift"](negative, np.array(40, np.int32)).tolist() == [-1, 0]


def test_clip_keeps_nan_lets_max_win_and_holds_bounds_inside_integers() -> None:
    x = np.array([np.nan, -5, 5], np.float32)
    assert_close(REFERENCE["clip"](x, min=2.0, max=1.0), np.array([np.nan, 1, 1], np.float32))
    whole = np.array([100, -100], np.int8)
    assert REFERENCE["clip"](whole, min=-1e9, max=float("inf")).tolist() == [100, -100]


FLOAT8 = {
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
}


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_cast_to_float8(dtype: str, saturate: bool) -> None:
    special = [0.0, -0.0, 1e6, -1e6, 448, 463, 465, 240, 247, 57344, 61000, 1e-9, 2**-10]
    x = np.array([*special, np.inf, -np.inf, np.nan], np.float32)
    x = np.concatenate([x, random_array(F32, (300,), dtype) * 100, random_array(F32, (99,), "s")])
    ours = REFERENCE["cast"](x, dtype=dtype, saturate=saturate)
    (bits,) = run_node("Cast", [x], out_dtype=FLOAT8[dtype], to=FLOAT8[dtype], saturate=int(saturate))
    theirs = bits.view(numpy_dtype(dtype))
    assert_close(ours.astype(np.float32), theirs.astype(np.float32), context=dtype)


def test_cast_to_float8_without_saturation_overflows_after_rounding() -> None:
    # ONNX Runtime gives NaN here; ONNX's table says that a rounded value above the largest is inf.
    x = np.array([61439, 62000, -62000], np.float32)
    found = REFERENCE["cast"](x, dtype="float8_e5m2", saturate=False).astype(np.float32)
    assert found.tolist() == [57344, np.inf, -np.inf]


def test_cast_to_e8m0_rounds_up_and_saturates() -> None:
    tiny = [1e-45, 2.0**-127, 2.0**-127 * 1.5]
    x = np.array([0.124, 0.25, 1.1, 3.4e38, np.inf, np.nan, *tiny], np.float32)
    expected = np.array([0.125, 0.25, 2.0, 2.0**127, 2.0**127, np.nan, 2.0**-127, 2.0**-127, 2.0**-126])
    assert_close(REFERENCE["cast"](x, dtype="float8_e8m0fnu").astype(np.float64), expected)


def test_casts_between_numbers() -> None:
    cast = REFERENCE["cast"]
    assert cast(np.array([-1.7, 2.9, 200.0]), dtype="int32").tolist() == [-1, 2, 200]
    assert cast(np.array([300, -200]), dtype="int8").tolist() == [44, 56]
    assert cast(np.array([9, -9]), dtype="int4").astype(int).tolist() == [-7, 7]
    assert cast(np.array([np.nan, 0.0, -0.5]), dtype="bool").tolist() == [True, False, True]
    assert cast(np.array([2.0**63]), dtype="uint64").tolist() == [2**63]
    # 1 + 2**-8 + 2**-30 lies just above the middle of two bfloat16: rounding once gives the upper.
    x = np.array([1 + 2.0**-8 + 2.0**-20], np.float32)
    assert float(cast(x, dtype="bfloat16")[0]) == 1 + 2.0**-7


# -- reductions and scans -------------------------------------------------------------------------
REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axes", "keep"), [((4, 5, 6), (0, 2), 1), ((7, 300), (1,), 0), ((3, 2), None, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_reductions(op: str, shape: Any, axes: Any, keep: int, dtype: str) -> None:
    x = random_array(dtype, shape, op, low=-2, high=2)
    second = None if axes is None else np.array(axes)
    (expected,) = run_node(REDUCTIONS[op], [x, second], keepdims=keep)
    ours = REFERENCE[op](x, axis=axes, keepdims=bool(keep))
    assert_close(ours, expected, terms=x.size, context=op)


def test_reductions_of_nothing() -> None:
    x = np.zeros((0, 2), np.float32)
    found = {op: REFERENCE[op](x, axis=(0,)).tolist()[0] for op in ("sum", "prod", "max", "min")}
    assert found == {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}
    assert np.isnan(REFERENCE["mean"](x, axis=(0,))).all()
    assert REFERENCE["max"](np.zeros((0,), np.int8)).item() == -128


def test_narrow_sums_are_rounded_once() -> None:
    x = np.full(4096, 1 / 16, np.float16)
    assert REFERENCE["sum"](x).item() == 256
    many = np.full(3000, 1, numpy_dtype("bfloat16"))
    assert float(REFERENCE["mean"](many)) == 1


def test_max_and_min_give_nan() -> None:
    x = np.array([1, np.nan, 3], np.float32)
    assert np.isnan(REFERENCE["max"](x))
    assert np.isnan(REFERENCE["min"](x))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("op", "onnx"), [("argmax", "ArgMax"), ("argmin", "ArgMin")])
def test_arg(op: str, onnx: str, last: int) -> None:
    x = random_array("int32", (6, 9), op, low=0, high=3)
    (expected,) = run_node(onnx, [x], axis=1, keepdims=0, select_last_index=last)
    assert_close(REFERENCE[op](x, axis=1, select_last=bool(last)), expected)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_cumsum(exclusive: int, reverse: int) -> None:
    x = random_array(F32, (3, 50), "cumsum")
    (expected,) = run_node("CumSum", [x, np.array(1)], exclusive=exclusive, reverse=reverse)
    ours = REFERENCE["cumsum"](x, axis=1, exclusive=bool(exclusive), reverse=bool(reverse))
    assert_close(ours, expected, terms=50, scale=3.0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("op", "onnx"), [("softmax", "Softmax"), ("log_softmax", "LogSoftmax")])
def test_softmax(op: str, onnx: str, axis: int) -> None:
    x = random_array(F32, (4, 5, 30), op) * np.float32(20)
    assert_close(REFERENCE[op](x, axis=axis), run_node(onnx, [x], axis=axis)[0], terms=30)


def test_layer_norm() -> None:
    x, gamma, beta = (random_array(F32, s, "ln") for s in ((3, 4, 50), (4, 50), (4, 50)))
    (expected,) = run_node("LayerNormalization", [x, gamma, beta], axis=1, epsilon=1e-3)
    assert_close(REFERENCE["layer_norm"](x, gamma, beta, axis=1, epsilon=1e-3), expected, terms=200)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_topk_with_ties(largest: int, axis: int, dtype: str) -> None:
    x = random_array(dtype, (20, 15), "topk", low=0, high=4)
    expected = run_node("TopK", [x, np.array([7])], outputs=2, axis=axis, largest=largest)
    ours = REFERENCE["topk"](x, k=7, axis=axis, largest=bool(largest))
    assert_close(list(ours), expected)


def test_topk_puts_nan_above_everything() -> None:
    x = np.array([1, np.nan, 3, 2], np.float32)
    assert REFERENCE["topk"](x, k=2)[1].tolist() == [1, 2]
    assert REFERENCE["topk"](x, k=4, largest=False)[1].tolist() == [0, 3, 2, 1]


# -- addressing -----------------------------------------------------------------------------------
def test_take_gather_elements_and_gather_nd() -> None:
    x = random_array(F32, (5, 6, 7), "x")
    index = random_array("int64", (3, 2), "i", low=-6, high=5)
    assert_close(REFERENCE["take"](x, index, axis=1), run_node("Gather", [x, index], axis=1)[0])
    index = random_array("int64", (5, 4, 7), "e", low=-6, high=5)
    (expected,) = run_node("GatherElements", [x, index], axis=1)
    assert_close(REFERENCE["gather_elements"](x, index, axis=1), expected)
    for batch, shape in ((0, (2, 3, 2)), (1, (5, 4, 1)), (2, (5, 6, 1))):
        index = random_array("int64", shape, "n", low=-5, high=4)
        (expected,) = run_node("GatherND", [x, index], batch_dims=batch)
        assert_close(REFERENCE["gather_nd"](x, index, batch_dims=batch), expected)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    x = random_array(F32, (5, 6), "x")
    # Without a reduction two updates of one place have no order in ONNX.
    index = np.argsort(random_array(F32, (4, 6), "i"), axis=1)[:, :4] - 6
    if reduction != "none":
        index[:, 1] = index[:, 0]
    updates = random_array(F32, (4, 4), "u")
    (expected,) = run_node("ScatterElements", [x, index, updates], axis=1, reduction=reduction)
    ours = REFERENCE["scatter_elements"](x, index, updates, axis=1, reduction=reduction)
    assert_close(ours, expected, terms=2)
    rows = np.array([[3], [-4], [0]] if reduction == "none" else [[3], [-2], [0]])
    updates = random_array(F32, (3, 6), "v")
    (expected,) = run_node("ScatterND", [x, rows, updates], reduction=reduction)
    ours = REFERENCE["scatter_nd"](x, rows, updates, reduction=reduction)
    assert_close(ours, expected, terms=2)


def test_an_index_outside_is_an_error_that_names_it() -> None:
    x = np.zeros((2, 3), np.float32)
    assert _fails("take", x, np.array([0, 3]), axis=1) == ("take: index 3 is outside axis 1 of size 3")
    assert "index -3 is outside axis 0 of size 2" in _fails("take", x, np.array(-3))
    assert "gather_elements" in _fails("gather_elements", x, np.array([[5]]))
    assert "index 9 is outside axis 1" in _fails("gather_nd", x, np.array([[0, 9]]))
    assert "scatter_nd" in _fails("scatter_nd", x, np.array([[7]]), np.zeros((1, 3), np.float32))


def test_scatter_adds_many_narrow_numbers_without_losing_them() -> None:
    x = np.zeros(1, np.float16)
    updates = np.full(4096, 1 / 16, np.float16)
    ours = REFERENCE["scatter_nd"](x, np.zeros((4096, 1), int), updates, reduction="add")
    assert ours.item() == 256


# -- moving ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 1), (0, 3, 2, 2), (-1, 1, 2, -2)])
def test_pad(mode: str, pads: Any) -> None:
    x = random_array(F32, (4, 5), "pad")
    (expected,) = run_node("Pad", [x, np.array(pads), np.array(7, np.float32)], mode=mode)
    assert_close(REFERENCE["pad"](x, padding=pads, mode=mode, value=7), expected)


@pytest.mark.parametrize("k", [-5, -1, 0, 2, 9])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int, k: int) -> None:
    x = random_array(F32, (2, 4, 5), "trilu")
    (expected,) = run_node("Trilu", [x, np.array(k)], upper=upper)
    assert_close(REFERENCE["trilu"](x, upper=bool(upper), k=k), expected)


def test_slices_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="outside axis 0 of size 3"):
        REFERENCE["strided_slice"](np.zeros(3), axes=(0,), begin=(1,), size=(3,), strides=(1,))


# -- operators of the host ------------------------------------------------------------------------
def _boxes(count: int, seed: str) -> Array:
    random = generator(seed)
    low = random.uniform(0, 8, (2, count, 2))
    return np.concatenate([low, low + random.uniform(0, 4, (2, count, 2))], 2).astype(F32)


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("limit", "iou", "score"), [(5, 0.3, 0.2), (100, 0.0, None), (0, 0.5, 0)])
def test_non_max_suppression(center: int, limit: int, iou: float, score: float | None) -> None:
    boxes = _boxes(40, "boxes")
    if not center:
        boxes[:, ::3] = boxes[:, ::3][..., [2, 3, 0, 1]]  # corners in the other order
    scores = np.round(random_array(F32, (2, 3, 40), "s", low=0, high=1), 1)  # many ties
    inputs: list[Array | None] = [boxes, scores, np.array([limit]), np.array([iou], F32)]
    if score is not None:
        inputs.append(np.array([score], F32))
    (expected,) = run_node("NonMaxSuppression", inputs, center_point_box=center)
    assert_close(REFERENCE["non_max_suppression"](*inputs, center_point_box=center), expected)


@pytest.mark.parametrize("sort", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(axis: int | None, sort: int) -> None:
    x = random_array(F32, (12, 3), "unique", low=0, high=3).round()
    attrs = {} if axis is None else {"axis": axis}
    expected = run_node("Unique", [x], outputs=4, sorted=sort, **attrs)
    assert_close(list(REFERENCE["unique"](x, axis=axis, sorted=bool(sort))), expected)


def test_nonzero_compress_and_det() -> None:
    x = random_array("int64", (4, 5), "nz", low=0, high=1)
    assert_close(REFERENCE["nonzero"](x), run_node("NonZero", [x])[0])
    keep = np.array([True, False, True])
    assert_close(REFERENCE["compress"](x, keep, axis=1), run_node("Compress", [x, keep], axis=1)[0])
    assert_close(REFERENCE["compress"](x, keep), run_node("Compress", [x, keep])[0])
    square = random_array(F32, (3, 4, 4), "det")
    assert_close(REFERENCE["det"](square), run_node("Det", [square])[0], terms=24)


def test_random_numbers_have_the_asked_moments_and_obey_the_seed() -> None:
    normal = REFERENCE["random_normal"]
    x = normal(shape=(20000,), seed=1.0, mean=3.0, scale=2.0)
    assert abs(x.mean() - 3) < 0.05
    assert abs(x.std() - 2) < 0.05
    assert np.array_equal(x, normal(shape=(20000,), seed=1.0, mean=3.0, scale=2.0))
    assert not np.array_equal(x, normal(shape=(20000,), seed=2.0, mean=3.0, scale=2.0))
    assert not np.array_equal(normal(shape=(9,)), normal(shape=(9,)))
    log = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    drawn = REFERENCE["multinomial"](log, samples=20000, seed=1.0)
    assert abs((drawn == 0).mean() - 0.5) < 0.02
    coin = REFERENCE["bernoulli"](np.full(20000, 0.3, np.float32), dtype="int64", seed=1.0)
    assert abs(coin.mean() - 0.3) < 0.02


def test_sequences() -> None:
    values = [np.array([1.0]), np.array([2.0, 3.0])]
    assert REFERENCE["sequence_at"](values, np.array(-1)).tolist() == [2, 3]
    longer = REFERENCE["sequence_insert"](values, np.array([9.0]), np.array(-1))
    assert [v.tolist() for v in longer] == [[1], [9], [2, 3]]
    assert len(values) == 2
    assert "position 2 is outside a sequence of 2" in _fails("sequence_at", values, np.array(2))
    assert "empty" in _fails("optional_get", None)
    pieces = REFERENCE["split_to_sequence"](np.arange(5), np.array(2))
    assert [p.tolist() for p in pieces] == [[0, 1], [2, 3], [4]]
