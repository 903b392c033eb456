"""Every rule of valid instructions has a case here: what is refused, and with which sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hcomp.errors import ArtifactError
from hcomp.targets.npu.device.check import check_instructions
from hcomp.targets.npu.device.isa import Imm, Instruction, View
from hcomp.targets.npu.device.machine import load_machine
from hcomp.targets.npu.device.program import Buffer
from hcomp.targets.npu.device.regions import Region, may_overlap, writes_twice

EDGE = load_machine("edge")
BUFFERS = (
    Buffer("x", "input", "int8", (4, 16), 0),
    Buffer("w", "constant", "float32", (16,), 64),
    Buffer("nothing", "scratch", "int8", (0,), 128),
    Buffer("y", "output", "int8", (4, 16), 128),
)


def view(text: str) -> View:
    """Return the view that SPACE.TYPE@ADDRESS:STRIDES names."""
    place, _, strides = text.partition(":")
    kind, _, address = place.partition("@")
    space, _, dtype = kind.partition(".")
    return View(space, dtype, int(address), tuple(map(int, strides.split(","))))


LOAD = Instruction("load", (4, 16), view("act.int8@0:16,1"), view("mem.int8@0:16,1"), imm=(0.0,))
STORE = Instruction("store", (4, 16), view("mem.int8@128:16,1"), view("act.int8@0:16,1"))
GEMM = Instruction(
    "gemm",
    (1, 1, 8, 1, 1, 16, 4),
    view("acc.int32@0:4,1"),
    view("act.int8@0:0,0,16,0,0,1"),
    view("wgt.int8@0:4,1"),
    imm=(0, 0, 0, 0),
)
FLOAT_GEMM = GEMM._replace(
    d=view("acc.float32@0:4,1"), a=view("act.float16@0:0,0,16,0,0,1"), b=view("wgt.float16@0:4,1")
)
ADD = Instruction("add", (4, 8), view("act.float32@0:8,1"), view("act.float32@256:8,1"), view("acc.float32@0:0,1"))
SUM = Instruction("sum", (4, 8), view("act.float32@0:1,0"), view("act.float32@256:8,1"), imm=(1, 1.0))
SOFTMAX = Instruction(
    "softmax", (4, 8), view("act.float16@0:8,1"), view("acc.float32@0:8,1"), Imm("float32", 0.0), imm=(1.0,)
)
REQUANTIZE = Instruction(
    "requantize", (8,), view("act.int8@0:1"), view("acc.int32@0:1"), Imm("float32", 0.5), imm=(0, -128, 127)
)
ROPE = Instruction(
    "rope", (4, 8), view("act.float32@0:8,1"), view("act.float32@256:8,1"),
    view("act.float32@512:4,1"), view("act.float32@640:4,1"), imm=(0,),
)  # fmt: skip
COMPRESS = Instruction("compress", (4, 32), view("act.uint8@0:18,1"), view("acc.float32@0:32,1"), imm=(4, 32))
EXPAND = Instruction("expand", (4, 32), view("acc.float32@0:32,1"), view("act.uint8@0:18,1"), imm=(4, 32))
VALID = (LOAD, STORE, GEMM, FLOAT_GEMM, ADD, SUM, SOFTMAX, REQUANTIZE, ROPE, COMPRESS, EXPAND)


def check(*instructions: Instruction) -> None:
    check_instructions(instructions, EDGE, BUFFERS, "p")


@pytest.mark.parametrize("one", VALID, ids=lambda one: one.op)
def test_the_base_of_the_cases_is_valid(one: Instruction) -> None:
    check(one)


def change(base: Instruction, **fields: Any) -> Instruction:
    return base._replace(**{k: view(v) if isinstance(v, str) and k in "dabc" else v for k, v in fields.items()})


REFUSED: dict[str, tuple[Instruction, str]] = {
    "no operation": (change(ADD, op="addd"), "there is no such operation"),
    "no sizes": (change(ADD, sizes=()), "expected 1 to 6 sizes, found 0"),
    "gemm sizes": (change(GEMM, sizes=(8, 16, 4)), "expected 7 to 7 sizes, found 3"),
    "size of 0": (change(ADD, sizes=(4, 0)), "expected sizes of 1 or more, found [4, 0]"),
    "huge": (change(ADD, sizes=(1 << 20, 1 << 20)), "expected at most 16777216 elements, found 1099511627776"),
    "huge product": (change(GEMM, sizes=(1, 1, 1, 1, 1, 1 << 30, 4)), "expected at most 16777216 elements"),
    "missing source": (change(ADD, b=None), "expected an operand b, found none"),
    "source too many": (change(ADD, c="act.float32@0:8,1"), "expected no operand c, found one"),
    "space": (change(ADD, a="mem.float32@64:0,1"), "operand a: expected a place in act or wgt or acc, found mem"),
    "load from act": (change(LOAD, a="act.int8@0:16,1"), "operand a: expected a place in mem, found act"),
    "store to act": (change(STORE, d="act.int8@64:16,1"), "operand d: expected a place in mem, found act"),
    "gemm place": (change(GEMM, a="acc.int8@0:0,0,16,0,0,1"), "operand a: expected a place in act, found acc"),
    "strides": (change(ADD, a="act.float32@256:8,1,1"), "operand a: expected 2 strides below 2^31, found [8, 1, 1]"),
    "wide stride": (change(ADD, a=f"act.float32@256:{1 << 31},1"), "operand a: expected 2 strides below 2^31"),
    "alignment": (change(ADD, a="act.float32@258:8,1"), "operand a: expected an address that is a multiple of 4"),
    "outside": (change(ADD, a="act.float32@262140:8,1"), "bytes 262140 to 262268 are not inside act of 262144 bytes"),
    "before": (change(ADD, a="act.float32@0:-8,1"), "operand a: bytes -96 to 32 are not inside act"),
    "two buffers": (change(LOAD, a="mem.int8@32:16,1"), "bytes 32 to 96 of the memory are not inside one buffer"),
    "no buffer": (change(LOAD, a="mem.int8@8000:16,1"), "of the memory are not inside one buffer"),
    "input written": (change(STORE, d="mem.int8@0:16,1"), "the buffer 'x' is input and must not be written"),
    "constant written": (
        change(STORE, sizes=(16,), d="mem.float32@64:1", a="act.float32@0:1"),
        "the buffer 'w' is constant and must not be written",
    ),
    "type changed": (change(LOAD, a="mem.uint8@0:16,1"), "operand a: expected int8, found uint8"),
    "type": (change(REQUANTIZE, a="acc.int8@0:1"), "operand a: expected int32, found int8"),
    "fill": (change(LOAD, imm=(0.5,)), "fill: expected an integer for int8, found 0.5"),
    "fill range": (change(LOAD, imm=(300.0,)), "fill: expected a number of int8, found 300.0"),
    "fill infinite": (change(LOAD, imm=(float("inf"),)), "fill: expected an integer for int8, found inf"),
    "imm missing": (change(LOAD, imm=()), "expected 1 immediate numbers, found 0"),
    "imm nan": (change(SUM, imm=(1, float("nan"))), "scale: expected a number of float32, found nan"),
    "imm wide": (change(GEMM, imm=(1 << 40, 0, 0, 0)), "accumulate: expected an integer of 32 bits"),
    "imm float": (change(GEMM, imm=(0.5, 0, 0, 0)), "accumulate: expected an integer of 32 bits, found 0.5"),
    "number as copy": (
        Instruction("copy", (4,), view("act.float32@0:1"), Imm("float32", 1.0)),
        "operand a: expected a view, found a number",
    ),
    "number in a row": (change(SOFTMAX, a=Imm("float32", 0.0)), "operand a: expected a view, found a number"),
    "number of a type": (change(ADD, b=Imm("int8", 0)), "expected a number of float32 or int32, found int8"),
    "imm not exact": (change(SUM, imm=(1, 0.1)), "scale: expected a number of float32, found 0.1"),
    "imm too large": (change(SUM, imm=(1, 1e300)), "scale: expected a number of float32, found 1e+300"),
    "number too large": (
        change(ADD, b=Imm("int32", 1 << 31)),
        "operand b: expected a number of int32, found 2147483648",
    ),
    "number nan": (change(ADD, b=Imm("float32", float("nan"))), "operand b: expected a number of float32, found nan"),
    "written twice": (change(ADD, d="act.float32@0:4,1"), "sizes [4, 8] with strides [4, 1] write a place twice"),
    "repeated destination": (change(ADD, d="act.float32@0:0,1"), "write a place twice"),
    "overlap": (change(ADD, d="act.float32@260:8,1"), "operand a overlaps d; only an elementwise operation may"),
    "overlap of types": (change(ADD, a="act.float16@0:8,1"), "operand a overlaps d"),
    "overlap in a reduction": (change(SUM, a="act.float32@0:8,1"), "operand a overlaps d"),
    "one padding": (change(LOAD, before=(1,), after=(0,)), "expected no padding or one for each size, found 1 before"),
    "padding": (change(LOAD, before=(2, 0), after=(2, 0)), "that leave an element, found 2 and 2 of 4"),
    "padded store": (change(STORE, before=(1, 0), after=(0, 0)), "only loads have padding"),
    "accumulate": (change(GEMM, imm=(2, 0, 0, 0)), "accumulate: expected 0 or 1, found 2"),
    "flow": (change(GEMM, imm=(0, 2, 0, 0)), "flow: the array has ws and os, found 2"),
    "mixed": (
        change(GEMM, b="wgt.float16@0:4,1"),
        "expected two integers or one floating type, found int8 and float16",
    ),
    "sums": (change(GEMM, d="acc.float32@0:4,1"), "operand d: expected int32, found float32"),
    "float sums": (change(FLOAT_GEMM, d="acc.int32@0:4,1"), "operand d: expected float32, found int32"),
    "zero": (change(GEMM, imm=(0, 0, 200, 0)), "a_zero: expected -128 to 127, found 200"),
    "zero of floats": (change(FLOAT_GEMM, imm=(0, 0, 0, 1)), "b_zero: expected 0 to 0, found 1"),
    "range": (change(REQUANTIZE, imm=(0, 5, 4)), "expected zero, low <= high in -128 to 127, found 0, 5, 4"),
    "axes": (change(SUM, imm=(3, 1.0)), "axes: expected 1 to 2, found 3"),
    "reduced stride": (change(SUM, d="act.float32@0:8,1"), "operand d: expected strides 0 along the reduced sizes"),
    "interleaved": (change(ROPE, imm=(2,)), "interleaved: expected 0 or 1, found 2"),
    "odd": (change(ROPE, sizes=(4, 7)), "expected an even last size, found 7"),
    "bits": (change(COMPRESS, imm=(5, 32)), "bits: expected 4 or 8, found 5"),
    "block": (change(COMPRESS, imm=(4, 3)), "block: expected an even number of 2 to 1024, found 3"),
    "no block": (change(COMPRESS, imm=(4, 0)), "block: expected an even number of 2 to 1024, found 0"),
    "scattered": (change(COMPRESS, d="act.uint8@0:36,2"), "expected compressed bytes in a row, stride 1, found 2"),
    "scattered source": (change(EXPAND, a="act.uint8@0:36,2"), "expected compressed bytes in a row, stride 1, found 2"),
    "wait": (change(ADD, wait=(1, 0, 0, 0, 0)), "waits for 1 of LD, of which 0 come before it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_valid_is_refused_with_a_sentence(name: str) -> None:
    one, message = REFUSED[name]
    with pytest.raises(ArtifactError) as caught:
        check(ADD, one)
    text = str(caught.value)
    assert text.startswith(f"p: instruction 1 ({one.op}): ")
    assert message in text
    assert "\n" not in text


def test_a_dataflow_that_the_machine_does_not_have_is_refused() -> None:
    only = replace(EDGE, array=replace(EDGE.array, dataflows=("os",)))
    with pytest.raises(ArtifactError, match="flow: the array has os, found 0"):
        check_instructions([GEMM], only, BUFFERS, "p")


def test_an_elementwise_operation_may_write_over_its_source() -> None:
    check(change(ADD, d="act.float32@256:8,1"), change(SOFTMAX, d="acc.float32@0:8,1"))


# -- regions --------------------------------------------------------------------------------------


@st.composite
def regions(draw: st.DrawFn) -> Region:
    sizes = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
    pitch = draw(st.sampled_from([8, 12, 16]))
    strides = tuple(sorted((draw(st.sampled_from([pitch, pitch * 4, 5])) for _ in sizes), reverse=True))
    return Region("act", draw(st.integers(0, 60)), sizes, strides, draw(st.integers(1, 9)))


def places(region: Region) -> set[int]:
    found = {region.address}
    for n, stride in zip(region.sizes, region.strides, strict=True):
        found = {place + i * stride for place in found for i in range(n)}
    return {place + i for place in found for i in range(region.run)}


@settings(max_examples=500)
@given(regions(), regions())
def test_regions_that_share_a_byte_are_found(one: Region, other: Region) -> None:
    shared = bool(places(one) & places(other))
    assert may_overlap(one, other) or not shared
    assert may_overlap(one, other) == may_overlap(other, one)
    assert (one.low, one.high) == (min(places(one)), max(places(one)) + 1)
    # Exact for two blocks of one matrix: rows of one pitch with runs that fit it.
    if len(one.sizes) == len(other.sizes) == 1 and one.strides == other.strides and max(one.run, other.run) <= 8:
        assert may_overlap(one, other) == shared or one.sizes == (1,) or other.sizes == (1,)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-6, 12)), min_size=1, max_size=3))
def test_a_view_that_writes_a_place_twice_is_found(axes: list[tuple[int, int]]) -> None:
    sizes, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    found = [0]
    for n, stride in axes:
        found = [place + i * stride for place in found for i in range(n)]
    if len(set(found)) < len(found):
        assert writes_twice(sizes, strides)
