"""The processor's attention kernel: many sizes, masks, special values, other processors, profiles."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

import hcomp
from hcomp.cli import main
from hcomp.codegen.kernels import build_region
from hcomp.codegen.relax_module import lower_region
from hcomp.dims import symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType
from hcomp.reference import REFERENCE
from hcomp.runtime.vm import vm_region
from hcomp.targets.cpu.codegen import processor
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.lowering import cpu_rules
from hcomp.targets.cpu.schedule import schedule_module

CPU, TARGET = processor()
HEADS = ("bshd", "blhd", "blhe")
Sizes = dict[str, int]


def graph_of(axes: tuple[str, ...], sizes: Sizes, symbolic: str = "", **attrs: Any) -> Graph:
    """Return one attention whose sizes of the letters in `symbolic` are open."""
    b = GraphBuilder("g")
    kinds = ["float32"] * 3 + ["bool" if kind == "where" else "float32" for kind in attrs.get("masks", ())]
    names = []
    for own, kind in zip(axes, kinds, strict=True):
        shape = tuple(symbol(c.upper()) if c in symbolic else sizes[c] if c.isalpha() else 3 for c in own)
        names.append(b.input("x", TensorType(kind, shape)))
    return b.finish([b.emit("attention", *names, axes=axes, **attrs)])


def inputs_of(axes: tuple[str, ...], sizes: Sizes, masks: tuple[str, ...] = ()) -> list[NDArray[Any]]:
    rng = np.random.default_rng(sum(map(ord, "".join(axes))) + sum(sizes.values()))
    values: list[NDArray[Any]] = []
    for own, kind in zip(axes, [*"qkv", *masks], strict=True):
        shape = [sizes[c] if c.isalpha() else 3 for c in own]
        values.append(rng.random(shape) < 0.6 if kind == "where" else rng.standard_normal(shape).astype(np.float32))
    return values


class Built:
    """The kernel of a graph for a processor."""

    def __init__(self, graph: Graph, cpu: CpuFeatures = CPU) -> None:
        lowered = lower_region(graph, cpu_rules(cpu))
        built = build_region(lowered, TARGET, lambda module: schedule_module(module, cpu))
        (self.rule,) = {kernel["rule"] for kernel in json.loads(built.listing)["kernels"].values()}
        constants = [tvm.runtime.tensor(np.ascontiguousarray(a)) for _, a in built.constants]
        self.region = vm_region(built.program, built.objects, constants).call

    def __call__(self, *values: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = self.region([tvm.runtime.tensor(np.array(v, order="C")) for v in values], None).numpy()
        return found


def check(built: Built, axes: tuple[str, ...], sizes: Sizes, **attrs: Any) -> None:
    assert built.rule == "attention"
    values = inputs_of(axes, sizes, attrs.get("masks", ()))
    compare(built(*values), REFERENCE["attention"](*values, axes=axes, **attrs))


def compare(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def sizes(s: int, length: int, d: int = 16, e: int = 16, b: int = 2, h: int = 3) -> Sizes:
    return {"b": b, "s": s, "l": length, "h": h, "d": d, "e": e}


# Around one, two and three vectors of queries, their tasks, tiles of keys and blocks of keys.
QUERIES = (1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33, 41, 48, 95, 96, 97, 121, 200)
KEYS = (1, 2, 3, 4, 5, 7, 8, 9, 63, 170, 171, 341, 1100)


@pytest.mark.parametrize("symbolic", ["sl", "bslh", "s", "l"])
def test_one_kernel_of_open_sizes_serves_all(symbolic: str) -> None:
    own = {c: (2, 25, 40, 3)["bslh".index(c)] for c in "bslh"}
    built = Built(graph_of(HEADS, {**own, "d": 12, "e": 20}, symbolic, output="bshe", scale=0.3))
    for s in QUERIES if "s" in symbolic else (25,):
        for length in KEYS if "l" in symbolic else (40,):
            if s * length < 50_000:
                check(built, HEADS, {**own, "s": s, "l": length, "d": 12, "e": 20}, output="bshe", scale=0.3)


@pytest.mark.parametrize("s", [1, 5, 8, 17, 25, 49, 97, 130, 197])
def test_known_sizes(s: int) -> None:
    for length in (1, 3, 50, 400):
        own = sizes(s, length, 20, 12)
        check(Built(graph_of(HEADS, own, output="hbse", scale=0.3)), HEADS, own, output="hbse", scale=0.3)


@pytest.mark.parametrize(("d", "e"), [(2, 2), (3, 5), (8, 7), (9, 8), (15, 15), (33, 24), (40, 72), (130, 136)])
def test_any_width_of_heads(d: int, e: int) -> None:
    built = Built(graph_of(HEADS, sizes(1, 1, d, e), "sl", output="bshe", scale=d**-0.5))
    for s, length in ((1, 5), (4, 200), (9, 9), (30, 300), (100, 20)):
        check(built, HEADS, sizes(s, length, d, e), output="bshe", scale=d**-0.5)


MASKS: list[tuple[tuple[str, ...], tuple[str, ...], float]] = [
    (("b00l",), ("add",), -np.inf),
    (("hls",), ("add",), -np.inf),
    (("l",), ("where",), -1e4),
    (("b0ls", "0l"), ("where", "add"), -1e9),
    (("ls", "bhl", "s"), ("add", "where", "add"), -3.0),
]


@pytest.mark.parametrize(("own", "kinds", "fill"), MASKS)
def test_masks(own: tuple[str, ...], kinds: tuple[str, ...], fill: float) -> None:
    axes = (*HEADS, *(m.replace("0", "") for m in own))
    attrs = {"output": "bshe", "masks": kinds, "fill": fill}
    built = Built(graph_of(axes, sizes(1, 1), "sl", **attrs))
    for s, length in ((1, 3), (1, 700), (5, 20), (9, 9), (26, 300), (120, 5)):
        check(built, axes, sizes(s, length), **attrs)


@pytest.mark.parametrize("zero_nan", [False, True])
def test_queries_that_see_nothing_and_numbers_that_are_none(zero_nan: bool) -> None:
    axes = (*HEADS, "bls")
    attrs = {"output": "bshe", "masks": ("add",), "zero_nan": zero_nan}
    built = Built(graph_of(axes, sizes(1, 1), "sl", **attrs))
    for s, length in ((1, 6), (3, 400), (12, 9), (50, 400)):
        values = inputs_of(axes, sizes(s, length), ("add",))
        q, k, _, mask = values
        mask[0, :, 0] = -np.inf
        mask[0, : length // 2, s - 1] = -np.inf
        mask[1, :, s // 2] = -np.inf
        mask[1, -1, s - 1] = np.nan
        q[0, s // 2, 1] = np.nan
        k[1, 0, 2, 3] = np.inf
        expected = REFERENCE["attention"](*values, axes=axes, **attrs)
        assert np.isnan(expected).any() != zero_nan
        compare(built(*values), expected)


def test_large_scores_do_not_overflow() -> None:
    built = Built(graph_of(HEADS, sizes(1, 1), "sl", output="bshe", scale=100.0))
    for s, length in ((1, 500), (30, 500), (30, 9)):
        values = inputs_of(HEADS, sizes(s, length))
        expected = REFERENCE["attention"](*values, axes=HEADS, output="bshe", scale=100.0)
        # Scores are in the thousands, whose last bit is 1e-4.
        np.testing.assert_allclose(built(*values), expected, atol=1e-3)


def test_nothing_to_do() -> None:
    built = Built(graph_of(HEADS, sizes(1, 1), "bsl", output="bshe"))
    for b, s, length in ((0, 4, 4), (2, 0, 4), (2, 1, 0), (2, 9, 0), (2, 40, 0)):
        check(built, HEADS, sizes(s, length, b=b), output="bshe")


def test_parts_of_one_tensor_and_heads_that_share() -> None:
    whole = ("bs0hd", "bl1hd", "bl2he")
    built = Built(graph_of(whole, sizes(1, 1), "sl", output="bshe"))
    for s in (1, 9, 50):
        check(built, whole, sizes(s, s), output="bshe")
    shared = ("bghsd", "bgld", "gble")
    built = Built(graph_of(shared, {**sizes(1, 1), "g": 2}, "sl", output="bsghe"))
    for s, length in ((1, 200), (30, 7)):
        check(built, shared, {**sizes(s, length), "g": 2}, output="bsghe")


@pytest.mark.parametrize(("vector_bytes", "registers"), [(16, 16), (16, 32), (64, 32)])
def test_other_vectors(vector_bytes: int, registers: int) -> None:
    cpu = replace(CPU, vector_bytes=vector_bytes, registers=registers)
    axes = (*HEADS, "hls")
    attrs = {"output": "bshe", "masks": ("add",), "scale": 0.5}
    built = Built(graph_of(axes, sizes(1, 1, 20, 36), "sl", **attrs), cpu)
    for s, length in ((1, 30), (3, 300), (16, 16), (50, 70), (130, 300)):
        check(built, axes, sizes(s, length, 20, 36), **attrs)


def model() -> ModelProto:
    """Return attention of 2 heads of 16 columns over x [batch, length, 32], with a mask of keys."""
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["heads"], name="/attn/Reshape"),
        helper.make_node("Transpose", ["heads"], ["q"], name="/attn/Transpose", perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["heads"], ["k"], name="/attn/Transpose_1", perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"], name="/attn/MatMul"),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], name="/attn/Mul"),
        helper.make_node("Add", ["scaled", "mask"], ["masked"], name="/attn/Add"),
        helper.make_node("Softmax", ["masked"], ["weights"], name="/attn/Softmax", axis=-1),
        helper.make_node("MatMul", ["weights", "q"], ["mixed"], name="/attn/MatMul_1"),
        helper.make_node("Transpose", ["mixed"], ["turned"], name="/attn/Transpose_2", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "merge"], ["y"], name="/attn/Reshape_1"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 32]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1, 1, "length"]),
    ]
    constants = [
        helper.make_tensor("split", TensorProto.INT64, [4], [0, 0, 2, 16]),
        helper.make_tensor("merge", TensorProto.INT64, [3], [0, 0, 32]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.25]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NAMES = {
    f"/attn/{n}"
    for n in ("Reshape", "Transpose", "Transpose_1", "MatMul", "Mul", "Add", "Softmax", "MatMul_1", "Transpose_2")
}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_agrees_with_onnx_runtime(threads: int) -> None:
    program = hcomp.compile(model(), threads=threads)
    session = onnxruntime.InferenceSession(model().SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for batch, length in ((1, 1), (2, 7), (3, 40), (1, 500)):
        x = rng.standard_normal((batch, length, 32)).astype(np.float32)
        mask = np.where(rng.random((batch, 1, 1, length)) < 0.8, 0, -1e9).astype(np.float32)
        (expected,) = session.run(None, {"x": x, "mask": mask})
        compare(program.run({"x": x, "mask": mask})["y"], expected)


def test_a_profile_names_all_its_nodes_and_counts_its_work() -> None:
    program = hcomp.compile(model(), threads=1)
    feeds = {"x": np.ones((2, 9, 32), np.float32), "mask": np.zeros((2, 1, 1, 9), np.float32)}
    (kernel,) = program.session.profile_kernels(feeds, runs=2).kernels
    assert (kernel.rule, kernel.calls) == ("attention", 1)
    assert set(kernel.nodes) == NAMES
    assert kernel.operations == 2 * 2 * 9 * 9 * (4 * 16 + 12)
    assert kernel.bytes == 4 * (4 * 2 * 9 * 32 + 2 * 9)


def test_reports_speak_of_the_model_s_own_nodes(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx

    source, made = tmp_path / "m.onnx", tmp_path / "m.hcomp"
    onnx.save(model(), source)
    hcomp.compile(source).save(made)
    assert main(["verify", str(made), str(source)]) == 0
    for name in sorted(NAMES):
        assert main(["explain", str(made), name]) == 0
    assert main(["inspect", str(made), "--text"]) == 0
    assert main(["profile", str(made), "--kernels"]) == 0
    assert "attention" in capsys.readouterr().out
