"""The machine as data: one frozen description, read from TOML and checked field by field.

Units are in the names of the fields. README.md of the NPU says what each part does. The three parts
of `PRESETS` come with hcomp; `load_machine` takes their names or the path of a file. A program
carries its machine with it (`Machine.to_dict`, `machine_from`), so that it can be run anywhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from hcomp.errors import UsageError
from hcomp.files import reason_of, why_unreadable

PRESETS = ("edge", "laptop", "server")
FOLDER = Path(__file__).parent / "presets"

ARRAY_TYPES = ("int8", "float16", "bfloat16")
"""What the array multiplies; uint8 goes at the rate and energy of int8."""
DATAFLOWS = ("ws", "os")
"""Weight stationary and output stationary."""
SCRATCHPADS = ("act", "wgt", "acc")
KB, MB = 1 << 10, 1 << 20
MAX_FILE = 1 << 20


@dataclass(frozen=True)
class Array:
    """The systolic array: rows x columns cells, one multiply-add each in `step_cycles` cycles."""

    rows: int
    columns: int
    dataflows: tuple[str, ...]
    step_cycles: Mapping[str, int]


@dataclass(frozen=True)
class Vector:
    """The vector unit: elements a cycle, and what each instruction costs on top."""

    lanes: int
    startup_cycles: int


@dataclass(frozen=True)
class Scratchpad:
    """One on-chip memory: `banks` words of `bank_bytes`, one from each bank in a cycle."""

    size_kb: int
    banks: int
    bank_bytes: int

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.size_kb * KB


@dataclass(frozen=True)
class Dma:
    """Every DMA engine: its width, a new contiguous run, a new instruction."""

    bytes_per_cycle: int
    run_cycles: int
    startup_cycles: int


@dataclass(frozen=True)
class Memory:
    """The device's own memory behind one port."""

    size_mb: int
    bandwidth_gb_s: float
    latency_ns: float
    burst_bytes: int

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.size_mb * MB


@dataclass(frozen=True)
class Queue:
    """The front end: entries of each engine's queue, cycles to dispatch one, cycles of a token's way."""

    depth: int
    dispatch_cycles: int
    token_cycles: int


@dataclass(frozen=True)
class State:
    """A power state; the first one is what the energies are for."""

    name: str
    clock_mhz: int
    voltage_v: float


@dataclass(frozen=True)
class Energy:
    """Picojoules by event at the voltage of the first state, and milliwatts that always flow there."""

    mac_pj: Mapping[str, float]
    vector_pj: float
    act_pj_per_byte: float
    wgt_pj_per_byte: float
    acc_pj_per_byte: float
    memory_pj_per_byte: float
    instruction_pj: float
    leakage_mw: float


@dataclass(frozen=True)
class Machine:
    """One NPU."""

    name: str
    array: Array
    vector: Vector
    scratchpad: Mapping[str, Scratchpad]
    dma: Dma
    memory: Memory
    queue: Queue
    states: tuple[State, ...]
    energy: Energy

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain data, which `machine_from` reads back."""
        return asdict(self)

    def state(self, name: str = "") -> State:
        """Return a power state by name, the first for "".

        Raises:
            UsageError: there is none of that name.
        """
        found = next((state for state in self.states if name in ("", state.name)), None)
        if found is None:
            names = ", ".join(state.name for state in self.states)
            raise UsageError(f"the machine {self.name!r} has no power state {name!r}: there are {names}")
        return found

    @property
    def tops_int8(self) -> float:
        """Return its peak in 10^12 operations a second on int8, a multiply-add being two."""
        cells = self.array.rows * self.array.columns
        return 2 * cells / self.array.step_cycles["int8"] * self.states[0].clock_mhz * 1e-6


def load_machine(name: str | Path) -> Machine:
    """Return a preset by its name, or the machine in a TOML file.

    Raises:
        UsageError: there is no such preset or file, or a field of it is missing or wrong.
    """
    path = FOLDER / f"{name}.toml" if name in PRESETS else Path(name)
    if reason := why_unreadable(path):
        raise UsageError(f"{path}: no machine: {reason}; a preset is one of {', '.join(PRESETS)}")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise UsageError(f"{path}: no machine: expected at most {MAX_FILE} bytes of TOML")
        fields = tomllib.loads(data.decode())
    except OSError as error:
        raise UsageError(f"{path}: no machine: {reason_of(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no machine: not readable TOML: {error}") from None
    return machine_from(fields, str(path))


def machine_from(fields: object, source: str) -> Machine:
    """Return the machine that plain data describes; `source` is what errors call it.

    Raises:
        UsageError: a field is missing, unknown or wrong: says which, what was found, and what to do.
    """
    top = _Table(fields, source, "")
    array = top.table("array")
    dataflows = tuple(array.names("dataflows", DATAFLOWS))
    machine = Machine(
        name=top.text("name"),
        array=Array(
            array.integer("rows", 1, 4096),
            array.integer("columns", 1, 4096),
            dataflows,
            {name: array.table("step_cycles").integer(name, 1, 64) for name in ARRAY_TYPES},
        ),
        vector=_row(Vector, top.table("vector"), lanes=(1, 1 << 16), startup_cycles=(0, 10_000)),
        scratchpad={
            name: _row(
                Scratchpad,
                top.table("scratchpad").table(name),
                size_kb=(1, MB),
                banks=(1, 1024),
                bank_bytes=(4, 1024),
            )
            for name in SCRATCHPADS
        },
        dma=_row(
            Dma,
            top.table("dma"),
            bytes_per_cycle=(1, 1 << 16),
            run_cycles=(0, 10_000),
            startup_cycles=(0, 10_000),
        ),
        memory=_row(
            Memory,
            top.table("memory"),
            size_mb=(1, 16 * MB),
            bandwidth_gb_s=(1e-3, 1e6),
            latency_ns=(0.0, 1e6),
            burst_bytes=(1, 4096),
        ),
        queue=_row(
            Queue, top.table("queue"), depth=(1, 1 << 20), dispatch_cycles=(0, 10_000), token_cycles=(0, 10_000)
        ),
        states=tuple(
            State(state.text("name"), state.integer("clock_mhz", 1, 100_000), state.number("voltage_v", 0.1, 10.0))
            for state in top.tables("states")
        ),
        energy=_energy(top.table("energy")),
    )
    top.finish()
    _check_feeding(machine, source)
    return machine


def _energy(table: _Table) -> Energy:
    macs = table.table("mac_pj")
    per_byte = {
        f"{name}_pj_per_byte": table.number(f"{name}_pj_per_byte", 0.0, 1e6) for name in (*SCRATCHPADS, "memory")
    }
    return Energy(
        mac_pj={name: macs.number(name, 0.0, 1e6) for name in ARRAY_TYPES},
        vector_pj=table.number("vector_pj", 0.0, 1e6),
        instruction_pj=table.number("instruction_pj", 0.0, 1e9),
        leakage_mw=table.number("leakage_mw", 0.0, 1e7),
        **per_byte,
    )


def _check_feeding(machine: Machine, source: str) -> None:
    """Refuse scratchpads that cannot feed the array's edges: a larger array would then be slower."""
    array = machine.array
    needs = {
        "act": (array.rows * 2, "array.rows of 2 bytes"),
        "wgt": (array.columns * 2, "array.columns of 2 bytes"),
        "acc": (array.columns * 4, "array.columns of 4 bytes"),
    }
    for name, (need, of_what) in needs.items():
        pad = machine.scratchpad[name]
        if pad.banks * pad.bank_bytes < need:
            raise UsageError(
                f"{source}: scratchpad.{name}: banks x bank_bytes is {pad.banks * pad.bank_bytes} bytes a cycle, "
                f"less than {of_what} ({need}): give it more or wider banks"
            )
        if pad.bank_bytes & (pad.bank_bytes - 1):
            raise UsageError(f"{source}: scratchpad.{name}.bank_bytes: expected a power of two, found {pad.bank_bytes}")
    names = [state.name for state in machine.states]
    if len(set(names)) < len(names):
        raise UsageError(f"{source}: states: expected names that differ, found {', '.join(names)}")


def _row(kind: Any, table: _Table, **ranges: tuple[float, float]) -> Any:
    """Return a record whose fields are numbers, each in its range; integer where the range is."""
    values: dict[str, float] = {}
    for name, (low, high) in ranges.items():
        if isinstance(low, int):
            values[name] = table.integer(name, low, int(high))
        else:
            values[name] = table.number(name, low, high)
    return kind(**values)


class _Table:
    """A table being read; knows its place for errors and which fields nobody asked for."""

    def __init__(self, values: object, source: str, place: str) -> None:
        self.source, self.place = source, place
        self.inner: list[_Table] = []
        self.asked: set[str] = set()
        if not isinstance(values, Mapping):
            self.fail("", "a table", values)
        self.values: Mapping[str, object] = values

    def at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place and key else self.place or key or "the description"

    def fail(self, key: str, expected: str, found: object) -> NoReturn:
        raise UsageError(f"{self.source}: {self.at(key)}: expected {expected}, found {found!r:.60}")

    def raw(self, key: str, expected: str) -> object:
        self.asked.add(key)
        if key not in self.values:
            raise UsageError(f"{self.source}: {self.at(key)} is missing: add {expected}")
        return self.values[key]

    def table(self, key: str) -> _Table:
        found = next((t for t in self.inner if t.place == self.at(key)), None)
        if found is None:
            found = _Table(self.raw(key, "a table"), self.source, self.at(key))
            self.inner.append(found)
        return found

    def tables(self, key: str) -> list[_Table]:
        value = self.raw(key, "a list of tables")
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= 64:
            self.fail(key, "1 to 64 tables", value)
        made = [_Table(v, self.source, f"{self.at(key)}[{i}]") for i, v in enumerate(value)]
        self.inner += made
        return made

    def text(self, key: str) -> str:
        value = self.raw(key, "a name")
        if not isinstance(value, str) or not 1 <= len(value) <= 64 or not value.isprintable():
            self.fail(key, "a name of 1 to 64 characters", value)
        return value

    def names(self, key: str, known: tuple[str, ...]) -> list[str]:
        value = self.raw(key, f"a list of some of {', '.join(known)}")
        if not isinstance(value, list | tuple) or not value or any(v not in known for v in value):
            self.fail(key, f"a list of some of {', '.join(known)}", value)
        return [name for name in known if name in value]

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.raw(key, f"an integer of {low} to {high}")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, f"an integer of {low} to {high}", value)
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self.raw(key, f"a number of {low:g} to {high:g}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.fail(key, f"a number of {low:g} to {high:g}", value)
        return float(value)

    def finish(self) -> None:
        """Refuse fields that nobody asked for: they are misspelt, or from another version."""
        unknown = [key for key in self.values if key not in self.asked]
        if unknown:
            known = ", ".join(sorted(self.asked))
            raise UsageError(f"{self.source}: {self.at(str(unknown[0]))} is unknown: there are {known}")
        for table in self.inner:
            table.finish()
