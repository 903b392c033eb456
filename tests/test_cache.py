"""The compile cache: the same is not compiled twice, what differs is; damage and strangers' folders do no harm."""

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
from onnx import TensorProto, helper, numpy_helper

import hcomp
from hcomp import cache
from hcomp.capture.files import model_files
from hcomp.errors import UsageError
from tests.cli_run import run

ROOT = Path(__file__).resolve().parents[1]


def model(weight: float = 2.0) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    given = numpy_helper.from_array(np.full((4,), weight, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"], name="/mul")], "g", [x], [onnx.ValueInfoProto(name="y")], [given]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache's entries, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "hcomp"


def build(path: Path, **options: Any) -> hcomp.program.Program:
    return hcomp.compile(path, **{"devices": "null", **options})


def test_the_same_is_taken_from_the_cache_and_works(path: Path, entries: Path) -> None:
    first, second = build(path), build(path)
    assert (first.cached, second.cached) == (False, True)
    assert first.artifact.to_bytes() == second.artifact.to_bytes()
    np.testing.assert_array_equal(second.run({"x": np.ones((1, 4), np.float32)})["y"], np.full((1, 4), 2))
    assert second.summary() == first.summary()
    assert entries.stat().st_mode & 0o777 == 0o700


def test_where_the_file_lies_does_not_matter_and_threads_neither(path: Path, entries: Path, tmp_path: Path) -> None:
    build(path)
    (tmp_path / "other.onnx").write_bytes(path.read_bytes())
    assert build(tmp_path / "other.onnx", threads=1).cached


@pytest.mark.parametrize(
    "options", [{"devices": "cpu"}, {"shapes": {"x": (2, 4)}}, {"sizes": {"n": 3}}, {"pins": {"/mul": "null"}}]
)
def test_other_options_are_something_else(path: Path, entries: Path, options: dict[str, Any]) -> None:
    build(path)
    assert not build(path, **options).cached


def test_another_model_under_the_same_name_is_something_else(path: Path, entries: Path) -> None:
    build(path)
    onnx.save(model(3.0), path)
    changed = build(path)
    assert not changed.cached
    assert changed.run({"x": np.ones((1, 4), np.float32)})["y"].max() == 3


@pytest.mark.parametrize("what", ["_own_source", "_version", "_machine"])
def test_another_compiler_or_processor_is_something_else(
    path: Path, entries: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(path)
    monkeypatch.setattr(cache, what, lambda *_: "other")
    assert not build(path).cached


def test_external_data_counts(entries: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert model_files(path) == (path, tmp_path / "m.data")
    build(path)
    assert build(path).cached
    (tmp_path / "m.data").write_bytes(np.full((4,), 5, np.float32).tobytes())
    changed = build(path)
    assert not changed.cached
    assert changed.run({"x": np.ones((1, 4), np.float32)})["y"].max() == 5


def test_no_cache_neither_takes_nor_keeps(path: Path, entries: Path) -> None:
    build(path, cache=False)
    assert not entries.exists()
    build(path)
    assert not build(path, cache=False).cached
    with pytest.raises(UsageError, match="cache must be True or False"):
        build(path, cache="no")


def test_a_model_in_memory_is_not_kept(entries: Path) -> None:
    hcomp.compile(model(), devices="null")
    assert not entries.exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_entry_is_replaced(path: Path, entries: Path, damage: str) -> None:
    good = build(path).artifact.to_bytes()
    (entry,) = entries.iterdir()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    entry.write_bytes({"flip": flipped, "cut": good[:middle], "empty": b"", "other": b"PK junk"}[damage])
    assert not build(path).cached
    assert entry.read_bytes() == good
    assert build(path).cached


def test_a_folder_that_others_can_write_to_is_not_used(path: Path, entries: Path) -> None:
    build(path)
    entries.chmod(0o777)
    assert not build(path).cached
    assert len(list(entries.iterdir())) == 1


def test_a_link_in_place_of_the_folder_is_not_used(path: Path, entries: Path, tmp_path: Path) -> None:
    entries.parent.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    entries.symlink_to(tmp_path / "elsewhere")
    build(path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("base", [os.devnull, "/proc/nothing", "\udcff" * 300])
def test_a_cache_that_cannot_be_is_no_error(path: Path, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", os.devnull)
    assert not build(path).cached
    assert not build(path).cached


def test_a_relative_xdg_folder_counts_as_none(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    build(path)
    assert build(path).cached
    assert (tmp_path / "home" / ".cache" / "hcomp").is_dir()


def test_entries_unused_for_longest_go_first(path: Path, entries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(build(path).artifact.to_bytes())
    monkeypatch.setattr(cache, "LIMIT", 2 * size + size // 2)
    build(path, sizes={"n": 2})
    for number, entry in enumerate(sorted(entries.iterdir(), key=lambda e: e.stat().st_mtime_ns)):
        os.utime(entry, (number, number))
    assert build(path).cached  # used now, so that the other one is the oldest
    build(path, sizes={"n": 3})
    assert len(list(entries.iterdir())) == 2
    assert build(path).cached
    assert not build(path, sizes={"n": 2}).cached


def test_what_is_too_large_is_not_kept(path: Path, entries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LARGEST", 100)
    build(path)
    assert list(entries.iterdir()) == []


def test_a_model_that_changes_while_it_is_compiled_is_not_kept(
    path: Path, entries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hcomp import compiler

    def changing(*arguments: Any, **fields: Any) -> Any:
        onnx.save(model(7.0), path)
        return real(*arguments, **fields)

    real = compiler.capture_model
    monkeypatch.setattr(compiler, "capture_model", changing)
    build(path)
    assert not entries.exists() or list(entries.iterdir()) == []


def test_pipes_are_neither_models_nor_external_data(entries: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(hcomp.HcompError, match="expected a regular file, found a pipe"):
        build(tmp_path / "pipe")
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    os.mkfifo(tmp_path / "m.data")
    with pytest.raises(hcomp.HcompError, match=r"m\.data"):
        build(tmp_path / "m.onnx")


def test_a_missing_model_is_the_usual_error(entries: Path, tmp_path: Path) -> None:
    with pytest.raises(hcomp.HcompError, match="cannot be read"):
        build(tmp_path / "none.onnx")


def test_a_hit_loads_no_compiler(path: Path, entries: Path) -> None:
    build(path)
    code = f"""
import sys, hcomp
assert hcomp.compile({str(path)!r}, devices="null").cached
print([name for name in ("tvm", "onnx", "ml_dtypes", "torch", "onnxruntime") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_the_command_says_where_the_time_went_and_what_came_from_the_cache(
    path: Path, entries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("compile", path, "-o", tmp_path / "m.hcomp", "--devices", "null")
    out, _ = run(capsys, *arguments, "--verbose")
    assert "compiled in" in out
    assert "capture 0." in out
    assert "plan 0." in out
    out, _ = run(capsys, *arguments)
    assert "taken from the cache in" in out
    assert "capture" not in out
    data = json.loads(run(capsys, *arguments, "--no-cache", "--json")[0])
    assert not data["cached"]
    assert {"capture", "passes", "plan"} <= data["stages"].keys()


def test_compile_loads_no_torch_and_computes_with_one_blas_thread(tmp_path: Path, path: Path) -> None:
    pytest.importorskip("torch")
    code = f"""
import sys, os
from hcomp.cli import main
assert main(["compile", {str(path)!r}, "-o", {str(tmp_path / "m.hcomp")!r}]) == 0
assert "tvm" in sys.modules and "torch" not in sys.modules
assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
"""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=environment)
