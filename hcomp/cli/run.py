"""Run an artifact on arrays from files or on random ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hcomp.errors import UsageError


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("artifact", help="what `hcomp compile` wrote")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input")
    parser.add_argument("--random", action="store_true", help="fill the other inputs with seeded random numbers")
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="a symbol's size (--random)")
    parser.add_argument("--threads", type=int, help="threads of the compiled kernels")
    parser.add_argument("-o", "--output", metavar="DIR", help="write each output as a .npy file")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Run once and print each output's type and a few numbers of it."""
    from hcomp.runtime.startup import import_runtime

    import_runtime()  # before anything else imports tvm_ffi: torch would cost seconds
    import hcomp
    from hcomp.cli.feeds import random_inputs, read_inputs
    from hcomp.cli.options import read_sizes, report

    session = hcomp.load(options.artifact, threads=options.threads)
    feeds = read_inputs(options.input)
    if options.random:
        feeds = random_inputs(session.inputs, read_sizes(options.size), feeds)
    outputs = session.run(feeds)
    if options.output:
        _write(outputs, Path(options.output))
    lines = [f"{name}: {_describe(value)}" for name, value in outputs.items()]
    report(options, {name: _describe(value) for name, value in outputs.items()}, "\n".join(lines))
    return 0


def _describe(value: Any) -> str:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else repr(value)
    text = f"{value.dtype}{list(value.shape)}"
    if value.dtype.kind in "biuf" and value.size:
        data = value.astype(np.float64)
        text += f", mean {data.mean():.6g}, smallest {data.min():.6g}, largest {data.max():.6g}"
    return text


def _write(outputs: dict[str, Any], folder: Path) -> None:
    import numpy as np

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in outputs.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind == "O":
                raise UsageError(f"the output {name!r} is no array of numbers: a .npy file cannot hold it")
            # Names come from the model, so they may hold slashes: they never choose a folder.
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "output"
            np.save(folder / f"{safe}.npy", value, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from None
