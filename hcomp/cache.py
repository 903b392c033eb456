"""Programs compiled before, by what they were compiled from: a model that is as it was needs no compiler.

The grain is the whole program, for a file as model. Kernels would be the finer one, and shared by models,
but a compile with all kernels at hand still imports TVM and lowers every node, which are seconds;
with the program at hand it reads files. A changed model is compiled whole.

A key is the digest of all that decides the artifact's bytes: the model's files, the options, the tuning file,
hcomp's own source, the versions of what it compiles with, and the processor. An entry is an artifact as `save`
writes it, so reading it checks every digest; a damaged one is removed and counts as absent. Kernels
are machine code, so a folder that others can write to is not used. A cache that cannot be read or
written is no error: the model is compiled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hcomp.artifact.store import Artifact
from hcomp.capture.files import model_files
from hcomp.digests import sha256_of_file
from hcomp.errors import ArtifactError
from hcomp.files import user_folder, why_unreadable
from hcomp.options import CompileOptions

LOG = logging.getLogger(__name__)

LIMIT = 2 << 30
"""Bytes of all entries together; the ones that were not used for longest go first."""
LARGEST = LIMIT // 2
"""A larger artifact is not kept: it would push out all others."""

_DECIDE = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "onnx", "onnxruntime", "networkx")
_SAME_BYTES = ("threads", "cache", "tune", "tuning")
"""Options that change nothing in an artifact: of the tuning file only what it holds does."""
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CHANGING = ("cpu MHz", "bogomips", "processor", "core id", "apicid", "initial apicid", "physical id")


def cache_key(path: Path, options: CompileOptions) -> str | None:
    """Return the name of the entry for a model and options; None where the cache cannot know all of it."""
    try:
        files = [_digest(file) for file in model_files(path)]
        tuned = _digest(Path(options.tuning)) if options.tuning else ""
        machine = _machine()
    except (OSError, ValueError):
        return None
    chosen = {name: value for name, value in asdict(options).items() if name not in _SAME_BYTES}
    whole = [files, chosen, tuned, _own_source(), [_version(name) for name in _DECIDE], sys.version, machine]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def find(key: str) -> Artifact | None:
    """Return the artifact of an entry, verified, or None."""
    folder = _folder()
    if folder is None or not (path := folder / key).exists():
        return None
    with suppress(OSError):
        os.utime(path)  # first, as the artifact remembers the file as it was when it was opened
    try:
        return Artifact.open(path)
    except ArtifactError as error:
        LOG.warning("the compile cache had a damaged entry, which is removed: %s", error)
        with suppress(OSError):
            path.unlink()
        return None


def keep(key: str, artifact: Artifact) -> None:
    """Make an entry, and remove old ones beyond the limit."""
    folder = _folder()
    if folder is None or artifact.size > LARGEST:
        return
    try:
        artifact.save(folder / key)
    except ArtifactError as error:
        LOG.info("the compile cache keeps nothing: %s", error)
        return
    _remove_old(folder)


def _folder() -> Path | None:
    """Return the folder of the entries, which is this user's alone, or None."""
    try:
        folder = user_folder("XDG_CACHE_HOME", ".cache")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError, ValueError):
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        LOG.warning("the compile cache is off: %s must be a folder that only its owner, you, can write to", folder)
        return None
    return folder


def _remove_old(folder: Path) -> None:
    entries = []
    for entry in folder.iterdir():
        with suppress(OSError):  # another process may remove it too
            found = entry.lstat()
            entries.append((found.st_mtime, found.st_size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= LIMIT:
            return
        with suppress(OSError):
            entry.unlink()
            total -= size


def _digest(path: Path) -> str:
    if reason := why_unreadable(path):
        raise ValueError(f"{path}: {reason}")
    return sha256_of_file(path)


def _own_source() -> str:
    """Return a digest of hcomp's own code, which changes more often than its version."""
    digest = hashlib.sha256()
    for path in _sources(Path(__file__).parent):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root, followlinks=True):  # in a checkout, passes and targets are links
        inner.sort()
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _machine() -> list[object]:
    """Return what kernels and schedules depend on: the processor, its caches and the number of cores.

    Raises:
        OSError: this system does not say.
    """
    first = _CPU_INFO.read_text().partition("\n\n")[0]
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() not in _CHANGING]
    caches = [(entry / "size").read_text() for entry in sorted(_CPU_CACHES.glob("index*"))]
    return [os.uname().machine, lines, caches, os.cpu_count()]
