"""Packed matrix products, convolutions and recurrent operators agree with ONNX Runtime."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax, tirx

from hcomp.codegen.kernel_list import rules_of
from hcomp.errors import CodegenError
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy import (
    Recurrence,
    emit_conv,
    emit_conv_transpose,
    emit_gru,
    emit_lstm,
    emit_matmul,
    emit_matmul_int8,
    emit_rnn,
)
from hcomp.targets.cpu.heavy import conv as conv_module
from hcomp.targets.cpu.heavy.activations import resolve_activations
from hcomp.targets.cpu.heavy.conv import panel_columns, winograd_tile
from hcomp.targets.cpu.heavy.conv_transpose import takes_conv_transpose
from hcomp.targets.cpu.schedule import schedule_module
from hcomp.targets.cpu.schedule.conv_shape import ConvShape
from hcomp.targets.cpu.schedule.winograd import largest_error

CPU = CpuFeatures.host()
RNG = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def pack(hint: str, array: np.ndarray) -> Any:
    return relax.const(array, str(array.dtype))


def run(
    types: list[tuple[Sequence[int | str], str]],
    body: Callable[..., Any],
    values: list[np.ndarray],
) -> tuple[list[np.ndarray], dict[str, str]]:
    """Build one function through the schedules, run it, return results and the rules used."""
    symbols: dict[str, Any] = {}

    def dim(d: int | str) -> Any:
        return symbols.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else d

    bb = relax.BlockBuilder()
    params = [
        relax.Var(f"x{k}", relax.TensorType([dim(d) for d in shape], dtype)) for k, (shape, dtype) in enumerate(types)
    ]
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(body(bb, *params))
        bb.emit_func_output(result)
    t = relax.transform
    before = [
        t.LegalizeOps(),
        t.AnnotateTIROpPattern(),
        t.FuseOps(),
        t.FuseTIR(),
        t.RewriteDataflowReshape(),
    ]
    after = [
        t.ToNonDataflow(),
        t.RemovePurityChecking(),
        t.CallTIRRewrite(),
        t.StaticPlanBlockMemory(),
        t.LowerAllocTensor(),
        t.KillAfterLastUse(),
        t.LowerRuntimeBuiltin(),
        t.ComputePrimValue(),
        t.VMShapeLower(),
        t.AttachGlobalSymbol(),
    ]
    target = CPU.tvm_target()
    with target:
        mod = schedule_module(tvm.ir.transform.Sequential(before)(bb.get()), CPU)
        executable = relax.build(
            mod,
            target,
            relax_pipeline=tvm.ir.transform.Sequential(after),
            exec_mode="compiled",
        )
    vm = relax.VirtualMachine(executable, tvm.cpu())
    found = vm["main"](*[tvm.runtime.tensor(v) for v in values])
    results = [found] if hasattr(found, "numpy") else list(found)
    return [r.numpy() for r in results], rules_of(mod)


def reference(
    op: str,
    inputs: Sequence[str],
    feeds: dict[str, np.ndarray],
    constants: dict[str, np.ndarray],
    outputs: int = 1,
    **attributes: Any,
) -> list[np.ndarray]:
    """Return what ONNX Runtime computes for one node."""
    names = [f"y{k}" for k in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), names, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()],
        [helper.make_empty_tensor_value_info(n) for n in names],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def close(result: np.ndarray, expected: np.ndarray, depth: int = 1) -> None:
    """Compare with a tolerance for sums of `depth` terms, as large as the largest result."""
    assert result.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(result, expected, rtol=0, atol=4e-7 * max(8, depth) * scale)


MATMULS: list[tuple[Sequence[int | str], tuple[int, ...], int]] = [
    ((13, 33), (13, 33), 50),
    ((1, 40), (1, 40), 100),
    ((6, 40), (6, 40), 16),
    ((2, 3, 17), (2, 3, 17), 7),
    ((9, 24), (9, 24), 1),
    (("m", 40), (13, 40), 50),
    (("m", 40), (1, 40), 50),
    (("m", 40), (2, 40), 200),
    (("n", "m", 40), (3, 7, 40), 33),
    ((40,), (40,), 33),
    # Rows of several free axes, which end inside of a tile.
    (("p", "q", 13), (5, 3, 13), 20),
    (("p", "q", 13), (9, 1, 13), 20),
    (("p", "q", "r", 7), (2, 3, 5, 7), 24),
    (("p", 3, "r", 7), (3, 3, 2, 7), 24),
    ((4, "q", 7), (4, 7, 7), 16),
]


@pytest.mark.parametrize(("shape", "concrete", "width"), MATMULS)
def test_matmul(shape: Sequence[int | str], concrete: tuple[int, ...], width: int) -> None:
    x, w, b = normal(*concrete), normal(concrete[-1], width), normal(width)

    def body(bb: Any, v: Any) -> Any:
        y = emit_matmul(bb, v, w, pack, CPU)
        return bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, relax.const(b)))))

    (y,), report = run([(shape, "float32")], body, [x])
    close(y, np.maximum(x @ w + b, 0), concrete[-1])
    if width > 1:
        assert list(report.values()) == ["contraction"]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_matmul_of_another_dtype_is_ordinary(dtype: str) -> None:
    x, w = normal(5, 12).astype(dtype), normal(12, 9).astype(dtype)
    (y,), _ = run([((5, 12), dtype)], lambda bb, v: emit_matmul(bb, v, w, pack, CPU), [x])
    np.testing.assert_allclose(y.astype("float64"), x.astype("float64") @ w, atol=2e-2)


INTEGERS: list[tuple[tuple[int, ...], int, int, str, str, bool]] = [
    ((13,), 33, 50, "uint8", "int8", False),
    ((2, 3), 17, 16, "int8", "uint8", True),
    ((3, 7), 40, 5, "uint8", "uint8", True),
    ((1,), 64, 33, "int8", "int8", False),
    ((), 64, 33, "int8", "int8", False),
    ((4, 2), 2, 16, "uint8", "int8", False),
    # One row, by halves of bytes.
    ((1,), 300, 64, "uint8", "int8", False),
    ((), 33, 50, "uint8", "int8", False),
    ((1,), 64, 7, "uint8", "int8", False),
    ((1, 3), 97, 96, "uint8", "int8", True),
]


@pytest.mark.parametrize(("rows", "depth", "width", "data", "weight", "symbolic"), INTEGERS)
def test_integer_matmul_is_exact(
    rows: tuple[int, ...], depth: int, width: int, data: str, weight: str, symbolic: bool
) -> None:
    x = RNG.integers(np.iinfo(data).min, np.iinfo(data).max + 1, (*rows, depth)).astype(data)
    w = RNG.integers(np.iinfo(weight).min, np.iinfo(weight).max + 1, (depth, width)).astype(weight)
    x[..., :2], w[:2, :] = np.iinfo(data).max, np.iinfo(weight).max  # pairs of 8 bits would saturate
    w[:, -2:] = np.iinfo(weight).min  # the largest sums of either sign
    x[..., depth // 2 :] = np.iinfo(data).max
    names = tuple(f"s{k}" for k in range(len(rows))) if symbolic else rows
    (y,), _ = run([((*names, depth), data)], lambda bb, v: emit_matmul_int8(bb, v, w, pack, CPU), [x])
    np.testing.assert_array_equal(y, x.astype("int64") @ w.astype("int64"))
    assert y.dtype == np.int32


# image, weight, strides, padding, dilation, groups
CONVOLUTIONS: list[tuple[Any, ...]] = [
    ((1, 8, 9, 10), (16, 8, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 3, 13, 11), (5, 3, 3, 3), (2, 2), (1, 0, 2, 1), (1, 1), 1),
    ((1, 5, 12, 12), (7, 5, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 5, 3, 3), (7, 5, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 5, 12, 12), (7, 5, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    ((1, 6, 12, 13), (6, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6),
    ((1, 6, 12, 13), (12, 1, 5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 6),
    ((1, 8, 9, 9), (12, 4, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 2),
    ((1, 3, 20, 21), (4, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ((2, 4, 30), (6, 4, 5), (3,), (2, 1), (1,), 1),
    ((1, 4, 600), (4, 1, 3), (1,), (1, 1), (1,), 4),
    ((1, 40, 30, 30), (70, 40, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 300, 5, 5), (33, 300, 1, 3), (1, 1), (0, 1, 0, 1), (1, 1), 1),
    ((1, 20, 31, 17), (20, 1, 3, 3), (2, 1), (1, 1, 1, 1), (2, 2), 20),
    ((1, 3, 1, 1), (50, 3, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 3), (1, 2, 1), (0, 1, 1, 1, 1, 0), (1, 1, 1), 1),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: tuple[Any, ...], symbolic: bool) -> None:
    shape, weights, strides, padding, dilation, groups = case
    x, w, b = normal(*shape), normal(*weights), normal(weights[0])
    rank = len(weights) - 2
    names = ("n", *("h", "w", "d")[:rank], shape[1]) if symbolic else (shape[0], *shape[2:], shape[1])

    def body(bb: Any, v: Any) -> Any:
        y = emit_conv(
            bb,
            v,
            w,
            strides=strides,
            padding=padding,
            dilation=dilation,
            groups=groups,
            pack=pack,
            cpu=CPU,
        )
        return bb.emit(relax.op.add(y, relax.const(b)))

    (y,), report = run([(names, "float32")], body, [np.ascontiguousarray(np.moveaxis(x, 1, -1))])
    (expected,) = reference(
        "Conv",
        ["x", "w", "b"],
        {"x": x},
        {"w": w, "b": b},
        strides=strides,
        pads=padding,
        dilations=dilation,
        group=groups,
        kernel_shape=weights[2:],
    )
    close(y, np.moveaxis(expected, 1, -1), int(np.prod(weights[1:])))
    assert list(report.values()) == ["convolution"]


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 9, 10), (2, 9, 3, 13), (1, 3, 40, 41), (1, 33, 1, 2)])
@pytest.mark.parametrize(
    ("padding", "dilation"), [((1, 1, 1, 1), (1, 1)), ((0, 2, 2, 1), (1, 1)), ((2, 3, 3, 2), (2, 3))]
)
def test_winograd(
    tile: int, symbolic: bool, shape: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(conv_module, "winograd_tile", lambda *_: tile)
    n, c, h, w = shape
    x, weight, b = normal(*shape), normal(37, c, 3, 3), normal(37)
    names = ("n", "h", "w", c) if symbolic else (n, h, w, c)

    def body(bb: Any, v: Any) -> Any:
        window = {"strides": (1, 1), "padding": padding, "dilation": dilation, "groups": 1}
        y = emit_conv(bb, v, weight, **window, pack=pack, cpu=CPU)
        return bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, relax.const(b)))))

    (y,), report = run([(names, "float32")], body, [np.ascontiguousarray(np.moveaxis(x, 1, -1))])
    (expected,) = reference("Conv", ["x", "w", "b"], {"x": x}, {"w": weight, "b": b}, pads=padding, dilations=dilation)
    # The transforms' factors of up to 8 and 25 amplify the roundings (Lavin and Gray measure 10 to 20 times).
    close(y, np.maximum(np.moveaxis(expected, 1, -1), 0), 9 * c * (4 if tile == 4 else 1))
    assert list(report.values()) == ["convolution"]


def test_winograd_is_chosen_by_cost_and_error() -> None:
    def tile(o: int, c: int, size: int | None, scale: float = 1.0, **changes: Any) -> int:
        shape = ConvShape((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, c, o, panel_columns(o, CPU))
        weight = normal(o, c, 3, 3)
        weight[..., 1, 1] *= scale
        return winograd_tile(weight, replace(shape, **changes), [size, size])

    assert tile(64, 64, 56) == 4
    assert tile(64, 64, None) == 4
    assert tile(512, 512, 7) == 2
    assert tile(64, 64, 56, strides=(2, 2)) == 0
    assert tile(64, 3, 224) == 0
    assert largest_error(normal(16, 16, 3, 3), 2) < largest_error(normal(16, 16, 3, 3), 4) < 1e-5


def test_convolution_with_residual_and_activation() -> None:
    x, w, z = normal(1, 4, 9, 9), normal(10, 4, 3, 3), normal(1, 9, 9, 10)
    shape = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}

    def body(bb: Any, v: Any, other: Any) -> Any:
        y = emit_conv(bb, v, w, **shape, pack=pack, cpu=CPU)
        return bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, other))))

    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    (y,), report = run([((1, 9, 9, 4), "float32"), ((1, 9, 9, 10), "float32")], body, [last, z])
    (expected,) = reference("Conv", ["x", "w"], {"x": x}, {"w": w}, pads=(1, 1, 1, 1))
    close(y, np.maximum(np.moveaxis(expected, 1, -1) + z, 0), 36)
    assert len(report) == 1


# image, weight, strides, padding, dilation, output padding, groups
TRANSPOSED: list[tuple[Any, ...]] = [
    ((1, 8, 9, 10), (8, 16, 2, 2), (2, 2), (0, 0, 0, 0), (1, 1), (0, 0), 1),
    ((2, 5, 9, 7), (5, 20, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1),
    ((1, 5, 6, 7), (5, 1, 4, 4), (2, 2), (1, 1, 1, 1), (1, 1), (0, 0), 1),
    ((1, 5, 30, 20), (5, 3, 5, 4), (3, 2), (2, 1, 0, 1), (1, 1), (2, 0), 1),
    ((2, 4, 300), (4, 1, 5), (4,), (3, 2), (1,), (1,), 1),
    ((1, 6, 7, 9), (6, 8, 3, 3), (2, 1), (1, 2, 0, 1), (1, 2), (1, 0), 2),
    ((1, 12, 9, 9), (12, 1, 4, 4), (2, 2), (1, 1, 1, 1), (1, 1), (0, 0), 12),
    ((1, 4, 5, 5), (4, 70, 2, 2), (2, 2), (0, 1, 1, 0), (1, 1), (0, 0), 1),
    ((1, 9, 11, 12), (9, 10, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), (0, 0), 1),
    ((1, 2, 5, 6, 7), (2, 3, 2, 3, 3), (1, 2, 3), (0, 1, 1, 1, 1, 0), (1, 1, 1), (0, 1, 2), 1),
    ((1, 3, 4, 200), (3, 24, 1, 8), (1, 8), (0, 0, 0, 3), (1, 1), (0, 0), 1),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolution(case: tuple[Any, ...], symbolic: bool) -> None:
    shape, weights, strides, padding, dilation, extra, groups = case
    x, w, b = normal(*shape), normal(*weights), normal(weights[1] * groups)
    rank = len(weights) - 2
    attrs = {"strides": strides, "padding": padding, "dilation": dilation, "output_padding": extra, "groups": groups}
    assert takes_conv_transpose({**attrs, "channels_last": True}, weights)
    names = ("n", *("h", "w", "d")[:rank], shape[1]) if symbolic else (shape[0], *shape[2:], shape[1])

    def body(bb: Any, v: Any) -> Any:
        sizes = [
            (v.ty.shape[a + 1] - 1) * strides[a]
            + ((weights[a + 2] - 1) * dilation[a] + 1 + extra[a] - padding[a] - padding[rank + a])
            for a in range(rank)
        ]
        y = emit_conv_transpose(bb, v, w, **attrs, pack=pack, cpu=CPU, sizes=sizes)
        return bb.emit(relax.op.add(y, relax.const(b)))

    (y,), report = run([(names, "float32")], body, [np.ascontiguousarray(np.moveaxis(x, 1, -1))])
    (expected,) = reference(
        "ConvTranspose", ["x", "w", "b"], {"x": x}, {"w": w, "b": b}, strides=strides, pads=padding,
        dilations=dilation, output_padding=extra, group=groups, kernel_shape=weights[2:],
    )  # fmt: skip
    close(y, np.moveaxis(expected, 1, -1), shape[1] // groups * int(np.prod(weights[2:])))
    assert list(report.values()) == ["convolution"]


def test_transposed_convolutions_that_have_no_kernel() -> None:
    whole = {"strides": (2,), "padding": (0, 0), "dilation": (1,), "output_padding": (0,), "channels_last": True}
    assert takes_conv_transpose(whole, (3, 4, 3))
    for other in ({"dilation": (2,)}, {"padding": (6, 0)}, {"padding": (0, 5)}, {"channels_last": False}):
        assert not takes_conv_transpose({**whole, **other}, (3, 4, 3))


STEPS, BATCH, WIDTH, HIDDEN = 5, 5, 3, 9
LENGTHS = np.array([5, 1, 3, 2, 4], "int32")
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
RECURRENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("lstm", {}, {}),
    ("lstm", {"direction": "bidirectional"}, {"lengths": True, "symbolic": True}),
    ("lstm", {"direction": "reverse"}, {"lengths": True, "expressions": True}),
    ("lstm", {"clip": 0.3}, {"peepholes": True}),
    ("lstm", {"input_forget": True}, {"batch": 2}),
    (
        "lstm",
        {
            "activations": ("Relu", "HardSigmoid", "Softsign"),
            "activation_alpha": (0.3,),
            "activation_beta": (0.4,),
        },
        {"batch": 1},
    ),
    ("gru", {"direction": "bidirectional"}, {"symbolic": True}),
    ("gru", {"linear_before_reset": True}, {"lengths": True}),
    ("gru", {"linear_before_reset": True}, {"expressions": True, "bare": True}),
    ("gru", {"direction": "reverse"}, {"expressions": True, "lengths": True, "batch": 3}),
    ("rnn", {"direction": "bidirectional"}, {"lengths": True}),
    ("rnn", {"activations": ("LeakyRelu",), "activation_alpha": (0.1,)}, {"bare": True}),
    (
        "rnn",
        {"activations": ("Affine",), "activation_alpha": (0.4,), "activation_beta": (0.2,)},
        {},
    ),
    ("rnn", {"activations": ("Elu",), "activation_alpha": (0.7,)}, {}),
    ("rnn", {"activations": ("Softplus",)}, {}),
]


@pytest.mark.parametrize(("kind", "attributes", "options"), RECURRENT)
def test_recurrent(kind: str, attributes: dict[str, Any], options: dict[str, Any]) -> None:
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    batch, gates = options.get("batch", BATCH), GATES[kind]
    steps_dim: int | str = "t" if options.get("symbolic") else STEPS
    batch_dim: int | str = "b" if options.get("symbolic") else batch
    x = normal(STEPS, batch, WIDTH)
    weights = {"w": normal(directions, gates * HIDDEN, WIDTH), "r": normal(directions, gates * HIDDEN, HIDDEN) * 0.3}
    if not options.get("bare"):
        weights["b"] = normal(directions, 2 * gates * HIDDEN)
    if options.get("peepholes"):
        weights["p"] = normal(directions, 3 * HIDDEN)
    feeds: dict[str, np.ndarray] = {"x": x}
    shapes: dict[str, Sequence[int | str]] = {"x": (steps_dim, batch_dim, WIDTH)}
    states = [] if options.get("bare") else ["h", "c"] if kind == "lstm" else ["h"]
    for name in states:
        feeds[name] = normal(directions, batch, HIDDEN)
        shapes[name] = (directions, batch_dim, HIDDEN)
    if options.get("lengths"):
        feeds["l"], shapes["l"] = LENGTHS[:batch], (batch_dim,)
    if options.get("expressions"):
        feeds.update(weights)
        shapes.update({n: w.shape for n, w in weights.items()})

    def body(bb: Any, *params: Any) -> Any:
        given: dict[str, Any] = {**weights, **dict(zip(feeds, params, strict=True))}
        record = Recurrence(hidden_size=HIDDEN, **attributes)
        common = {"attributes": record, "sequence_lens": given.get("l"), "pack": pack, "cpu": CPU}
        main = [given["x"], given["w"], given["r"], given.get("b"), given.get("h")]
        if kind == "lstm":
            found = emit_lstm(bb, *main, given.get("c"), peepholes=given.get("p"), **common)
            return relax.Tuple(list(found))
        return relax.Tuple(list((emit_gru if kind == "gru" else emit_rnn)(bb, *main, **common)))

    types = [(shapes[n], str(a.dtype)) for n, a in feeds.items()]
    results, report = run(types, body, list(feeds.values()))
    present = {*feeds, *weights}
    order = ["x", "w", "r", "b", "l", "h"] + (["c", "p"] if kind == "lstm" else [])
    inputs = [n if n in present else "" for n in order]
    while inputs[-1] == "":
        inputs.pop()
    plain = {k: int(v) if isinstance(v, bool) else v for k, v in attributes.items()}
    constants = {} if options.get("expressions") else weights
    expected = reference(
        kind.upper(),
        inputs,
        feeds,
        constants,
        outputs=len(results),
        hidden_size=HIDDEN,
        **plain,
    )
    for result, wanted in zip(results, expected, strict=True):
        close(result, wanted, 20)
    assert "unscheduled" not in report.values()


def test_unknown_activation_is_an_error() -> None:
    with pytest.raises(CodegenError, match="unknown activation 'Swoosh'"):
        resolve_activations(["Swoosh"])


def test_recurrent_rows_lower_a_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import hcomp
    from hcomp.targets.cpu import codegen
    from hcomp.targets.cpu.heavy.recurrent_rules import recurrent_rules

    made: list[str] = []
    rules = codegen.cpu_rules

    def extended(features: CpuFeatures, choices: Any) -> dict[str, Any]:
        own = recurrent_rules(features)

        def counted(op: str) -> Any:
            def rule(lowering: Any, node: Any) -> Any:
                made.append(op)
                return own[op](lowering, node)

            return rule

        return {**rules(features, choices), **{op: counted(op) for op in own}}

    monkeypatch.setattr(codegen, "cpu_rules", extended)
    x = normal(STEPS, BATCH, WIDTH)
    weights = {"w": normal(2, 4 * HIDDEN, WIDTH), "r": normal(2, 4 * HIDDEN, HIDDEN) * 0.3}
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=HIDDEN, direction="bidirectional")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["t", "b", WIDTH])],
        [helper.make_tensor_value_info("y", 1, ["t", 2, "b", HIDDEN])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    result = hcomp.compile(model, devices=["cpu"]).run({"x": x})["y"]
    (expected,) = reference(
        "LSTM",
        ["x", "w", "r"],
        {"x": x},
        weights,
        hidden_size=HIDDEN,
        direction="bidirectional",
    )
    close(np.asarray(result), expected, 20)
    assert made == ["lstm"]
