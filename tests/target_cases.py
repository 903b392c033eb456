"""Cases that every compiling target must compute as the reference does: inputs by operator.

A shape is written in dimension expressions; `SIZES` gives what the symbols are. Run statically, the
symbols are replaced first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim, DimLike, evaluate, parse_dim
from hcomp.dtypes import numpy_dtype

SIZES = {"N": 5, "K": 3, "M": 1, "E": 0, "H": 7}

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "uint8")
SIGNED = ("int64", "int32", "int8")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")


@dataclass(frozen=True)
class Operand:
    """One input: a shape such as "N, 4", an element type ("": the case's), how it is filled."""

    shape: str
    dtype: str = ""
    fill: str = "normal"
    low: int = 0
    high: int = 4
    constant: bool = False
    values: tuple[Any, ...] = ()

    def dims(self) -> tuple[DimLike, ...]:
        """Return the shape."""
        return tuple(parse_dim(d) for d in self.shape.split(",") if d.strip())


@dataclass(frozen=True)
class Case:
    """One node: its operator, inputs (None: absent), attributes and element types."""

    op: str
    inputs: tuple[Operand | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32",)
    tolerance: float = 1.0
    """How many times the usual tolerance: for long sums."""


def d(text: str) -> DimLike:
    """Return a dimension expression for an attribute."""
    return parse_dim(text)


def settle(value: Any) -> Any:
    """Return an attribute with the symbols replaced by SIZES."""
    if isinstance(value, tuple):
        return tuple(settle(v) for v in value)
    return evaluate(value, SIZES) if isinstance(value, Dim) else value


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-5, -1e-5, 1.0, -1.0, 3.0)


def array(operand: Operand, dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """Return the contents of an operand."""
    shape = tuple(evaluate(dim, SIZES) for dim in operand.dims())
    kind = numpy_dtype(operand.dtype or dtype)
    name = operand.dtype or dtype
    if operand.values:
        return np.array(operand.values).astype(kind).reshape(shape)
    if operand.fill == "index":
        return rng.integers(operand.low, operand.high, shape).astype(kind)
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name.startswith(("int", "uint")):
        low = 0 if name[0] == "u" else -9
        return rng.integers(low, 10, shape).astype(kind)
    values = rng.standard_normal(shape) * 2
    if operand.fill == "special":
        flat = values.reshape(-1)
        flat[: len(SPECIAL)] = SPECIAL[: flat.size]
        rng.shuffle(flat)
    elif operand.fill == "positive":
        values = np.abs(values) + 0.1
    elif operand.fill == "unit":
        values = np.tanh(values)
    return values.astype(kind)


def _unary(names: str, dtypes: tuple[str, ...], fill: str = "special") -> list[Case]:
    return [Case(name, (Operand("N, 9", fill=fill),), {}, dtypes) for name in names.split()]


def _binary(names: str, dtypes: tuple[str, ...]) -> list[Case]:
    found = []
    for name in names.split():
        found.append(Case(name, (Operand("N, 9", fill="special"),) * 2, {}, dtypes))
        found.append(Case(name, (Operand("N, 1, 4"), Operand("6, 1")), {}, dtypes))
        found.append(Case(name, (Operand("N, M"), Operand("M, N")), {}, dtypes[:1]))
        found.append(Case(name, (Operand("N, 4"), Operand("", constant=True)), {}, dtypes))
    return found


X = Operand("N, 9")

ELEMENTWISE = [
    *_unary("abs negative relu sign square", (*FLOATS, *SIGNED)),
    *_unary("ceil floor round trunc", (*FLOATS, "int32")),
    *_unary(
        "acos acosh asin asinh atan atanh cos cosh erf exp expm1 gelu gelu_tanh log log1p rsqrt "
        "sigmoid silu sin sinh softplus sqrt tan tanh",
        FLOATS,
    ),
    *_unary("isnan isfinite", FLOATS),
    *_unary("bitwise_not", (*INTEGERS, "bool")),
    *_unary("logical_not", ("bool",)),
    *(
        Case("isinf", (Operand("N, 9", fill="special"),), {"negative": n, "positive": p}, FLOATS)
        for n in (False, True)
        for p in (False, True)
    ),
    Case("leaky_relu", (Operand("N, 9", fill="special"),), {"alpha": 0.1}, FLOATS),
    *(
        Case("clip", (Operand("N, 9", fill="special"),), {"min": low, "max": high}, NUMBERS)
        for low, high in ((None, 2), (-1, None), (0.5, 1.5), (3, 1), (None, None))
    ),
    Case("where", (Operand("N, 1", "bool"), X, Operand("9")), {}, ALL),
    Case("where", (Operand("N, 9", "bool"), X, Operand("", constant=True)), {}, ALL),
    *_binary("add multiply maximum minimum", (*NUMBERS, "bool")),
    *_binary("subtract divide floor_divide floor_mod truncated_mod", NUMBERS),
    *_binary("equal not_equal less less_equal greater greater_equal", ALL),
    *_binary("bitwise_and bitwise_or bitwise_xor", (*INTEGERS, "bool")),
    *_binary("logical_and logical_or logical_xor", ("bool",)),
    *_binary("left_shift right_shift", INTEGERS),
    Case("power", (Operand("N, 9", fill="positive"), Operand("9")), {}, FLOATS),
    Case("power", (Operand("N, 9"), Operand("9")), {}, SIGNED),
    Case("power", (Operand("N, 9"), Operand("", values=(3,), constant=True)), {}, NUMBERS),
    Case("power", (Operand("N, 9"), Operand("", values=(0.5,), constant=True)), {}, FLOATS),
    Case("divide", (Operand("4"), Operand("4", values=(0, -1, 2, -3))), {}, SIGNED),
    Case("cast", (Operand("N, 9", fill="special"),), {"dtype": "bool"}, FLOATS),
    *(Case("cast", (X,), {"dtype": target}, ALL) for target in ALL if target != "uint8"),
    Case("cast", (Operand("N, 9", "uint8"),), {"dtype": "float32"}),
    Case("bitcast", (X,), {"dtype": "int32"}, ("float32",)),
    Case("bitcast", (X,), {"dtype": "float64"}, ("int64",)),
]

MOVES = [
    Case("reshape", (Operand("N, 6"),), {"shape": (d("N*2"), 3)}, ALL),
    Case("permute_dims", (Operand("N, 3, 4"),), {"axes": (2, 0, 1)}, ALL),
    Case("expand_dims", (Operand("N, 3"),), {"axis": (0, -1)}, ALL),
    Case("squeeze", (Operand("1, N, 1"),), {"axis": (0, -1)}, ALL),
    Case("require", (Operand("N, 3"),), {"least": d("N - 1"), "problem": "{N} is too small"}, ALL),
    Case("broadcast_to", (Operand("N, 1"),), {"shape": (2, d("N"), 3)}, ALL),
    Case("broadcast_to", (Operand("M, 3"),), {"shape": (d("N"), 3)}, ("float32",)),
    Case("concat", (Operand("N, 3"), Operand("K, 3"), Operand("2, 3")), {"axis": 0}, ALL),
    Case("concat", (Operand("N, 3"), Operand("N, 1")), {"axis": -1}, ALL),
    Case("concat", (Operand("N, E"), Operand("N, 2")), {"axis": 1}),
    Case("split", (Operand("N, 6"),), {"sizes": (1, 2, 3), "axis": -1}, ALL),
    Case("split", (Operand("N + 2, 3"),), {"sizes": (d("N"), 2), "axis": 0}, ("float32",)),
    Case("tile", (Operand("N, 3"),), {"repeats": (2, 1)}, ALL),
    Case("tile", (Operand("2, 3"),), {"repeats": (d("K"), 2)}, ALL),
    Case("flip", (Operand("N, 3"),), {"axis": (0,)}, ALL),
    Case("flip", (Operand("N, 3, 2"),), {"axis": (1, -1)}, ALL),
    *(
        Case("trilu", (Operand("2, N, 6"),), {"upper": upper, "k": k}, ALL)
        for upper in (False, True)
        for k in (-1, 0, 2, 2**63 - 1, -(2**63))
    ),
    *(
        Case(
            "strided_slice",
            (Operand("N, 8"),),
            {"axes": axes, "begin": begin, "size": size, "strides": strides},
            ALL,
        )
        for axes, begin, size, strides in (
            ((0,), (1,), (d("N - 2"),), (1,)),
            ((1,), (7,), (4,), (-2,)),
            ((0, -1), (d("N - 1"), 0), (d("N"), 3), (-1, 3)),
            ((1,), (8,), (0,), (1,)),
        )
    ),
    *(
        Case("pad", (Operand("N, 4"),), {"padding": padding, "mode": mode, "value": 2}, dtypes)
        for mode, dtypes in (
            ("constant", ALL),
            ("edge", ALL),
            ("reflect", ("float32", "int64")),
            ("wrap", ("float32", "int64")),
        )
        for padding in ((1, 2, 0, 3), (0, -1, 0, 1), (2, 9, d("K"), 0))
    ),
    Case("full", (), {"shape": (d("N"), 2), "value": 3, "dtype": "float32"}),
    Case("full", (), {"shape": (2, 2), "value": 1, "dtype": "bool"}),
    Case("full", (), {"shape": (2,), "value": -5, "dtype": "int64"}),
    Case("arange", (), {"size": d("N"), "start": d("K"), "step": 2, "dtype": "int64"}),
    Case("arange", (), {"size": 7, "start": 0.5, "step": -0.25, "dtype": "float32"}),
    Case("dims", (), {"values": (d("N*K + 1"), 4, d("N//2"))}),
    Case("dims", (), {"values": (d("N"),), "scalar": True}),
]
"""`dims`, `arange` and `full` read sizes: they need N and K of the other nodes' inputs."""

_HOLES = (np.nan, 1, 2, 1, np.nan, 1, 2, 1, np.nan, np.nan, np.nan, np.nan)

REDUCTIONS = [
    *(
        Case(op, (Operand("N, 3, 4"),), {"axis": axis, "keepdims": keep}, NUMBERS)
        for op in ("sum", "mean", "prod", "max", "min")
        for axis, keep in ((None, False), ((0, -1), True), (1, False), ((), False))
    ),
    *(Case(op, (Operand("4, E"),), {"axis": (1,)}, ("float32", "int64")) for op in ("sum", "prod", "max", "min")),
    *(Case(op, (Operand("N, 9", fill="special"),), {"axis": (1,)}) for op in ("max", "min")),
    *(
        Case(op, (Operand("4, 3", values=_HOLES),), {"axis": 1, "select_last": last, "nan_wins": wins})
        for op in ("argmax", "argmin")
        for last in (False, True)
        for wins in (False, True)
    ),
    *(
        Case(op, (Operand("N, 9", fill=fill),), {"axis": axis, "keepdims": keep, "select_last": last}, types)
        for op in ("argmax", "argmin")
        for last in (False, True)
        for axis, keep, fill, types in (
            (0, True, "normal", ALL),
            (-1, False, "special", ("float32",)),
        )
    ),
    *(
        Case(op, (Operand("N, 4"),), {"axis": axis, "exclusive": e, "reverse": r}, types)
        for op, types in (("cumsum", NUMBERS), ("cumprod", ("float32", "int64")))
        for axis in (0, -1)
        for e in (False, True)
        for r in (False, True)
    ),
    *(
        Case(op, (Operand("N, 3, 4"),), {"axis": axis}, FLOATS)
        for op in ("softmax", "log_softmax")
        for axis in (0, 1, -1)
    ),
    *(
        Case("layer_norm", (Operand("N, 4, 6"), gamma, beta), {"axis": axis}, FLOATS)
        for axis, gamma, beta in (
            (-1, Operand("6"), Operand("6")),
            (1, Operand("4, 6"), None),
            (-1, None, None),
        )
    ),
    Case("rms_norm", (Operand("N, 4, 6"), Operand("6")), {"axis": -1, "epsilon": 1e-6}, FLOATS),
    *(
        Case("topk", (Operand("N, 9", fill=fill),), {"k": k, "axis": axis, "largest": largest}, types)
        for largest in (False, True)
        for k, axis, fill, types in (
            (3, 1, "normal", (*NUMBERS, "bool")),
            (5, 0, "special", ("float32",)),
            (9, 1, "special", ("float32",)),
            (d("K"), -1, "normal", ("int8",)),
        )
    ),
]

INDEX = Operand("", "int64", "index", -4, 4)


def _index(shape: str, low: int = -4, high: int = 4, dtype: str = "int64", **kwargs: Any) -> Operand:
    return Operand(shape, dtype, "index", low, high, **kwargs)


INDEXED = [
    Case("take", (Operand("N, 4"), _index("K, 2")), {"axis": 1}, ALL),
    Case("take", (Operand("N, 4"), _index("", -5, 5, "int32")), {"axis": 0}, ALL),
    Case("take", (Operand("6, 4"), _index("3", -6, 6, constant=True)), {"axis": 0}, ALL),
    Case("gather_elements", (Operand("4, N"), _index("K, N")), {"axis": 0}, ALL),
    Case("gather_elements", (Operand("5, 4"), _index("3, 6")), {"axis": -1}, ALL),
    Case("gather_nd", (Operand("4, 4, N"), _index("K, 2")), {}, ALL),
    Case("gather_nd", (Operand("N, 4, 3"), _index("N, 2, 1")), {"batch_dims": 1}, ALL),
    *(
        Case(
            "scatter_elements",
            (Operand("4, N"), _index("K, N"), Operand("K, N")),
            {"axis": 0, "reduction": reduction},
            (*FLOATS, "int64", "int32"),
        )
        for reduction in ("none", "add", "mul", "max", "min")
    ),
    *(
        Case(
            "scatter_nd",
            (Operand("4, 4, N"), _index("6, 2"), Operand("6, N")),
            {"reduction": reduction},
            (*FLOATS, "int64", "int32"),
        )
        for reduction in ("none", "add", "mul", "max", "min")
    ),
]


def _window(n: int, **attrs: Any) -> dict[str, Any]:
    return {"strides": (1,) * n, "padding": (0,) * 2 * n, "dilation": (1,) * n, **attrs}


LINEAR = [
    *(
        Case("matmul", (Operand(a), Operand(b)), {}, (*FLOATS, "int32"), 8)
        for a, b in (
            ("N, 6", "6, 4"),
            ("2, N, 6", "6, 4"),
            ("2, 1, N, 6", "3, 6, K"),
            ("6", "6, 4"),
            ("N, 6", "6"),
            ("6", "6"),
            ("N, K", "K, 4"),
        )
    ),
    Case("matmul", (Operand("N, 6"), Operand("6, 4", constant=True)), {}, FLOATS, 8),
    Case("matmul", (Operand("N, 6"), Operand("6, 4")), {"out_dtype": "int32"}, ("int8",)),
    *(
        Case(
            "matmul",
            (Operand(f"N, {k}"), Operand(f"{k}, {n}", constant=True)),
            {"out_dtype": "int32"},
            ("int8", "uint8"),
        )
        for k in (1, 2, 7)
        for n in (1, 5, 40)
    ),
    Case("matmul", (Operand("N, E"), Operand("E, 4"))),
    *(
        Case("conv", (Operand(x), Operand(w)), attrs, ("float32", "float16"), 32)
        for x, w, attrs in (
            ("N, 3, 8, 9", "4, 3, 3, 3", _window(2, padding=(1, 1, 1, 1))),
            ("N, 3, 8, 9", "4, 3, 3, 2", _window(2, strides=(2, 1), padding=(0, 1, 2, 0))),
            ("2, 4, H, 9", "6, 2, 3, 3", _window(2, groups=2, dilation=(1, 2))),
            ("2, 4, 8", "4, 1, 3", _window(1, groups=4, padding=(1, 1))),
            ("1, 2, 4, 5, 6", "3, 2, 2, 2, 2", _window(3)),
        )
    ),
    Case(
        "conv",
        (Operand("2, 3, 6, 6"), Operand("4, 3, 3, 3")),
        _window(2, out_dtype="int32"),
        ("int8",),
    ),
    *(
        Case("conv", (Operand(x), Operand(w, constant=True)), attrs, ("float32", "float64"), 32)
        for x, w, attrs in (
            ("N, 3, 8, H", "20, 3, 3, 3", _window(2, padding=(1, 1, 1, 1), strides=(2, 2))),
            ("N, 4, H", "6, 2, 3", _window(1, groups=2, padding=(0, 2))),
        )
    ),
    *(
        Case("conv_transpose", (Operand(x), Operand(w)), attrs, ("float32", "float16"), 32)
        for x, w, attrs in (
            ("N, 3, 4, 5", "3, 2, 3, 3", _window(2, strides=(2, 2), output_padding=(1, 0))),
            ("2, 4, H", "4, 3, 4", _window(1, strides=(3,), padding=(1, 2), output_padding=(0,), groups=2)),
            ("2, 2, 4, 4", "2, 3, 2, 2", _window(2, dilation=(2, 1), output_padding=(0, 0))),
        )
    ),
    *(
        Case(op, (Operand("N, 2, 7, H"),), _window(2, pool_size=(3, 2), **attrs), ("float32", "float16", *ints))
        for op, ints in (("max_pool", ("int8", "uint8")), ("avg_pool", ()))
        for attrs in (
            {"strides": (2, 2)},
            {"padding": (1, 0, 1, 1)},
            {"strides": (2, 2), "ceil_mode": True, "padding": (1, 1, 0, 0)},
            {"dilation": (2, 1)},
            *([{"padding": (1, 1, 1, 1), "count_include_pad": True}] if op == "avg_pool" else []),
        )
    ),
]


def _layer(op: str, gates: int, d: int, extra: tuple[Any, ...], constant: bool) -> tuple[Any, ...]:
    weight = Operand(f"{d}, {gates * 6}, 4", fill="unit", constant=constant)
    recurrence = Operand(f"{d}, {gates * 6}, 6", fill="unit", constant=constant)
    return (Operand("N, K, 4", fill="unit"), weight, recurrence, *extra)


_LENGTHS = Operand("3", "int32", values=(5, 2, 0))
_FUNCTIONS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
_OTHERS = {
    "lstm": ("hardsigmoid", "softsign", "elu"),
    "gru": ("affine", "leakyrelu"),
    "rnn": ("relu",),
}


def _recurrent(op: str, gates: int, own: dict[str, Any]) -> list[Case]:
    state = Operand("1, K, 6", fill="unit")
    both = Operand("2, K, 6", fill="unit")
    memory = (state,) if op == "lstm" else ()
    holes = (Operand("1, 18", fill="unit"),) if op == "lstm" else ()
    bias = Operand(f"1, {2 * gates * 6}", fill="unit")
    bias2 = Operand(f"2, {2 * gates * 6}", fill="unit")
    names = _FUNCTIONS[op]
    return [
        Case(op, _layer(op, gates, 1, (), True), {"activations": names}, FLOATS[:3], 8),
        Case(op, _layer(op, gates, 1, (bias, None, state, *memory, *holes), False),
             {"activations": names, "direction": "reverse", **own}, FLOATS[:3], 8),
        Case(op, _layer(op, gates, 2, (bias2, _LENGTHS, both, *((both,) if memory else ())), True),
             {"activations": names * 2, "direction": "bidirectional", "clip": 0.8}, FLOATS[:1], 8),
        Case(op, _layer(op, gates, 1, (bias,), False),
             {"activations": _OTHERS[op], "alpha": (0.3,), "beta": (0.4,)}, FLOATS[:1], 8),
    ]  # fmt: skip


RECURRENT = [
    *_recurrent("lstm", 4, {"input_forget": True}),
    _recurrent("lstm", 4, {})[1],
    *_recurrent("gru", 3, {"linear_before_reset": True}),
    _recurrent("gru", 3, {})[1],
    *_recurrent("rnn", 1, {}),
    *(
        Case(
            op,
            (
                Operand("N, K, 4", fill="unit"),
                *(Operand(f"1, {gates}, {n}", fill="unit", constant=True) for n in (4, 1)),
            ),
            {"activations": _FUNCTIONS[op]},
            ("float32",),
            8,
        )
        for op, gates in (("lstm", 4), ("gru", 3), ("rnn", 1))
    ),
]

_HEADS = ("bshd", "blhd", "blhe")

ATTENTION = [
    *(
        Case("attention", tuple(map(Operand, shapes)), {"axes": axes, "output": output, "scale": 0.5}, types, 64)
        for shapes, axes, output, types in (
            (("2, N, 3, 8", "2, H, 3, 8", "2, H, 3, 5"), _HEADS, "bshe", FLOATS),
            (("2, 40, 3, 16", "2, H, 3, 16", "2, H, 3, 16"), _HEADS, "hbse", ("float32",)),
            (("N, 30, 3, 2, 9",) * 3, ("bs0hd", "bl1hd", "bl2he"), "bshe", ("float32",)),
            (("H, 4", "M, 4", "M, 6"), ("sd", "ld", "le"), "se", ("float32", "float16")),
            (("N, 4", "E, 4", "E, 6"), ("sd", "ld", "le"), "se", ("float32", "float16")),
            (("30, 20", "E, 20", "E, 20"), ("sd", "ld", "le"), "se", ("float32",)),
            (("2, 3, N, 8", "2, H, 8", "2, H, 8"), ("grsd", "gld", "gle"), "gsre", ("float32",)),
            # Not what the processor's own kernel takes: queries of a mask outermost, rows that are not contiguous.
            (("N, 4, 2", "7, 4, 2", "7, 6, 2"), ("sdh", "ldh", "leh"), "seh", ("float32",)),
        )
    ),
    *(
        Case(
            "attention",
            (*map(Operand, (f"2, {s}, 3, 8", "2, H, 3, 8", "2, H, 3, 8")), Operand(a), Operand(b, "bool")),
            {"axes": (*_HEADS, *masks), "output": "bshe", "masks": ("add", "where"), "fill": fill, "zero_nan": zero},
            ("float32", "float64"), 64,
        )
        for s in ("N", "26", "M")
        for a, b, masks, fill, zero in (
            (f"2, 3, H, {s}", f"H, {s}", ("bhls", "ls"), -1e4, False),
            ("2, 1, 1, H", "1, H", ("b00l", "0l"), float("-inf"), False),
            (f"{s}, H", f"3, {s}", ("sl", "hs"), float("-inf"), True),
        )
    ),
]  # fmt: skip

FAMILIES = {
    "attention": ATTENTION,
    "recurrent": RECURRENT,
    "elementwise": ELEMENTWISE,
    "moves": MOVES,
    "reductions": REDUCTIONS,
    "indexed": INDEXED,
    "linear": LINEAR,
}
