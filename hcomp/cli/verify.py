"""Compare an artifact with ONNX Runtime; on a difference, name the first node that differs."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from hcomp.cli.files import open_artifact
from hcomp.cli.options import add_json, progress, read_sizes, report
from hcomp.errors import UsageError
from hcomp.files import why_unreadable


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("artifact", help="what `hcomp compile` wrote")
    parser.add_argument("model", help="the ONNX file that it was compiled from")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input")
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="a symbol's size")
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative to the output's largest value")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run both on the same inputs and print each output's largest error."""
    from hcomp.cli.feeds import advise_sizes, advising, checked_sizes, input_files, random_inputs, read_inputs
    from hcomp.runtime import Session
    from hcomp.verify import compare, first_difference, onnxruntime_session, run_reference

    if not 0 <= options.rtol < math.inf:
        raise UsageError(f"--rtol must be a number of at least 0, found {options.rtol}")
    artifact = open_artifact(options.artifact)
    if reason := why_unreadable(options.model):
        raise UsageError(f"{options.model or repr(options.model)}: cannot be read: {reason}")
    session = Session(artifact)
    given = read_sizes(options.size)
    sizes = checked_sizes(session.inputs, given)
    reference = onnxruntime_session(options.model)
    _same_names(options, session, reference)
    feeds = random_inputs(session.inputs, given, read_inputs(input_files(options.input)))
    advice = advise_sizes(sizes, given) if len(feeds) > len(options.input) else ""
    with advising(advice):
        got = session.run(feeds)
        want = run_reference(reference, feeds)
    rows = [compare(name, want[name], got.get(name), options.rtol) for name in want]
    wrong = [row for row in rows if not row.equal]
    data: dict[str, Any] = {"equal": not wrong, "sizes": sizes, "outputs": [vars(row) for row in rows]}
    lines = [f"with {', '.join(f'{name}={size}' for name, size in sizes.items())}"] if sizes else []
    lines += [row.text() for row in rows]
    if wrong:
        progress("looking for the first node that differs ...")
        data["first_difference"] = first_difference(Path(options.model), artifact, feeds, options.rtol)
        progress("")
        lines.append(f"first difference: {data['first_difference']}")
    lines.append(f"different{advice}" if wrong else "equal")
    report(options, data, "\n".join(lines))
    return 1 if wrong else 0


def _same_names(options: argparse.Namespace, session: Any, reference: Any) -> None:
    """Refuse a model that the artifact cannot come from: it has other inputs or outputs."""
    for what, ours, theirs in (
        ("inputs", session.inputs, reference.get_inputs()),
        ("outputs", session.outputs, reference.get_outputs()),
    ):
        have, want = [spec.name for spec in ours], [value.name for value in theirs]
        if sorted(have) != sorted(want):
            raise UsageError(
                f"{options.model} is not the model of {options.artifact}:"
                f" its {what} are {', '.join(want) or 'none'}, those of the artifact {', '.join(have) or 'none'}"
            )
