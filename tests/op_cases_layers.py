"""Cases of matmul, convolution, pooling and recurrent layers."""

from dataclasses import replace

from hcomp.ir.types import TensorType
from tests.op_case import Case, Input, M, N, case, t

_CONV = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
_SAME = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
_POOL2 = {**_CONV, "pool_size": (2, 3)}
_TRANSPOSED = {**_CONV, "output_padding": (0, 0)}
_POOLS = [
    case(t("float32", N, M, 7, 8), **_POOL2),
    case(
        t("float32", N, 2, 7, 8), pool_size=(3, 2), strides=(2, 3), padding=(1, 0, 1, 1),
        dilation=(1, 2), ceil_mode=True,
    ),
    case(t("float16", 1, N, M + 8), pool_size=(3,), strides=(2,), padding=(1, 1), dilation=(1,)),
    case(
        t("bfloat16", 1, 2, N + 3, 4, 5), pool_size=(2, 2, 2), strides=(2, 2, 2),
        padding=(0,) * 6, dilation=(1, 1, 1), ceil_mode=True,
    ),
]  # fmt: skip


def _cell(gates: int, activations: tuple[str, ...], states: int, holes: bool) -> list[Case]:
    """Return cases of a recurrent layer with hidden size 3 and input size 2."""
    both = activations * 2

    def inputs(dtype: str, d: int, full: bool) -> list[Input | None]:
        found: list[Input | None] = [
            t(dtype, N + 1, M, 2),
            t(dtype, d, gates * 3, 2),
            t(dtype, d, gates * 3, 3),
        ]
        if full:
            found += [t(dtype, d, 2 * gates * 3), t("int32", M, low=1, high=2)]
            found += [t(dtype, d, M, 3)] * states
            found += [t(dtype, d, 9)] if holes else []
        return found

    return [
        case(*inputs("float32", 1, False), activations=activations),
        case(*inputs("float32", 2, True), direction="bidirectional", activations=both, clip=0.8),
        case(*inputs("float16", 1, True), direction="reverse", activations=activations),
        case(
            *inputs("float64", 1, True),
            activations=("hardsigmoid", "elu", "softsign")[: len(activations)],
            alpha=(0.3, 0.7, 0.0)[: len(activations)],
        ),
    ]


def _both_layouts(cases: list[Case]) -> list[Case]:
    """Return the cases, and the same with the first input's channels last."""
    found = list(cases)
    for one in cases:
        data = one.inputs[0]
        assert data is not None
        assert isinstance(data.type, TensorType)
        n, c, *sizes = data.type.shape or ()
        last = replace(data, type=TensorType(data.type.dtype, (n, *sizes, c)))
        found.append(Case((last, *one.inputs[1:]), {**one.attrs, "channels_last": True}))
    return found


LINEAR: dict[str, list[Case]] = {
    "attention": [
        case(*(t("float32", N, M, 4, 3) for _ in range(3)), axes=("bshd", "blhd", "blhe"), output="bshe", scale=0.5),
        case(*(t("float64", *shape) for shape in ((M, 2, N, 3), (2, M, 3), (2, M, 5), (2, M, N))), t("bool", M),
             axes=("rhsd", "hld", "hle", "hls", "l"), output="rhse", masks=("add", "where"), fill=-1e4, zero_nan=True),
        case(*[t("float16", N, 3, 4)] * 3, axes=("s0d", "l1d", "l2e"), output="se"),
    ],
    "matmul": [
        case(t("float32", N, M), t("float32", M, 5)),
        case(t("float32", 2, 1, N, M), t("float32", 3, M, N)),
        case(t("float16", M), t("float16", M)),
        case(t("bfloat16", N, M), t("bfloat16", M), out_dtype="float32"),
        case(t("int8", N, M), t("int8", M, 2), out_dtype="int32"),
        case(t("uint8", N, M), t("int8", M, 2), out_dtype="int32"),
        case(t("int64", M), t("int64", M, N)),
        case(t("float64", N, M), t("float64", N, M, 2)),
    ],
    "conv": _both_layouts([
        case(t("float32", N, 3, 6, 7), t("float32", 4, 3, 3, 3), **_SAME),
        case(t("float32", 1, 4, M + 6, 7), t("float32", 6, 2, 2, 3), **_CONV, groups=2),
        case(t("float16", N, 2, 9), t("float16", 2, 1, 3), strides=(2,), padding=(2, 1),
             dilation=(2,), groups=2),
        case(t("float64", 1, 2, 4, 5, 4), t("float64", 3, 2, 2, 2, 1), strides=(1, 2, 1),
             padding=(0, 1, 0, 0, 1, 0), dilation=(1, 1, 2)),
        case(t("uint8", N, 2, 5, 5), t("int8", M, 2, 3, 3), **_CONV, out_dtype="int32"),
        case(t("bfloat16", N, 3, 4, 4), t("bfloat16", 2, 3, 1, 1), **_CONV),
    ]),
    "conv_transpose": _both_layouts([
        case(t("float32", N, 3, 4, 5), t("float32", 3, 2, 3, 3), **_TRANSPOSED),
        case(t("float32", N, 4, M), t("float32", 4, 2, 3), strides=(2,), padding=(1, 0),
             dilation=(2,), output_padding=(1,), groups=2),
        case(t("float16", 1, 2, 3, N), t("float16", 2, 3, 2, 2), strides=(2, 3),
             padding=(0, 1, 1, 0), dilation=(1, 1), output_padding=(1, 2)),
    ]),
    "max_pool": _both_layouts([*_POOLS, case(t("int8", N, M, 4, 4), **_POOL2)]),
    "avg_pool": _both_layouts([
        *_POOLS,
        *(Case(c.inputs, {**c.attrs, "count_include_pad": True}) for c in _POOLS),
    ]),
    "lstm": [
        *_cell(4, ("sigmoid", "tanh", "tanh"), 2, True),
        case(t("float32", N, M, 2), t("float32", 1, 12, 2), t("float32", 1, 12, 3),
             activations=("sigmoid", "tanh", "tanh"), input_forget=True),
    ],
    "gru": [
        *_cell(3, ("sigmoid", "tanh"), 1, False),
        case(t("float32", N, M, 2), t("float32", 1, 9, 2), t("float32", 1, 9, 3),
             activations=("sigmoid", "tanh"), linear_before_reset=True),
    ],
    "rnn": _cell(1, ("tanh",), 1, False),
}  # fmt: skip
