"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hcomp.errors import UsageError


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command that prints a report."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide what the compiler does."""
    parser.add_argument("--devices", default="cpu", metavar="A,B", help="devices to plan for (default: cpu)")
    parser.add_argument("--objective", default="latency", help="what the plan minimises (default: latency)")
    parser.add_argument(
        "--pin", action="append", default=[], metavar="PATTERN=DEVICE",
        help="run the nodes whose name matches on a device; 'op:NAME=DEVICE' goes by operator",
    )  # fmt: skip
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="make an input's shape static",
    )
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="the size that costs assume")
    parser.add_argument("--strict", action="store_true", help="refuse a model with extern nodes (exit status 3)")
    parser.add_argument("--threads", type=int, help="threads of the compiled kernels")


def compile_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `hcomp.compile` for parsed options."""
    return {
        "devices": options.devices,
        "objective": options.objective,
        "pins": options.pin,
        "shapes": dict(_shape(text) for text in options.shape),
        "sizes": read_sizes(options.size),
        "strict": options.strict,
        "threads": options.threads,
    }


def read_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Return the sizes that `SYMBOL=N` texts give.

    Raises:
        UsageError: a text has another form.
    """
    found = {}
    for text in texts:
        name, numbers = _shape(text)
        if len(numbers) != 1:
            raise UsageError(f"expected SYMBOL=N, found {text!r}")
        found[name] = numbers[0]
    return found


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.rpartition("=")
    parts = numbers.split(",") if numbers else []
    if not equals or not name or not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"expected NAME=N,N,..., found {text!r}")
    return name, tuple(int(part) for part in parts)


def report(options: argparse.Namespace, data: Any, text: str) -> None:
    """Print a report: the data as JSON where `--json` was given, else the text."""
    print(json.dumps(data, indent=1, default=str) if options.json else text)


def write_file(path: str, text: str) -> None:
    """Write text to a file, or to standard output for "-".

    Raises:
        UsageError: the file cannot be written.
    """
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def is_artifact(path: str) -> bool:
    """Say whether a file starts as a zip does, so that it is an artifact and no ONNX file.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"PK"
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


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
    """Return the plan of an artifact, a plan.json, or (compiled for the CPU) an ONNX file.

    Raises:
        UsageError: the file cannot be read, or holds no plan.
    """
    from hcomp.partition.report import PlanReport

    if is_artifact(path):
        return PlanReport(_plan_of(bytes(open_artifact(path).member("plan.json")), path))
    if path.endswith(".json"):
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
        return PlanReport(_plan_of(data, path))
    from hcomp.compiler import plan_model

    return plan_model(path)


def _plan_of(data: bytes, path: str) -> dict[str, Any]:
    """Return the plan in JSON that anybody may have written; all of its forms can be made."""
    from hcomp.partition import diff, dot, explain, plan_text, svg
    from hcomp.partition.report import PlanReport

    try:
        plan = json.loads(data)
        if not isinstance(plan, dict) or not isinstance(plan.get("steps"), list):
            raise UsageError(f"{path}: no plan: expected an object with a list of steps")
        # The forms read every field that there is, so what they can be made of is a plan.
        report = PlanReport(plan)
        for form in (plan_text.render, dot.render, svg.render):
            form(plan)
        report.summary()
        diff.diff_plans(plan, plan)
        for node in report.nodes():
            explain.render(node)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path}: no plan: {what}") from None
    return plan


def progress(message: str) -> None:
    """Show what is going on, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
