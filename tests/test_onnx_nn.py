"""ONNX convolutions, pools, normalisations, matrix products: hcomp's converters against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

from hcomp.testing import interpret, random_array
from tests.onnx_case import Case, captured, case, check, params_of


def f32(*shape: int, low: float | None = None, high: float | None = None) -> np.ndarray:
    return random_array("float32", shape, "nn", low=low, high=high)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


IMAGE = f32(2, 4, 7, 6)


def conv(x: np.ndarray, w: np.ndarray, *rest: np.ndarray, **attrs: Any) -> Case:
    return case("Conv", x, w, *rest, params=list(range(1, 2 + len(rest))), **attrs)


CONVS = [
    conv(IMAGE, f32(3, 4, 3, 3)),
    conv(IMAGE, f32(3, 4, 3, 3), f32(3), strides=[2, 1], pads=[1, 0, 2, 1]),
    conv(IMAGE, f32(4, 1, 3, 2), group=4, dilations=[2, 1], opset=7),
    conv(IMAGE, f32(6, 2, 3, 3), group=2, kernel_shape=[3, 3]),
    *(conv(IMAGE, f32(3, 4, 3, 2), auto_pad=a, strides=[2, 3]) for a in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    conv(f32(2, 3, 9), f32(4, 3, 4), auto_pad="SAME_UPPER", strides=[2]),
    conv(f32(1, 2, 4, 5, 6), f32(3, 2, 2, 3, 2), f32(3), pads=[0, 1, 0, 1, 1, 0]),
]


def transposed(x: np.ndarray, w: np.ndarray, *rest: np.ndarray, **attrs: Any) -> Case:
    return case("ConvTranspose", x, w, *rest, params=list(range(1, 2 + len(rest))), **attrs)


TRANSPOSED = [
    transposed(f32(1, 4, 5, 4), f32(4, 3, 3, 3)),
    transposed(f32(1, 4, 5, 4), f32(4, 3, 3, 2), f32(3), strides=[2, 3], pads=[1, 0, 1, 1]),
    transposed(f32(1, 4, 5, 4), f32(4, 3, 3, 3), strides=[3, 2], output_padding=[1, 1]),
    transposed(f32(1, 4, 5, 4), f32(4, 3, 3, 3), strides=[3, 2], output_shape=[15, 9], forms=["static"]),
    transposed(f32(1, 4, 5, 4), f32(4, 3, 3, 3), strides=[2, 2], output_shape=[10, 8]),
    *(transposed(f32(1, 4, 5, 4), f32(4, 3, 3, 2), strides=[2, 2], auto_pad=a) for a in ("SAME_UPPER", "SAME_LOWER")),
    transposed(f32(1, 4, 5, 4), f32(4, 2, 3, 3), group=2, dilations=[2, 2]),
    transposed(f32(1, 4, 5), f32(4, 2, 3), strides=[2]),
    transposed(f32(1, 2, 3, 2, 3), f32(2, 2, 2, 2, 2), strides=[2, 1, 1]),
]

POOLS = [
    *(
        case(op, IMAGE, kernel_shape=[3, 2], **attrs)
        for op in ("MaxPool", "AveragePool", "LpPool")
        for attrs in (
            {},
            {"strides": [2, 2], "pads": [1, 0, 1, 1]},
            {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
            {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
            {"strides": [3, 2], "auto_pad": "VALID"},
        )
    ),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 3]),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], opset=7),
    case("MaxPool", random_array("int8", (1, 2, 5, 5), "p"), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("MaxPool", f32(1, 2, 9), kernel_shape=[3], strides=[2]),
    case("MaxPool", f32(1, 2, 4, 5, 4), kernel_shape=[2, 3, 2]),
    *(
        case("MaxPool", IMAGE, kernel_shape=[3, 2], outputs=2, strides=[2, 2], pads=[1, 0, 1, 0], storage_order=o)
        for o in (0, 1)
    ),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], outputs=2, strides=[2, 2], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], outputs=2, dilations=[2, 2]),
    case("MaxPool", f32(2, 2, 9), kernel_shape=[3], outputs=2, strides=[2]),
    *(case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=c) for c in (0, 1)),
    *(
        case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=c, opset=19)
        for c in (0, 1)
    ),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2], opset=19),
    case("AveragePool", f32(1, 2, 4, 5, 4), kernel_shape=[2, 3, 2], opset=10),
    case("LpPool", f32(1, 2, 9), kernel_shape=[3], p=3, opset=18),
    case("LpPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], p=1, opset=11),
    *(case(op, IMAGE) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")),
    case("GlobalAveragePool", f32(2, 3, 5), opset=7),
    *(case("LRN", f32(2, 7, 3, 4), size=s, opset=13) for s in (3, 5)),
    case("LRN", f32(2, 7, 3, 4), size=3, alpha=2e-2, beta=0.5, bias=2.0, opset=7),
    case("LRN", f32(2, 7, 3, 4), size=3, alpha=0.3, beta=0.6, opset=13),
    case(
        "MaxUnpool", f32(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]], np.int64),
        kernel_shape=[2, 2], strides=[2, 2],
    ),
]  # fmt: skip

STATS = [f32(4), f32(4), f32(4), f32(4, low=0.5, high=2)]
NORMS = [
    *(case("BatchNormalization", IMAGE, *STATS, params=[1, 2, 3, 4], opset=v) for v in (7, 9, 15)),
    case("BatchNormalization", f32(3, 4), *STATS, params=[1, 2, 3, 4], epsilon=1e-2, opset=9),
    case("BatchNormalization", IMAGE, *STATS, params=[1, 2, 3, 4], training_mode=1, outputs=3, opset=15, momentum=0.7),
    case("InstanceNormalization", IMAGE, *STATS[:2], params=[1, 2]),
    case("InstanceNormalization", f32(2, 4, 9), *STATS[:2], params=[1, 2], epsilon=1e-2, opset=7),
    *(case("LayerNormalization", f32(2, 3, 4), *STATS[:n], params=[1, 2][:n], opset=17) for n in (1, 2)),
    case("LayerNormalization", f32(2, 3, 4), f32(3, 4), f32(3, 4), params=[1, 2], axis=1, epsilon=1e-2, opset=17),
    case("LayerNormalization", f32(2, 3, 4), *STATS[:2], params=[1, 2], outputs=3, opset=17),
    case("GroupNormalization", IMAGE, *STATS[:2], params=[1, 2], num_groups=2, opset=21),
    case("GroupNormalization", IMAGE, f32(2), f32(2), params=[1, 2], num_groups=2, opset=18),
]

LINEAR = [
    *(
        case("MatMul", f32(*a), f32(*b))
        for a, b in (
            ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)),
            ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)),
        )
    ),
    case("MatMul", random_array("int32", (3, 4), "m"), random_array("int32", (4, 2), "m")),
    *(
        case("Gemm", f32(*((4, 3) if ta else (3, 4))), f32(*((5, 4) if tb else (4, 5))), f32(5), params=[1, 2],
             transA=ta, transB=tb, alpha=0.5, beta=0.25)
        for ta in (0, 1)
        for tb in (0, 1)
    ),
    case("Gemm", f32(3, 4), f32(4, 5)),
    case("Gemm", f32(3, 4), f32(4, 5), f32(3, 1), opset=7),
    case("Gemm", f32(3, 4), f32(4, 5), f32(3, 5), beta=0.0),
    *(
        case("Einsum", *(f32(*s) for s in shapes), equation=e)
        for e, *shapes in (
            ("ij->ji", (3, 4)), ("ij->i", (3, 4)), ("ij", (3, 4)), ("ij->", (3, 4)),
            ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("i,j->ij", (3,), (4,)),
            ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
            ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
            ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)), ("i,i->", (4,), (4,)), ("ij,ij->ij", (3, 4), (3, 4)),
            ("bij,bj->bi", (2, 3, 4), (2, 4)), (" i j , k -> i ", (3, 4), (5,)), ("b...->...b", (2, 3, 4)),
            ("i...,j...->ij...", (2, 4), (3, 4)),
        )
    ),
    *(case("Einsum", f32(3, 3, 2), equation=e, forms=["static"]) for e in ("iij->ij", "iij->j", "iij->ji")),
    case("Det", f32(2, 3, 3)),
]  # fmt: skip

IMAGES = [
    case("Col2Im", f32(2, 12, 12), i64(5, 4), i64(2, 2), params=[1, 2], opset=18, forms=["static", "symbolic", "late"]),
    case(
        "Col2Im", f32(1, 9, 4), i64(5, 5), i64(3, 3), params=[1, 2], strides=[2, 2], opset=18,
        forms=["static", "symbolic", "late"],
    ),
    case(
        "Col2Im", f32(1, 4, 30), i64(5, 4), i64(2, 2), params=[1, 2], pads=[1, 1, 1, 1], opset=18,
        forms=["static", "late"],
    ),
    case(
        "Col2Im", f32(1, 4, 12), i64(6, 5), i64(2, 2), params=[1, 2], dilations=[2, 2], opset=18,
        forms=["static", "late"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(**params_of([*CONVS, *TRANSPOSED, *POOLS]))
def test_windows_agree_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of([*NORMS, *LINEAR, *IMAGES]))
def test_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_rms_normalization(axis: int) -> None:
    x = f32(2, 3, 4)
    scale = f32(*x.shape[axis:])
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=axes, keepdims=True) + 1e-2) * scale
    node = case("RMSNormalization", x, scale, axis=axis, epsilon=1e-2, opset=23, expected=[np.float32(expected)])
    check(node, "static")


def test_batch_normalization_is_one_multiplication_and_one_addition() -> None:
    graph = captured(NORMS[0], "symbolic")
    assert [n.op for n in graph.nodes] == ["multiply", "add"]


def test_same_padding_of_symbolic_images_is_an_expression() -> None:
    graph = captured(conv(IMAGE, f32(3, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 3]), "symbolic")
    rows, columns = graph.types[graph.outputs[0]].shape[2:]
    assert (str(rows), str(columns)) == ("(d0_2 + 1)//2", "(d0_3 + 2)//3")
    for height, width in ((7, 6), (8, 8), (2, 3)):
        x = f32(1, 4, height, width)
        (found,) = interpret(graph, {"i0": x}).values()
        assert found.shape[2:] == (-(-height // 2), -(-width // 3))


def test_unpooling_into_a_larger_shape_leaves_zeros_at_the_end() -> None:
    x = np.float32([[[[5, 6], [7, 8]]]])
    where = np.array([[[[5, 7], [13, 15]]]], np.int64)
    expected = np.zeros((1, 1, 5, 5), np.float32)
    expected[0, 0, 1, 1], expected[0, 0, 1, 3], expected[0, 0, 3, 1], expected[0, 0, 3, 3] = 5, 6, 7, 8
    for form in ("static", "late"):
        check(
            case("MaxUnpool", x, where, i64(1, 1, 5, 5), params=[2], kernel_shape=[2, 2], strides=[2, 2], opset=11,
                 expected=[expected]),
            form,
        )  # fmt: skip


def test_gemm_scales_constant_weights_when_compiling() -> None:
    graph = captured(case("Gemm", f32(3, 4), f32(5, 4), params=[1], alpha=0.5, transB=1), "static")
    assert [n.op for n in graph.nodes] == ["matmul"]
