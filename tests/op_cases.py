"""Cases for every operator of the table, by name.

test_ops.py runs each of them with several sizes: by the typing rule, symbolically and with
numbers, and by the reference.
"""

from typing import Any

import numpy as np

from tests.op_case import BF16, BOOL, F16, F32, F64, I4, I8, I64, U4, U8, Case, M, N, case, t, v
from tests.op_cases_host import HOST, HOST_ONNX
from tests.op_cases_layers import LINEAR
from tests.op_cases_ml import ML
from tests.op_cases_vision import VISION

_FLOAT_UNARY = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "gelu",
    "gelu_tanh",
    "log",
    "log1p",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "sqrt",
    "tan",
    "tanh",
]
_ANY_UNARY = ["abs", "negative", "relu", "sign", "square", "ceil", "floor", "round", "trunc"]
_ARITHMETIC = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "power",
    "maximum",
    "minimum",
    "floor_mod",
    "truncated_mod",
]
_COMPARE = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def _pairs(*dtypes: str) -> list[Case]:
    """Return broadcasting pairs of each dtype."""
    shapes: list[tuple[Any, Any]] = [((N, M), (N, M)), ((N, 1, M), (3, 1)), ((), (M,)), ((N,), ())]
    return [
        case(t(d, *a), t(d, *b, low=0 if d.startswith("u") else None))
        for i, d in enumerate(dtypes)
        for a, b in (shapes[i % 4], shapes[(i + 1) % 4])
    ]


ELEMENTWISE: dict[str, list[Case]] = {
    **{name: [case(x) for x in (F32, F16, BF16, F64)] for name in _FLOAT_UNARY},
    **{name: [case(x) for x in (F32, F16, BF16, F64, I8, I64, I4)] for name in _ANY_UNARY},
    "bitwise_not": [case(x) for x in (I8, U8, I64, I4)],
    "logical_not": [case(BOOL), case(t("bool"))],
    **{
        name: _pairs("float32", "float16", "bfloat16", "float64", "int32", "uint8", "int64", "int4")
        for name in _ARITHMETIC
    },
    **{name: _pairs("int32", "uint8", "int64", "uint4") for name in ("bitwise_and", "bitwise_or")},
    "bitwise_xor": _pairs("int8", "uint32"),
    **{name: _pairs("bool") for name in ("logical_and", "logical_or", "logical_xor")},
    **{
        name: [
            case(t("uint8", N, M), t("uint8", M, low=0, high=12)),
            case(t("int32", N), t("int32", N, low=0, high=40)),
            case(t("int4", N), t("int4", low=0, high=5)),
        ]
        for name in ("left_shift", "right_shift")
    },
    **{name: _pairs("float32", "bfloat16", "int64", "bool", "uint4") for name in _COMPARE},
    **{name: [case(F32), case(BF16), case(F64)] for name in ("isnan", "isfinite")},
    "isinf": [case(F32), case(F16, negative=False), case(F64, positive=False), case(BF16)],
    "leaky_relu": [case(F32, alpha=0.01), case(F16, alpha=-0.5), case(BF16, alpha=2.0)],
    "clip": [
        case(F32, min=-0.5, max=0.5),
        case(F16, max=0.25),
        case(I8, min=-3),
        case(I64, min=-1, max=1),
        case(BF16),
        case(U8, min=-5.0, max=1e9),
    ],
    "where": [
        case(t("bool", N, 1), t("float32", M), t("float32", N, M)),
        case(t("bool"), t("int64", N), t("int64", 1)),
        case(BOOL, t("bfloat16", N, M), t("bfloat16")),
        case(BOOL, t("string", N, M), t("string", M)),
    ],
    "cast": [
        case(F32, dtype="int8"),
        case(F32, dtype="float16"),
        case(F16, dtype="float64"),
        case(I64, dtype="float32"),
        case(BOOL, dtype="int64"),
        case(F64, dtype="bool"),
        case(t("int32", N, high=7, low=-8), dtype="int4"),
        case(F32, dtype="bfloat16"),
        case(F32, dtype="float8_e4m3fn"),
        case(F32, dtype="float8_e5m2", saturate=False),
        case(F16, dtype="float8_e8m0fnu"),
        case(BF16, dtype="float4_e2m1fn"),
        case(t("float8_e4m3fnuz", N), dtype="float32"),
        case(U4, dtype="uint8"),
        case(I4, dtype="bfloat16"),
        case(F32, dtype="uint64"),
    ],
    "bitcast": [case(F32, dtype="int32"), case(I8, dtype="uint8"), case(BF16, dtype="int16")],
}

SHAPE: dict[str, list[Case]] = {
    "reshape": [
        case(F32, shape=(N * 3, M)),
        case(F32, shape=(1, 3 * N * M)),
        case(t("int8", N, 2 * M), shape=(N, M, 2)),
        case(t("float16", 1), shape=()),
        case(t("bool", 0, N), shape=(N, 0, 2)),
    ],
    "permute_dims": [case(F32, axes=(2, 0, 1)), case(BF16, axes=(0,)), case(I4, axes=(1, 0))],
    "expand_dims": [
        case(F32, axis=(0,)),
        case(F32, axis=(0, 2, 5)),
        case(F16, axis=(-1,)),
        case(t("int64"), axis=(0, 1)),
    ],
    "squeeze": [
        case(t("float32", N, 1, M, 1), axis=(1, 3)),
        case(t("float32", 1, N), axis=(0,)),
        case(t("int64", N, 1), axis=(-1,)),
        case(t("bool", 1, 1), axis=None),
    ],
    "require": [
        case(F32, least=N - 1, problem="{N} is too small"),
        case(BF16, least=3 * M, problem=""),
        case(t("int64"), least=0, problem=""),
    ],
    "broadcast_to": [
        case(t("float32", M), shape=(N, M)),
        case(t("int64", 1, M), shape=(N, 2, M)),
        case(t("bfloat16"), shape=(N,)),
        case(t("float32", N, 1), shape=(N, M)),
    ],
    "concat": [
        case(t("float32", N, M), t("float32", 2, M), axis=0),
        case(t("int4", N, M), t("int4", N, 1), t("int4", N, N), axis=-1),
        case(t("string", 2), t("string", N), axis=0),
        case(F16, axis=1),
    ],
    "split": [
        case(t("float32", N + M, 2), sizes=(N, M), axis=0),
        case(t("int64", N, 6), sizes=(1, 2, 3), axis=-1),
        case(t("bfloat16", 4), sizes=(0, 4)),
    ],
    "strided_slice": [
        case(t("float32", N + 5, M), axes=(0,), begin=(1,), size=(N,), strides=(1,)),
        case(t("int32", 2 * N, M + 2), axes=(0, 1), begin=(0, M), size=(N, M), strides=(2, -1)),
        case(t("float16", 9), axes=(-1,), begin=(8,), size=(5,), strides=(-2,)),
        case(t("bool", 4, N), axes=(0,), begin=(4,), size=(0,), strides=(1,)),
        case(t("float32", N), axes=(), begin=(), size=(), strides=()),
    ],
    "tile": [
        case(t("float32", N, 2), repeats=(2, M)),
        case(t("int64", 3), repeats=(0,)),
        case(BF16, repeats=(1,)),
    ],
    "pad": [
        case(t("float32", N, M), padding=(1, 0, 2, 3)),
        case(t("float16", N, 5), padding=(0, -2, 1, -1), value=2.5),
        case(t("int64", N, 4), padding=(0, 3, 0, 2), mode="edge"),
        case(t("float32", 5, N), padding=(4, 0, 3, 0), mode="reflect"),
        case(t("bfloat16", N + 1), padding=(7, N), mode="wrap"),
        case(t("int8", N), padding=(N, 1), value=-7),
        case(t("bool", N), padding=(1, 1), value=True),
    ],
    "flip": [case(F32, axis=1), case(I64, axis=-1), case(BF16, axis=0)],
    "trilu": [
        case(t("float32", 2, N, M)),
        case(t("float32", N, M), upper=False, k=1),
        case(t("int64", M, N), k=-2),
        case(t("bool", N, N), upper=False, k=-1),
    ],
    "full": [
        case(shape=(N, 2), value=1.5, dtype="float32"),
        case(shape=(), value=-3, dtype="int64"),
        case(shape=(M,), value=True, dtype="bool"),
        case(shape=(0, N), value=float("nan"), dtype="bfloat16"),
        case(shape=(N,), value=7, dtype="uint4"),
    ],
    "arange": [
        case(size=N),
        case(size=4, start=10, step=-2, dtype="int32"),
        case(size=M, start=0.5, step=0.25, dtype="float32"),
        case(size=3, start=N, step=M),
    ],
    "dims": [
        case(values=(N, M + 1, 5)),
        case(values=(N * M,), scalar=True),
        case(values=()),
    ],
}

_REDUCED = [
    case(F32),
    case(F32, axis=(0, 2)),
    case(F32, axis=1, keepdims=True),
    case(F16, axis=(-1,)),
    case(BF16, axis=(0,), keepdims=True),
    case(I8, axis=0),
    case(I64, axis=(1,)),
    case(F64, axis=()),
    case(t("float32", N, 0), axis=(1,)),
    case(t("int4", N, 3), axis=(1,)),
]
_ARG = [
    case(F32, axis=1),
    case(F16, axis=-1, keepdims=True),
    case(I8, axis=0, select_last=True),
    case(BF16, axis=0, keepdims=True, select_last=True),
    case(v([[np.nan, 1], [1, np.nan]], "float32"), axis=1, nan_wins=False),
]
_SCAN = [
    case(F32, axis=1),
    case(F16, axis=-1, exclusive=True),
    case(I64, axis=1, reverse=True),
    case(BF16, axis=0, exclusive=True, reverse=True),
    case(t("int32", 0, N), axis=0, exclusive=True),
]

REDUCE: dict[str, list[Case]] = {
    **dict.fromkeys(("sum", "mean", "prod", "max", "min"), _REDUCED),
    "argmax": _ARG,
    "argmin": _ARG,
    "cumsum": _SCAN,
    "cumprod": _SCAN,
    "softmax": [case(F32), case(F16, axis=0), case(BF16, axis=-1), case(F64, axis=1)],
    "log_softmax": [case(F32, axis=1), case(F16), case(F64)],
    "layer_norm": [
        case(t("float32", N, M), t("float32", M), t("float32", M)),
        case(t("float32", N, 2, M), t("float32", 2, M), None, axis=1, epsilon=1e-3),
        case(t("float16", N, M), t("float16", M), t("float16", M), axis=-1),
        case(t("bfloat16", N, M), t("bfloat16", M), None),
    ],
    "rms_norm": [
        case(t("float32", N, M), t("float32", M)),
        case(t("float16", N, 2, M), t("float16", 2, M), axis=1, epsilon=1e-3),
        case(t("float64", N, M), t("float64", M), axis=-1),
    ],
    "topk": [
        case(t("float32", N, 5), k=3),
        case(t("int64", 6, M), k=2, axis=0, largest=False),
        case(t("bfloat16", 4), k=4, sorted=False),
        case(t("float16", N, M), k=0),
        case(t("float32", N, M), k=M, axis=1),
    ],
}

_SCATTERED = [
    case(t("float32", 4, N), t("int64", 2, N, low=-4, high=3), t("float32", 2, N)),
    case(t("float16", N, 5), t("int32", N, 3, low=-5, high=4), t("float16", N, 3), axis=1,
         reduction="add"),
    case(t("int64", N, 5), t("int64", N, 3, low=0, high=4), t("int64", N, 3), axis=-1,
         reduction="max"),
    case(t("bfloat16", 3), t("int64", M, low=0, high=2), t("bfloat16", M), reduction="mul"),
    case(t("bool", 3), t("int64", M, low=0, high=2), t("bool", M)),
]  # fmt: skip

INDEX: dict[str, list[Case]] = {
    "take": [
        case(t("float32", 5, M), t("int64", N, 2, low=-5, high=4)),
        case(t("int8", N, 5), t("int32", low=-5, high=4), axis=1),
        case(t("bfloat16", N, 4, M), t("int64", 3, low=0, high=3), axis=-2),
        case(t("string", 3), t("int64", N, low=0, high=2)),
        case(t("float32", 0, M), t("int64", 0)),
    ],
    "gather_elements": [
        case(t("float32", 4, M), t("int64", N, M, low=-4, high=3)),
        case(t("int32", N, 5), t("int32", N, 2, low=-5, high=4), axis=1),
        case(t("bfloat16", 5), t("int64", N, low=0, high=4), axis=-1),
    ],
    "gather_nd": [
        case(t("float32", 4, 5, M), t("int64", N, 2, low=-4, high=3)),
        case(t("float32", N, 4, 5), t("int64", N, 3, 1, low=-4, high=3), batch_dims=1),
        case(t("int64", N, 2, 4), t("int64", N, 2, 1, low=0, high=3), batch_dims=2),
        case(t("bfloat16", 3), t("int64", M, N, 1, low=0, high=2)),
    ],
    "scatter_elements": _SCATTERED,
    "scatter_nd": [
        case(t("float32", 4, 5, M), t("int64", N, 2, low=-4, high=3), t("float32", N, M)),
        case(t("float16", 5), t("int64", N, 1, low=-5, high=4), t("float16", N), reduction="add"),
        case(t("int32", 4, M), t("int64", N, 1, low=0, high=3), t("int32", N, M), reduction="min"),
        case(t("bfloat16", 4), t("int64", N, M, 1, low=0, high=3), t("bfloat16", N, M)),
    ],
}

CASES: dict[str, list[Case]] = {
    **ELEMENTWISE,
    **SHAPE,
    **REDUCE,
    **LINEAR,
    **INDEX,
    **HOST,
    **HOST_ONNX,
    **VISION,
    **ML,
}
