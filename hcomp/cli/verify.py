"""Compare an artifact with ONNX Runtime; on a difference, name the first node that differs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hcomp.cli.options import add_json, progress, read_sizes, report


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
    import hcomp
    from hcomp.cli.feeds import random_inputs, read_inputs
    from hcomp.verify import compare, first_difference, onnxruntime_session

    session = hcomp.load(options.artifact)
    reference = onnxruntime_session(options.model)
    feeds = random_inputs(session.inputs, read_sizes(options.size), read_inputs(options.input))
    want = dict(zip((o.name for o in reference.get_outputs()), reference.run(None, feeds), strict=True))
    got = session.run(feeds)
    rows = [compare(name, want[name], got.get(name), options.rtol) for name in want]
    wrong = [row for row in rows if not row.equal]
    data: dict[str, Any] = {"equal": not wrong, "outputs": [vars(row) for row in rows]}
    lines = [row.text() for row in rows]
    if wrong:
        progress("looking for the first node that differs ...")
        data["first_difference"] = first_difference(Path(options.model), feeds, options.rtol)
        progress("")
        lines.append(f"first difference: {data['first_difference']}")
    lines.append("different" if wrong else "equal")
    report(options, data, "\n".join(lines))
    return 1 if wrong else 0
