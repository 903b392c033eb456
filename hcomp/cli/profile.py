"""Show where the time of a run goes: by region and copy, or with --kernels by kernel."""

from __future__ import annotations

import argparse

from hcomp.cli.options import add_json


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("artifact", help="what `hcomp compile` wrote")
    parser.add_argument("--kernels", action="store_true", help="time each kernel of the compiled regions by itself")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; others are made up"
    )
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="a size of made-up inputs")
    parser.add_argument("--runs", type=int, default=20, help="runs to take the median of (default: 20)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the compiled kernels (default: 1)")
    parser.add_argument("--trace", metavar="FILE", help="write the last run for chrome://tracing or Perfetto")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the steps or kernels of a run, with their times."""
    from hcomp.runtime.startup import import_runtime

    import_runtime()  # before anything else imports tvm_ffi: torch would cost seconds
    from hcomp.cli.feeds import advise_sizes, advising, checked_sizes, input_files, random_inputs, read_inputs
    from hcomp.cli.files import open_artifact
    from hcomp.cli.options import read_sizes, report, table
    from hcomp.errors import UsageError
    from hcomp.machine import machine_file, read_machine
    from hcomp.runtime import Session

    if options.kernels and options.trace:
        raise UsageError("--trace shows regions and copies: give it without --kernels")
    session = Session(open_artifact(options.artifact), threads=options.threads)
    sizes = read_sizes(options.size)
    every = checked_sizes(session.inputs, sizes)
    feeds = random_inputs(session.inputs, sizes, read_inputs(input_files(options.input)))
    with advising(advise_sizes(every, sizes) if len(feeds) > len(options.input) else ""):
        if not options.kernels:
            profile = session.profile(feeds, options.runs)
            if options.trace:
                profile.save_chrome_trace(options.trace)
            report(options, profile.to_json(), profile.to_text())
            return 0
        kernels = session.profile_kernels(feeds, options.runs)
    machine = read_machine(machine_file())
    text = table(kernels.to_rows(machine)) + f"\n{kernels.total_us:.1f} us in {len(kernels.kernels)} kernels"
    if machine is None:
        text += (
            "\n`hcomp calibrate` measures this machine: then each kernel's share of the peak is shown, and its bound"
        )
    report(options, kernels.to_json(machine), text)
    return 0
