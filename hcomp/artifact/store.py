"""Artifacts in memory and on disk: building, writing, and reading with every byte checked."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from hcomp.artifact.layout import is_safe_name, read_zip, write_zip
from hcomp.artifact.manifest import MANIFEST, Manifest, Member, read_manifest, write_manifest
from hcomp.digests import sha256_of_each
from hcomp.errors import ArtifactError
from hcomp.files import as_path, copied_by_system, reason_of, why_unreadable, why_unwritable, write_whole

Buffer: TypeAlias = "bytes | bytearray | memoryview | np.ndarray"


class Artifact:
    """A compiled model: its manifest and its members' bytes, all of them verified.

    Make one with `build` (at compile time), `open` (a file, mapped and not copied) or
    `from_bytes`. Constants read from a file start on multiples of 64 bytes.
    """

    def __init__(
        self,
        manifest: Manifest,
        members: Mapping[str, memoryview],
        written: memoryview | None = None,
        source: tuple[Path, os.stat_result] | None = None,
    ) -> None:
        self.manifest = manifest
        self._members = members
        self._written = written  # the bytes that it was read from: all of them are verified
        self._source = source  # the file that they are mapped from, as it was then

    @classmethod
    def build(cls, fields: Mapping[str, object], members: Mapping[str, Buffer]) -> Artifact:
        """Return an artifact of manifest fields (`format`, `version`, `files` apart) and members.

        The members are kept, not copied (arrays that are C-contiguous too).

        Raises:
            ArtifactError: the fields are no valid manifest, or a member's name is unsafe.
        """
        views = {name: _flat(data) for name, data in members.items()}
        for name in views:
            if name == MANIFEST or not is_safe_name(name):
                raise ArtifactError(f"{name!r} cannot be the name of a member")
        digests = sha256_of_each(views)
        files = {name: Member(digests[name], view.nbytes) for name, view in views.items()}
        text = write_manifest(fields, files)
        return cls(read_manifest(text), {**views, MANIFEST: memoryview(text)})

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Return the artifact in a file, mapped into memory.

        Raises:
            ArtifactError: the file cannot be read, is no artifact, or is damaged anywhere.
        """
        source = as_path(path, "an artifact")
        if reason := why_unreadable(source):
            raise ArtifactError(f"{path}: cannot be read: {reason}")
        try:
            with source.open("rb") as file:
                # ACCESS_COPY, because numpy hands no read-only array to DLPack; nobody writes.
                found = os.fstat(file.fileno())
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if found.st_size else b""
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be read: {reason_of(error)}") from None
        return cls._read(memoryview(data), str(source), (source, found))

    @classmethod
    def from_bytes(cls, data: Buffer) -> Artifact:
        """Return the artifact in `data`, which is kept, not copied.

        Raises:
            ArtifactError: the bytes are no artifact, or are damaged anywhere.
        """
        return cls._read(_flat(data), "artifact")

    @classmethod
    def _read(cls, view: memoryview, origin: str, source: tuple[Path, os.stat_result] | None = None) -> Artifact:
        try:
            spans = read_zip(view)
            members = {name: view[span.offset : span.offset + span.size] for name, span in spans.items()}
            manifest = _checked_manifest(members)
        except ArtifactError as error:
            text = str(error)  # it may quote from the file, which may hold anything
            raise ArtifactError(f"{origin}: {text if len(text) < 500 else text[:497] + '...'}") from None
        return cls(manifest, members, view, source)

    @property
    def size(self) -> int:
        """The bytes of all members together."""
        return sum(view.nbytes for view in self._members.values())

    def member(self, name: str) -> memoryview:
        """Return the bytes of a member.

        Raises:
            ArtifactError: there is none of that name.
        """
        if name not in self._members:
            raise ArtifactError(f"the artifact has no member {name!r}")
        return self._members[name]

    def has(self, name: str) -> bool:
        """Say whether there is a member of that name."""
        return name in self._members

    def to_bytes(self) -> bytes:
        """Return the bytes of the file; equal artifacts give equal bytes."""
        stream = io.BytesIO()
        self._write(stream)
        return stream.getvalue()

    def _write(self, stream: IO[bytes]) -> None:
        if self._written is None:
            write_zip(stream, self._members)
        elif self._source is None or not copied_by_system(*self._source, stream):
            stream.write(self._written)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact to a file.

        The file appears whole or not at all: sessions that have mapped an older one keep theirs.

        Raises:
            ArtifactError: the file cannot be written, or the path leads to no regular file.
        """
        target = as_path(path, "an artifact")
        try:
            if reason := why_unwritable(target):
                raise ArtifactError(f"{path}: cannot be written: {reason}")
            write_whole(target, self._write)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be written: {reason_of(error)}") from None


def _checked_manifest(members: Mapping[str, memoryview]) -> Manifest:
    """Return the manifest of members whose bytes are all as it says."""
    if MANIFEST not in members:
        raise ArtifactError(f"damaged: there is no {MANIFEST}")
    manifest = read_manifest(members[MANIFEST])
    listed = manifest.files.keys() | {MANIFEST}
    for name in sorted(listed ^ members.keys()):
        reason = "missing" if name in listed else "not in the manifest"
        raise ArtifactError(f"damaged: the member {name} is {reason}")
    for name, file in manifest.files.items():
        if members[name].nbytes != file.size:
            raise ArtifactError(f"damaged: the member {name} has {members[name].nbytes} bytes, not {file.size}")
    digests = sha256_of_each({name: members[name] for name in manifest.files})
    for name, file in manifest.files.items():
        if digests[name] != file.sha256:
            raise ArtifactError(f"damaged: the member {name} does not have the digest that the manifest gives")
    return manifest


def _flat(data: Buffer) -> memoryview:
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
