"""Files that the commands read and write: what is refused, what stays whole, what reads back."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hcomp
from hcomp.cli import main
from hcomp.errors import ArtifactError, UsageError
from hcomp.files import why_unreadable, why_unwritable, write_whole
from models import MODELS
from tests import cli_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with mlp.onnx and mlp.hcomp, for the null device: it compiles in no time."""
    place = tmp_path_factory.mktemp("files")
    onnx.save(MODELS["mlp"]()[0], place / "mlp.onnx")
    hcomp.compile(place / "mlp.onnx", devices="null").save(place / "mlp.hcomp")
    return place


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> tuple[str, str]:
    """Run a command; what refuses says so in one line."""
    out, err = cli_run.run(capsys, *arguments, status=status)
    assert status == 0 or err.count("\n") == 1
    return out, err


def external(folder: Path) -> Path:
    """Write a model whose constant lies in ok.bin."""
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32), "c")
    (folder / "ok.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.append(onnx.StringStringEntryProto(key="location", value="ok.bin"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "c"], ["y"])], "g", [x], [onnx.ValueInfoProto(name="y")], [tensor]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "ext.onnx"
    path.write_bytes(model.SerializeToString())
    return path


# -- reading --------------------------------------------------------------------------------------

LONG = "a" * 300


def test_names_that_the_system_refuses(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.hcomp").touch()
    _, err = run(capsys, "compile", tmp_path / "nope.onnx", "-o", tmp_path / "out.hcomp", status=2)
    assert "nope.onnx: cannot be read: No such file" in err
    assert "too long" in run(capsys, "compile", made / "mlp.onnx", "-o", tmp_path / LONG, status=2)[1]
    for command in (["compile"], ["inspect"], ["run"], ["bench"], ["explain", "x"], ["verify", "x"], ["diff", "x"]):
        assert "cannot be read" in run(capsys, command[0], tmp_path / LONG, *command[1:], status=2)[1]


@pytest.mark.parametrize("command", ["compile", "inspect", "run", "bench", "explain", "diff", "verify"])
def test_pipes_and_devices_are_not_read(
    command: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    more = {"explain": ["x"], "diff": [made / "mlp.hcomp"], "verify": [made / "mlp.onnx"]}.get(command, [])
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        _, err = run(capsys, command, path, *more, status=2)
        assert f"{path}: cannot be read: expected a regular file, found {kind}" in err
    if command == "verify":
        _, err = run(capsys, "verify", made / "mlp.hcomp", "/dev/zero", status=2)
        assert "/dev/zero: cannot be read" in err
        _, err = run(capsys, "verify", made / "mlp.hcomp", tmp_path / "none.onnx", status=2)
        assert "none.onnx: cannot be read: No such file" in err


def test_inputs_are_regular_files(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(3))
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 and no more")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,)}"
    (tmp_path / "huge.npy").write_bytes(header.ljust(127) + b"\n")
    for path, message in (
        ("/dev/zero", "found a device"),
        (tmp_path / "x.npz", "an archive of several"),
        (tmp_path / "bad.npz", "not a .npy array"),
        (tmp_path / "huge.npy", "huge.npy: the array that its header declares is too large"),
    ):
        assert message in run(capsys, "run", made / "mlp.hcomp", "--input", f"x={path}", status=2)[1]


def test_a_zip_without_our_seal_is_called_that(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with zipfile.ZipFile(made / "mlp.hcomp") as old, zipfile.ZipFile(tmp_path / "again.hcomp", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for path in (tmp_path / "a.npz", tmp_path / "again.hcomp"):
        assert "a zip file without the seal of hcomp" in run(capsys, "run", path, status=2)[1]
    (tmp_path / "cut.hcomp").write_bytes((made / "mlp.hcomp").read_bytes()[:-10])
    assert "truncated" in run(capsys, "run", tmp_path / "cut.hcomp", status=2)[1]


# -- writing --------------------------------------------------------------------------------------


def test_special_files_are_not_replaced(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    commands = (["compile", made / "mlp.onnx", "-o"], ["inspect", made / "mlp.hcomp", "--svg"])
    for command in (*commands, ["inspect", made / "mlp.onnx", "--dot"]):
        for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/null"), "a device"), (tmp_path, "a folder")):
            _, err = run(capsys, *command, path, status=2)
            assert f"{path}: cannot be written: expected a regular file or none, found {kind}" in err
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "y.npy")
    _, err = run(capsys, "run", made / "mlp.hcomp", "--random", "-o", tmp_path / "out", status=2)
    assert "found a pipe" in err
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_links_stay_and_their_targets_are_written(made: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "old").write_text("old")
    for name, target in (("link", "deep/old"), ("dangling", "deep/new")):
        (tmp_path / name).symlink_to(target)
        assert main(["inspect", str(made / "mlp.hcomp"), "--svg", str(tmp_path / name)]) == 0
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_text().startswith("<svg")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["dangling", "deep", "link", "new", "old"]


def test_what_is_read_is_not_overwritten(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, weights = external(tmp_path), tmp_path / "ok.bin"
    artifact = tmp_path / "a.hcomp"
    artifact.write_bytes((made / "mlp.hcomp").read_bytes())
    (tmp_path / "hard.onnx").hardlink_to(path)
    np.save(tmp_path / "y.npy", np.zeros((4, 64), np.float32))
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for arguments in (
        ["inspect", path, "--svg", path],
        ["inspect", path, "--dot", weights],
        ["inspect", artifact, "--dot", artifact],
        ["compile", path, "-o", path],
        ["compile", path, "-o", tmp_path / "hard.onnx"],
        ["compile", path, "-o", weights],
        ["run", artifact, "--input", f"x={tmp_path / 'y.npy'}", "-o", tmp_path],
    ):
        assert "would overwrite" in run(capsys, *arguments, status=2)[1]
    program = hcomp.compile(path, devices="null")
    for target in (path, weights):
        with pytest.raises(ArtifactError, match="would overwrite"):
            program.save(target)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_names_that_name_no_file(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "-"):
        assert f"found {name!r}" in run(capsys, "compile", made / "mlp.onnx", "-o", name, status=2)[1]
        assert f"found {name!r}" in run(capsys, "run", made / "mlp.hcomp", "--random", "-o", name, status=2)[1]
    assert "found ''" in run(capsys, "inspect", made / "mlp.hcomp", "--svg", "", status=2)[1]
    for name in ("5", 5, None, b"abc", ""):
        program = hcomp.compile(MODELS["mlp"]()[0], devices="null")
        if name != "5":
            with pytest.raises(UsageError, match="named by"):
                program.save(name)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="named by"):
                hcomp.load(name)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(OSError, match="lost"):
        write_whole(path, lambda file: file.seek(0) or (_ for _ in ()).throw(OSError("lost")))
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert path.read_text() == "old"
    longest = tmp_path / ("a" * 255)
    write_whole(longest, lambda file: file.write(b"new"))
    assert longest.read_bytes() == b"new"
    assert why_unwritable(tmp_path / "none" / "f").startswith("there is no folder")
    assert "null" in why_unreadable("a\0b")


# -- outputs and plans ----------------------------------------------------------------------------


def test_maps_sequences_and_texts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]),
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("Cast", ["x"], ["texts"], to=TensorProto.STRING),
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("maps", "parts", "texts")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])], outputs)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    hcomp.compile(helper.make_model(graph, opset_imports=imports, ir_version=8), devices="null").save(tmp_path / "m")
    np.save(tmp_path / "x.npy", np.array([[1, 2], [3, 4]], np.float32))
    run(capsys, "run", tmp_path / "m", "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "maps.json").read_text()) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert json.loads((tmp_path / "out" / "parts.json").read_text()) == [[[1, 2]], [[3, 4]]]
    assert np.load(tmp_path / "out" / "texts.npy").tolist() == [["1", "2"], ["3", "4"]]


def test_what_inspect_prints_is_a_plan(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "inspect", made / "mlp.hcomp", "--json")
    (tmp_path / "plan.json").write_text(out)
    assert run(capsys, "inspect", tmp_path / "plan.json", "--json")[0] == out
    assert run(capsys, "diff", tmp_path / "plan.json", made / "mlp.hcomp")[0] == ""
    assert "makes y" in run(capsys, "explain", tmp_path / "plan.json", "y")[0]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("nodes", 0, "name"), True),
        (("nodes", 0, "operator"), 1.5),
        (("nodes", 0, "runs_as"), "magic"),
        (("nodes", 0, "outputs"), {"y": 1}),
        (("nodes", 0, "alternatives", 0, "us"), None),
        (("steps", 1, "device"), "gpu9"),
        (("steps", 0, "start_us"), float("nan")),
        (("steps", 0, "kind"), "dance"),
        (("sizes",), {"n": "many"}),
        (("values",), {"y": 5}),
        (("devices",), None),
        (("version",), 10**18),
        (("edges", 0, "bytes"), "much"),
    ],
)
def test_edited_plans(
    place: tuple[str | int, ...], value: object, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads(run(capsys, "inspect", made / "mlp.hcomp", "--json")[0])["plan"]
    inner = plan
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for command in (["inspect"], ["explain", "*"], ["diff", tmp_path / "plan.json"]):
        _, err = run(capsys, command[0], tmp_path / "plan.json", *command[1:], status=2)
        assert "no plan" in err
        assert next(str(key) for key in reversed(place) if isinstance(key, str)) in err
