"""Run or print a program of the NPU."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcomp.errors import UsageError
from hcomp.files import reason_of, why_unreadable

if TYPE_CHECKING:
    from hcomp.artifact.types import TensorType
    from hcomp.targets.npu.device.program import Buffer, Program


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    runner = actions.add_parser("run", help="execute a program and time it, tile by tile")
    runner.add_argument("program", help="a file of the NPU's instructions and constants")
    runner.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input")
    runner.add_argument("--random", action="store_true", help="fill the other inputs with seeded random numbers")
    runner.add_argument("-o", "--output", metavar="DIR", help="write each output to a .npy file, bfloat16 as float32")
    runner.add_argument("--state", default="", metavar="NAME", help="the power state to time in (default: the first)")
    runner.add_argument("--trace", metavar="FILE", help="write when each instruction ran, for chrome://tracing")
    runner.add_argument("--only-time", action="store_true", help="execute nothing: time and energy alone")
    runner.add_argument("--json", action="store_true", help="print the report as JSON")
    printer = actions.add_parser("disasm", help="print a program as text, a line an instruction")
    printer.add_argument("program", help="a file of the NPU's instructions and constants")
    printer.add_argument("-o", "--output", default="-", metavar="FILE", help="write to a file")


def run(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    return _run(options) if options.action == "run" else _disassemble(options)


def _run(options: argparse.Namespace) -> int:
    from hcomp.cli.feeds import input_files, random_inputs, read_inputs
    from hcomp.cli.files import check_output, write_text
    from hcomp.cli.options import report
    from hcomp.cli.outputs import output_files, write_outputs
    from hcomp.cli.run import describe, describe_line
    from hcomp.targets.npu.device.hazards import check_races
    from hcomp.targets.npu.device.report import time_program
    from hcomp.targets.npu.device.values import run_program

    if options.only_time and (options.input or options.random or options.output):
        raise UsageError("--only-time executes nothing: it goes with no --input, --random or --output")
    program = _read(options.program)
    inputs = input_files(options.input)
    read = [options.program, *inputs.values()]
    if options.trace is not None:
        check_output(options.trace, read)
    files = output_files(_specs(program, "output"), options.output, read) if options.output is not None else {}
    timed = time_program(program, options.state)
    found: dict[str, Any] = {}
    if not options.only_time:
        check_races(program)
        feeds = read_inputs(inputs)
        if options.random:
            feeds = random_inputs(_specs(program, "input"), {}, feeds)
        outputs = {name: _plain(value, program, name) for name, value in run_program(program, feeds).items()}
        write_outputs(outputs, files)
        found = {name: describe(value) for name, value in outputs.items()}
    if options.trace is not None:
        write_text(options.trace, json.dumps(timed.chrome_trace()))
    lines = [f"{name}: {describe_line(data)}" for name, data in found.items()]
    report(options, timed.to_json() | {"outputs": found}, "\n".join([*lines, timed.to_text()]))
    return 0


def _disassemble(options: argparse.Namespace) -> int:
    from hcomp.cli.files import STANDARD_OUTPUT, check_output, write_text
    from hcomp.targets.npu.device.text import print_program

    if options.output != STANDARD_OUTPUT:
        check_output(options.output, [options.program])
    write_text(options.output, print_program(_read(options.program)))
    return 0


def _read(path: str) -> Program:
    """Return the program in a file, checked.

    Raises:
        UsageError: the file cannot be read.
        ArtifactError: it holds no valid program.
    """
    from hcomp.targets.npu.device.program import read_program

    if reason := why_unreadable(path):
        raise UsageError(f"{path or repr(path)}: cannot be read: {reason}")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason_of(error)}") from None
    return read_program(data, path)


@dataclass(frozen=True)
class _Spec:
    """An input or output as the other commands describe theirs."""

    name: str
    type: TensorType


def _specs(program: Program, role: str) -> list[_Spec]:
    from hcomp.artifact.types import TensorType

    return [_Spec(buffer.name, TensorType(buffer.dtype, buffer.shape)) for buffer in program.of_role(role)]


def _plain(value: Any, program: Program, name: str) -> Any:
    """Return an output as numpy knows it: bfloat16 as float32."""
    from hcomp.targets.npu.device.formats import to_float

    buffer: Buffer = next(b for b in program.of_role("output") if b.name == name)
    return to_float(value, "bfloat16") if buffer.dtype == "bfloat16" else value
