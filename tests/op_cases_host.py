"""Cases of operators that run on the host."""

import numpy as np

from hcomp.ir.types import OptionalType, TensorType
from tests.op_case import BOOL, F16, F32, I4, I64, Case, Input, M, N, case, sequence, t, v

_BOXES = t("float32", N, 6, 4, low=0, high=4)
_SCORES = t("float32", N, 2, 6, low=0, high=1)
_MAYBE = OptionalType(TensorType("float32", (2,)))

HOST: dict[str, list[Case]] = {
    "dynamic": [
        case(F32, v([1]), op="sum", bind=("axis",), static=(("keepdims", True),),
             dtypes=("float32",), rank=3),
        case(t("float32", 6), v(3), op="topk", bind=("k",), dtypes=("float32", "int64"), rank=1),
        case(F16, None, op="max", bind=("axis",), dtypes=("float16",)),
    ],
    "nonzero": [case(F32), case(BOOL), case(I4), case(t("int64", 0, N))],
    "unique": [
        case(t("int64", N, M, low=0, high=3)),
        case(t("float32", N, 2, low=0, high=1), axis=0, sorted=False),
        case(t("int8", N, 4, low=0, high=1), axis=-1),
        case(t("int64", N, low=0, high=3), sorted=False),
    ],
    "compress": [
        case(F32, v([True, False, True], "bool"), axis=1),
        case(t("int64", N, M), v([True], "bool")),
        case(t("bfloat16", 4, N), v([False] * 4, "bool"), axis=0),
    ],
    "non_max_suppression": [
        case(_BOXES, _SCORES, v(3)),
        case(_BOXES, _SCORES, v([2]), v([0.5], "float32"), v([0.3], "float32"),
             center_point_box=1),
        case(_BOXES, _SCORES, None, v(0.5, "float32"), None),
    ],
    "random_normal": [
        case(shape=(N, M), seed=1.0),
        case(shape=(3,), dtype="float16", mean=5.0, scale=0.1),
    ],
    "random_uniform": [
        case(shape=(N,), dtype="bfloat16", low=-1.0, high=0.0, seed=2.5),
        case(shape=(), dtype="float64"),
    ],
    "bernoulli": [
        case(t("float32", N, M, low=0, high=1), dtype="float32", seed=3.0),
        case(t("float16", N, low=0, high=1), dtype="int64"),
        case(t("float64", N, low=0, high=1), dtype="bool"),
    ],
    "multinomial": [
        case(t("float32", N, 5), samples=M, seed=1.0),
        case(t("float16", 2, N), samples=4, dtype="int64"),
    ],
    "det": [case(t("float32", N, 3, 3)), case(t("float64", 2, N, M, M)), case(t("float32", 2, 2))],
    "sequence_empty": [case(), case(dtype="int64")],
    "sequence_construct": [case(F32, t("float32", 2)), case(I64)],
    "sequence_insert": [
        case(sequence([1, 2], [3]), t("float32", 2)),
        case(sequence([1]), t("float32", 2), v(-1)),
    ],
    "sequence_erase": [case(sequence([1], [2])), case(sequence([1], [2]), v(0))],
    "sequence_at": [case(sequence([1], [2, 3]), v(1)), case(sequence([1], [2]), v(-2))],
    "sequence_length": [case(sequence()), case(sequence([1], [2]))],
    "sequence_concat": [
        case(sequence([1, 2], [3]), axis=0),
        case(sequence([1, 2], [3, 4]), axis=-1, new_axis=True),
    ],
    "split_to_sequence": [
        case(t("float32", N, 4), axis=0),
        case(t("float32", 4, M), keepdims=False),
        case(t("int64", 5), v(2)),
        case(t("int64", 5), v([2, 3])),
    ],
    "optional": [case(F32), case(sequence([1]))],
    "optional_empty": [case(), case(dtype="int64", sequence=True)],
    "optional_get": [case(Input(_MAYBE, value=np.ones(2, np.float32))), case(F32)],
    "optional_has": [case(Input(_MAYBE)), case(F32), case(sequence([1]))],
}  # fmt: skip

HOST_ONNX: dict[str, list[Case]] = {
    "onnx_reshape": [
        case(t("float32", 2, 6), v([0, -1, 3]), rank=3),
        case(t("int8", 2, 0), v([0, 7]), rank=2, allowzero=True),
    ],
    "onnx_expand": [case(t("float32", N, 1), v([3, 1, 4]), rank=3), case(t("int64"), v([2]))],
    "onnx_squeeze": [case(t("float32", 1, 2, 1), None, rank=1), case(t("bool", 1, 2), v([0]))],
    "onnx_slice": [
        case(t("float32", 5, N), v([-1]), v([-100]), v([0]), v([-2]), rank=2),
        case(t("int8", 5), v([1]), v([100]), None, None, rank=1),
    ],
    "onnx_pad": [
        case(t("float32", N, M), v([1, 0, 2, -1]), v(2.0, "float32"), None, rank=2),
        case(t("float32", N, 4), v([1, 2]), None, v([1]), rank=2, mode="reflect"),
    ],
    "onnx_center_crop_pad": [
        case(t("float32", 5, N), v([3]), rank=2, axes=(0,)),
        case(t("int64", 4, 4), v([6, 3]), rank=2, axes=(0, 1)),
    ],
    "onnx_col2im": [
        case(t("float32", N, 2 * 4, 4), v([3, 3]), v([2, 2]), rank=4, strides=(1, 1),
             dilation=(1, 1), padding=(0,) * 4),
        case(t("float16", 1, 2, 5), v([5]), v([2]), rank=3, strides=(1,), dilation=(2,),
             padding=(1, 1)),
    ],
    "onnx_range": [case(v(1), v(7), v(2), rank=1), case(v(1.0, "float32"), v(-1.0, "float32"),
                                                        v(-0.5, "float32"), rank=1)],
    "onnx_shape": [case(F32), case(F32, start=1, end=-1)],
    "string_normalize": [
        case(v(["Monday", "tuesday", "TUESDAY"], "string"), case="upper", stopwords=("Tuesday",)),
        case(v([["a", "b"]], "string"), case_sensitive=True, stopwords=("A", "b", "a")),
    ],
    "onnx_size": [case(F32), case(t("bool"))],
}  # fmt: skip
