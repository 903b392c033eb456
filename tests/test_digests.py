"""Digests of files by chunks, and files copied by the system: every byte counts, and others' changes are seen."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from hcomp import digests, files
from hcomp.artifact import Artifact
from hcomp.capture.files import model_files
from hcomp.digests import sha256_of_each, sha256_of_file
from tests.test_artifact import small


def test_every_byte_of_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "CHUNK", 8)
    monkeypatch.setattr(digests, "_READ", 3)
    monkeypatch.setattr(digests, "WORTH_THREADS", 20)
    path = tmp_path / "f"
    seen = set()
    for size in (0, 1, 7, 8, 9, 16, 17, 25):
        whole = bytes(range(size))
        path.write_bytes(whole)
        first = sha256_of_file(path)
        assert sha256_of_file(path) == first
        seen.add(first)
        chunks = [hashlib.sha256(whole[i : i + 8]).hexdigest() for i in range(0, size, 8)]
        assert first == hashlib.sha256("".join(chunks).encode()).hexdigest()
        for i in range(size):
            path.write_bytes(whole[:i] + b"\xff" + whole[i + 1 :])
            seen.add(sha256_of_file(path))
    assert len(seen) == 8 + sum((0, 1, 7, 8, 9, 16, 17, 25))


def test_many_pieces_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "WORTH_THREADS", 1)
    views = {i: memoryview(np.full(i, i, np.uint8).data) for i in range(1, 60)}
    assert sha256_of_each(views) == {i: hashlib.sha256(v).hexdigest() for i, v in views.items()}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(digests, "CHUNK", 10)
    monkeypatch.setattr(digests, "WORTH_THREADS", 1)

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(OSError, match="Input/output"):
        sha256_of_file(path)


@pytest.mark.parametrize("system", [True, False])
def test_an_opened_artifact_is_saved_as_it_was(tmp_path: Path, system: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not system:

        def refuses(*_: object) -> int:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "copy_file_range", refuses, raising=False)
    source, target = tmp_path / "a.hcomp", tmp_path / "b.hcomp"
    small().save(source)
    whole = source.read_bytes()
    opened = Artifact.open(source)
    opened.save(target)
    assert target.read_bytes() == whole
    source.unlink()
    opened.save(target)  # mapped memory outlives the file's name
    assert target.read_bytes() == whole
    source.write_bytes(b"something else")
    opened.save(target)
    assert target.read_bytes() == whole


def test_a_file_that_changed_is_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"12345")
    before = source.stat()
    with (tmp_path / "b").open("wb") as target:
        assert files.copied_by_system(source, before, target) is hasattr(os, "copy_file_range")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert not files.copied_by_system(source, before, target)
        assert not files.copied_by_system(tmp_path / "absent", before, target)


def test_a_model_that_changed_is_searched_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08")
    assert model_files(path) == (path,)
    path.write_bytes(b"no model, but it has the word location")
    assert model_files(path)[0] == path
    path.unlink()
    assert model_files(path) == (path,)
