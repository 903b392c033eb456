"""The machine's description: presets, reading back, and every wrong field named with what is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hcomp.errors import UsageError
from hcomp.targets.npu.device.machine import FOLDER, PRESETS, load_machine, machine_from

MEGABYTE = 1 << 20


def test_presets_are_the_files_of_their_folder() -> None:
    assert sorted(PRESETS) == sorted(path.stem for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize(("name", "tops", "sram"), [("edge", 0.5, 0.5), ("laptop", 40, 8), ("server", 400, 64)])
def test_a_preset_has_the_size_that_it_says(name: str, tops: float, sram: float) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert machine.tops_int8 == pytest.approx(tops, rel=0.03)
    assert sum(pad.size for pad in machine.scratchpad.values()) == sram * MEGABYTE
    assert set(machine.array.dataflows) == {"ws", "os"}
    assert machine.state("low").clock_mhz < machine.state().clock_mhz
    assert machine_from(machine.to_dict(), "again") == machine


def test_a_machine_is_read_from_any_file(tmp_path: Path) -> None:
    text = (FOLDER / "edge.toml").read_text().replace('name = "edge"', 'name = "mine"').replace("rows = 16", "rows = 8")
    (tmp_path / "mine.toml").write_text(text)
    machine = load_machine(tmp_path / "mine.toml")
    assert (machine.name, machine.array.rows) == ("mine", 8)


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        place: Any = fields
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        place: Any = fields
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "missing": (drop("memory", "latency_ns"), "f: memory.latency_ns is missing: add a number of 0 to 1e+06"),
    "no table": (put("dma", value=3), "f: dma: expected a table, found 3"),
    "unknown": (put("array", "cols", value=3), "f: array.cols is unknown: there are columns, dataflows, rows"),
    "unknown at the top": (put("arrays", value={}), "f: arrays is unknown: there are array, dma"),
    "zero": (put("array", "rows", value=0), "f: array.rows: expected an integer of 1 to 4096, found 0"),
    "text": (put("vector", "lanes", value="16"), "f: vector.lanes: expected an integer of 1 to 65536, found '16'"),
    "bool": (put("queue", "depth", value=True), "f: queue.depth: expected an integer of 1 to"),
    "nan": (put("memory", "bandwidth_gb_s", value=float("nan")), "f: memory.bandwidth_gb_s: expected a number of"),
    "infinity": (put("energy", "leakage_mw", value=float("inf")), "f: energy.leakage_mw: expected a number of"),
    "dataflow": (put("array", "dataflows", value=["rs"]), "f: array.dataflows: expected a list of some of ws, os"),
    "no dataflow": (put("array", "dataflows", value=[]), "f: array.dataflows: expected a list of some of ws, os"),
    "name": (put("name", value=""), "f: name: expected a name of 1 to 64 characters, found ''"),
    "no state": (put("states", value=[]), "f: states: expected 1 to 64 tables"),
    "state": (put("states", 0, "clock_mhz", value=-1), "f: states[0].clock_mhz: expected an integer of 1"),
    "same states": (put("states", 1, "name", value="full"), "f: states: expected names that differ, found full, full"),
    "starving": (
        put("scratchpad", "wgt", "banks", value=2),
        "f: scratchpad.wgt: banks x bank_bytes is 16 bytes a cycle, less than array.columns of 2 bytes (32): give",
    ),
    "bank": (put("scratchpad", "act", "bank_bytes", value=12), "bank_bytes: expected a power of two, found 12"),
    "energy": (drop("energy", "mac_pj", "float16"), "f: energy.mac_pj.float16 is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named(name: str) -> None:
    change, message = WRONG[name]
    fields = load_machine("edge").to_dict()
    fields["states"] = list(fields["states"])
    change(fields)
    with pytest.raises(UsageError) as caught:
        machine_from(fields, "f")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_description_is_a_table(value: object) -> None:
    with pytest.raises(UsageError, match="expected a table, found"):
        machine_from(value, "f")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a = [", "not readable TOML"),
        (b"\xff\xfe", "not readable TOML"),
        (b"a = " + b"[" * 100_000, "not readable TOML"),
        (b"#" * (MEGABYTE + 2), "at most 1048576 bytes"),
        (b"", "array is missing: add a table"),
    ],
)
def test_an_unreadable_file_is_a_line(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_bytes(data)
    with pytest.raises(UsageError) as caught:
        load_machine(tmp_path / "m.toml")
    assert message in str(caught.value)
    assert "m.toml" in str(caught.value)
    with pytest.raises(UsageError, match="a preset is one of edge, laptop, server"):
        load_machine(tmp_path / "none.toml")
