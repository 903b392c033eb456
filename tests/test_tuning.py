"""Measured blocks of kernels: any that may be chosen is right, and the file decides the artifact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import hcomp
from hcomp.errors import UsageError
from hcomp.options import compile_options
from hcomp.targets.cpu import tune as tuner
from hcomp.targets.cpu.choices import Choices, analytic, first_of
from hcomp.tuning import Measured, Tuning, default_file, read_tuning, write_tuning
from tests.cli_run import run

RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def model(op: str, x: list[Any], weight: np.ndarray, **attrs: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name=op, **attrs)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


CONV = model("Conv", [1, 16, 19, 23], normal(40, 16, 3, 3) / 12, pads=[1, 1, 1, 1])
CASES = {
    "winograd or direct": (CONV, (1, 16, 19, 23)),
    "stride": (model("Conv", [1, 16, 19, 23], normal(40, 16, 3, 3) / 12, strides=[2, 2]), (1, 16, 19, 23)),
    "free size": (model("Conv", [1, 16, "h", "w"], normal(24, 16, 1, 1) / 4), (1, 16, 19, 23)),
    "depthwise": (model("Conv", [1, 24, 19, 23], normal(24, 1, 3, 3) / 3, group=24), (1, 24, 19, 23)),
    "one axis": (model("Conv", [1, 16, 200], normal(40, 16, 5) / 9), (1, 16, 200)),
    "product": (model("MatMul", [67, 48], normal(48, 40) / 7), (67, 48)),
    "free product": (model("MatMul", ["m", 48], normal(48, 40) / 7), (67, 48)),
}


def spaces(source: onnx.ModelProto) -> dict[str, Any]:
    """Return what may be chosen for the kernels of a model."""
    from hcomp.codegen.relax_module import lower_region
    from hcomp.compiler import captured_graph
    from hcomp.passes.channels_last import channels_last
    from hcomp.targets.cpu.codegen import processor
    from hcomp.targets.cpu.lowering import cpu_rules

    choices = Choices()
    lower_region(channels_last(captured_graph(source)), cpu_rules(processor()[0], choices))
    return choices.asked


def tuned(path: Path, choices: dict[str, Any], processor: str | None = None) -> Path:
    """Write a tuning file with some choices."""
    measured = {name: Measured(choice, 1.0, 2.0) for name, choice in choices.items()}
    write_tuning(Tuning({processor or tuner.processor_key(): measured}), path)
    return path


@pytest.mark.parametrize("name", CASES)
def test_every_choice_computes_the_same(name: str, tmp_path: Path) -> None:
    source, shape = CASES[name]
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    x = normal(*shape)
    (expected,) = session.run(None, {"x": x})
    (signature, space) = next(iter(spaces(source).items()))
    points = [{**analytic(space), field: v} for field, values in space.items() for v in values[1:]]
    assert points
    plain = hcomp.compile(source, threads=1).artifact.to_bytes()
    same = 0
    for point in points:
        program = hcomp.compile(source, threads=1, tuning=tuned(tmp_path / "t.json", {signature: point}))
        found = program.run({"x": x})["y"]
        assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max(), point
        same += program.artifact.to_bytes() == plain
    assert same < len(points)  # a choice reaches the code; some make no difference for the sizes at hand


def test_the_same_file_gives_the_same_artifact_and_a_foreign_one_none_of_its_choices(tmp_path: Path) -> None:
    ((signature, space),) = spaces(CONV).items()
    point = {**analytic(space), "tile": 0, "columns": space["columns"][1]}

    def built(**options: Any) -> bytes:
        return bytes(hcomp.compile(CONV, threads=1, **options).artifact.to_bytes())

    own = tuned(tmp_path / "own.json", {signature: point})
    plain = built()
    assert built(tuning=own) == built(tuning=own) != plain
    assert built(tuning=tuned(tmp_path / "foreign.json", {signature: point}, "another processor")) == plain
    assert built(tuning=tuned(tmp_path / "old.json", {signature: {**point, "tile": 7}})) == plain
    assert built(tuning=tuned(tmp_path / "short.json", {signature: {"tile": 0}})) == plain


def test_the_compile_cache_goes_by_what_the_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    onnx.save(CONV, tmp_path / "m.onnx")
    ((signature, space),) = spaces(CONV).items()
    first = tuned(tmp_path / "a.json", {signature: {**analytic(space), "tile": 0}})

    def cached(**options: Any) -> bool:
        return hcomp.compile(tmp_path / "m.onnx", **options).cached

    assert [cached(), cached(), cached(tuning=first), cached(tuning=first)] == [False, True, False, True]
    copy = tmp_path / "b.json"
    copy.write_bytes(first.read_bytes())
    assert cached(tuning=copy)
    tuned(copy, {signature: {**analytic(space), "tile": 2}})
    assert not cached(tuning=copy)


class Fake:
    """A candidate whose time is a function of its choice."""

    seconds: Callable[[dict[str, int], int], float]
    made = 0

    def __init__(self, job: Any, point: Any, sizes: Any) -> None:
        self.point, self.count = point, 0
        Fake.made += 1

    def lap(self) -> float:
        self.count += 1
        return Fake.seconds(dict(self.point), self.count)


def searched(monkeypatch: pytest.MonkeyPatch, seconds: Any, known: Any = (), budget: float = 60.0) -> Any:
    from hcomp.compiler import captured_graph

    monkeypatch.setattr(tuner, "_Candidate", Fake)
    monkeypatch.setattr(Fake, "seconds", staticmethod(seconds), raising=False)
    return tuner.tune([captured_graph(CONV)], {}, dict(known), budget, lambda text: None)


def test_the_fastest_choice_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number is chosen with the others at their best, so both are found."""
    ((signature, space),) = spaces(CONV).items()
    wide = space["columns"][-1]
    found = searched(monkeypatch, lambda p, _: 1.0 - 0.2 * (p["tile"] == 0) - 0.3 * (p["columns"] == wide))
    assert found[signature].choice == {**analytic(space), "tile": 0, "columns": wide}
    assert found[signature].us == 0.5e6 < found[signature].analytic_us == 1e6


def test_a_choice_that_is_faster_by_no_more_than_noise_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ((signature, space),) = spaces(CONV).items()
    usual = analytic(space)
    found = searched(monkeypatch, lambda p, _: 1.0 if p == usual else 0.98)
    assert found[signature] == Measured(usual, 1e6, 1e6)
    # One lucky lap, and one unlucky one of the analytic choice, decide nothing.
    found = searched(monkeypatch, lambda p, n: 0.5 if p != usual and n == 2 else 2.0 if p == usual and n == 5 else 1.0)
    assert found[signature].choice == usual


def test_what_is_known_is_not_measured_again_and_the_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ((signature, space),) = spaces(CONV).items()
    Fake.made = 0
    assert searched(monkeypatch, lambda p, _: 1.0, {signature: Measured(analytic(space), 1.0, 1.0)}) == {}
    assert searched(monkeypatch, lambda p, _: 1.0, budget=0.0) == {}
    assert Fake.made == 0


def test_a_choice_for_free_sizes_is_measured_at_all_that_the_model_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from hcomp.compiler import captured_graph

    weight = numpy_helper.from_array(normal(24, 24, 3, 3) / 15, "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["b"], name="half", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["b", "w"], ["c"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "w"], ["y"], name="third", pads=[1, 1, 1, 1]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 24, "h", "h"])
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], [weight])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (job,) = tuner._jobs([captured_graph(source)], {"h": 12})
    assert sorted((shape[0][1], count) for shape, (_, count) in job.nodes.items()) == [(6, 2), (12, 1)]  # type: ignore[index]
    parts = [node.lap() * count for node, count in tuner._Candidate(job, analytic(job.space), {"h": 12}).nodes]
    assert len(parts) == 2
    assert min(parts) > 0


def test_tuning_fills_the_file_that_compiling_then_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    onnx.save(CONV, tmp_path / "m.onnx")
    file, target = tmp_path / "t.json", tmp_path / "m.hcomp"
    arguments = ["compile", tmp_path / "m.onnx", "-o", target, "--no-cache", "--tuning", file]
    shown = json.loads(run(capsys, *arguments, "--tune", "3", "--json")[0])
    first = target.read_bytes()
    ((_, kernels),) = read_tuning(file).processors.items()
    assert shown["tuning"] == {
        "file": str(file), "kernels": 1, "faster": sum(m.us < m.analytic_us for m in kernels.values()),
    }  # fmt: skip
    assert all(m.us <= m.analytic_us for m in kernels.values())
    run(capsys, *arguments)
    assert target.read_bytes() == first
    assert "1 kernels measured" in run(capsys, *arguments, "--tune", "1")[0]
    assert not default_file().exists()
    run(capsys, *arguments[:-2], "--tune", "0.01")
    assert default_file().exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no", "no tuning file"),
        ("[]", "its format is not 'hcomp-tuning'"),
        ('{"format": "hcomp-tuning", "version": 9}', "its version is 9"),
        ('{"format": "hcomp-tuning", "version": 1, "processors": []}', "processors: expected an object"),
        ('{"format": "hcomp-tuning", "version": 1, "processors": {"p": {"s": {"choice": {"a": 1.5}}}}}', "integers"),
        ('{"format": "hcomp-tuning", "version": 1, "processors": {"p": {"s": {"choice": {}, "us": -1}}}}', "times"),
    ],
)
def test_a_file_that_is_no_tuning_file_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(CONV, tmp_path / "m.onnx")
    (tmp_path / "t.json").write_text(text)
    error = run(capsys, "compile", tmp_path / "m.onnx", "--tuning", tmp_path / "t.json", status=2)[1]
    assert message in error
    assert "t.json" in error


def test_options_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (-1, float("nan"), True, "5"):
        with pytest.raises(UsageError, match="tune must be a number of seconds"):
            compile_options(tune=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tuning must be a text"):
        compile_options(tuning=5)  # type: ignore[arg-type]
    onnx.save(CONV, tmp_path / "m.onnx")
    error = run(capsys, "compile", tmp_path / "m.onnx", "--tuning", tmp_path / "none.json", status=2)[1]
    assert "none.json: cannot be read" in error


def test_a_choice_outside_of_the_space_counts_as_none() -> None:
    space = {"a": first_of(2, [1, 2, 3]), "b": (0,)}
    assert space["a"] == (2, 1, 3)
    for measured in ({}, {"s": {"a": 4, "b": 0}}, {"s": {"a": 1}}, {"s": {"a": 1, "b": 0, "c": 0}}):
        assert Choices(measured).pick("s", space) == {"a": 2, "b": 0}
    assert Choices({"s": {"a": 3, "b": 0}}).pick("s", space) == {"a": 3, "b": 0}
