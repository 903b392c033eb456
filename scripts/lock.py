#!/usr/bin/env python3
"""Write the lock files from the packages of this environment.

    python scripts/lock.py [--check]

`requirements.lock` pins what hcomp needs to run, `requirements-dev.lock` also what its tests need,
PyTorch among it. Names come from pyproject.toml and the metadata of what is installed here,
versions from what is installed here: install the newer packages first, run the tests, then lock.
`--check` writes nothing and fails when a file would change.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
# setuptools builds the editable install, without a build environment of its own that would need
# the network again.
BUILD_TOOL = "setuptools"


def pinned(roots: Iterable[str]) -> dict[str, str]:
    """Return the version of every distribution that `roots` need, themselves included."""
    versions: dict[str, str] = {}
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in versions:
            continue
        found = distribution(name)
        # A local part (`2.13.0+cpu`) names a build that other machines do not have.
        versions[name] = found.version.partition("+")[0]
        if not wanted.specifier.contains(versions[name], prereleases=True):
            raise SystemExit(f"{name} {versions[name]} is installed, pyproject.toml needs {wanted}")
        waiting += [Requirement(text) for text in found.requires or ()]
    return versions


def text(title: str, versions: dict[str, str]) -> str:
    """Return the text of one lock file."""
    lines = [f"# {title}", "# Written by scripts/lock.py; do not edit."]
    lines += [f"{name}=={version}" for name, version in sorted(versions.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check both lock files; return the exit status."""
    arguments = argparse.ArgumentParser(description="write the lock files")
    arguments.add_argument("--check", action="store_true", help="fail if a file would change")
    check = arguments.parse_args().check
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run = [*project["dependencies"], BUILD_TOOL]
    extras = project["optional-dependencies"]
    develop = [*run, *extras["torch"], *extras["dev"]]
    files = {
        "requirements.lock": text("What hcomp runs with.", pinned(run)),
        "requirements-dev.lock": text("What hcomp is developed and tested with.", pinned(develop)),
    }
    stale = [
        name for name, content in files.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != content
    ]
    for name in stale:
        if check:
            print(f"{name} differs from what is installed here", file=sys.stderr)
        else:
            (ROOT / name).write_text(files[name])
            print(f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
