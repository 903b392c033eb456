"""Every kind of kernel is scheduled by a rule and computes what numpy computes."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from hcomp.codegen.kernel_list import rules_of
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule import schedule_module

OP = relax.op
CPU = CpuFeatures.host()
RNG = np.random.default_rng(0)

Shape = tuple[int | str, ...]
Body = Callable[..., Any]
SIZES = {"n": 5, "m": 13, "k": 19}


def prepared(functions: dict[str, tuple[list[tuple[Shape, str]], Body]]) -> Any:
    """Return a module of one Relax function a case, ready for `schedule_module`."""
    bb = relax.BlockBuilder()
    for name, (inputs, body) in functions.items():
        symbols: dict[str, Any] = {}

        def dim(d: int | str, symbols: dict[str, Any] = symbols) -> Any:
            return symbols.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else d

        types = [relax.TensorType([dim(d) for d in shape], dtype) for shape, dtype in inputs]
        params = [relax.Var(f"x{k}", ty) for k, ty in enumerate(types)]
        with bb.function(name, params):
            with bb.dataflow():
                result = bb.emit_output(body(bb, *params))
            bb.emit_func_output(result)
    passes = [
        relax.backend.DispatchSortScan(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),
    ]
    with CPU.tvm_target():
        return tvm.ir.transform.Sequential(passes)(bb.get())


def built(mod: Any) -> Any:
    """Return a VM of a scheduled module."""
    t = relax.transform
    pipeline = tvm.ir.transform.Sequential(
        [
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
    )
    with CPU.tvm_target():
        executable = relax.build(mod, CPU.tvm_target(), relax_pipeline=pipeline, exec_mode="compiled")
    return relax.VirtualMachine(executable, tvm.cpu())


def arrays(inputs: list[tuple[Shape, str]]) -> list[np.ndarray]:
    """Return random inputs with symbols replaced by `SIZES`."""
    found = []
    for shape, dtype in inputs:
        concrete = [SIZES[d] if isinstance(d, str) else d for d in shape]
        if dtype.startswith("float"):
            found.append(RNG.standard_normal(concrete).astype(dtype))
        else:
            found.append(RNG.integers(0, 5, concrete).astype(dtype))
    return found


def check(cases: dict[str, tuple[list[tuple[Shape, str]], Body, Body]]) -> dict[str, str]:
    """Build all cases in one module, compare each with numpy, return the rules used."""
    mod = schedule_module(prepared({n: (i, f) for n, (i, f, _) in cases.items()}), CPU)
    report = rules_of(mod)
    assert "unscheduled" not in report.values(), report
    vm = built(mod)
    for name, (inputs, _, reference) in cases.items():
        values = arrays(inputs)
        result = vm[name](*[tvm.runtime.tensor(v) for v in values]).numpy()
        expected = np.asarray(reference(*values))
        assert result.shape == expected.shape, name
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        tolerance = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-13}.get(str(result.dtype), 0)
        np.testing.assert_allclose(result.astype("float64"), expected, rtol=0, atol=tolerance * scale * 4, err_msg=name)
    return report


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def norm(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * g + b


def f32(*shapes: Shape) -> list[tuple[Shape, str]]:
    return [(s, "float32") for s in shapes]


def matmul(bb: Any, a: Any, b: Any) -> Any:
    return bb.emit(OP.matmul(a, b))


PRODUCTS = [
    ((4, 6), (6, 5)),
    ((1, 64), (64, 130)),
    ((13, 33), (33, 50)),
    ((7, 16), (16, 16)),
    ((64, 40), (40, 96)),
    ((3, 9, 17), (17, 21)),
    ((2, 3, 8, 16), (2, 3, 16, 24)),
    ((2, 1, 8, 16), (3, 16, 7)),
    ((9, 16), (2, 16, 33)),
    (("m", 33), (33, 50)),
    (("n", "m", 16), (16, 40)),
    (("n", "m", "k"), ("n", "k", "m")),
    ((1, "k"), ("k", 40)),
    ((11,), (11, 17)),
    ((5, 11), (11,)),
    ((12, 1), (1, 12)),
    ((0, 5), (5, 7)),
    ((4, 0), (0, 7)),
    ((4, 5), (5, 0)),
]


def test_products_of_all_shapes() -> None:
    cases = {f"p{n}": (f32(a, b), matmul, np.matmul) for n, (a, b) in enumerate(PRODUCTS)}
    report = check(cases)
    assert sum(rule == "contraction" for rule in report.values()) >= len(PRODUCTS) - 7


def test_product_with_fused_bias_gelu_and_transposed_operand() -> None:
    def fused(bb: Any, x: Any, w: Any, b: Any) -> Any:
        return bb.emit(OP.nn.gelu(bb.emit(OP.add(matmul(bb, x, w), b))))

    def transposed(bb: Any, x: Any, w: Any) -> Any:
        return matmul(bb, x, bb.emit(OP.permute_dims(w, [1, 0])))

    report = check(
        {
            "a": (f32((37, 24), (24, 19), (19,)), fused, lambda x, w, b: gelu(x @ w + b)),
            "b": (f32(("m", 24), (24, 32), (32,)), fused, lambda x, w, b: gelu(x @ w + b)),
            "c": (f32((13, 24), (33, 24)), transposed, lambda x, w: x @ w.T),
            "d": (f32((1, 24), (33, 24)), transposed, lambda x, w: x @ w.T),
        }
    )
    assert [rule for name, rule in report.items() if "gelu" in name] == ["contraction"] * 2


def test_products_of_other_dtypes() -> None:
    def to_int32(bb: Any, a: Any, b: Any) -> Any:
        return bb.emit(OP.matmul(a, b, out_dtype="int32"))

    check(
        {
            "double": ([((9, 20), "float64"), ((20, 11), "float64")], matmul, np.matmul),
            "half": (
                [((9, 20), "float16"), ((20, 11), "float16")],
                matmul,
                lambda a, b: a.astype("float32") @ b.astype("float32"),
            ),
            "int8": (
                [((9, 20), "int8"), ((20, 11), "int8")],
                to_int32,
                lambda a, b: a.astype("int32") @ b.astype("int32"),
            ),
        }
    )


def one(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Body:
    return lambda bb, *x: bb.emit(op(*x, *args, **kwargs))


def test_row_wise() -> None:
    def rms(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w

    def softmax_axis(axis: int) -> Body:
        return lambda x: softmax(x, axis)

    report = check(
        {
            "last": (f32((6, 50)), one(OP.nn.softmax, -1), softmax_axis(-1)),
            "exact": (f32((3, 4, 64)), one(OP.nn.softmax, -1), softmax_axis(-1)),
            "symbolic": (f32(("n", "m", "k")), one(OP.nn.softmax, -1), softmax_axis(-1)),
            "middle": (f32((2, 7, 5, 3)), one(OP.nn.softmax, 1), softmax_axis(1)),
            "square": (f32((2, 8, 8, 8)), one(OP.nn.softmax, 2), softmax_axis(2)),
            "first": (f32((7, 5)), one(OP.nn.softmax, 0), softmax_axis(0)),
            "log": (
                f32(("n", 33)),
                one(OP.nn.log_softmax, -1),
                lambda x: np.log(softmax(x.astype("float64"), -1)),
            ),
            "layer": (f32((6, 50), (50,), (50,)), one(OP.nn.layer_norm, [-1]), norm),
            "layer_sym": (f32(("n", "m", 48), (48,), (48,)), one(OP.nn.layer_norm, [-1]), norm),
            "rms": (f32(("n", 48), (48,)), one(OP.nn.rms_norm, [-1]), rms),
        }
    )
    assert sum(rule == "row-wise" for rule in report.values()) >= 7


REDUCTIONS: list[tuple[Shape, list[int]]] = [
    ((7, 50), [1]),
    ((7, 50), [0]),
    ((3, 5, 33), [1]),
    ((2, 6, 7, 7), [2, 3]),
    ((2, 6, 7, 7), [0, 2]),
    ((130,), [0]),
    (("n", "k"), [1]),
    (("n", "k"), [0]),
    ((2, "n", "m", "k"), [2, 3]),
    ((6, 512), [0]),
]


def test_reductions_over_all_axes() -> None:
    cases: dict[str, Any] = {}
    for number, (shape, axes) in enumerate(REDUCTIONS):
        axis = tuple(axes)
        for name, op, ref in (
            ("sum", OP.sum, np.sum),
            ("max", OP.max, np.max),
            ("min", OP.min, np.min),
            ("mean", OP.mean, np.mean),
        ):
            cases[f"{name}{number}"] = (
                f32(shape),
                one(op, axes),
                lambda x, ref=ref, axis=axis: ref(x, axis=axis),
            )
    cases["prod"] = (f32((4, 9)), one(OP.prod, [1]), lambda x: x.prod(1))
    cases["int"] = ([((4, 90), "int32")], one(OP.sum, [1]), lambda x: x.sum(1))
    cases["argmax"] = (f32((5, 77)), one(OP.argmax, 1), lambda x: x.argmax(1))
    cases["argmin"] = (f32(("n", "k")), one(OP.argmin, 0), lambda x: x.argmin(0))
    check(cases)


def test_scan_and_sort_are_kept() -> None:
    report = check(
        {
            "cumsum": (f32((4, 33)), one(OP.cumsum, 1), lambda x: np.cumsum(x, 1)),
            "sort": (f32((4, 33)), one(OP.sort), lambda x: np.sort(x, -1)),
        }
    )
    assert "opaque" in report.values()


def pooled(x: np.ndarray, k: int, s: int, p: int, reduce: Any, fill: float) -> np.ndarray:
    x = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))[:, :, ::s, ::s]
    return reduce(view, axis=(4, 5))


def test_pooling() -> None:
    check(
        {
            "max": (
                f32((2, 3, 13, 14)),
                one(OP.nn.max_pool2d, (3, 3), (2, 2), (1, 1, 1, 1)),
                lambda x: pooled(x, 3, 2, 1, np.max, -np.inf),
            ),
            "average": (
                f32((1, 4, 9, 9)),
                one(OP.nn.avg_pool2d, (2, 2), (2, 2)),
                lambda x: pooled(x, 2, 2, 0, np.mean, 0.0),
            ),
            "symbolic": (
                f32(("n", 3, "m", "k")),
                one(OP.nn.max_pool2d, (3, 3), (1, 1), (1, 1, 1, 1)),
                lambda x: pooled(x, 3, 1, 1, np.max, -np.inf),
            ),
        }
    )


def test_maps() -> None:
    def chain(bb: Any, x: Any) -> Any:
        for _ in range(20):  # each level reads the one before twice: must not grow as 2 ** 20
            x = bb.emit(OP.add(bb.emit(OP.tanh(x)), x))
        return x

    def chain_reference(x: np.ndarray) -> np.ndarray:
        x = x.astype("float64")
        for _ in range(20):
            x = np.tanh(x) + x
        return x

    report = check(
        {
            "relu": (f32((3, 5, 7)), one(OP.nn.relu), lambda x: np.maximum(x, 0)),
            "relu_sym": (f32(("n", "m", "k")), one(OP.nn.relu), lambda x: np.maximum(x, 0)),
            "broadcast": (f32((2, 3, 8, 5), (3, 1, 1)), one(OP.add), np.add),
            "broadcast_sym": (f32(("n", "m", "k"), ("m", 1)), one(OP.multiply), np.multiply),
            "scalar": (f32((4, 4), ()), one(OP.subtract), np.subtract),
            "transpose": (f32((5, 6, 7)), one(OP.permute_dims, [2, 0, 1]), lambda x: x.transpose(2, 0, 1)),
            "transpose_squares": (
                f32((24, 3, 32)),
                one(OP.permute_dims, [2, 1, 0]),
                np.transpose,
            ),
            "transpose_sym": (f32(("n", "m")), one(OP.permute_dims, [1, 0]), np.transpose),
            "pad": (f32((4, 5)), one(OP.nn.pad, [1, 2, 0, 3]), lambda x: np.pad(x, [(1, 2), (0, 3)])),
            "slice": (
                f32((9, 10)),
                one(OP.strided_slice, [0, 1], [1, 2], [9, 10], [2, 3]),
                lambda x: x[1:9:2, 2:10:3],
            ),
            "tile": (f32((3, 4)), one(OP.tile, (2, 3)), lambda x: np.tile(x, (2, 3))),
            "half": ([((3, 40), "float16")], one(OP.exp), lambda x: np.exp(x.astype("float64"))),
            "double": ([((3, 40), "float64")], one(OP.exp), np.exp),
            "take": (
                [((9, 33), "float32"), ((4,), "int64")],
                one(OP.take, 0, "clip"),
                lambda x, i: x[i],
            ),
            "where": (
                [((4, 9), "bool"), ((4, 9), "float32"), ((9,), "float32")],
                one(OP.where),
                np.where,
            ),
            "chain": (f32((4, 33)), chain, chain_reference),
        }
    )
    assert set(report.values()) <= {"elementwise", "opaque", "given"}


def vector(name: str, count: int, make: Callable[..., Any], values: list[np.ndarray]) -> np.ndarray:
    """Return `make` over float32 vectors, compiled through the schedules."""
    size = values[0].size
    inputs = [te.placeholder((size,), "float32", f"a{k}") for k in range(count)]
    output = te.compute((size,), lambda i: make(*[a[i] for a in inputs]), "c")
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", name)
    library = tvm.compile(schedule_module(tvm.IRModule({name: func}), CPU), CPU.tvm_target())
    result = tvm.runtime.tensor(np.zeros(size, "float32"))
    library[name](*[tvm.runtime.tensor(v) for v in values], result)
    return np.asarray(result.numpy())


def ulps(result: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest error in units in the last place, of results of 2**-125 and more."""
    with np.errstate(all="ignore"):
        rounded = exact.astype("float32")
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(result[special], rounded[special])
    normal = ~special & (np.abs(exact) >= 2.0**-125)
    step = np.spacing(np.abs(rounded[normal])).astype("float64")
    return float((np.abs(result[normal].astype("float64") - exact[normal]) / step).max())


SPECIAL = np.array(
    [
        *(0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3e38, -3e38, 1, -1),
        *(88.7, 88.73, -87.3, -87.4, -103, -104, 0.5, 2, 1e5, -1e5, 127.9, 128, -126, -149),
    ],
    "float32",
)
UNARY: dict[str, tuple[Any, Any, tuple[float, float], float]] = {
    "exp": (tirx.exp, np.exp, (-105, 90), 4),
    "exp2": (tirx.exp2, np.exp2, (-150, 130), 4),
    "exp10": (tirx.exp10, lambda x: 10.0**x, (-45, 39), 4),
    "expm1": (lambda x: tirx.call_pure_extern("float32", "expm1f", x), np.expm1, (-30, 90), 4),
    "libm": (lambda x: tirx.call_pure_extern("float32", "tanhf", x), np.tanh, (-10, 10), 6),
    "log": (tirx.log, np.log, (0, 4), 4),
    "log2": (tirx.log2, np.log2, (0, 4), 4),
    "log10": (tirx.log10, np.log10, (0, 4), 4),
    "log1p": (tirx.log1p, np.log1p, (-1, 1), 4),
    "tanh": (tirx.tanh, np.tanh, (-10, 10), 6),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (-87, 90), 4),
    "erf": (tirx.erf, np.vectorize(math.erf), (-5, 5), 4),
    "asin": (tirx.asin, np.arcsin, (-1, 1), 4),
    "acos": (tirx.acos, np.arccos, (-1, 1), 4),
    "atan": (tirx.atan, np.arctan, (-5, 5), 4),
    "sinh": (tirx.sinh, np.sinh, (-90, 90), 4),
    "cosh": (tirx.cosh, np.cosh, (-90, 90), 4),
    "asinh": (tirx.asinh, np.arcsinh, (-5, 5), 4),
    "acosh": (tirx.acosh, np.arccosh, (1, 5), 4),
    "atanh": (tirx.atanh, np.arctanh, (-1, 1), 4),
}


@pytest.mark.parametrize("name", UNARY)
def test_vector_math_bounds(name: str) -> None:
    make, exact, (low, high), bound = UNARY[name]
    wide = 10.0 ** RNG.uniform(-30, 30, 4000) * RNG.choice([-1, 1], 4000)
    parts = [SPECIAL, RNG.uniform(low, high, 20000), RNG.standard_normal(4000), wide]
    x = np.concatenate(parts).astype("float32")
    with np.errstate(all="ignore"):
        expected = exact(x.astype("float64"))
    assert ulps(vector(name, 1, make, [x]), expected) <= bound


@pytest.mark.parametrize(("name", "make", "exact"), [("sin", tirx.sin, np.sin), ("cos", tirx.cos, np.cos)])
def test_circular_functions(name: str, make: Any, exact: Any) -> None:
    x = np.concatenate([RNG.uniform(-10, 10, 9000), RNG.uniform(-(2**30), 2**30, 9000)])
    x = np.concatenate([x, [0, -0.0, np.inf, np.nan, 1e-30]]).astype("float32")
    with np.errstate(all="ignore"):
        expected = exact(x.astype("float64"))
    np.testing.assert_allclose(vector(name, 1, make, [x]), expected, rtol=0, atol=2e-7)


def test_pow() -> None:
    a = np.concatenate([np.repeat(SPECIAL, SPECIAL.size), RNG.uniform(0, 10, 9000)])
    b = np.concatenate([np.tile(SPECIAL, SPECIAL.size), RNG.uniform(-30, 30, 9000)])
    a, b = a.astype("float32"), b.astype("float32")
    with np.errstate(all="ignore"):
        expected = np.power(a.astype("float64"), b.astype("float64"))
        assert ulps(vector("pow", 2, tirx.pow, [a, b]), expected) <= 4


def test_fused_bfloat16_operators_round_one_by_one() -> None:
    """As ml_dtypes does: a fused chain must not keep more digits than its operators one after the other."""
    x = RNG.standard_normal((16, 40)).astype("float32")
    x[0, :5] = [np.inf, -np.inf, np.nan, 0, -0.0]

    def body(bb: Any, a: Any) -> Any:
        b = bb.emit(OP.astype(a, "bfloat16"))
        wide = OP.astype(bb.emit(OP.astype(OP.multiply(OP.astype(b, "float32"), a), "bfloat16")), "float32")
        return bb.emit(OP.subtract(bb.emit(wide), a))

    mod = schedule_module(prepared({"f": ([((16, 40), "float32")], body)}), CPU)
    b = x.astype(ml_dtypes.bfloat16).astype("float32")
    with np.errstate(invalid="ignore"):
        expected = (b * x).astype(ml_dtypes.bfloat16).astype("float32") - x
    found = built(mod)["f"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(found, expected)


def test_no_libm_call_in_a_hot_loop() -> None:
    mod = schedule_module(prepared({"f": (f32((8, 64)), lambda bb, x: bb.emit(OP.nn.gelu(x)))}), CPU)
    text = mod.script(show_meta=False)
    assert "T.erf" not in text
    assert "T.exp" not in text


def test_a_failing_rule_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from hcomp.errors import CodegenError
    from hcomp.targets.cpu.schedule import module, rules

    def broken(func: Any, cpu: Any) -> Any:
        raise ValueError("no such loop")

    monkeypatch.setattr(module, "RULES", (rules.Rule("broken", broken),))
    with pytest.raises(CodegenError, match=r"rule 'broken' failed on kernel 'relu': no such loop"):
        schedule_module(prepared({"f": (f32((8, 64)), one(OP.nn.relu))}), CPU)


TURNED: list[tuple[Shape, list[int]]] = [
    ((16, 24), [1, 0]),
    ((9, 21), [1, 0]),
    ((2, 5, 4, 17), [0, 1, 3, 2]),
    ((3, 11, 6), [0, 2, 1]),
    ((2, 3, 20), [0, 2, 1]),
    ((2, 20, 2), [0, 2, 1]),
    ((12, 3, 5, 10), [3, 1, 0, 2]),
    (("n", 7, "k"), [2, 1, 0]),
    (("n", 2, "m", 9), [0, 3, 1, 2]),
    (("k", "m"), [1, 0]),
    # Axes of size 1 behind the two that are turned, in the input, the output or both.
    ((2, 12, 1, 20), [0, 3, 1, 2]),
    ((2, 12, 20, 1), [0, 2, 1, 3]),
    ((12, 20, 1, 1), [1, 2, 0, 3]),
    ((5, 1, 9, 1), [2, 3, 0, 1]),
    (("n", 12, "m", 1), [0, 2, 1, 3]),
    ((1, 20, 1), [2, 1, 0]),
    ((1, 1), [1, 0]),
]


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "int8"])
def test_transposes(dtype: str) -> None:
    def case(shape: Shape, axes: list[int]) -> Any:
        return [(shape, dtype)], lambda bb, x: bb.emit(OP.permute_dims(x, axes)), lambda x: x.transpose(axes)

    report = check({f"t{k}": case(shape, axes) for k, (shape, axes) in enumerate(TURNED)})
    assert set(report.values()) == {"elementwise"}


def test_transposes_with_work_around_them() -> None:
    def bias(bb: Any, x: Any, b: Any) -> Any:
        return bb.emit(OP.nn.relu(bb.emit(OP.add(bb.emit(OP.permute_dims(x, [0, 2, 1])), b))))

    def both_ways(bb: Any, x: Any) -> Any:
        return bb.emit(OP.add(bb.emit(OP.permute_dims(x, [1, 0])), x))

    def twice(bb: Any, x: Any, y: Any) -> Any:
        return bb.emit(OP.multiply(bb.emit(OP.permute_dims(x, [1, 0])), bb.emit(OP.permute_dims(y, [1, 0]))))

    check(
        {
            "bias": (
                [((2, 12, 30), "float32"), ((12,), "float32")],
                bias,
                lambda x, b: np.maximum(x.transpose(0, 2, 1) + b, 0),
            ),
            "both_ways": ([((20, 20), "float32")], both_ways, lambda x: x.T + x),
            "two": ([((9, 20), "float32"), ((9, 20), "float32")], twice, lambda x, y: (x * y).T),
            "square_of": ([((9, 20), "float32")], lambda bb, x: twice(bb, x, x), lambda x: (x * x).T),
        }
    )
