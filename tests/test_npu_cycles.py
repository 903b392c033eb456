"""Time: SCALE-Sim's counts, formulas by hand, and that less work or more machine never takes longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hcomp.errors import UsageError
from hcomp.targets.npu.builder import Builder
from hcomp.targets.npu.device.cycles import Durations
from hcomp.targets.npu.device.isa import ENGINES, OS, WS
from hcomp.targets.npu.device.machine import Machine, load_machine
from hcomp.targets.npu.device.program import Program
from hcomp.targets.npu.device.report import time_program
from hcomp.targets.npu.device.timeline import REASONS, simulate
from hcomp.targets.npu.tensor import Tensor
from scripts import npu_scalesim
from tests.npu_programs import CASES, gemm_requantize, random_program, small_machine

LAYERS = [(layer, flow, size) for layer in npu_scalesim.LAYERS for flow, size in layer.cycles]


@pytest.mark.parametrize(("layer", "flow", "size"), LAYERS, ids=lambda x: getattr(x, "name", str(x)))
def test_without_overlap_cycles_are_scalesims(layer: npu_scalesim.Layer, flow: str, size: int) -> None:
    assert npu_scalesim.cycles(layer, flow, size, overlap=False) - 1 == layer.cycles[flow, size]
    assert npu_scalesim.cycles(layer, flow, size, overlap=True) <= layer.cycles[flow, size] + 1


def test_the_comparison_fails_where_they_differ(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.argv", ["npu_scalesim.py"])
    assert npu_scalesim.main() == 0
    assert "largest difference 0.00%" in capsys.readouterr().out
    wrong = replace(npu_scalesim.LAYERS[0], cycles={key: n * 2 for key, n in npu_scalesim.LAYERS[0].cycles.items()})
    monkeypatch.setattr(npu_scalesim, "LAYERS", (wrong,))
    assert npu_scalesim.main() == 1


def test_the_layers_of_networks_are_there_once() -> None:
    layers = npu_scalesim.network_layers()
    shapes = [(layer.m, layer.n, layer.k) for layer in layers]
    assert len(set(shapes)) == len(shapes) == len({layer.name for layer in layers})
    # The first of ResNet-50, a 3x3 of its last stage, a depthwise one of MobileNet, a feed-forward one of BERT.
    assert {(112 * 112, 64, 147), (49, 512, 4608), (196, 1, 9), (128, 3072, 768)} <= set(shapes)


# -- by hand --------------------------------------------------------------------------------------


def one_product(m: int, k: int, n: int, flow: int = WS, count: int = 1) -> Program:
    b = Builder("product", small_machine(act=256, wgt=256, acc=1024))
    a, w, d = b.alloc("act", "int8", (m, k)), b.alloc("wgt", "int8", (k, n)), b.alloc("acc", "int32", (m, n))
    for _ in range(count):
        b.gemm(d, a, w, flow=flow)
    return b.finish()


def test_a_product_loads_weights_streams_and_drains() -> None:
    # One cycle of dispatch, 16 of weights, two folds along k of 40 rows, 30 until the last sum is out.
    assert time_program(one_product(40, 32, 16)).timeline.cycles == 1 + 16 + 2 * 40 + 30
    # Rows fewer than the array's: a fold takes as long as the next weights take, but the last one.
    assert time_program(one_product(4, 32, 16)).timeline.cycles == 1 + 16 + 16 + 4 + 30
    assert time_program(one_product(16, 40, 16, OS)).timeline.cycles == 1 + 40 + 30


def test_weights_of_the_next_product_load_during_the_last_fold() -> None:
    line = time_program(one_product(40, 16, 16, count=5)).timeline
    assert line.cycles == 1 + 16 + 5 * 40 + 30
    assert line.busy[3] == 5 * 40
    assert sum(line.stalls[3]) == 17
    alone = time_program(one_product(40, 16, 16, count=5), overlap=False).timeline
    assert alone.cycles == 1 + 5 * (40 + 16 + 30)


def test_a_load_takes_whole_bursts_and_the_latency() -> None:
    machine = load_machine("edge")  # 3.2 bytes a cycle, 150 cycles of latency, bursts of 32
    b = Builder("load", machine)
    b.load(b.alloc("act", "int8", (64,)), b.input("x", "int8", (64,)))
    assert time_program(b.finish()).timeline.cycles == 1 + 8 + 20 + 150
    b = Builder("column", machine)
    b.load(b.alloc("act", "int8", (64,)), b.input("x", "int8", (64, 100))[:, 3])
    found = time_program(b.finish())
    assert found.timeline.memory_bytes == 64 * 32
    assert found.timeline.cycles == 1 + 8 + 640 + 150
    low = time_program(b.finish(), "low").timeline
    assert low.cycles == 1 + 8 + 160 + 38
    with pytest.raises(UsageError, match="no power state 'turbo': there are full, low"):
        time_program(b.finish(), "turbo")


def test_loads_share_the_port_and_overlap_their_latency() -> None:
    b = Builder("loads", load_machine("edge"))
    x = b.input("x", "int8", (4, 320))
    for i in range(4):
        b.load(b.alloc("act" if i % 2 else "wgt", "int8", (320,)), x[i])
    line = time_program(b.finish()).timeline
    assert line.cycles == 2 + 8 + 4 * 100 + 150 - 1
    assert line.port_busy == 400
    assert line.stalls[0][REASONS.index("port")] + line.stalls[1][REASONS.index("port")] > 0


# edge: act has 8 banks of 8 bytes, and there are 16 lanes. Of stride 64, all words are in one bank; of 32 in two.
@pytest.mark.parametrize(
    ("stride", "factor"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8), (64, 16), (72, 2), (63, 2)]
)
def test_bank_conflicts_by_stride(stride: int, factor: int) -> None:
    b = Builder("conflicts", load_machine("edge"))
    x, d = b.alloc("act", "int8", (256, stride)), b.alloc("acc", "int8", (256,))
    b.vector("copy", d, x[:, 0])
    line = time_program(b.finish()).timeline
    assert line.busy[4] == 16 * factor
    assert line.conflicts[4] == 16 * (factor - 1)


def test_feeders_of_the_array_read_words_across_or_along() -> None:
    def busy(a: tuple[int, ...], b_strides: tuple[int, int], flow: int) -> int:
        b = Builder("feeders", load_machine("edge"))
        x, w = b.alloc("act", "int8", (64, 64, 16)), b.alloc("wgt", "int8", (64, 64, 16))
        left = Tensor("act", "int8", x.address, (64, 64), a)
        right = Tensor("wgt", "int8", w.address, (64, 16), b_strides)
        b.gemm(b.alloc("acc", "int32", (64, 16)), left, right, flow=flow)
        return time_program(b.finish()).timeline.busy[3]

    free = 4 * 64  # four folds of 64 steps
    for flow in (WS, OS):
        assert busy((64, 1), (16, 1), flow) == free
        assert busy((1, 64), (1, 64), flow) == free  # both turned: words along
        assert busy((1024, 16), (16, 1), flow) == 2 * free  # neither way: 16 words in 8 banks


def test_a_full_queue_holds_back_what_comes_after() -> None:
    machine = load_machine("edge")
    b = Builder("queue", machine)
    t = b.alloc("act", "float32", (256,))
    for _ in range(8):
        b.vector("gelu", t, t)  # 16 steps of 8 passes each
    b.gemm(b.alloc("acc", "int32", (16, 16)), b.alloc("act", "int8", (16, 16)), b.alloc("wgt", "int8", (16, 16)))
    program = b.finish(reorder=False)
    begun = []
    for depth in (1, 2, 8):
        line = simulate(program.instructions, Durations(replace(machine, queue=replace(machine.queue, depth=depth))))
        begun.append(line.start[-1])
        assert line.stalls[3][REASONS.index("dispatch")] == begun[-1]
    # The last of eight enters its queue when there is room: once the seventh, or the sixth, is taken.
    assert begun == [1 + 6 * 128 + 1 + 16, 1 + 5 * 128 + 1 + 16, 9 + 16]


# -- more machine never costs cycles --------------------------------------------------------------


@cache
def program_of(m: int, n: int, k: int, tile: tuple[int, int, int]) -> Program:
    return gemm_requantize(m, n, k, tile, small_machine(act=24, wgt=12, acc=24)).program


def faster(path: str, factor: float) -> Callable[[Machine], Machine]:
    def change(machine: Machine) -> Machine:
        part, _, field = path.partition(".")
        old = getattr(machine, part)
        value = getattr(old, field)
        made = type(value)(value * factor)
        return replace(machine, **{part: replace(old, **{field: made})})

    return change


BETTER = {
    "bandwidth": ("memory.bandwidth_gb_s", st.floats(1.0, 40.0)),
    "latency": ("memory.latency_ns", st.floats(0.0, 1.0)),
    "dma width": ("dma.bytes_per_cycle", st.integers(1, 8)),
    "lanes": ("vector.lanes", st.integers(1, 8)),
    "queue": ("queue.depth", st.integers(1, 8)),
}
SIZES = st.integers(1, 60)
TILES = st.tuples(*[st.sampled_from([8, 16, 24, 48])] * 3)
PROGRAMS = st.builds(program_of, SIZES, SIZES, SIZES, TILES) | st.builds(random_program, st.integers(0, 2**32))


@pytest.mark.parametrize("what", BETTER)
def test_a_better_part_never_costs_cycles(what: str) -> None:
    path, factors = BETTER[what]

    @settings(max_examples=40)
    @given(PROGRAMS, factors, st.sampled_from([0.25, 1.0, 4.0]))
    def check(program: Program, factor: float, base: float) -> None:
        machine = faster("memory.bandwidth_gb_s", base)(program.machine)
        before = simulate(program.instructions, Durations(machine))
        after = simulate(program.instructions, Durations(faster(path, factor)(machine)))
        assert after.cycles <= before.cycles
        assert all(x <= y for x, y in zip(after.retire, before.retire, strict=True))

    check()


@settings(max_examples=60)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.sampled_from([WS, OS]),
    st.sampled_from([(32, 16), (16, 32), (32, 32), (64, 64)]), st.booleans(),
)  # fmt: skip
def test_a_larger_array_never_costs_cycles_on_work_that_fills_it(
    m: int, k: int, n: int, count: int, flow: int, size: tuple[int, int], overlap: bool
) -> None:
    program = one_product(64 * m, 64 * k, 64 * n, flow, count)
    small = program.machine
    assert (small.array.rows, small.array.columns) == (16, 16)
    large = replace(small, array=replace(small.array, rows=size[0], columns=size[1]))
    cycles = [simulate(program.instructions, Durations(m, overlap=overlap)).cycles for m in (small, large)]
    assert cycles[1] <= cycles[0]


@pytest.mark.parametrize("name", CASES)
def test_a_report_adds_up_and_is_the_same_each_time(name: str) -> None:
    program = CASES[name]().program
    report = time_program(program)
    data = report.to_json()
    assert data == time_program(program).to_json()
    line = report.timeline
    for engine in range(len(ENGINES)):
        assert line.busy[engine] + sum(line.stalls[engine]) <= line.cycles
    assert 0 <= report.array_utilisation <= 1
    assert line.port_busy <= line.cycles
    assert data["energy_uj"]["total"] == pytest.approx(sum(v for k, v in data["energy_uj"].items() if k != "total"))
    assert sum(engine["instructions"] for engine in data["engines"].values()) == len(program.instructions)
    for space, pad in program.machine.scratchpad.items():
        assert 0 <= data["high_water_bytes"][space] <= pad.size
    events = [e for e in report.chrome_trace()["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(program.instructions)
    for engine in range(len(ENGINES)):
        moments = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == engine)
        assert all(later[0] >= earlier[1] - 1e-6 for earlier, later in pairwise(moments))
    assert program.name in report.to_text()


def test_macs_bytes_and_energy_are_those_of_the_instructions() -> None:
    report = time_program(one_product(40, 32, 16))
    assert report.work.macs == {"int8": 40 * 32 * 16}
    assert report.work.scratchpad_bytes == {"act": 40 * 32, "wgt": 32 * 16, "acc": 40 * 16 * 4 * 3}
    energy = report.energy_uj()
    assert energy["array"] == pytest.approx(40 * 32 * 16 * 0.1e-6)
    low = time_program(one_product(40, 32, 16), "low").energy_uj()
    assert low["array"] == pytest.approx(energy["array"] * (0.6 / 0.8) ** 2)
