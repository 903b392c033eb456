"""Solve a published placement problem: nodes with times on CPU cores and accelerators."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hcomp.cli.options import add_json, report
from hcomp.errors import PartitionError, UsageError
from hcomp.files import why_unreadable

OBJECTIVES = ("throughput", "latency")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("problem", help="the problem as JSON: nodes, edges, maxFPGAs, maxCPUs, maxSizePerFPGA")
    parser.add_argument("--objective", choices=OBJECTIVES, required=True, help="what is minimised")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the command may take (default: 30)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Solve, and print the placement with its bound."""
    from hcomp.placement.answer import Deadline
    from hcomp.placement.latency import solve_latency
    from hcomp.placement.problem import read_problem
    from hcomp.placement.throughput import solve_throughput

    started = time.monotonic()
    if not 0 < options.seconds < 1e6:
        raise UsageError(f"--seconds: expected a number above 0, found {options.seconds}")
    if reason := why_unreadable(options.problem):
        raise UsageError(f"{options.problem}: cannot be read: {reason}")
    try:
        problem = read_problem(Path(options.problem).read_text(encoding="utf-8", errors="replace"))
    except UsageError as error:
        raise UsageError(f"{options.problem}: {error}") from None
    solve = solve_throughput if options.objective == "throughput" else solve_latency
    # What came before this line is the interpreter's start: a few tenths of a second.
    answer = solve(problem, Deadline(options.seconds - 0.3, started))
    if answer is None:
        raise PartitionError(
            f"{options.problem}: no placement was found that fits {problem.accelerators} accelerators of"
            f" {problem.memory:.0f} bytes and {problem.cores} CPU cores; more memory or --seconds may help"
        )
    text = f"{options.objective} {answer.objective:.6g}, at least {answer.bound:.6g} (gap {100 * answer.gap:.2f} %)"
    report(options, answer.to_json(problem, time.monotonic() - started), text)
    return 0
