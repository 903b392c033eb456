"""pyproject.toml, the folders on disk and the two links agree."""

import tomllib
from pathlib import Path

import pytest

import hcomp.passes
import hcomp.targets

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Where each top folder of the repository lies in the import tree.
TREES = {"hcomp": "hcomp", "passes": "hcomp.passes", "targets": "hcomp.targets"}


def _packages_on_disk() -> set[str]:
    found = set()
    for folder, package in TREES.items():
        # rglob does not follow the links hcomp/passes and hcomp/targets.
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            if not {"passes", "targets"} & set(inner[:1]) or folder != "hcomp":
                found.add(".".join([package, *inner]))
    return found


def test_every_package_on_disk_is_packaged() -> None:
    listed = SETTINGS["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == _packages_on_disk()


def test_every_folder_with_code_is_a_package() -> None:
    for folder in TREES:
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


@pytest.mark.parametrize(("package", "folder"), [(hcomp.passes, "passes"), (hcomp.targets, "targets")])
def test_links_lead_beside_the_package(package: object, folder: str) -> None:
    link = ROOT / "hcomp" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    (path,) = package.__path__  # type: ignore[attr-defined]
    assert Path(path).resolve() == ROOT / folder


def test_data_files_are_packaged() -> None:
    """Every file of the packages that is no Python is covered by package-data."""
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]
    for folder, package in TREES.items():
        packaged = {path for pattern in patterns.get(package, ()) for path in (ROOT / folder).glob(pattern)}
        for path in (ROOT / folder).rglob("*"):
            if path.is_symlink() or path.is_dir() or path.suffix in {".py", ".pyc", ".md"}:
                continue
            assert path in packaged, f"{path.relative_to(ROOT)} is missing from package-data"


def test_locks_satisfy_the_dependencies() -> None:
    from packaging.requirements import Requirement

    project = SETTINGS["project"]
    extras = project["optional-dependencies"]
    for lock, wanted in {
        "requirements.lock": project["dependencies"],
        "requirements-dev.lock": [*project["dependencies"], *extras["torch"], *extras["dev"]],
    }.items():
        lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
        pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
        for text in wanted:
            requirement = Requirement(text)
            name = requirement.name.lower().replace("_", "-")
            assert name in pins, f"{name} is not in {lock}"
            assert requirement.specifier.contains(pins[name]), f"{lock}: {name} is not {text}"


def test_both_locks_agree() -> None:
    run, dev = (
        set((ROOT / name).read_text(encoding="utf-8").splitlines()[2:])
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert run <= dev
