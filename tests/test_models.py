"""The built models are valid ONNX and run; the list of published models is well formed."""

import hashlib
import importlib.util
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from models import MODELS

ROOT = Path(__file__).resolve().parent.parent


def _script(name: str) -> Any:
    """Return scripts/NAME.py as a module; scripts/ is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


fetch_models = _script("fetch_models")


@pytest.mark.parametrize("name", MODELS)
def test_model_is_valid_and_runs_in_onnx_runtime(name: str) -> None:
    model, inputs = MODELS[name]()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    assert [value.name for value in session.get_inputs()] == list(inputs)
    for output in outputs:
        assert output.size > 0
        assert np.isfinite(output).all()
        assert np.ptp(output) > 1e-3, "the output is constant, so a comparison would show nothing"


@pytest.mark.parametrize("name", MODELS)
def test_model_is_the_same_every_time_with_named_nodes(name: str) -> None:
    (first, inputs), (second, again) = MODELS[name](), MODELS[name]()
    assert first.SerializeToString() == second.SerializeToString()
    for key, array in inputs.items():
        np.testing.assert_array_equal(array, again[key])
    names = [node.name for node in first.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_loop_ends_before_its_trip_count() -> None:
    model, inputs = MODELS["loop"]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    _, norms = session.run(None, inputs)
    assert 1 < len(norms) < int(inputs["steps"])


def test_published_models_are_pinned() -> None:
    published = json.loads((ROOT / "models" / "published.json").read_text())["models"]
    names = [model["name"] for model in published]
    assert len(set(names)) == len(names)
    for model in published:
        assert set(model) - {"sizes", "values"} == {
            "name",
            "package",
            "version",
            "registry",
            "file",
            "sha256",
            "size",
            "licence",
        }
        assert re.fullmatch(r"[0-9a-f]{64}", model["sha256"])
        assert model["registry"] in {"pypi", "npm"}
        assert model["version"]
        assert not Path(model["name"]).is_absolute()
        assert ".." not in Path(model["name"]).parts
        assert model["licence"]


def _published(content: bytes, **changes: object) -> Any:
    fields: dict[str, object] = {
        "name": "box/model.onnx",
        "package": "box",
        "version": "1.0",
        "registry": "pypi",
        "file": "box/model.onnx",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "licence": "MIT",
    }
    return fetch_models.Published(**{**fields, **changes})


def _wheel(directory: Path, content: bytes) -> Path:
    path = directory / "box-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("box/model.onnx", content)
    return path


def test_fetch_reads_the_pinned_file(tmp_path: Path) -> None:
    archive = _wheel(tmp_path, b"model")
    assert fetch_models.read_member(archive, _published(b"model")) == b"model"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sha256": "0" * 64}, "expected sha256 0000"),
        ({"size": 6}, "expected 6 bytes, found 5"),
        ({"file": "box/other.onnx"}, "has no file box/other.onnx"),
    ],
)
def test_fetch_refuses_what_is_not_the_pinned_file(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    archive = _wheel(tmp_path, b"model")
    with pytest.raises(fetch_models.FetchError, match=reason):
        fetch_models.read_member(archive, _published(b"model", **changes))


def test_fetch_keeps_what_is_there_and_names_what_it_cannot_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(package: str, version: str, registry: str, directory: Path) -> Path:
        raise fetch_models.FetchError("pypi client failed: no network")

    monkeypatch.setattr(fetch_models, "download", refuse)
    here, away = _published(b"model"), _published(b"else", name="box/away.onnx")
    (tmp_path / "box").mkdir()
    (tmp_path / here.name).write_bytes(b"model")
    failures = fetch_models.fetch([here, away], tmp_path)
    assert capsys.readouterr().out == f"{tmp_path / here.name}\n"
    assert failures == ["box/away.onnx: box==1.0: pypi client failed: no network"]
