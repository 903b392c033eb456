"""Files that the commands read and write: artifacts, models, plans, and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from hcomp.errors import HcompError, UsageError
from hcomp.files import reason_of, why_unreadable, why_unwritable, write_whole

STANDARD_OUTPUT = "-"


def check_output(path: str, read: Sequence[str | Path] = ()) -> None:
    """Refuse a file that must not be written, before any work is done; `read` are the inputs.

    Raises:
        UsageError: the path is empty or "-", leads to a device, pipe or folder, or to an input.
    """
    if path in ("", STANDARD_OUTPUT):
        raise UsageError(f"expected the name of a file to write, found {path!r}")
    if reason := why_unwritable(path, read):
        raise UsageError(f"{path}: cannot be written: {reason}")


def write_file(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a file, which appears whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_whole(path, write)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be written: {reason_of(error)}") from None


def write_text(path: str, text: str) -> None:
    """Write text to a file, or to standard output for "-"."""
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        write_file(path, lambda file: file.write(text.encode()))


def files_of(path: str) -> Sequence[str | Path]:
    """Return the files that reading `path` reads: those of a model with external data are several."""
    if why_unreadable(path) or is_artifact(path) or is_plan(path):
        return [path]
    from hcomp.capture.files import model_files

    return model_files(Path(path))


def is_artifact(path: str) -> bool:
    """Say whether a file starts as a zip does, so that it is an artifact and no ONNX file.

    Raises:
        UsageError: the file cannot be read.
    """
    return _read(path, 2) == b"PK"


def is_plan(path: str) -> bool:
    """Say whether a file is to be read as a plan: by its name, as it may be damaged."""
    return path.endswith(".json")


def _read(path: str, size: int = -1) -> bytes:
    if reason := why_unreadable(path):
        raise UsageError(f"{path or repr(path)}: cannot be read: {reason}")
    try:
        with Path(path).open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason_of(error)}") from None


def open_artifact(path: str) -> Any:
    """Return the artifact in a file.

    Raises:
        UsageError: the file is of another kind, such as a model.
        ArtifactError: it is damaged.
    """
    from hcomp.artifact.store import Artifact

    if path.endswith(".onnx") and not is_artifact(path):
        raise UsageError(f"{path}: a model and no artifact; `hcomp compile {path}` makes one of it")
    return Artifact.open(path)


def read_plan(path: str) -> Any:
    """Return the plan of an artifact, of a plan.json, or (compiled for the CPU) of an ONNX file.

    A plan.json is what `hcomp inspect FILE --json` prints, or its field "plan" alone.

    Raises:
        UsageError: the file cannot be read, or holds no plan.
    """
    if is_artifact(path):
        return _plan_of(bytes(open_artifact(path).member("plan.json")), path)
    if is_plan(path):
        return _plan_of(_read(path), path)
    from hcomp.compiler import plan_model

    return plan_model(path)


def _plan_of(data: bytes, path: str) -> Any:
    """Return the plan in JSON that anybody may have written, every field of it checked."""
    from hcomp.partition.plan_check import check_plan
    from hcomp.partition.report import PlanReport

    try:
        plan = json.loads(data)
        if isinstance(plan, dict) and "summary" in plan:
            plan = plan.get("plan")
        check_plan(plan)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no plan: not readable JSON: {error}") from None
    except HcompError as error:
        raise UsageError(f"{path}: no plan: {error}") from None
    return PlanReport(plan)
