"""The command line: `hcomp COMMAND ...`; each command is a module here with `add` and `run`.

Exit status: 0 done, 1 a failure of ours, 2 wrong usage or unreadable input, 3 refused by a policy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hcomp.errors import HcompError

DEBUG = "HCOMP_DEBUG"
"""The environment variable that makes faults of hcomp show their traceback."""
COMMANDS = ("compile", "run", "verify", "bench", "inspect", "explain", "diff", "devices")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except HcompError as error:
        print(f"hcomp: {error}", file=sys.stderr)
        return error.exit_status
    except MemoryError:
        print("hcomp: out of memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hcomp: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe is gone: nothing is wrong, and nobody would read a message.
        _drop_output()
        return 0
    except OSError as error:
        if error.filename is not None or os.environ.get(DEBUG):
            raise
        # Every file is opened by code that names it in its errors; what has no name is the output.
        print(f"hcomp: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        _drop_output()
        return 1
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        text = " ".join(str(error).split())
        print(
            f"hcomp: a fault of hcomp: {type(error).__name__}: {text[:500]} (please report it; {DEBUG}=1 shows where)",
            file=sys.stderr,
        )
        return 1
    return status


def _drop_output() -> None:
    """Send what is left for the output nowhere, so that the interpreter's last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    from importlib import import_module

    from hcomp import __version__

    parser = argparse.ArgumentParser(prog="hcomp", description="Compile one model for several devices at once.")
    parser.add_argument("--version", action="version", version=f"hcomp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"hcomp.cli.{name}")
        command = commands.add_parser(name, help=str(module.__doc__).splitlines()[0].rstrip("."))
        module.add(command)
        command.set_defaults(run=module.run)
    return parser
