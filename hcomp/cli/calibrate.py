"""Measure this machine and keep the numbers, for profiles and costs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from hcomp.cli.files import check_output
from hcomp.cli.options import add_json, progress, report, table


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "-o", "--output", help="the machine file to write (default: the user's own, which profiles read)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, write the file, and print what was found."""
    from hcomp.machine import machine_file, write_machine
    from hcomp.runtime.startup import without_optional_imports

    if options.output is not None:
        check_output(options.output)
    path = machine_file() if options.output is None else Path(options.output)
    progress("measuring ...")
    with without_optional_imports(("torch",)):
        from hcomp.targets.cpu.calibrate import calibrate

        machine = calibrate()
    progress("")
    write_machine(machine, path)
    rows = [("memory", "size", "read GB/s", "copy GB/s", "read GB/s, all cores")]
    for memory in machine.memories:
        size = f"{memory.size_kb} KB" if memory.size_kb else ""
        speeds = (memory.read_gb_s, memory.copy_gb_s, memory.read_gb_s_all_cores)
        rows.append((memory.name, size, *(f"{speed:.1f}" for speed in speeds)))  # type: ignore[arg-type]  # five texts
    text = (
        f"{path}: {machine.processor}, {machine.cores} core(s), peak {machine.peak_gflop_s:.1f} GFLOP/s of one core,"
        f" {machine.peak_gflop_s_all_cores:.1f} of all, {machine.launch_us:.2f} us a kernel\n{table(rows)}"
    )
    report(options, {"file": str(path), **asdict(machine)}, text)
    return 0
