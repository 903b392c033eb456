"""The com.microsoft operators: hcomp's converters against ONNX Runtime, which defines them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.helper import np_dtype_to_tensor_dtype

from hcomp.capture import capture_model
from hcomp.testing import assert_close, interpret, random_array
from tests.onnx_case import Case, case, check, params_of
from tests.ort_node import run_node

BATCH, S, H, D = 2, 5, 3, 4


def f32(*shape: int) -> np.ndarray:
    return random_array("float32", shape, "contrib")


def whole(dtype: str, *shape: int, low: int | None = None, high: int | None = None) -> np.ndarray:
    return random_array(dtype, shape, "whole", low=low, high=high)


def ms(op: str, *inputs: Any, params: Sequence[int] = (), forms: Sequence[str] = ("static",), **rest: Any) -> Case:
    return case(op, *inputs, domain="com.microsoft", params=params, forms=forms, **rest)


def parameters(numbers: list[float]) -> dict[str, Any]:
    return {"activation_params": numbers} if numbers else {}


BOTH = ("static", "symbolic")
FUSED = [
    *(
        ms("FusedMatMul", f32(2, 3, *((4, 5) if a else (5, 4))), f32(2, 3, *((6, 4) if b else (4, 6))),
           params=[1], forms=BOTH, transA=a, transB=b, alpha=0.3)
        for a in (0, 1) for b in (0, 1)
    ),
    ms("FusedMatMul", f32(5, 2, 3, 4), f32(2, 3, 4, 6), transBatchA=1),
    ms("FusedMatMul", f32(4, 2, 3, 5), f32(6, 2, 3, 4), transA=1, transB=1, transBatchA=1, transBatchB=1),
    *(
        ms("FusedConv", f32(2, 4, 6, 7), f32(5, 4, 3, 3), f32(5), *z, params=[1, 2], pads=[1, 1, 1, 1],
           activation=a, **parameters(p))
        for a, p in (("Relu", []), ("Tanh", []), ("LeakyRelu", [0.2]), ("Clip", [-0.3, 0.5]),
                     ("HardSigmoid", [0.3, 0.4]))
        for z in ([], [f32(2, 5, 6, 7)])
    ),
    *(
        ms("FusedGemm", f32(3, 4), f32(6, 4), f32(6), params=[1, 2], forms=BOTH, transB=1, alpha=0.5, beta=2.0,
           activation=a, **p)
        for a, p in (("Relu", {}), ("Sigmoid", {}), ("LeakyRelu", {"activation_alpha": 0.2}))
    ),
    *(ms(op, f32(3, 40), forms=BOTH) for op in ("Gelu", "FastGelu", "QuickGelu")),
    ms("FastGelu", f32(3, 40), f32(40), params=[1], forms=BOTH),
    ms("QuickGelu", f32(3, 40), alpha=2.0),
    ms("BiasGelu", f32(2, 3, 40), f32(40), params=[1], forms=BOTH),
    ms("ExpandDims", f32(2, 3), np.array(-1, np.int32), params=[1], forms=BOTH),
    *(ms("NhwcMaxPool", whole(d, 2, 8, 9, 7), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
      for d in ("uint8", "int8")),
]  # fmt: skip

X, ROW = f32(BATCH, S, 8), f32(8)
NORMS = [
    *(
        ms("SkipLayerNormalization", X, f32(*skip), ROW, ROW, *bias, params=[2, 3], epsilon=1e-5)
        for skip in ((BATCH, S, 8), (1, S, 8), (S, 8)) for bias in ([], [ROW])
    ),
    ms("SkipLayerNormalization", X, X, ROW, params=[2], forms=BOTH),
    *(ms("SkipSimplifiedLayerNormalization", X, X, ROW, *bias, params=[2]) for bias in ([], [ROW])),
    case("SimplifiedLayerNormalization", X, ROW, params=[1], forms=BOTH, epsilon=1e-4, axis=-1),
    case("SimplifiedLayerNormalization", X, ROW, params=[1], outputs=2, epsilon=1e-4, axis=-1),
]  # fmt: skip
IDS = whole("int32", BATCH, S, low=0, high=5)
EMBEDDINGS = [
    ms("EmbedLayerNormalization", IDS, segment, f32(9, 8), f32(7, 8), None if segment is None else f32(2, 8), ROW, ROW,
       mask, places, params=[2, 3, 5, 6], outputs=outputs, epsilon=1e-5)
    for segment in (None, IDS % 2)
    for mask, places, outputs in (
        (None, None, 2), (np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32), None, 3), (None, IDS, 3))
]  # fmt: skip


def qparams(dtype: str, scale: float, zero: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(scale, np.float32), np.array(zero, dtype)


def qlinear(dtype: str) -> list[Case]:
    a, b, row = whole(dtype, 50, 40), whole(dtype, 50, 40) // 2, whole(dtype, 40)
    all_of = np.arange(256).astype(dtype)
    image = whole(dtype, 2, 7, 9, 30)
    p, q = qparams(dtype, 0.02, 5), qparams(dtype, 0.1, 100)
    return [
        *(ms(op, a, *p, y, *q, *qparams(dtype, 0.2, z), params=[1, 2, 4, 5, 6, 7], forms=BOTH)
          for op in ("QLinearAdd", "QLinearMul") for y in (b, row, row[:1]) for z in (33, 32, 0)),
        ms("QLinearSigmoid", all_of, *p, *qparams(dtype, 0.01, 33), params=[1, 2, 3, 4], forms=BOTH),
        ms("QLinearLeakyRelu", all_of, *p, *qparams(dtype, 0.03, 33), params=[1, 2, 3, 4], alpha=0.1),
        ms("QLinearConcat", *qparams(dtype, 0.07, 33), a, *p, b, *q, params=[0, 1, 3, 4, 6, 7], forms=BOTH, axis=1),
        ms("QLinearWhere", a > 20, a, *p, b, *q, *qparams(dtype, 0.07, 33), params=[2, 3, 5, 6, 7, 8]),
        *(ms("QLinearGlobalAveragePool", image, *p, *qparams(dtype, 0.01, 33), params=[1, 2, 3, 4], forms=BOTH,
             channels_last=last) for last in (0, 1)),
    ]  # fmt: skip


def gemm(dtype: str, *, per_column: bool, flipped: int, out: bool) -> Case:
    a = whole(dtype, *((12, 5) if flipped else (5, 12)))
    b = whole(dtype, *((6, 12) if flipped else (12, 6)), low=0, high=60)
    columns = (6,) if per_column else ()
    scale = np.abs(f32(*columns)) * np.float32(0.01) + np.float32(0.01)
    y = qparams(dtype, 0.1, 9) if out else ()
    return ms("QGemm", a, *qparams(dtype, 0.03, 5), b, scale, whole(dtype, *columns, low=0, high=9),
              whole("int32", 6, low=-99, high=99), *y, params=range(1, 7 + len(y)), forms=BOTH,
              transA=flipped, transB=flipped, alpha=0.7)  # fmt: skip


def on_the_fly(dtype: str, per_column: bool) -> list[Case]:
    w, columns = whole(dtype, 8, 6, low=0, high=60), (6,) if per_column else ()
    scale, zero = np.abs(f32(*columns)) + np.float32(0.01), whole(dtype, *columns, low=0, high=50)
    return [
        ms("DynamicQuantizeMatMul", f32(2, 3, 8), w, scale, zero, f32(6), params=[1, 2, 3, 4], forms=BOTH),
        ms("MatMulIntegerToFloat", whole("uint8", 2, 3, 8), w, np.float32(0.1), scale, np.uint8(3), zero, f32(6),
           params=range(1, 7), forms=BOTH),
    ]  # fmt: skip


QLINEAR = [
    *qlinear("uint8"),
    *qlinear("int8"),
    *(gemm(d, per_column=c, flipped=t, out=o)
      for d in ("uint8", "int8") for c in (False, True) for t in (0, 1) for o in (False, True)),
    *(c for d in ("uint8", "int8") for p in (False, True) for c in on_the_fly(d, p)),
]  # fmt: skip


def nbits(bits: int, depth: int, block: int, *, zero: bool, bias: bool = False) -> Case:
    blocks = -(-depth // block)
    packed = whole("uint8", 10, blocks, block * bits // 8)
    zeros = whole("uint8", 10, -(-blocks * bits // 8)) if zero else None
    return ms("MatMulNBits", f32(2, 3, depth), packed, f32(10, blocks), zeros, None, f32(10) if bias else None,
              params=[i for i, x in ((1, 1), (2, 1), (3, zero), (5, bias)) if x], forms=BOTH,
              K=depth, N=10, bits=bits, block_size=block, terms=4096)  # fmt: skip


NBITS = [
    *(nbits(b, k, s, zero=z) for b in (2, 4, 8) for k, s in ((64, 32), (48, 32), (128, 16)) for z in (False, True)),
    nbits(4, 64, 32, zero=True, bias=True),
]


def rows_of(bits: int, *, zero: bool) -> Case:
    """Rows of a table of two blocks of 16 numbers each, and a half of a third."""
    zeros = whole("uint8", 6, 3 if bits == 8 else 2) if zero else None
    return ms("GatherBlockQuantized", whole("uint8", 6, 40 * bits // 8), np.array([[1, 3], [0, 5]]), f32(6, 3), zeros,
              params=[0, 2, 3] if zero else [0, 2], bits=bits, block_size=16, quantize_axis=1,
              gather_axis=0)  # fmt: skip


TABLES = [
    *(rows_of(b, zero=z) for b in (4, 8) for z in (False, True)),
]  # fmt: skip
ALIASES = [
    ms("Trilu", f32(5, 5), np.array(1), params=[1], forms=BOTH, upper=0),
    ms("Pad", f32(2, 3), np.array([0, 1, 1, 0]), np.array([2.0], np.float32), params=[1, 2], forms=BOTH),
    ms("GatherND", f32(5, 5, 3), np.array([[0, 1], [2, 3]]), params=[1], forms=BOTH),
    ms("GridSample", f32(1, 2, 4, 5), np.tanh(f32(1, 3, 3, 2))),
    ms("Range", np.array(2), np.array(7), params=[0, 1]),
    ms("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=3),
    ms("MatMulInteger16", whole("int16", 3, 4, low=-99, high=99), whole("int16", 4, 5, low=-99, high=99)),
    ms("DequantizeLinear", whole("uint8", 3, 4), np.float32(0.2), np.uint8(7), params=[1, 2], forms=BOTH),
]


# -- attention --------------------------------------------------------------------------------------
def mask_of(kind: str, total: int) -> np.ndarray | None:
    """A mask of one of the kinds that the CPU kernels know; each query sees at least one key."""
    shown = whole("int32", BATCH, S, total, low=0, high=1)
    shown[..., 0] = 1
    return {
        "": None, "ends": np.array([total, 2], np.int32),
        "ends and starts": np.array([total, total - 1, 1, 0], np.int32),
        "keys": shown[:, 0], "queries and keys": shown,
    }[kind]  # fmt: skip


def projected(kind: str, past: int, *, causal: int = 0, added: bool = False, parts: Sequence[int] = (12,) * 3) -> Case:
    width, total = sum(parts), S + past
    old = f32(2, BATCH, H, past, D) if past else None
    bias = f32(1, H, S, total) if added else None
    sizes: dict[str, Any] = {} if parts == (12,) * 3 else {"qkv_hidden_sizes": list(parts)}
    return ms("Attention", f32(BATCH, S, 10), f32(10, width), f32(width), mask_of(kind, total), old, bias,
              params=[1, 2], outputs=1 if sizes else 2, note=kind, num_heads=H,
              unidirectional=causal, **sizes)  # fmt: skip


def byte_projected(kind: str, past: int) -> Case:
    old = f32(2, BATCH, H, past, D) if past else None
    return ms("QAttention", whole("uint8", BATCH, S, 10), whole("int8", 10, 36, low=0, high=50), f32(36),
              np.float32(0.02), np.float32(0.01), mask_of(kind, S + past), np.uint8(12), np.int8(3), old,
              params=[1, 2, 3, 4, 6, 7], outputs=2, note=kind, num_heads=H, unidirectional=1)  # fmt: skip


def several(
    form: str, kind: str = "", *, past: int = 0, bias: bool = False, added: bool = False, causal: int = 0
) -> Case:
    total, width = S + past, H * D
    forms: dict[str, list[Any]] = {
        "apart": [f32(BATCH, S, width)] * 3,
        "packed": [f32(BATCH, S, H, 3, D), None, None],
        "packed keys": [f32(BATCH, S, width), f32(BATCH, S, H, 2, D), None],
        "cached": [f32(BATCH, S, width), f32(BATCH, H, S, D), f32(BATCH, H, S, D)],
    }
    old = [f32(BATCH, H, past, D)] * 2 if past else [None, None]
    return ms("MultiHeadAttention", *forms[form], f32(3 * width) if bias else None, mask_of(kind, total),
              f32(1, H, S, total) if added else None, *old, outputs=1 if form == "cached" else 3,
              params=[3] if bias else [], note=f"{form} {kind}", num_heads=H, unidirectional=causal)  # fmt: skip


KINDS = ("", "ends", "ends and starts", "keys", "queries and keys")
ATTENTION = [
    *(projected(kind, past, causal=c) for kind in KINDS for past in (0, 3) for c in (0, 1)),
    projected("", 0, added=True),
    projected("keys", 0, parts=(12, 12, 18)),
    *(byte_projected(kind, past) for kind in ("", "ends", "keys") for past in (0, 3)),
    *(several(form, bias=b) for form in ("apart", "cached") for b in (False, True)),
    *(several("apart", kind, past=p, causal=c) for kind in ("ends", "keys", "queries and keys")
      for p, c in ((0, 1), (3, 0), (3, 1))),
    several("apart", past=3, bias=True, added=True),
]  # fmt: skip


def grouped(mode: str, *, packed: bool = False, **attrs: Any) -> Case:
    """GroupQueryAttention: 4 query heads, 2 key heads of size 16; `mode` says what is cached."""
    length, past, ends = {
        "none": (5, 0, [5, 5]), "empty": (5, 0, [5, 5]), "token": (1, 6, [7, 7]), "rows": (1, 6, [7, 4]),
        "room": (1, 12, [7, 7]),
    }[mode]  # fmt: skip
    heads, groups, size = 4, 2, 16
    widths = (heads * size, groups * size, groups * size)
    qkv: list[Any] = [f32(BATCH, length, w) for w in widths]
    if packed:
        qkv = [np.concatenate(qkv, 2), None, None]
    old = [None, None] if mode == "none" else [f32(BATCH, groups, past, size)] * 2
    tables = [f32(40, size // 2)] * 2 if attrs.get("do_rotary") else [None, None]
    sink = f32(heads) if attrs.pop("sink", False) else None
    return ms("GroupQueryAttention", *qkv, *old, np.array(ends, np.int32) - 1, np.int32(max(ends)), *tables,
              None, None, sink, params=[5, 6], outputs=3, note=mode,
              num_heads=heads, kv_num_heads=groups, **attrs)  # fmt: skip


MODES = ("none", "empty", "token", "rows", "room")
GROUPED = [
    *(grouped(m, packed=p, do_rotary=r) for m in MODES for p in (False, True) for r in (0, 1)),
    *(grouped(m, local_window_size=2, softcap=0.7) for m in MODES),
    *(grouped(m, do_rotary=1, rotary_interleaved=1, scale=0.3) for m in ("empty", "rows")),
    *(grouped(m, smooth_softmax=1) for m in ("empty", "rows")),
    *(grouped(m, sink=True) for m in ("empty", "rows")),
]
TURNED = [
    ms("RotaryEmbedding", f32(BATCH, 3, S, 8) if four else f32(BATCH, S, 24), where, f32(30, 4), f32(30, 4),
       params=[2, 3], interleaved=i)
    for four in (True, False)
    for where in (np.array([3]), whole("int64", BATCH, S, low=0, high=20))
    for i in (0, 1)
]  # fmt: skip


@pytest.mark.parametrize(**params_of([*FUSED, *NORMS, *EMBEDDINGS, *ALIASES]))
def test_a_fused_operator_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of([*QLINEAR, *NBITS, *TABLES]))
def test_a_quantised_operator_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of([*ATTENTION, *GROUPED, *TURNED]))
def test_an_attention_operator_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("opset", "axis", "size"), [(13, -1, 40), (13, 1, 10), (11, 1, 8), (11, 2, 300)])
def test_softmax_of_bytes_is_equal_bit_for_bit(dtype: str, opset: int, axis: int, size: int) -> None:
    x, shift = whole(dtype, 4, 5, size), -128 if dtype == "int8" else 0
    given = {"x": x, "xs": np.float32(0.05), "xz": np.asarray(3, dtype), "ys": np.float32(0.003),
             "yz": np.asarray(shift + 3, dtype)}  # fmt: skip
    node = helper.make_node("QLinearSoftmax", list(given), ["y"], domain="com.microsoft", axis=axis, opset=opset)
    kind = np_dtype_to_tensor_dtype(x.dtype)
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in given.items() if k != "x"]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, x.shape)], [ValueInfoProto(name="y")], constants
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    captured = capture_model(model).graph
    assert "extern" not in {n.op for n in captured.walk()}
    np.testing.assert_array_equal(interpret(captured, {"x": x})[captured.outputs[0]], session.run(None, {"x": x})[0])


@pytest.mark.parametrize("form", ["packed", "packed keys"])
def test_packed_keys_are_keys_side_by_side(form: str) -> None:
    """ONNX Runtime's CPU kernel does not unpack them: compared with the operator on the parts."""
    packed = several(form)
    found = [x for x in packed.inputs if x is not None]
    parts = [p.reshape(BATCH, S, H * D) for x in found if x.ndim == 5 for p in np.split(x, x.shape[3], 3)]
    apart = parts if form == "packed" else [found[0], *parts]
    packed.expected = run_node(packed.op, apart, outputs=3, **packed.attrs)
    check(packed, "symbolic")


def test_the_sum_of_a_skip_connection_is_an_output() -> None:
    node = helper.make_node("SkipLayerNormalization", ["x", "s", "g"], ["y", "", "", "sum"], domain="com.microsoft")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [BATCH, S, 8]) for n in ("x", "s")]
    info.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [8]))
    graph = helper.make_graph([node], "g", info, [ValueInfoProto(name="y"), ValueInfoProto(name="sum")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    captured = capture_model(helper.make_model(graph, opset_imports=opsets)).graph
    found = list(interpret(captured, {"x": X, "s": X, "g": ROW}).values())
    assert_close(found[1], X + X)


def test_the_total_length_may_be_a_size_of_the_attention_mask() -> None:
    """What exported language models do; the cache then has a symbolic length and nothing is extern."""
    nodes = [
        helper.make_node("Shape", ["mask"], ["dims"]),
        helper.make_node("Gather", ["dims", "one"], ["total64"]),
        helper.make_node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=0),
        helper.make_node("Sub", ["count", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["ends"], to=TensorProto.INT32),
        helper.make_node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "ends", "total"], ["y", "nk", "nv"],
                         domain="com.microsoft", num_heads=4, kv_num_heads=2),
    ]  # fmt: skip
    floats: dict[str, list[Any]] = {
        "q": ["b", "s", 64], "k": ["b", "s", 32], "v": ["b", "s", 32],
        "pk": ["b", 2, "p", 16], "pv": ["b", 2, "p", 16],
    }  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in floats.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT64, ["b", "t"]))
    constants = [helper.make_tensor("one", 7, [], [1]), helper.make_tensor("axis", 7, [1], [1])]
    graph = helper.make_graph(nodes, "g", inputs, [ValueInfoProto(name=n) for n in ("y", "nk", "nv")], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    captured = capture_model(helper.make_model(graph, opset_imports=opsets, ir_version=10)).graph
    assert {"extern", "dynamic"}.isdisjoint(n.op for n in captured.walk())
    for mode in ("token", "rows", "empty"):
        given = grouped(mode)
        q, k, v, pk, pv, ends, total = given.inputs[:7]
        assert ends is not None
        mask = (np.arange(int(np.asarray(total))) <= ends[:, None]).astype(np.int64)
        feeds = {"q": q, "k": k, "v": v, "pk": pk, "pv": pv, "mask": mask}
        found = list(interpret(captured, feeds).values())
        expected = run_node(given.op, given.inputs, outputs=3, **given.attrs)
        for mine, theirs in zip(found, expected, strict=True):
            assert_close(mine, theirs, terms=64)
