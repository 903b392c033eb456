"""Timing each kernel of a run: the VM's interpreter asks before every call, and is told it is done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_ffi import Tensor

from hcomp.artifact.fields import Fields, as_integer, as_text, parse_json
from hcomp.dims import Dim, DimLike, evaluate, is_symbol, parse_dim, symbols_of
from hcomp.errors import ArtifactError, ParseError
from hcomp.runtime.library import Buffer, tvm_function
from hcomp.runtime.profiled_loop import provide_repeat
from hcomp.runtime.vm import Watch

RUN_IT, DONE = 0, 1
"""What the VM's instrument may answer before a call."""


@dataclass(frozen=True)
class KernelEntry:
    """A kernel as the artifact lists it; operations and bytes are over the sizes that `parameters` name."""

    rule: str
    nodes: tuple[str, ...]
    parameters: tuple[tuple[DimLike, ...] | str, ...]
    operations: DimLike | None
    bytes: DimLike | None

    def sizes(self, arguments: tuple[Any, ...]) -> dict[str, int]:
        """Return the sizes that the arguments of a call have."""
        found: dict[str, int] = {}
        for shape, value in zip(self.parameters, arguments, strict=False):
            if isinstance(shape, str):
                if isinstance(value, int):
                    found[shape] = value
            elif isinstance(value, Tensor):
                found |= {str(d): n for d, n in zip(shape, value.shape, strict=False) if is_symbol(d)}
        return found


@dataclass
class Lap:
    """What one kernel has taken so far in one run."""

    seconds: float = 0.0
    calls: int = 0
    operations: int | None = 0
    bytes: int | None = 0


@dataclass
class KernelClock:
    """The kernels' times of one run, by region and name; `laps` is emptied by whoever reads them."""

    entries: dict[tuple[str, str], KernelEntry] = field(default_factory=dict)
    laps: dict[tuple[str, str], Lap] = field(default_factory=dict)
    overhead: float = 0.0

    def watch(self, region: str, listing: Buffer) -> Watch:
        """Return what the VM of a region asks before each call.

        Raises:
            ArtifactError: the list of kernels is damaged.
        """
        provide_repeat()
        entries = read_kernels(listing, region)
        self.entries.update({(region, name): entry for name, entry in entries.items()})
        # What a call of the measuring itself takes: the function does next to nothing.
        self.overhead = _quickest(tvm_function("ffi.Array"))
        clock = time.perf_counter

        def watch(function: Any, name: str, before: bool, _result: object, *arguments: Any) -> int:
            if not before or name not in entries:
                return RUN_IT
            start = clock()
            function(*arguments)
            self._note((region, name), clock() - start, arguments)
            return DONE

        return watch

    def _note(self, key: tuple[str, str], seconds: float, arguments: tuple[Any, ...]) -> None:
        lap, entry = self.laps.setdefault(key, Lap()), self.entries[key]
        sizes = entry.sizes(arguments)
        lap.seconds += max(0.0, seconds - self.overhead)
        lap.calls += 1
        lap.operations = _sum(lap.operations, entry.operations, sizes)
        lap.bytes = _sum(lap.bytes, entry.bytes, sizes)


def read_kernels(data: Buffer, region: str) -> dict[str, KernelEntry]:
    """Return the kernels that a region's list names.

    Raises:
        ArtifactError: a field is missing or wrong.
    """
    fields = parse_json(bytes(data), f"region {region}: kernels.json")
    try:
        return {name: _entry(entry) for name, entry in fields.object("kernels").children()}
    except ParseError as error:
        raise ArtifactError(f"region {region}: kernels.json: {error}") from None


def _entry(fields: Fields) -> KernelEntry:
    where = fields.at("parameters")
    return KernelEntry(
        rule=fields.text("rule"),
        nodes=fields.texts("nodes"),
        parameters=tuple(
            tuple(_size(d, where) for d in item) if isinstance(item, list) else as_text(item, where)
            for item in fields.items("parameters")
        ),
        operations=parse_dim(fields.text("operations")) if fields.has("operations") else None,
        bytes=parse_dim(fields.text("bytes")) if fields.has("bytes") else None,
    )


def _size(value: object, where: str) -> DimLike:
    return parse_dim(value) if isinstance(value, str) else as_integer(value, where)


def _sum(total: int | None, more: DimLike | None, sizes: Mapping[str, int]) -> int | None:
    if total is None or more is None or symbols_of(more) - sizes.keys():
        return None
    try:
        return total + (evaluate(more, sizes) if isinstance(more, Dim) else more)
    except ZeroDivisionError:
        return None


def _quickest(function: Any) -> float:
    """Return the time of the quickest of many calls."""
    found = []
    for _ in range(1000):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)
