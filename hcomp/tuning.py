"""The tuning file: blocks of kernels that were measured to be faster than the analytic ones.

It is JSON, and travels: entries are by processor, so that of a file from elsewhere nothing is used that
was not measured on a processor like this one. The same file gives the same artifact. `hcomp compile
--tune` fills it, `--tuning FILE` names it; without both, compiling is as if there were none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcomp.errors import UsageError
from hcomp.files import reason_of, why_unreadable, write_whole

FORMAT = "hcomp-tuning"
VERSION = 1
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Measured:
    """One kernel's choice, and the best times of it and of the analytic one in microseconds.

    The times are of all calls together that the model has which it was measured for.
    """

    choice: Mapping[str, int]
    us: float
    analytic_us: float


@dataclass
class Tuning:
    """What was measured: processor -> signature of a kernel -> choice."""

    processors: dict[str, dict[str, Measured]] = field(default_factory=dict)

    def choices(self, processor: str) -> dict[str, Mapping[str, int]]:
        """Return the choices of one processor by signature."""
        return {name: found.choice for name, found in self.processors.get(processor, {}).items()}

    def to_json(self) -> dict[str, Any]:
        """Return the file's contents, in an order that does not depend on that of measuring."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "processors": {
                processor: {
                    name: {"choice": dict(sorted(m.choice.items())), "us": m.us, "analytic_us": m.analytic_us}
                    for name, m in sorted(kernels.items())
                }
                for processor, kernels in sorted(self.processors.items())
            },
        }


def default_file() -> Path:
    """Return the tuning file that `--tune` fills where none is named."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "hcomp" / "tuning.json"


def read_tuning(path: str | os.PathLike[str], *, missing: bool = False) -> Tuning:
    """Return what a tuning file holds; with `missing`, a file that is not there holds nothing.

    Raises:
        UsageError: the file cannot be read, or is no tuning file; names the field.
    """
    source = Path(path)
    if missing and not source.exists():
        return Tuning()
    if reason := why_unreadable(source):
        raise UsageError(f"{path}: cannot be read: {reason}")
    try:
        with source.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path}: no tuning file: larger than {MOST_BYTES >> 20} MB")
        found = json.loads(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason_of(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no tuning file: {error}") from None
    return _read(found, str(path))


def write_tuning(tuning: Tuning, path: str | os.PathLike[str]) -> None:
    """Write a tuning file, which appears whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    target = Path(path)
    text = json.dumps(tuning.to_json(), indent=1) + "\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, lambda file: file.write(text.encode()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be written: {reason_of(error)}") from None


def _read(found: Any, path: str) -> Tuning:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path}: no tuning file: its format is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise UsageError(f"{path}: its version is {found.get('version')!r:.40}, this hcomp reads {VERSION}")
    tuning = Tuning()
    for processor, kernels in _object(found.get("processors"), f"{path}: processors").items():
        where = f"{path}: processors.{processor}"
        own = _object(kernels, where)
        tuning.processors[processor] = {name: _measured(entry, f"{where}.{name}") for name, entry in own.items()}
    return tuning


def _measured(entry: Any, where: str) -> Measured:
    fields = _object(entry, where)
    choice = _object(fields.get("choice"), f"{where}: choice")
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in choice.values()):
        raise UsageError(f"{where}: choice: expected integers, found {choice!r:.60}")
    times = [fields.get(name) for name in ("us", "analytic_us")]
    if not all(isinstance(t, int | float) and not isinstance(t, bool) and 0 <= t < 1e15 for t in times):
        raise UsageError(f"{where}: expected times in microseconds, found {times!r:.60}")
    return Measured(choice, float(times[0]), float(times[1]))  # type: ignore[arg-type]  # as checked


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected an object, found {value!r:.60}")
    return value
