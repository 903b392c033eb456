"""Which part may import which: read from the source, and checked on a running interpreter.

Imports inside functions and under TYPE_CHECKING count too: a layer that needs another one's types
depends on it.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREES = {"hcomp": "hcomp", "passes": "hcomp.passes", "targets": "hcomp.targets"}

COMPILERS = {"torch", "tvm", "onnx", "onnx_ir", "onnxscript"}
ENTRIES = {"hcomp.compiler", "hcomp.program", "hcomp.cli", "hcomp.onnx_backend"}
STAGES = {
    "hcomp.capture",
    "hcomp.passes",
    "hcomp.partition",
    "hcomp.codegen",
    "hcomp.artifact",
    "hcomp.runtime",
    "hcomp.targets",
}

# What a part must not import. A target's `device` module is its run side (see below).
FORBIDDEN: dict[str, set[str]] = {
    "hcomp.errors": COMPILERS | ENTRIES | STAGES | {"hcomp.ir", "hcomp.reference"},
    "hcomp.dims": COMPILERS | ENTRIES | STAGES | {"hcomp.ir", "hcomp.reference"},
    "hcomp.dtypes": COMPILERS | ENTRIES | STAGES | {"hcomp.ir", "hcomp.reference"},
    "hcomp.reference": COMPILERS | ENTRIES | STAGES | {"hcomp.ir", "onnxruntime"},
    "hcomp.ir": COMPILERS | ENTRIES | STAGES | {"onnxruntime"},
    "hcomp.capture": ENTRIES | (STAGES - {"hcomp.capture"}),
    "hcomp.passes": COMPILERS | ENTRIES | (STAGES - {"hcomp.passes"}),
    "hcomp.partition": COMPILERS | ENTRIES | {"hcomp.capture", "hcomp.codegen", "hcomp.artifact", "hcomp.runtime"},
    "hcomp.codegen": ENTRIES | {"hcomp.capture", "hcomp.passes", "hcomp.runtime"},
    "hcomp.artifact": COMPILERS | ENTRIES | (STAGES - {"hcomp.artifact"}) | {"hcomp.ir", "onnxruntime"},
    "hcomp.runtime": COMPILERS | ENTRIES | (STAGES - {"hcomp.runtime", "hcomp.artifact"}) | {"hcomp.ir"},
    "hcomp.targets": ENTRIES | {"hcomp.capture", "hcomp.passes", "hcomp.runtime"},
}

# Leaves that another part may use all the same, each with its reason.
ALLOWED: dict[str, set[str]] = {
    # An extern node keeps its ONNX form to the end, and its types are written as ONNX types.
    "hcomp.codegen": {"hcomp.capture.onnx_types"},
    # A plan is JSON from a file too, and is checked field by field as a manifest is.
    "hcomp.partition": {"hcomp.artifact.fields"},
    # The layout of a region's data is its target's own affair.
    "hcomp.targets": {
        "hcomp.passes.channels_last",
        "hcomp.passes.fuse_attention",
        "hcomp.passes.integer_products",
    },
}


def _module_name(path: Path, folder: str) -> str:
    inner = path.relative_to(ROOT / folder).with_suffix("").parts
    return ".".join([TREES[folder], *(part for part in inner if part != "__init__")])


def _sources() -> dict[str, Path]:
    """Return every module of hcomp by its dotted name."""
    found = {}
    for folder in TREES:
        for path in (ROOT / folder).rglob("*.py"):
            if folder != "hcomp" or path.relative_to(ROOT / folder).parts[0] not in TREES:
                found[_module_name(path, folder)] = path
    return found


SOURCES = _sources()


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full name of everything that a file imports, with its line.

    `from hcomp import ir` yields `hcomp.ir`; `from hcomp.ir.graph import Graph` yields
    `hcomp.ir.graph.Graph`.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _is_run_side(name: str) -> bool:
    """Whether `name` is, or lies in, `hcomp.targets.<target>.device`."""
    return re.match(r"hcomp\.targets\.\w+\.device\b", name) is not None


def _violations(layer: str, forbidden: set[str]) -> list[str]:
    return [
        f"{module}:{line} imports {name}"
        for module, path in SOURCES.items()
        if _within(module, layer)
        for name, line in _imports(path)
        if any(_within(name, other) for other in forbidden) and not _is_run_side(name)
        if not any(_within(name, leaf) for leaf in ALLOWED.get(layer, ()))
    ]


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_layer_imports_nothing_above_it(layer: str) -> None:
    assert any(_within(module, layer) for module in SOURCES), f"{layer} does not exist"
    assert _violations(layer, FORBIDDEN[layer]) == []


def test_run_side_of_a_target_is_as_light_as_the_runtime() -> None:
    found = [
        f"{module}:{line} imports {name}"
        for module, path in SOURCES.items()
        if _is_run_side(module)
        for name, line in _imports(path)
        if any(_within(name, other) for other in FORBIDDEN["hcomp.runtime"]) and not _is_run_side(name)
    ]
    assert found == []


def test_targets_do_not_know_each_other() -> None:
    targets = {path.parent.name for path in (ROOT / "targets").glob("*/__init__.py")}
    found = [
        f"{module}:{line} imports {name}"
        for target in targets
        for module, path in SOURCES.items()
        if _within(module, f"hcomp.targets.{target}")
        for name, line in _imports(path)
        for other in targets - {target}
        if _within(name, f"hcomp.targets.{other}")
    ]
    assert found == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["torch"]]
    declared = {_canonical(re.split(r"[^\w-]", text)[0]) for text in wanted}
    owners = importlib.metadata.packages_distributions()
    for module, path in SOURCES.items():
        for name, line in _imports(path):
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names or top == "hcomp":
                continue
            distributions = {_canonical(owner) for owner in owners.get(top, ())}
            assert distributions & declared, f"{module}:{line} imports {top}, not a dependency"


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _loaded_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import hcomp", {"torch", "tvm", "tvm_ffi", "onnx", "onnxruntime"}),
        ("import hcomp.cli", {"torch", "tvm", "tvm_ffi", "onnx", "onnxruntime"}),
        ("import hcomp.runtime, hcomp.artifact", {"torch", "tvm", "onnx", "hcomp.ir"}),
        ("import hcomp.targets, hcomp.passes", {"torch", "tvm", "onnx", "onnxruntime"}),
        ("import hcomp; hcomp.compile; hcomp.load", {"torch"}),
    ],
)
def test_import_stays_light(statement: str, unwanted: set[str]) -> None:
    assert _loaded_after(statement) & unwanted == set()
