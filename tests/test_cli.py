"""The command line: every command, its JSON, its exit status, its manners in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hcomp
from hcomp.cli import main
from models import MODELS
from tests.cli_run import run

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with mlp.onnx, mlp.hcomp (all on the CPU) and two.hcomp (a node on null)."""
    place = tmp_path_factory.mktemp("cli")
    model, _ = MODELS["mlp"]()
    onnx.save(model, place / "mlp.onnx")
    assert main(["compile", str(place / "mlp.onnx"), "-o", str(place / "mlp.hcomp")]) == 0
    node = first_node(place)
    arguments = ["--devices", "cpu,null", "--pin", f"{node}=null"]
    assert main(["compile", str(place / "mlp.onnx"), "-o", str(place / "two.hcomp"), *arguments]) == 0
    return place


def first_node(folder: Path) -> str:
    return str(next(hcomp.compile(folder / "mlp.onnx").plan.nodes())["name"])


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TVM_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)


def small(tmp_path: Path, *nodes: onnx.NodeProto, outputs: str = "y", opset: int = 17, x: Any = (2, 3)) -> Path:
    """Write a model of some nodes over the input x and return its path."""
    made = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    graph = helper.make_graph(list(nodes), "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)], made)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "small.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())
    return path


# -- compile --------------------------------------------------------------------------------------


def test_compile_says_what_it_made(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "m.hcomp")
    assert "m.hcomp" in out
    assert "region(s) on cpu" in out
    assert err == ""
    assert (tmp_path / "m.hcomp").read_bytes() == (folder / "mlp.hcomp").read_bytes()


def test_compile_writes_beside_the_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.model.onnx"
    path.write_bytes((folder / "mlp.onnx").read_bytes())
    out, _ = run(capsys, "compile", path, "--json")
    data = json.loads(out)
    assert data["output"] == str(tmp_path / "my.model.hcomp")
    assert data["bytes"] == (tmp_path / "my.model.hcomp").stat().st_size
    assert data["extern_nodes"] == []


def test_compile_never_overwrites_its_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.hcomp"
    path.write_bytes((folder / "mlp.onnx").read_bytes())
    before = path.read_bytes()
    _, err = run(capsys, "compile", path, status=2)
    assert "overwrite" in err
    assert path.read_bytes() == before


def test_shape_makes_sizes_static(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small(tmp_path, helper.make_node("Relu", ["x"], ["y"]), x=("N", 3))
    run(capsys, "compile", path, "--shape", "x=4,3")
    assert str(hcomp.load(tmp_path / "small.hcomp").inputs[0].type) == "float32[4,3]"
    _, err = run(capsys, "compile", path, "--shape", "x=4,5", status=2)
    assert "does not fit" in err
    _, err = run(capsys, "compile", path, "--shape", "z=4,5", status=2)
    assert "'z', which is no input: x" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "x"], "expected NAME=N,N,..."),
        (["--shape", "x=1,a"], "expected NAME=N,N,..."),
        (["--size", "N=1,2"], "expected SYMBOL=N"),
        (["--devices", "gpu9"], "gpu9"),
        (["--devices", ""], "device"),
        (["--objective", "beauty"], "beauty"),
        (["--pin", "x"], "x"),
        (["--pin", "/a=gpu9"], "gpu9"),
        (["--pin", "no such node=cpu"], "no such node"),
        (["-o", "/no/such/folder/m.hcomp"], "cannot be written"),
    ],
)
def test_wrong_options(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run(capsys, "compile", folder / "mlp.onnx", "-o", tmp_path / "m.hcomp", *arguments, status=2)
    assert message in err
    assert err.startswith("hcomp: ")
    assert err.count("\n") == 1
    assert out == ""


def test_a_plan_with_a_pin_has_copies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "inspect", folder / "two.hcomp", "--json")
    assert json.loads(out)["summary"]["copies"] > 0


def test_strict_refuses_and_the_default_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Imputer", ["x"], ["y"], name="/a/N", domain="ai.onnx.ml", imputed_value_floats=[1.0])
    path = small(tmp_path, node)
    _, err = run(capsys, "compile", path)
    assert err.startswith("1 node(s) run in ONNX Runtime: ai.onnx.ml::Imputer")
    _, err = run(capsys, "compile", path, "--strict", status=3)
    assert err.startswith("hcomp: strict: 1 node(s)")
    assert "/a/N" in err


# -- run ------------------------------------------------------------------------------------------


def test_run_writes_and_describes_outputs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, feeds = MODELS["mlp"]()
    arguments = []
    for name, value in feeds.items():
        np.save(tmp_path / f"{name}.npy", value)
        arguments += ["--input", f"{name}={tmp_path / name}.npy"]
    out, _ = run(capsys, "run", folder / "mlp.hcomp", *arguments, "-o", tmp_path / "out")
    for name, value in hcomp.load(folder / "mlp.hcomp").run(feeds).items():
        assert f"{name}: float32{list(value.shape)}, mean" in out
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), value)


def test_run_json_and_random(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(run(capsys, "run", folder / "mlp.hcomp", "--random", "--json")[0])
    again = json.loads(run(capsys, "run", folder / "two.hcomp", "--random", "--json")[0])
    (output,) = first.values()
    assert output["dtype"] == "float32"
    assert output["shape"]
    assert output["mean"] == pytest.approx(next(iter(again.values()))["mean"], rel=1e-4)


def test_names_with_slashes_stay_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["../../evil", "/abs/y", "a b", "a/b", "a_b"]
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in names]
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2])], [onnx.ValueInfoProto(name=n) for n in names]
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    hcomp.compile(model).save(tmp_path / "m.hcomp")
    run(capsys, "run", tmp_path / "m.hcomp", "--random", "-o", tmp_path / "deep" / "out")
    written = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*.npy"))
    assert len(written) == len(names)
    assert all(p.parent == Path("deep/out") for p in written)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "is missing; the model's inputs are"),
        (["--input", "nothing"], "an input is NAME=FILE.npy"),
        (["--input", "x=none.npy"], "none.npy: not a .npy array"),
        (["--random", "--threads", "0"], "threads must be"),
        (["--random", "--size", "N=many"], "expected NAME=N"),
    ],
)
def test_wrong_inputs(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    _, err = run(capsys, "run", folder / "mlp.hcomp", *arguments, status=2)
    assert message in err
    assert err.count("\n") == 1


def test_pickled_inputs_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], object), allow_pickle=True)
    _, err = run(capsys, "run", folder / "mlp.hcomp", "--input", f"x={tmp_path}/evil.npy", status=2)
    assert "not a .npy array" in err


def test_run_on_what_is_no_artifact(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "run", folder / "mlp.onnx", "--random", status=2)
    assert "hcomp compile" in err
    data = bytearray((folder / "mlp.hcomp").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.hcomp").write_bytes(data)
    _, err = run(capsys, "run", tmp_path / "bad.hcomp", "--random", status=2)
    assert "bad.hcomp: damaged" in err


def test_run_starts_without_torch_onnx_or_compiler(folder: Path) -> None:
    code = (
        "import sys; from hcomp.cli import main;"
        f"status = main(['run', {str(folder / 'mlp.hcomp')!r}, '--random']);"
        "heavy = [m for m in ('torch', 'onnx', 'onnxruntime', 'tvm', 'ml_dtypes') if sys.modules.get(m)];"
        "print(heavy, file=sys.stderr); sys.exit(status)"
    )
    done = process("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"


# -- verify ---------------------------------------------------------------------------------------


def test_verify_agrees(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "verify", folder / "two.hcomp", folder / "mlp.onnx")
    assert out.splitlines()[-1] == "equal"
    assert err == ""
    data = json.loads(run(capsys, "verify", folder / "mlp.hcomp", folder / "mlp.onnx", "--json")[0])
    assert data["equal"] is True
    assert data["outputs"][0]["error"] < 1e-4


def test_verify_names_the_first_node_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The artifact comes from another model: its second node is Exp where the file has Tanh."""

    def nodes(second: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Neg", ["x"], ["a"], name="/one"),
            helper.make_node(second, ["a"], ["b"], name="/two"),
            helper.make_node("Abs", ["b"], ["y"], name="/three"),
        ]

    hcomp.compile(small(tmp_path, *nodes("Exp"))).save(tmp_path / "other.hcomp")
    path = small(tmp_path, *nodes("Tanh"))
    out, err = run(capsys, "verify", tmp_path / "other.hcomp", path, status=1)
    assert "y: DIFFERENT" in out
    assert "first difference: node '/two' (Tanh)" in out
    assert out.splitlines()[-1] == "different"
    assert err == ""
    data = json.loads(run(capsys, "verify", tmp_path / "other.hcomp", path, "--json", status=1)[0])
    assert data["equal"] is False
    assert "/two" in data["first_difference"]


def test_verify_of_models_that_do_not_belong(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small(tmp_path, helper.make_node("Neg", ["x"], ["z"]), x=(7,), outputs="z")
    _, err = run(capsys, "verify", folder / "mlp.hcomp", path, status=2)
    assert "is not the model of" in err
    assert "outputs are z, those of the artifact y" in err
    assert err.count("\n") == 1
    _, err = run(capsys, "verify", folder / "mlp.hcomp", tmp_path / "none.onnx", status=2)
    assert "none.onnx" in err


# -- inspect, explain, diff, devices --------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp.hcomp", "two.hcomp", "mlp.onnx"])
def test_inspect_forms(name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "inspect", folder / name)
    assert "float32" in out
    assert err == ""
    assert "graph @" in run(capsys, "inspect", folder / name, "--text")[0]
    assert run(capsys, "inspect", folder / name, "--dot", "-")[0].startswith("digraph")
    run(capsys, "inspect", folder / name, "--svg", tmp_path / "p.svg", "--dot", tmp_path / "p.dot")
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    data = json.loads(run(capsys, "inspect", folder / name, "--json")[0])
    assert data["plan"]["steps"]
    assert data["summary"]["nodes"] > 0


def test_inspect_tells_inputs_outputs_and_sizes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "inspect", folder / "mlp.hcomp")
    session = hcomp.load(folder / "mlp.hcomp")
    for spec in (*session.inputs, *session.outputs):
        assert f"{spec.name}" in out
        assert str(spec.type) in out
    assert "constants" in out


def test_inspect_of_a_plan(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(run(capsys, "inspect", folder / "two.hcomp", "--json")[0])["plan"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert "null" in run(capsys, "inspect", tmp_path / "plan.json")[0]
    assert run(capsys, "diff", tmp_path / "plan.json", folder / "two.hcomp")[0] == ""
    assert "holds no graph" in run(capsys, "inspect", tmp_path / "plan.json", "--text", status=2)[1]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"steps": 1}', '{"steps": [1]}', '{"steps": [{}]}', "[" * 9999])
def test_plans_that_are_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(text)
    _, err = run(capsys, "inspect", tmp_path / "plan.json", status=2)
    assert "no plan" in err
    assert err.count("\n") == 1


def test_explain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = first_node(folder)
    out, _ = run(capsys, "explain", folder / "two.hcomp", node)
    assert node in out
    assert "null" in out
    data = json.loads(run(capsys, "explain", folder / "two.hcomp", node, "--json")[0])
    assert data[0]["device"] == "null"
    _, err = run(capsys, "explain", folder / "two.hcomp", "no such node", status=2)
    assert "no such node" in err


def test_diff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "diff", folder / "mlp.hcomp", folder / "mlp.onnx")[0] == ""
    out, _ = run(capsys, "diff", folder / "mlp.hcomp", folder / "two.hcomp")
    assert first_node(folder) in out
    assert json.loads(run(capsys, "diff", folder / "mlp.hcomp", folder / "two.hcomp", "--json")[0])


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "devices")
    assert {line.split()[0] for line in out.splitlines()} >= {"cpu", "null"}
    data = json.loads(run(capsys, "devices", "--json")[0])
    assert {d["name"] for d in data} >= {"cpu", "null"}


# -- bench ----------------------------------------------------------------------------------------


def test_bench_against_onnxruntime(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "bench", folder / "mlp.hcomp", "--vs", "onnxruntime", "--rounds", "3", "--json")
    data = json.loads(out)
    assert data["hcomp_us"] > 0
    assert data["onnxruntime_us"] > 0
    assert data["ratio"] > 0
    assert "rounds must be at least 1" in run(capsys, "bench", folder / "mlp.hcomp", "--rounds", "0", status=2)[1]


def test_bench_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "bench", tmp_path / "none.hcomp", status=2)
    assert "none.hcomp" in err
    assert err.count("\n") == 1


# -- manners --------------------------------------------------------------------------------------


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in (["--version"], 0), (["--help"], 0), ([], 2), (["fly"], 2), (["run"], 2):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == status
        shown = capsys.readouterr()
        if arguments == ["--version"]:
            assert shown.out.startswith(f"hcomp {hcomp.__version__}")
        if arguments == ["fly"]:
            assert "fly" in shown.err


def test_help_starts_without_anything_heavy() -> None:
    code = (
        "import sys; from hcomp.cli import _parser; _parser().format_help();"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'tvm', 'tvm_ffi', 'ml_dtypes') if m in sys.modules])"
    )
    assert process("-c", code).stdout.strip() == "[]"


def test_a_pipe_gets_no_progress_and_may_close(folder: Path) -> None:
    done = process("-m", "hcomp", "inspect", folder / "mlp.hcomp", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    command = f"{sys.executable} -m hcomp inspect {folder / 'mlp.hcomp'} --json | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout.strip() == "0"
    assert shown.stderr == ""


def test_a_full_disk_is_no_traceback(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "hcomp", "inspect", str(folder / "mlp.hcomp")], stdout=full,
            stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


def test_a_fault_of_ours_is_one_line_with_a_hint(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(hcomp, "compile", broken)
    _, err = run(capsys, "compile", folder / "mlp.onnx", status=1, fault=True)
    assert err.startswith("hcomp: a fault of hcomp: KeyError: 'lost'")
    assert "HCOMP_DEBUG=1" in err
    monkeypatch.setenv("HCOMP_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["compile", str(folder / "mlp.onnx")])
