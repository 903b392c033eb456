"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from hcomp.errors import UsageError

T = TypeVar("T")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command that prints a report."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def add_compile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide what the compiler does."""
    parser.add_argument("--devices", default="cpu", metavar="A,B", help="devices to plan for (default: cpu)")
    parser.add_argument("--objective", default="latency", help="what the plan minimises (default: latency)")
    parser.add_argument(
        "--pin", action="append", default=[], metavar="PATTERN=DEVICE",
        help="run the nodes whose name matches on a device; 'op:NAME=DEVICE' goes by operator",
    )  # fmt: skip
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="make an input's shape static",
    )
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="the size that costs assume")
    parser.add_argument(
        "--no-cache", action="store_true", help="compile even if the same was compiled before, and keep nothing"
    )
    parser.add_argument(
        "--tune", type=float, default=0.0, metavar="SECONDS", help="search faster blocks for the heaviest kernels"
    )
    parser.add_argument(
        "--tuning", default="", metavar="FILE", help="measured blocks to compile with; --tune adds what it finds"
    )
    parser.add_argument("--strict", action="store_true", help="refuse a model with extern nodes (exit status 3)")


class _Refused(argparse.Action):
    """An option that exists to say why it does not."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        parser.error(f"{flag}: {self.const}")


COMING = {
    "compile": {
        "--machine": "not yet: plans are for the processor of this machine",
        "--memory": "not yet: plans have no limit on memory",
        "--plan": "not yet: a plan cannot be fed back; --pin PATTERN=DEVICE places nodes",
        "--specialize": "not yet: --shape INPUT=N,N,... makes sizes static",
        "--threads": "an artifact keeps no number of threads; `hcomp run` and `hcomp bench` take --threads",
    },
    "inspect": {"--html": "not yet: --svg FILE writes a picture"},
    "diff": {"--fail-if-slower": "not yet: --json gives the differences to tools"},
}
"""Options that users may expect of a command, with what is true instead."""


def add_coming(parser: argparse.ArgumentParser, command: str) -> None:
    """Let a command refuse, with a reason, the options that it does not have yet."""
    for flag, why in COMING.get(command, {}).items():
        parser.add_argument(flag, action=_Refused, nargs="?", const=why, help=argparse.SUPPRESS)


def compile_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `hcomp.compile` for parsed options."""
    return {
        "devices": options.devices,
        "objective": options.objective,
        "pins": options.pin,
        "shapes": by_name("--shape", (_shape(text) for text in options.shape)),
        "sizes": read_sizes(options.size),
        "strict": options.strict,
        "cache": not options.no_cache,
        "tune": options.tune,
        "tuning": options.tuning,
    }


def read_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Return the sizes that `SYMBOL=N` texts give.

    Raises:
        UsageError: a text has another form, or two are about one symbol.
    """
    found = []
    for text in texts:
        name, numbers = _shape(text)
        if len(numbers) != 1:
            raise UsageError(f"expected SYMBOL=N, found {text!r}")
        found.append((name, numbers[0]))
    return by_name("--size", found)


def by_name(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return pairs as a dictionary.

    Raises:
        UsageError: a name comes twice, where neither can be what is meant.
    """
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option} gives {name!r} twice")
        found[name] = value
    return found


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.rpartition("=")
    parts = [part.strip() for part in numbers.split(",")] if numbers else []
    if not equals or not name or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"expected NAME=N,N,..., found {text!r}")
    if any(len(part) > 18 for part in parts):
        raise UsageError(f"expected NAME=N,N,... with numbers below 10^18, found {text[:80]!r}")
    return name, tuple(int(part) for part in parts)


def report(options: argparse.Namespace, data: Any, text: str) -> None:
    """Print a report: the data as JSON where `--json` was given, else the text."""
    print(json.dumps(data, indent=1, default=str) if options.json else text)


def progress(message: str) -> None:
    """Show what is going on, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
