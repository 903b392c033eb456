"""This machine as it was measured: `hcomp calibrate` writes the file, profiles and costs read it.

The file is TOML, `~/.config/hcomp/this-machine.toml` or the folder of that name in `XDG_CONFIG_HOME`. Units
are in the names of the fields; what ends in `all_cores` is of all of them together, other rates are of
one core.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hcomp.errors import UsageError
from hcomp.files import reason_of, why_unreadable, write_whole

NAME = "this-machine"
MEASURED = "float32"


@dataclass(frozen=True)
class Memory:
    """One level: its name, what it holds (0: no limit), and how fast it is read and copied.

    Attributes:
        name: L1, L2, L3 or DRAM.
        size_kb: of one core for a core's own cache, of all for a shared one.
        read_gb_s, copy_gb_s: of one core; a copy counts both what is read and what is written.
        read_gb_s_all_cores: of all cores at once.
    """

    name: str
    size_kb: int
    read_gb_s: float
    copy_gb_s: float
    read_gb_s_all_cores: float


@dataclass(frozen=True)
class Machine:
    """The processor of a machine.

    Attributes:
        name: what users call the machine.
        processor: LLVM's name of it.
        cores: those that this process could use.
        peak_gflop_s: multiply-adds (two operations each) of one core on float32.
        peak_gflop_s_all_cores: of all cores together.
        launch_us: one more kernel in a region.
        memories: the levels, the smallest first; the last has no limit.
    """

    name: str
    processor: str
    cores: int
    peak_gflop_s: float
    peak_gflop_s_all_cores: float
    launch_us: float
    memories: tuple[Memory, ...]

    def peak(self, threads: int) -> float:
        """Return the peak of `threads` threads in GFLOP/s."""
        return _of_threads(self.peak_gflop_s, self.peak_gflop_s_all_cores, threads, self.cores)

    def memory_of(self, size: int, threads: int) -> tuple[str, float]:
        """Return the name of the smallest memory that holds `size` bytes, and its GB/s for reading."""
        found = next((m for m in self.memories if m.size_kb * 1024 >= size), self.memories[-1])
        return found.name, _of_threads(found.read_gb_s, found.read_gb_s_all_cores, threads, self.cores)

    def to_toml(self) -> str:
        """Return the text of the file."""
        lines = [
            "# Measured by `hcomp calibrate`; rates are of one core where they do not end in all_cores.",
            f'name = "{self.name}"',
            "",
            "[devices.cpu]",
            'kind = "cpu"',
            f'processor = "{self.processor}"',
            f"cores = {self.cores}",
            f"launch_us = {self.launch_us:.4g}",
            f"peak_gflop_s = {{ {MEASURED} = {self.peak_gflop_s:.5g} }}",
            f"peak_gflop_s_all_cores = {{ {MEASURED} = {self.peak_gflop_s_all_cores:.5g} }}",
        ]
        for memory in self.memories:
            lines += ["", "[[devices.cpu.memories]]", f'name = "{memory.name}"', f"size_kb = {memory.size_kb}"]
            for field in ("read_gb_s", "copy_gb_s", "read_gb_s_all_cores"):
                lines.append(f"{field} = {getattr(memory, field):.5g}")
        return "\n".join(lines) + "\n"


def machine_file() -> Path:
    """Return where the file of this machine is."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "hcomp" / f"{NAME}.toml"


def write_machine(machine: Machine, path: Path) -> None:
    """Write a machine to a file, which appears whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(machine.to_toml().encode()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be written: {reason_of(error)}") from None


def read_machine(path: Path) -> Machine | None:
    """Return the machine in a file, or None where there is no file.

    Raises:
        UsageError: the file cannot be read, or a field is missing or wrong; names it.
    """
    if not path.exists():
        return None
    if reason := why_unreadable(path):
        raise UsageError(f"{path}: cannot be read: {reason}")
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: no machine: {error}; `hcomp calibrate` writes a new one") from None
    try:
        return _machine(found)
    except _FieldError as error:
        raise UsageError(f"{path}: {error}; `hcomp calibrate` writes a new one") from None


class _FieldError(Exception):
    """A field that is missing or wrong."""


def _machine(found: Mapping[str, Any]) -> Machine:
    cpu = _table(_table(found, "devices"), "cpu")
    memories = cpu.get("memories")
    if not isinstance(memories, list) or not memories or not all(isinstance(m, dict) for m in memories):
        raise _FieldError("devices.cpu.memories: expected at least one table")
    return Machine(
        name=_text(found, "name"),
        processor=_text(cpu, "processor"),
        cores=int(_number(cpu, "cores")),
        peak_gflop_s=_number(_table(cpu, "peak_gflop_s"), MEASURED),
        peak_gflop_s_all_cores=_number(_table(cpu, "peak_gflop_s_all_cores"), MEASURED),
        launch_us=_number(cpu, "launch_us"),
        memories=tuple(
            Memory(
                _text(m, "name"),
                int(_number(m, "size_kb", 0.0)),
                _number(m, "read_gb_s"),
                _number(m, "copy_gb_s"),
                _number(m, "read_gb_s_all_cores"),
            )
            for m in memories
        ),
    )


def _table(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    if not isinstance(value, dict):
        raise _FieldError(f"{key}: expected a table, found {value!r:.60}")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise _FieldError(f"{key}: expected a text, found {value!r:.60}")
    return value


def _number(fields: Mapping[str, Any], key: str, least: float = 1e-9) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e15:
        raise _FieldError(f"{key}: expected a number above 0, found {value!r:.60}")
    return float(value)


def _of_threads(one: float, every: float, threads: int, cores: int) -> float:
    """Return a rate of some threads: as many times one core's, at most that of all."""
    return one if threads == 1 else every if threads >= cores else min(one * threads, every)
