"""The artifact file: what is written is read back, and what is damaged is refused."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hcomp.artifact import Artifact, layout
from hcomp.artifact.layout import read_zip, write_zip
from hcomp.errors import ArtifactError
from tests.vm_artifact import Maker


def small() -> Artifact:
    """Return an artifact without kernels: two constants, one of which is copied to the output."""
    maker = Maker()
    maker.constant("c", np.arange(300, dtype=np.float32))
    maker.constant("d", np.arange(7, dtype=np.int8))
    maker.steps.append({"kind": "copy", "value": "c", "to": "y", "from": "cpu", "to_device": "null", "free": ["c"]})
    maker.members["plan.json"] = b"{}"
    maker.members["graph.hir"] = b"graph @g() {\n}\n"
    return maker.artifact({"x": ("float32", [1, "N"])}, {"y": ("float32", [300])})


def edited(change: dict[str, Any]) -> bytes:
    """Return the bytes of an artifact whose manifest has other values at the given dotted paths."""
    artifact = small()
    manifest = json.loads(bytes(artifact.member("manifest.json")))
    for path, value in change.items():
        *parents, last = path.split(".")
        at = manifest
        for key in parents:
            at = at[int(key) if isinstance(at, list) else key]
        at[int(last) if isinstance(at, list) else last] = value
    text = json.dumps(manifest).encode()
    members = {name: artifact.member(name) for name in [*artifact.manifest.files]}
    stream = io.BytesIO()
    write_zip(stream, {**members, "manifest.json": memoryview(text)})
    return stream.getvalue()


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    artifact = small()
    artifact.save(tmp_path / "m.hcomp")
    loaded = Artifact.open(tmp_path / "m.hcomp")
    assert loaded.manifest == artifact.manifest
    assert str(loaded.manifest.inputs[0].type) == "float32[1,N]"
    for name in artifact.manifest.files:
        assert loaded.member(name) == artifact.member(name)
    assert loaded.to_bytes() == artifact.to_bytes() == (tmp_path / "m.hcomp").read_bytes()
    assert list(tmp_path.iterdir()) == [tmp_path / "m.hcomp"]


def test_equal_artifacts_are_equal_bytes() -> None:
    assert small().to_bytes() == small().to_bytes()


def test_is_a_plain_zip_with_aligned_constants(tmp_path: Path) -> None:
    small().save(tmp_path / "m.hcomp")
    data = (tmp_path / "m.hcomp").read_bytes()
    with zipfile.ZipFile(tmp_path / "m.hcomp") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == sorted(archive.namelist())
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    for name, span in read_zip(memoryview(data)).items():
        if name.startswith("constants/"):
            assert span.offset % 64 == 0


def test_wide_fields_of_zip_are_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes and offsets beyond 4 GB, tried with a small limit on our side only."""
    plain = small()
    monkeypatch.setattr(layout, "LIMIT", 0x300)
    stream = io.BytesIO()
    write_zip(stream, {"a": memoryview(bytes(0x400)), "manifest.json": memoryview(b"{}")})
    wide = stream.getvalue()
    assert {n: s.size for n, s in read_zip(memoryview(wide)).items()} == {
        "a": 0x400,
        "manifest.json": 2,
    }
    assert b"PK\6\6" in wide
    assert Artifact.from_bytes(plain.to_bytes()).manifest == plain.manifest


def test_every_byte_is_sealed() -> None:
    data = small().to_bytes()
    for i in range(len(data)):
        if i % 7 and 200 < i < len(data) - 700:
            continue
        broken = bytearray(data)
        broken[i] ^= 1 << (i % 8)
        with pytest.raises(ArtifactError, match=r"^artifact: [^\n]+$"):
            Artifact.from_bytes(broken)


def test_every_truncation_is_found() -> None:
    data = small().to_bytes()
    for size in [*range(0, len(data), 37), *range(len(data) - 120, len(data))]:
        with pytest.raises(ArtifactError):
            Artifact.from_bytes(data[:size])
    with pytest.raises(ArtifactError):
        Artifact.from_bytes(data + b"\0")
    with pytest.raises(ArtifactError):
        Artifact.from_bytes(b"\0" + data)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x08\x07model", bytes(5000), b"{}" * 400])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.hcomp").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"m\.hcomp: not an hcomp artifact") as found:
        Artifact.open(tmp_path / "m.hcomp")
    assert found.value.exit_status == 2


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="No such file"):
        Artifact.open(tmp_path / "none.hcomp")
    with pytest.raises(ArtifactError, match="found a folder"):
        Artifact.open(tmp_path)
    with pytest.raises(ArtifactError, match="cannot be written"):
        small().save(tmp_path / "none" / "m.hcomp")


def test_a_zip_of_another_program_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.hcomp", "w") as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(ArtifactError, match="not an hcomp artifact"):
        Artifact.open(tmp_path / "m.hcomp")


@pytest.mark.parametrize("name", ["../evil", "/evil", "a//b", "a/./b", "a\\b", "ä", "", "manifest.json"])
def test_unsafe_member_names_cannot_be_written(name: str) -> None:
    with pytest.raises(ArtifactError, match="name of a member"):
        Artifact.build({}, {name: b""})


def test_unsafe_member_names_are_not_read() -> None:
    stream = io.BytesIO()
    write_zip(stream, {"../evil": memoryview(b"x"), "manifest.json": memoryview(b"{}")})
    with pytest.raises(ArtifactError, match="no name of a member"):
        Artifact.from_bytes(stream.getvalue())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected format 'hcomp', found 'other'"),
        ({"version": 1}, "format version 1, this hcomp reads 3: compile the model again"),
        ({"version": "1"}, "version: expected an integer of 0 or more, found '1'"),
        ({"name": 3}, "manifest.json: name: expected a string, found 3"),
        ({"inputs": {}}, "inputs: expected a list"),
        ({"inputs": []}, "inputs: 0 are declared, the program has 1"),
        ({"inputs.0.type.dtype": "float31"}, r"inputs\[0\].type.dtype: 'float31' is no element type"),
        ({"inputs.0.type.shape": [-1]}, r"shape\[0\]: expected an integer of 0 or more, found -1"),
        ({"inputs.0.type.shape": ["N +"]}, "not a dimension"),
        ({"inputs.0.type.shape": [2**70]}, "expected an integer"),
        ({"inputs.0.type.shape": [1] * 65}, "65 dimensions"),
        ({"inputs.0.type.shape": [1.5]}, "expected a string, found 1.5"),
        ({"program.constants.c.shape": [301]}, "has 1204 bytes, the member .* has 1200"),
        ({"program.constants.c.shape": ["N"]}, "must have a static shape"),
        ({"program.constants.c.shape": [2**62, 2**62]}, "larger than any memory"),
        ({"program.constants.c.file": "other"}, "has no member 'other'"),
        ({"program.constants.d.dtype": "string"}, "string.7. has 21 bytes, the member .* has 7"),
        ({"program.steps.0.kind": "jump"}, "expected launch, copy, if or loop, found 'jump'"),
        ({"program.steps.0.value": "z"}, r"steps\[0\]: the value 'z' is not there"),
        ({"program.steps.0.to": "x"}, "'x' is made twice"),
        ({"program.steps.0.to_device": "gpu"}, "'gpu' is not among"),
        ({"program.steps.0.predicted_us": -1}, "a number of 0 or more"),
        ({"program.outputs": ["c"]}, "the value 'c' is not there"),
        ({"program.outputs": [None]}, "expected a string, found None"),
        ({"devices": [{"name": "cpu", "kind": "cpu"}] * 2}, "two devices have one name"),
        ({"files.plan\\json": 1}, "expected an object"),
        ({"program.steps": [{"kind": "launch", "executor": "tvm"}]}, "expected one of vm, reference"),
    ],
)
def test_manifest_fields_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as found:
        Artifact.from_bytes(edited(change))
    assert "\n" not in str(found.value)


def test_a_member_that_the_manifest_does_not_list_is_refused() -> None:
    artifact = small()
    members = {name: artifact.member(name) for name in [*artifact.manifest.files, "manifest.json"]}
    stream = io.BytesIO()
    write_zip(stream, {**members, "extra": memoryview(b"x")})
    with pytest.raises(ArtifactError, match="the member extra is not in the manifest"):
        Artifact.from_bytes(stream.getvalue())
    del members["plan.json"]
    stream = io.BytesIO()
    write_zip(stream, members)
    with pytest.raises(ArtifactError, match=r"the member plan\.json is missing"):
        Artifact.from_bytes(stream.getvalue())


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"a": NaN}', b"[" * 100_000, b"\xff", b"1" * 5000])
def test_manifests_that_are_no_json_object_are_refused(text: bytes) -> None:
    stream = io.BytesIO()
    write_zip(stream, {"manifest.json": memoryview(text)})
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        Artifact.from_bytes(stream.getvalue())


def test_saving_leaves_mapped_artifacts_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.hcomp"
    small().save(path)
    first = Artifact.open(path)
    path_size = path.stat().st_size
    other = Maker()
    other.artifact({}, {}).save(path)
    assert path.stat().st_size != path_size
    assert bytes(first.member("graph.hir")).startswith(b"graph @g")
