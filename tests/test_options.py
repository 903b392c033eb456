"""Options and inputs that a caller gets wrong: an error of hcomp that names the option, what was expected and found."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hcomp
from hcomp.cli import main
from hcomp.errors import HcompError, RunError, UsageError
from hcomp.options import DEFAULT_SIZE
from models import MODELS
from tests.cli_run import run


def dynamic() -> onnx.ModelProto:
    """Return a model with the free sizes n and m, whose last axis must have the size 3 when it runs."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="/neg"), helper.make_node("Add", ["a", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("options")
    onnx.save(dynamic(), place / "m.onnx")
    hcomp.compile(place / "m.onnx", devices="null").save(place / "m.hcomp")
    onnx.save(MODELS["mlp"]()[0], place / "mlp.onnx")
    return place


# -- the Python API -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"x": 5}}, r"shapes\['x'\] must be a list of integers, found 5"),
        ({"shapes": {"x": "12"}}, r"shapes\['x'\] must be a list of integers, found '12'"),
        ({"shapes": {"x": ("a",)}}, r"each of shapes\['x'\] must be an integer of at least 0.*found 'a'"),
        ({"shapes": {"x": (1.5, 2)}}, r"each of shapes\['x'\] must be an integer of at least 0.*found 1.5"),
        ({"shapes": {"x": (True, 3)}}, "found True"),
        ({"shapes": {"x": (10**30, 3)}}, "below 10.18"),
        ({"shapes": 5}, "shapes must be a dictionary by name, found 5"),
        ({"shapes": {5: (1,)}}, "shapes must be a dictionary by name"),
        ({"sizes": {"n": -3}}, r"sizes\['n'\] must be an integer of at least 0.*found -3"),
        ({"sizes": {"n": "a"}}, r"sizes\['n'\] must be an integer of at least 0.*found 'a'"),
        ({"sizes": 5}, "sizes must be a dictionary by name, found 5"),
        ({"sizes": {"typo": 3}}, "no free size 'typo'; it has: m, n"),
        ({"threads": "a"}, r"threads must be an integer in 1..1024, found 'a'"),
        ({"threads": 1.5}, "threads must be an integer in 1..1024, found 1.5"),
        ({"threads": True}, "threads must be an integer in 1..1024, found True"),
        ({"threads": 10**6}, "threads must be an integer in 1..1024"),
        ({"devices": 5}, "devices must be a text or a list of texts, found 5"),
        ({"devices": [1]}, "each of devices must be a text, found 1"),
        ({"devices": b"cpu"}, "devices must be a text or a list"),
        ({"pins": 5}, "pins must be a text or a list of texts, found 5"),
        ({"pins": {"a": 1}}, "pins must be a text, found 1"),
        ({"objective": None}, "objective must be a text, found None"),
        ({"strict": "x"}, "strict must be True or False, found 'x'"),
        ({"machine": "laptop"}, "no option 'machine'; it has devices"),
    ],
)
def test_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hcomp.compile(dynamic(), **{"devices": "null", **options})


def test_integers_of_numpy_are_integers() -> None:
    program = hcomp.compile(dynamic(), devices="null", shapes={"x": np.array([2, 3])}, threads=np.int32(1))  # type: ignore[arg-type]
    assert program.session.threads == 1
    assert str(program.session.inputs[0].type) == "float32[2,3]"


@pytest.mark.parametrize("device", ["null", "cpu"])
def test_inputs_have_names(device: str) -> None:
    model, feeds = MODELS["mlp"]()
    program, array = hcomp.compile(model, devices=device), feeds["x"]
    for wrong in (array, [array], (array,), None, "x"):
        with pytest.raises(RunError, match=f"dictionary .* found {type(wrong).__name__}"):
            program.run(wrong)  # type: ignore[arg-type]
        with pytest.raises(RunError, match="dictionary"):
            program.session.profile(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="runs must be an integer"):
        program.session.profile(feeds, runs=1.5)  # type: ignore[arg-type]


def test_sparse_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    program = hcomp.compile(dynamic(), devices="null")
    with pytest.raises(RunError, match=r"input 'x': expected float32\[n,m\], got a tensor of layout sparse_coo"):
        program.run({"x": torch.eye(3).to_sparse()})


def test_predictions_say_their_sizes() -> None:
    plan = hcomp.compile(dynamic(), devices="null").plan
    assert f"for m={DEFAULT_SIZE}, n={DEFAULT_SIZE}" in plan.to_text()
    assert plan.summary()["sizes"] == {"m": DEFAULT_SIZE, "n": DEFAULT_SIZE}
    other = hcomp.compile(dynamic(), devices="null", sizes={"n": 2, "m": 3}).plan
    assert "predicted for m=3, n=2" in other.explain("/neg")
    assert f"m={DEFAULT_SIZE}, n={DEFAULT_SIZE} -> m=3, n=2" in plan.diff(other)
    assert "for " not in hcomp.compile(MODELS["mlp"]()[0], devices="null").plan.to_text().splitlines()[0]


def test_reasons_and_names_are_true() -> None:
    program = hcomp.compile(dynamic(), devices="null")
    assert "null is the only device" in program.plan.explain("y")
    assert program.plan.explain("a") == program.plan.explain("/neg")
    assert "/neg (Neg), which makes a" in program.plan.explain("a")
    assert "fastest device" in hcomp.compile(dynamic(), devices="cpu,null").plan.explain("y")
    with pytest.raises(UsageError, match="no node 'yy'; did you mean"):
        program.plan.explain("yy")
    twice = dynamic()
    twice.graph.node.append(helper.make_node("Shape", ["x"], ["size"], name="/size"))
    with pytest.raises(UsageError, match="the node '/size', which makes 'size', is not in the plan"):
        hcomp.compile(twice, devices="null").plan.explain("size")


# -- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "n=99999999999999999999"], "below 10^18"),
        (["--size", "n=99999999999"], "the input 'x' of shape [99999999999, 16] is too large for the memory"),
        (["--size", "typo=3"], "no free size 'typo'; it has: m, n"),
        (["--size", "n=3", "--size", "n=4"], "--size gives 'n' twice"),
        (["--size", "n=\u00b2"], "expected NAME=N"),
        (["--input", "x=a.npy", "--input", "x=b.npy"], "--input gives 'x' twice"),
    ],
)
def test_sizes_for_a_run(arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["run", folder / "m.hcomp", "--random"], ["verify", folder / "m.hcomp", folder / "m.onnx"]):
        assert message in run(capsys, *command, *arguments, status=2)[1]
    if "--input" not in arguments and "too large" not in message:
        assert message in run(capsys, "bench", folder / "m.hcomp", *arguments, status=2)[1]
    assert "give --random too" in run(capsys, "run", folder / "m.hcomp", "--size", "n=3", status=2)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "typo=3"], "no free size 'typo'; it has: m, n"),
        (["--shape", "x=1,3", "--shape", "x=2,3"], "--shape gives 'x' twice"),
        (["--shape", "x=1,99999999999999999999"], "below 10^18"),
    ],
)
def test_sizes_for_compiling(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run(capsys, "compile", folder / "m.onnx", "-o", tmp_path / "m", *arguments, status=2)[1]


def test_verify_says_which_sizes_it_took(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "verify", folder / "m.hcomp", folder / "m.onnx", status=2)
    assert f"n={DEFAULT_SIZE} is assumed and may make no sense for this model: --size m=N sets it" in err
    for command in (["run", folder / "m.hcomp", "--random"], ["bench", folder / "m.hcomp", "--worker", "hcomp"]):
        assert "--size m=N sets it" in run(capsys, *command, status=2)[1]
    out, err = run(capsys, "verify", folder / "m.hcomp", folder / "m.onnx", "--size", "m=3")
    assert out.startswith(f"with m=3, n={DEFAULT_SIZE}\n")
    assert out.endswith("equal\n")


@pytest.mark.parametrize("rtol", ["nan", "-1", "inf"])
def test_tolerances_are_numbers(rtol: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "verify", folder / "m.hcomp", folder / "m.onnx", "--rtol", rtol, status=2)
    assert f"--rtol must be a number of at least 0, found {float(rtol)}" in err


def test_bench_needs_the_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "alone.hcomp").write_bytes((folder / "m.hcomp").read_bytes())
    _, err = run(capsys, "bench", tmp_path / "alone.hcomp", "--vs", "onnxruntime", status=2)
    assert "name it with --model FILE" in err
    _, err = run(capsys, "bench", folder / "m.hcomp", "--model", "x.onnx", status=2)
    assert "give --vs too" in err
    assert "threads must be" in run(capsys, "bench", folder / "m.hcomp", "--threads", "0", status=2)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", "m.onnx", "--threads", "2"], "--threads: an artifact keeps no number of threads"),
        (["compile", "m.onnx", "--machine", "laptop"], "--machine: not yet"),
        (["compile", "m.onnx", "--plan=plan.json"], "--plan: not yet"),
        (["inspect", "m.onnx", "--html", "f"], "--html: not yet"),
        (["diff", "a", "b", "--fail-if-slower", "5%"], "--fail-if-slower: not yet"),
    ],
)
def test_what_does_not_exist_yet(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_forms_that_cannot_go_together(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = tmp_path / "p"
    for arguments in (["--text", "--json"], ["--svg", same, "--dot", same], ["--json", "--dot", "-"]):
        run(capsys, "inspect", folder / "m.hcomp", *arguments, status=2)
    assert not same.exists()


# -- interrupts -----------------------------------------------------------------------------------


def test_an_interrupt_is_called_that(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise HcompError("region r0: TVM refuses it: no message") from None

    monkeypatch.setattr(hcomp, "compile", interrupted)
    _, err = run(capsys, "compile", folder / "m.onnx", status=130)
    assert err == "hcomp: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
