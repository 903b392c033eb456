"""ONNX operators on shapes: reshape, slice, pad, split, expand and their run-time parameters."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hcomp.capture import capture_model
from hcomp.capture.onnx_ops.shape_parts import span
from hcomp.dims import evaluate, symbol
from hcomp.testing import interpret, random_array
from tests.onnx_case import Case, captured, case, check, params_of


def f32(*shape: int) -> np.ndarray:
    return random_array("float32", shape, "shape")


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = f32(2, 3, 4)
BIG = 2**63 - 1

VIEWS = [
    case("Reshape", X, i64(3, 8), params=[1]),
    case("Reshape", X, i64(0, -1), params=[1]),
    case("Reshape", X, i64(-1, 0, 2), params=[1]),
    case("Reshape", X, i64(24), params=[1]),
    case("Reshape", f32(1), i64(), params=[1], forms=["static", "late"]),
    case("Reshape", f32(0, 3), i64(3, 0), params=[1], allowzero=1),
    case("Reshape", f32(0, 3), i64(-1, 3), params=[1]),
    case("Reshape", X, i64(4, 3, 2), params=[1], opset=7),
    *(case("Flatten", X, axis=a) for a in (0, 1, 2, 3, -1, -3)),
    case("Flatten", X, opset=7),
    case("Flatten", f32(5)),
    case("Squeeze", f32(1, 3, 1), i64(0), params=[1]),
    case("Squeeze", f32(1, 3, 1), i64(-1, 0), params=[1]),
    case("Squeeze", f32(1, 3, 1)),
    case("Squeeze", f32(1, 3, 1), axes=[0], opset=7),
    case("Unsqueeze", f32(3, 4), i64(0), params=[1]),
    case("Unsqueeze", f32(3, 4), i64(-1, 1), params=[1]),
    case("Unsqueeze", f32(3, 4), axes=[0, 3], opset=7),
    case("Transpose", X),
    case("Transpose", X, perm=[1, 2, 0]),
    case("Transpose", X, perm=[0, 1, 2]),
    case("Expand", f32(3, 1), i64(2, 1, 4), params=[1]),
    case("Expand", f32(3, 1), i64(3, 4), params=[1]),
    case("Expand", f32(3, 4), i64(1), params=[1]),
    case("Expand", f32(1), i64(0, 2), params=[1]),
    case("Tile", X, i64(1, 2, 3), params=[1]),
    case("Tile", X, i64(1, 0, 1), params=[1]),
    case("Shape", X),
    case("Shape", X, start=1, end=-1),
    case("Shape", X, start=-2),
    case("Size", X),
]

PARTS = [
    case("Concat", X, f32(2, 5, 4), axis=1),
    case("Concat", X, f32(2, 0, 4), axis=1, forms=["static"]),
    case("Concat", X, axis=-1),
    case("Concat", i64(1, 2), i64(3), axis=0),
    case("Split", f32(6, 2), outputs=3, opset=13),
    case("Split", f32(7, 2), outputs=3, num_outputs=3),
    case("Split", f32(6, 2), i64(1, 2, 3), params=[1], outputs=3),
    case("Split", f32(2, 6), i64(6, 0), params=[1], outputs=2, axis=-1),
    case("Split", f32(2, 6), axis=1, split=[2, 4], outputs=2, opset=7),
    case("Split", f32(2, 6), axis=1, outputs=2, opset=11),
    *(
        case("Slice", f32(5, 6), i64(a), i64(b), i64(axis), i64(step), params=[1, 2, 3, 4])
        for a, b, axis, step in [
            (1, 3, 0, 1), (0, BIG, 1, 2), (-3, -1, 1, 1), (4, 0, 1, -1), (-1, -BIG, 0, -1), (-1, -100, 0, -2),
            (2, 1, 0, 1), (100, 200, 0, 1), (-100, 2, 0, 1), (1, 100, -1, 3), (5, -6, 1, -2), (0, 0, 1, 1),
        ]
    ),
    case("Slice", X, i64(0, 1), i64(1, 3), params=[1, 2]),
    case("Slice", X, i64(-9), i64(-9), i64(1), i64(-1), params=[1, 2, 3, 4], note="start before the axis"),
    case("Slice", X, i64(1, 0), i64(BIG, 2), i64(2, 0), params=[1, 2, 3]),
    case("Slice", X, np.int32([1]), np.int32([2]), np.int32([-1]), params=[1, 2, 3]),
    case("Slice", X, starts=[0, 1], ends=[1, -1], axes=[0, 2], opset=7),
    case("Slice", X, starts=[1], ends=[3], opset=9),
]  # fmt: skip

PADS = [
    *(case("Pad", f32(3, 4), i64(1, 0, 2, 1), params=[1], mode=m) for m in ("constant", "edge", "reflect")),
    case("Pad", f32(3, 4), i64(1, 2, 2, 1), params=[1], mode="wrap"),
    case("Pad", f32(3, 4), i64(1, 0, 2, 1), np.float32(1.5), params=[1, 2]),
    case("Pad", f32(3, 4), i64(1, 2), np.float32(1.5), i64(-1), params=[1, 2, 3]),
    case("Pad", f32(3, 4), i64(-1, 1, 0, -2), params=[1]),
    case("Pad", f32(3, 4), i64(1, 0, 2, 1), np.float32(1.5), params=[1], note="late value"),
    case("Pad", np.int32([[1, 2]]), i64(0, 1, 1, 0), np.int32(7), params=[1, 2]),
    case("Pad", np.array([True]), i64(1, 1), np.array(True), params=[1, 2]),
    case("Pad", f32(3, 4), pads=[0, 1, 1, 0], value=2.0, opset=7),
    case("Pad", f32(3, 4), pads=[0, 1, 1, 0], mode="reflect", opset=10),
    case("Pad", f32(1, 2, 3, 3), i64(0, 0, 1, 1, 0, 0, 1, 1), params=[1], mode="reflect", opset=13),
    *(case("DepthToSpace", f32(1, 8, 2, 3), blocksize=2, mode=m) for m in ("DCR", "CRD")),
    case("DepthToSpace", f32(1, 8, 2, 3), blocksize=2, opset=7),
    case("SpaceToDepth", f32(1, 2, 4, 6), blocksize=2),
    *(case("Trilu", f32(3, 4), np.int64(k), params=[1], upper=u) for k in (-5, -1, 0, 2) for u in (0, 1)),
    case("Trilu", f32(2, 3, 4)),
]


def _zeros(dtype: int, value: float) -> dict[str, object]:
    return {"value": helper.make_tensor("v", dtype, [1], [value])}


CREATION = [
    case("ConstantOfShape", i64(2, 3), params=[0]),
    case("ConstantOfShape", i64(2, 0), params=[0], **_zeros(TensorProto.INT32, 5)),
    case("ConstantOfShape", i64(), params=[0], **_zeros(TensorProto.BOOL, 1)),
    case("Range", np.int64(0), np.int64(5), np.int64(2), params=[0, 1, 2]),
    case("Range", np.int64(5), np.int64(-1), np.int64(-2), params=[0, 1, 2]),
    case("Range", np.int32(5), np.int32(1), np.int32(2), params=[0, 1, 2]),
    case("Range", np.float32(0.5), np.float32(2), np.float32(0.3), params=[0, 1, 2]),
    case("EyeLike", f32(3, 4)),
    case("EyeLike", f32(4, 3), k=-1, dtype=TensorProto.INT64),
    case("EyeLike", f32(3, 4), k=2),
    case("Dropout", X, opset=13),
    case("Dropout", X, np.float32(0.3), np.array(False), params=[1, 2], outputs=2),
    case("Dropout", X, ratio=0.4, opset=10, outputs=2),
    case("Dropout", X, np.float32(0.0), np.array(True), params=[1, 2], outputs=2),
]


@pytest.mark.parametrize(**params_of([*VIEWS, *PARTS, *PADS, *CREATION]))
def test_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(
    ("op", "x", "sizes", "axes", "expected"),
    [
        ("CenterCropPad", f32(5, 4), [3, 6], None, lambda x: np.pad(x[1:4], ((0, 0), (1, 1)))),
        ("CenterCropPad", f32(5, 4), [7], [0], lambda x: np.pad(x, ((1, 1), (0, 0)))),
        ("CenterCropPad", f32(5, 4), [2], [-1], lambda x: x[:, 1:3]),
    ],
)
@pytest.mark.parametrize("form", ["static", "symbolic", "late"])
def test_centre_crop_pad(op, x, sizes, axes, expected, form) -> None:  # type: ignore[no-untyped-def]
    attrs = {} if axes is None else {"axes": axes}
    check(case(op, x, i64(*sizes), params=[1], opset=18, expected=[expected(x)], **attrs), form)


def test_space_to_depth_undoes_depth_to_space() -> None:
    x = f32(1, 8, 2, 3)
    for mode in ("DCR", "CRD"):
        graph = captured(case("DepthToSpace", x, blocksize=2, mode=mode), "static")
        (spread,) = interpret(graph, {"i0": x}).values()
        check(case("SpaceToDepth", spread, blocksize=2, mode=mode, opset=28, expected=[x]), "symbolic")


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_symbolic_slices_clamp_as_the_standard_says(step: int) -> None:
    starts = [-9, -4, -1, 0, 1, 3, 9, BIG, -BIG]
    n = symbol("n")
    for start in starts:
        for end in starts:
            begin, size = span(start, end, step, n)
            for length in (0, 1, 3, 5):
                # Backwards, a start before the axis is its first element.
                inside = max(start, -length) if step < 0 else start
                expected = list(range(length))[slice(inside, end, step)]
                first, count = evaluate(begin, {"n": length}), evaluate(size, {"n": length})
                assert [first + i * step for i in range(count)] == expected, (start, end, length)


def test_symbolic_bounds_of_unknown_sign() -> None:
    # x[n - 3:] counts from the end again where n < 3.
    n = symbol("n")
    begin, size = span(n - 3, BIG, 1, n)
    for length in (0, 1, 2, 3, 5):
        expected = list(range(length))[slice(length - 3, None)]
        first, count = evaluate(begin, {"n": length}), evaluate(size, {"n": length})
        assert [first + i for i in range(count)] == expected, length


def _graph(nodes, inputs, outputs, constants=(), opset=18):  # type: ignore[no-untyped-def]
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    results = [helper.make_empty_tensor_value_info(o) for o in outputs]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants]
    graph = helper.make_graph(nodes, "g", infos, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return capture_model(model).graph


def test_shape_arithmetic_is_folded() -> None:
    """Exporters write x.reshape(x.shape[0], -1) as six nodes; one reshape is left."""
    graph = _graph(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
            helper.make_node("Concat", ["n1", "minus"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 3, 4])],
        ["y"],
        [("zero", np.int64(0)), ("axis", i64(0)), ("minus", i64(-1))],
    )
    assert [n.op for n in graph.nodes if n.op != "dims"][-1] == "reshape"
    assert str(graph.types[graph.outputs[0]]) == "float32[N, 12]"


def test_a_range_by_a_size_as_float_is_symbolic() -> None:
    graph = _graph(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Range", ["start", "f", "step"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["N", 3])],
        ["y"],
        [("zero", np.int64(0)), ("start", np.float32(0)), ("step", np.float32(1))],
    )
    assert str(graph.types[graph.outputs[0]]) == "float32[N]"
    (found,) = interpret(graph, {"x": f32(4, 3)}).values()
    np.testing.assert_array_equal(found, np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, i64(3, 4)),
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": [1.5, 2]}, np.float32([1.5, 2])),
        ({"value": numpy_helper.from_array(np.int8([[1, 2]]))}, np.int8([[1, 2]])),
        (
            {
                "sparse_value": helper.make_sparse_tensor(
                    numpy_helper.from_array(np.float32([5, 7])), numpy_helper.from_array(i64(1, 5)), [2, 3]
                )
            },
            np.float32([[0, 5, 0], [0, 0, 7]]),
        ),
    ],
)
def test_constants_in_every_form(attrs, expected) -> None:  # type: ignore[no-untyped-def]
    graph = _graph([helper.make_node("Constant", [], ["c"], **attrs)], [], ["c"])
    (found,) = interpret(graph, {}).values()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_dropout_trains_with_the_standards_own_draws() -> None:
    x, ratio = f32(3, 4), np.float32(0.5)
    graph = captured(case("Dropout", x, ratio, np.array(True), params=[1, 2], seed=0), "static")
    (found,) = interpret(graph, {"i0": x}).values()
    kept = np.random.RandomState(0).uniform(0, 1, x.shape) >= ratio
    np.testing.assert_array_equal(found, np.where(kept, x * 2, 0))


def test_squeeze_without_axes_of_symbolic_sizes_has_an_unknown_rank() -> None:
    graph = captured(case("Squeeze", f32(1, 3, 1)), "symbolic")
    assert str(graph.types[graph.outputs[0]]) == "float32[...]"
