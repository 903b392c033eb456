"""The command line: `hcomp COMMAND ...`; each command is a module here with `add` and `run`.

Exit status: 0 done, 1 a failure of ours, 2 wrong usage or unreadable input, 3 refused by a policy.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from hcomp.errors import HcompError

DEBUG = "HCOMP_DEBUG"
"""The environment variable that makes faults of hcomp show their traceback."""
COMMANDS = (
    "compile", "run", "verify", "bench", "profile", "inspect", "explain", "diff", "devices", "calibrate", "npu",
    "plan-problem",
)  # fmt: skip


INTERRUPTED = ("interrupted", 130)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    with _noting_interrupts() as interrupts:
        try:
            status: int = options.run(options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            message, status = INTERRUPTED
        except Exception as error:
            if os.environ.get(DEBUG) and not isinstance(error, HcompError | BrokenPipeError):
                raise
            # TVM makes an error of its own of an interrupt that arrives inside of it.
            message, status = INTERRUPTED if interrupts else _outcome(error)
        else:
            return status
    if message:
        print(f"hcomp: {message}", file=sys.stderr)
    return status


def _outcome(error: Exception) -> tuple[str, int]:
    """Return what to say of an error, and the exit status."""
    match error:
        case HcompError():
            return str(error), error.exit_status
        case MemoryError():
            return "out of memory", 1
        case BrokenPipeError():
            # The reader of a pipe is gone: nothing is wrong, and nobody would read a message.
            _drop_output()
            return "", 0
        case OSError() if error.filename is not None:
            return f"{os.fsdecode(error.filename)}: {error.strerror or error}", 2
        case OSError():
            # Every file is opened by code that names it in its errors; what has no name is the output.
            _drop_output()
            return f"the output cannot be written: {error.strerror or error}", 1
    text = " ".join(str(error).split())[:500]
    return f"a fault of hcomp: {type(error).__name__}: {text} (please report it; {DEBUG}=1 shows where)", 1


@contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Give a list that is not empty once the user has interrupted the command."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen  # handlers belong to the main thread, and one of somebody else's stays
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _drop_output() -> None:
    """Send what is left for the output nowhere, so that the interpreter's last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    from importlib import import_module

    from hcomp import __version__
    from hcomp.cli.options import add_coming

    parser = argparse.ArgumentParser(prog="hcomp", description="Compile one model for several devices at once.")
    parser.add_argument("--version", action="version", version=f"hcomp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"hcomp.cli.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=str(module.__doc__).splitlines()[0].rstrip("."))
        module.add(command)
        add_coming(command, name)
        command.set_defaults(run=module.run)
    return parser
