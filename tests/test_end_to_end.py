"""Whole models: compiled, saved, loaded and run, compared with ONNX Runtime; any pinning gives the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hcomp
from hcomp.artifact.store import Artifact
from hcomp.verify import compare, onnxruntime_session
from models import MODELS

NAMES = sorted(MODELS)


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime_session(model.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def assert_equal(want: dict[str, Any], got: dict[str, Any], rtol: float = 1e-4) -> None:
    assert list(got) == list(want)
    for name, value in want.items():
        found = compare(name, value, got[name], rtol)
        assert found.equal, found.text()


@pytest.mark.parametrize("name", NAMES)
def test_built_model_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    model, feeds = MODELS[name]()
    program = hcomp.compile(model)
    want = reference(model, feeds)
    assert_equal(want, program.run(feeds))
    program.save(tmp_path / "model.hcomp")
    assert_equal(want, hcomp.load(tmp_path / "model.hcomp").run(feeds))
    assert program.summary()["extern_nodes"] == []


@pytest.mark.parametrize("name", NAMES)
def test_saved_bytes_are_the_same_each_time(name: str) -> None:
    model, _ = MODELS[name]()
    assert hcomp.compile(model).artifact.to_bytes() == hcomp.compile(model).artifact.to_bytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_any_pinning_gives_the_same(name: str, seed: int) -> None:
    """Random nodes go to the null device; regions stay convex and the outputs stay the same."""
    model, feeds = MODELS[name]()
    labels = sorted({node["name"] for node in hcomp.compile(model).plan.nodes()})
    chosen = np.random.default_rng(seed).random(len(labels)) < 0.4
    pins = {label: "null" for label, take in zip(labels, chosen, strict=True) if take}
    program = hcomp.compile(model, devices=["cpu", "null"], pins=pins)
    assert_equal(reference(model, feeds), program.run(feeds))


def test_everything_on_the_null_device() -> None:
    model, feeds = MODELS["encoder_block"]()
    program = hcomp.compile(model, devices=["null"])
    assert_equal(reference(model, feeds), program.run(feeds))
    assert {node["device"] for node in program.plan.nodes()} == {"null"}


def test_a_pin_makes_regions_and_copies_that_dot_shows() -> None:
    model, feeds = MODELS["mlp"]()
    label = next(iter(hcomp.compile(model).plan.nodes()))["name"]
    program = hcomp.compile(model, devices=["cpu", "null"], pins=[f"{label}=null"])
    dot = program.plan.to_dot()
    assert program.summary()["copies"] > 0
    assert "on null" in dot
    assert "on cpu" in dot
    assert "copy" in dot
    assert "the pin" in program.plan.explain(label)
    assert_equal(reference(model, feeds), program.run(feeds))


def test_one_program_serves_all_sizes() -> None:
    model, feeds = MODELS["dynamic_shape"]()
    program = hcomp.compile(model)
    generator = np.random.default_rng(0)
    for batch, length in [(1, 1), (2, 7), (5, 3), (1, 33)]:
        sized = {
            name: generator.integers(0, 2, (batch, length)).astype(value.dtype)
            if value.ndim == 2 and value.dtype.kind in "iu"
            else value
            for name, value in feeds.items()
        }
        assert_equal(reference(model, sized), program.run(sized))


def test_threads_share_one_program() -> None:
    model, feeds = MODELS["residual_cnn"]()
    program = hcomp.compile(model)
    want = program.run(feeds)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                got = program.run(feeds)
                for name, value in want.items():
                    np.testing.assert_array_equal(value, got[name])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_compiling_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM's native code warns of a loop's pragma and of powers from 3 on, where ours are right."""
    make = onnx.helper.make_tensor_value_info
    three = onnx.numpy_helper.from_array(np.array(3, np.float32), "three")
    nodes = [onnx.helper.make_node("Pow", ["x", "three"], ["p"]), onnx.helper.make_node("NonZero", ["p"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [make("x", 1, [2, 3])], [make("y", 7, None)], [three])
    hcomp.compile(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    found = capfd.readouterr()
    assert (found.out, found.err) == ("", "")


def test_strict_refuses_extern_nodes() -> None:
    node = onnx.helper.make_node("Imputer", ["x"], ["y"], domain="ai.onnx.ml", imputed_value_floats=[1.0])
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [make("x", 1, [2, 3])], [make("y", 1, [2, 3])])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    program = hcomp.compile(model)
    assert_equal(reference(model, feeds), program.run(feeds))
    (listed,) = program.summary()["extern_nodes"]
    assert listed["operator"] == "ai.onnx.ml::Imputer"
    assert listed["reason"]
    with pytest.raises(hcomp.HcompError, match="Imputer") as refused:
        hcomp.compile(model, strict=True)
    assert refused.value.exit_status == 3


def test_an_operator_that_nobody_runs_is_named() -> None:
    node = onnx.helper.make_node("Quux", ["x"], ["y"], name="/a/Quux", domain="my.domain")
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [make("x", 1, [2])], [make("y", 1, [2])])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("my.domain", 1)]
    with pytest.raises(hcomp.HcompError, match=r"/a/Quux.*Quux.*my\.domain"):
        hcomp.compile(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))


def test_the_artifact_reads_back_from_bytes() -> None:
    model, _ = MODELS["mlp"]()
    artifact = hcomp.compile(model).artifact
    again = Artifact.from_bytes(artifact.to_bytes())
    assert again.manifest == artifact.manifest


def test_a_single_number_fits_a_declared_scalar() -> None:
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", ["x", "s"], ["y"])], "g",
        [make("x", 1, ["_", "_"]), make("s", 1, [])], [make("y", 1, None)],
    )  # fmt: skip
    program = hcomp.compile(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    x = np.ones((2, 3), np.float32)  # "_" twice: two sizes, not one
    np.testing.assert_array_equal(program.run({"x": x, "s": np.float32([2])})["y"], 2 * x)


def test_texts_may_be_constants(tmp_path: Path) -> None:
    make = onnx.helper.make_tensor_value_info
    names = onnx.numpy_helper.from_array(np.array(["é", "", "c"], object), "names")
    nodes = [
        onnx.helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        onnx.helper.make_node("Gather", ["names", "i"], ["best"]),
        onnx.helper.make_node("Identity", ["names"], ["all"]),
    ]
    outputs = [make("best", onnx.TensorProto.STRING, ["N"]), make("all", onnx.TensorProto.STRING, [3])]
    graph = onnx.helper.make_graph(nodes, "g", [make("x", 1, ["N", 3])], outputs, [names])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    hcomp.compile(model).save(tmp_path / "m.hcomp")
    x = np.eye(3, dtype=np.float32)[[2, 0, 0, 1]]
    found = hcomp.load(tmp_path / "m.hcomp").run({"x": x})
    assert found["best"].tolist() == ["c", "é", "é", ""]
    assert found["all"].tolist() == ["é", "", "c"]


COMPUTED_SIZES = """
import hashlib, hcomp
from onnx import TensorProto, helper as h, numpy_helper
import numpy as np
nodes, name, weights = [], "x", []
for k in range(5):
    weights.append(numpy_helper.from_array(np.ones((2, 2, 3, 3), np.float32), f"w{k}"))
    nodes.append(h.make_node("Conv", [name, f"w{k}"], [f"y{k}"], strides=[2, 2], pads=[1, 1, 1, 1]))
    name = f"y{k}"
x = h.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "h", "w"])
y = h.make_tensor_value_info(name, TensorProto.FLOAT, None)
model = h.make_model(h.make_graph(nodes, "g", [x], [y], weights), opset_imports=[h.make_opsetid("", 17)])
print(hashlib.sha256(hcomp.compile(model).artifact.to_bytes()).hexdigest())
"""


def test_many_computed_sizes_give_the_same_bytes_in_every_process() -> None:
    root = Path(__file__).parent.parent
    found = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", COMPUTED_SIZES], capture_output=True, text=True, check=True, env=environment
        )
        found.add(done.stdout)
    assert len(found) == 1
