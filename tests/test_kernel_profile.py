"""Profiles of kernels: what is counted, whose nodes they are, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import hcomp
from hcomp.artifact.store import Artifact
from hcomp.errors import ArtifactError, UsageError
from hcomp.machine import Machine, Memory, machine_file, read_machine, write_machine
from hcomp.runtime import Session
from hcomp.runtime.kernel_clock import KernelClock, read_kernels
from hcomp.runtime.kernel_profile import KernelProfile, KernelTime
from hcomp.runtime.resources import Resources
from hcomp.runtime.steps import compile_program
from models import MODELS
from tests.cli_run import run

MACHINE = Machine(
    "this-machine", "test", 4, 100.0, 300.0, 0.5,
    (Memory("L1", 32, 200.0, 150.0, 800.0), Memory("DRAM", 0, 20.0, 15.0, 40.0)),
)  # fmt: skip
RNG = np.random.default_rng(5)


def model(nodes: list[onnx.NodeProto], x: list[Any], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def profiled(source: onnx.ModelProto, **feeds: np.ndarray) -> tuple[KernelProfile, hcomp.Program]:
    program = hcomp.compile(source, threads=1)
    return program.session.profile_kernels(feeds, runs=3), program


def test_a_product_counts_its_operations_and_bytes_for_the_sizes_of_the_run() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Add", ["a", "b"], ["y"], name="bias"),
    ]
    found, _ = profiled(model(nodes, ["n", 48], {"w": normal(48, 32), "b": normal(32)}), x=normal(7, 48))
    (kernel,) = found.kernels
    assert (kernel.nodes, kernel.calls, kernel.rule) == (("product", "bias"), 1, "contraction")
    assert kernel.operations == 2 * 7 * 48 * 32 + 7 * 32
    assert kernel.bytes == 4 * (7 * 48 + 48 * 32 + 32 + 7 * 32)
    assert kernel.us > 0


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (16, 16)])
def test_a_convolution_counts_the_products_of_its_definition(channels: int, groups: int) -> None:
    """Winograd's filtering and padding change what is computed, not what is asked for."""
    weight = normal(channels, channels // groups, 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1], group=groups)
    found, _ = profiled(model([node], [1, channels, 20, 20], {"w": weight}), x=normal(1, channels, 20, 20))
    kernel = next(k for k in found.kernels if k.rule == "convolution")
    assert kernel.operations == 2 * 9 * channels * channels // groups * 20 * 20
    assert kernel.nodes == ("conv",)


def test_equal_kernels_name_the_nodes_of_all_their_calls() -> None:
    """FuseOps keeps one function of equal groups; here their products are called twice, by views between."""
    weights = {"w": normal(32, 32), "v": normal(32, 32), "s": np.array([0, 4, 8], np.int64), "t": np.array([0, 32])}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="first/tanh"),
        helper.make_node("Reshape", ["b", "s"], ["c"], name="split"),
        helper.make_node("Reshape", ["c", "t"], ["d"], name="join"),
        helper.make_node("MatMul", ["d", "v"], ["e"], name="second"),
        helper.make_node("Tanh", ["e"], ["y"], name="second/tanh"),
    ]
    weights["s"], weights["t"] = np.array([-1, 4, 8]), np.array([-1, 32])
    found, _ = profiled(model(nodes, [6, 32], weights), x=normal(6, 32))
    kernel = next(k for k in found.kernels if k.rule == "contraction")
    assert kernel.calls == 2
    assert set(kernel.nodes) == {"first", "first/tanh", "second", "second/tanh"}


def test_kernels_inside_of_a_loop_are_counted_as_often_as_it_turns() -> None:
    source, feeds = MODELS["loop"]()
    program = hcomp.compile(source, threads=1)
    turns = len(program.run(feeds)["norms"])
    found = program.session.profile_kernels(feeds, runs=2)
    product = next(k for k in found.kernels if "/body/MatMul" in k.nodes)
    assert turns > 1
    assert product.calls == turns


@pytest.mark.parametrize("name", ["encoder_block", "residual_cnn", "gru", "dynamic_shape", "loop"])
def test_a_profiled_run_computes_the_same(name: str) -> None:
    source, feeds = MODELS[name]()
    program = hcomp.compile(source, threads=1)
    code = compile_program(program.artifact.manifest.program, Resources(program.artifact, 1, clock := KernelClock()))
    values = program.session._binder.bind(feeds).values
    expected = list(program.run(feeds).values())
    for value, wanted in zip(code.run(values), expected, strict=True):
        np.testing.assert_array_equal(np.from_dlpack(value), wanted)
    assert clock.laps
    assert all(clock.entries[key].nodes for key in clock.laps)
    assert all(lap.operations is not None and lap.bytes is not None for lap in clock.laps.values())


def test_what_bounds_a_kernel_is_what_takes_longest_on_the_machine() -> None:
    def bound(operations: int, size: int, calls: int = 1, threads: int = 1) -> tuple[str, float]:
        return KernelTime("r", "k", "rule", (), calls, 10.0, 9.0, operations, size).bound(MACHINE, threads)

    assert bound(500_000, 1000) == ("compute", pytest.approx(0.5))
    assert bound(500_000, 1000, threads=4) == ("compute", pytest.approx(1 / 6))
    assert bound(1000, 100_000) == ("memory (DRAM)", pytest.approx(0.5))
    assert bound(1000, 30_000, calls=2) == ("overhead", pytest.approx(0.1))
    assert MACHINE.peak(2) == 200.0
    assert MACHINE.memory_of(1 << 15, 1) == ("L1", 200.0)


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        (b"no", "not readable JSON"),
        (b"{}", "'kernels' is missing"),
        (b'{"kernels":{"k":{"rule":"r","nodes":[],"parameters":[[1,"n+"]]}}}', "not a dimension"),
        (b'{"kernels":{"k":{"rule":1,"nodes":[],"parameters":[]}}}', "expected a string"),
    ],
)
def test_a_damaged_list_of_kernels_is_refused(listing: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_kernels(listing, "r0")


def test_an_artifact_without_a_list_of_kernels_says_what_to_do() -> None:
    source, feeds = MODELS["mlp"]()
    old = hcomp.compile(source, threads=1).artifact
    fields = json.loads(bytes(old.member("manifest.json")))
    for step in fields["program"]["steps"]:
        del step["files"]["kernels"]
    kept = {name: old.member(name) for name in fields.pop("files")}
    artifact = Artifact.build({k: v for k, v in fields.items() if k not in ("format", "version")}, kept)
    session = Session(artifact)
    with pytest.raises(ArtifactError, match="compile the model again"):
        session.profile_kernels(feeds)


def test_a_machine_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "m.toml"
    assert read_machine(path) is None
    write_machine(MACHINE, path)
    assert read_machine(path) == MACHINE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('processor = "test"', "processor = 1", "processor: expected a text, found 1"),
        ("cores = 4", "", "cores: expected a number"),
        ("read_gb_s = 200", "read_gb_s = -1", "read_gb_s: expected a number above 0, found -1"),
        ("launch_us", "launch", "launch_us: expected a number above 0, found None"),
        ("[", "", "no machine"),
    ],
)
def test_a_machine_file_that_is_wrong_names_the_field(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(MACHINE.to_toml().replace(old, new, 1))
    with pytest.raises(UsageError, match=r"m\.toml: .*hcomp calibrate") as raised:
        read_machine(path)
    assert message in str(raised.value)


def test_calibrate_measures_and_profile_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hcomp.measure import machine as calibrate

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "SECONDS", 0.006)
    monkeypatch.setattr(calibrate, "LEAST_LAPS", 3)
    source, _ = MODELS["mlp"]()
    onnx.save(source, tmp_path / "m.onnx")
    run(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.hcomp")
    shown, _ = run(capsys, "profile", tmp_path / "m.hcomp", "--kernels")
    assert "hcomp calibrate" in shown
    assert "of peak" not in shown
    measured = json.loads(run(capsys, "calibrate", "--json")[0])
    found = read_machine(machine_file())
    assert found is not None
    assert measured["file"] == str(tmp_path / "hcomp" / "this-machine.toml")
    assert found.peak_gflop_s == pytest.approx(measured["peak_gflop_s"], rel=1e-3)
    assert found.peak_gflop_s > 1  # a scalar multiply-add a nanosecond would be 2
    assert found.peak_gflop_s_all_cores >= found.peak_gflop_s
    first, last = found.memories[0], found.memories[-1]
    assert (first.name, last.name, last.size_kb) == ("L1", "DRAM", 0)
    assert first.read_gb_s > last.read_gb_s
    assert 0 < found.launch_us < 100
    shown = run(capsys, "profile", tmp_path / "m.hcomp", "--kernels", "--runs", "3")[0]
    assert "of peak" in shown
    rows = json.loads(run(capsys, "profile", tmp_path / "m.hcomp", "--kernels", "--json")[0])["kernels"]
    assert rows == sorted(rows, key=lambda row: -row["us"])
    assert all(0 <= row["bound_share"] <= 1 for row in rows)


def test_a_measurement_on_a_busy_machine_has_laps_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get 4 ms of every 8, as a scheduler gives them; a lap that is longer than a turn always has them in it."""
    from hcomp.measure import machine as calibrate

    now = 0.0

    def call() -> None:
        nonlocal now
        turns = int(now / 0.008)
        now += 0.0002
        now += 0.004 * (int(now / 0.008) - turns)

    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: now)
    monkeypatch.setattr(calibrate, "use_threads", lambda threads: None)
    assert calibrate._best(call, 1) == pytest.approx(0.0002)
    assert calibrate.SECONDS < now < calibrate.SECONDS + 0.02
    slow = now
    monkeypatch.setattr(calibrate, "SECONDS", 0.0)
    calibrate._best(call, 1)
    assert now - slow > calibrate.LEAST_LAPS * 0.0002


def test_profile_shows_the_steps_and_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _ = MODELS["mlp"]()
    onnx.save(source, tmp_path / "m.onnx")
    run(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.hcomp")
    shown, _ = run(capsys, "profile", tmp_path / "m.hcomp", "--trace", tmp_path / "t.json")
    assert "launch r0" in shown
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    _, error = run(capsys, "profile", tmp_path / "m.hcomp", "--kernels", "--trace", "t.json", status=2)
    assert "--trace" in error
    run(capsys, "profile", tmp_path / "m.hcomp", "--runs", "0", status=2)
    run(capsys, "profile", tmp_path / "m.hcomp", "--kernels", "--runs", "0", status=2)


def test_fused_kernels_take_their_sizes_in_the_order_of_names() -> None:
    """FuseOps takes them from a hash table of addresses, so their order, and the artifact's bytes, would change."""
    weights, nodes, value = {}, [], "x"
    for number in range(6):
        weights[f"w{number}"] = normal(8 + number, 8 if number == 0 else 7 + number, 1, 1)
        nodes.append(helper.make_node("Conv", [value, f"w{number}"], [f"c{number}"], strides=[2, 2]))
        nodes.append(helper.make_node("Sigmoid", [f"c{number}"], [f"s{number}"]))
        value = f"s{number}"
    nodes[-1].output[0] = "y"
    source = model(nodes, ["b", 8, "h", "w"], weights)
    x = normal(2, 8, 70, 90)
    program = hcomp.compile(source, threads=1)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(program.run({"x": x})["y"], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-6)
    (launch,) = program.artifact.manifest.program.launches()
    kernels = json.loads(bytes(program.artifact.member(launch.files["kernels"])))["kernels"]
    taken = [[p for p in kernel["parameters"] if isinstance(p, str)] for kernel in kernels.values()]
    assert sum(len(sizes) > 1 for sizes in taken) >= 4
    assert all(sizes == sorted(sizes) for sizes in taken)
