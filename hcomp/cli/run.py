"""Run an artifact on arrays from files or on random ones."""

from __future__ import annotations

import argparse
from typing import Any

from hcomp.errors import UsageError


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("artifact", help="what `hcomp compile` wrote")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input")
    parser.add_argument("--random", action="store_true", help="fill the other inputs with seeded random numbers")
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="a symbol's size (--random)")
    parser.add_argument("--threads", type=int, help="threads of the compiled kernels")
    parser.add_argument("-o", "--output", metavar="DIR", help="write each output to a .npy (or .json) file")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Run once and print each output's type and a few numbers of it."""
    from hcomp.runtime.startup import import_runtime

    import_runtime()  # before anything else imports tvm_ffi: torch would cost seconds
    from hcomp.cli.feeds import advise_sizes, advising, checked_sizes, input_files, random_inputs, read_inputs
    from hcomp.cli.files import open_artifact
    from hcomp.cli.options import read_sizes, report
    from hcomp.cli.outputs import output_files, write_outputs
    from hcomp.runtime import Session

    session = Session(open_artifact(options.artifact), threads=options.threads)
    sizes = read_sizes(options.size)
    every = checked_sizes(session.inputs, sizes)
    if sizes and not options.random:
        raise UsageError("--size is about inputs that are made up: give --random too")
    inputs = input_files(options.input)
    files = {}
    if options.output is not None:
        files = output_files(session.outputs, options.output, [options.artifact, *inputs.values()])
    feeds = read_inputs(inputs)
    if options.random:
        feeds = random_inputs(session.inputs, sizes, feeds)
    with advising(advise_sizes(every, sizes) if len(feeds) > len(inputs) else ""):
        outputs = session.run(feeds)
    write_outputs(outputs, files)
    data = {name: describe(value) for name, value in outputs.items()}
    report(options, data, "\n".join(f"{name}: {describe_line(found)}" for name, found in data.items()))
    return 0


def describe(value: Any) -> dict[str, Any]:
    """Return an output's type, shape and, where it holds numbers, a few of them."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        length = len(value) if hasattr(value, "__len__") else None
        return {"kind": type(value).__name__, "length": length}
    found: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    if value.dtype.kind in "biuf" and value.size:
        data = value.astype(np.float64)
        found |= {"mean": float(data.mean()), "smallest": float(data.min()), "largest": float(data.max())}
    return found


def describe_line(found: dict[str, Any]) -> str:
    """Return what `describe` found as a line."""
    if "dtype" not in found:
        return found["kind"] if found["length"] is None else f"{found['kind']} of {found['length']}"
    numbers = [f"{key} {found[key]:.6g}" for key in ("mean", "smallest", "largest") if key in found]
    return ", ".join([f"{found['dtype']}{found['shape']}", *numbers])
