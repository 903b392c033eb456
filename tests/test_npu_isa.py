"""The written forms of instructions and programs: both read back, and damage is named."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from contextlib import suppress
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from hcomp.errors import ArtifactError, HcompError, ParseError
from hcomp.targets.npu.device.encoding import RECORD_BYTES, decode, encode
from hcomp.targets.npu.device.isa import DTYPES, MAX_IMM, OPS, Imm, Instruction, View
from hcomp.targets.npu.device.program import PREFIX, SEAL_BYTES, Program, read_program, write_program
from hcomp.targets.npu.device.text import parse_instructions, print_instruction
from hcomp.targets.npu.device.values import run_program
from tests.npu_programs import CASES, gemm_requantize

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
F32 = st.floats(width=32, allow_nan=False)
COUNTS = st.integers(0, (1 << 32) - 1)


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    """Draw an instruction with any values that its fields can hold, valid or not."""
    op = OPS[draw(st.sampled_from(sorted(OPS)))]
    n = 7 if op.form == "gemm" else draw(st.integers(1, 6))
    counts = {"d": 2, "a": 6, "b": 2} if op.form == "gemm" else dict.fromkeys("dabc", n)

    def view(name: str) -> View:
        return View(
            draw(st.sampled_from(["mem", "act", "wgt", "acc"])),
            draw(st.sampled_from(DTYPES)),
            draw(st.integers(0, (1 << 59) - 1)),
            tuple(draw(I32) for _ in range(counts[name])),
        )

    sources = {}
    for name in op.sources:
        number = draw(st.sampled_from([None, Imm("float32", draw(F32)), Imm("int32", draw(I32))]))
        sources[name] = view(name) if number is None else number
    pads = draw(st.booleans()) and op.form == "move"
    pad = st.tuples(*[st.integers(0, 65535)] * n)
    return Instruction(
        op.name,
        draw(st.tuples(*[COUNTS] * n)),
        view("d"),
        **sources,
        imm=tuple(draw(I32 if kind == "i" else F32) for _, kind in op.imm),
        before=draw(pad) if pads else (),
        after=draw(pad) if pads else (),
        wait=tuple(draw(st.integers(0, 10**9 - 1)) for _ in range(5)),
    )


@settings(max_examples=200)
@given(st.lists(instructions(), max_size=3))
def test_both_forms_read_back(made: list[Instruction]) -> None:
    data = encode(made)
    assert len(data) == RECORD_BYTES * len(made)
    assert decode(data) == made
    assert encode(decode(data)) == data
    text = "\n".join(map(print_instruction, made))
    assert parse_instructions(text) == made


def test_the_table_is_consistent() -> None:
    assert RECORD_BYTES == 240
    assert len({op.code for op in OPS.values()}) == len(OPS)
    for op in OPS.values():
        assert 1 <= op.code < 255
        assert len(op.imm) <= MAX_IMM
        assert set(op.same) <= set(op.sources)
        assert op.sources in ("a", "ab", "abc")


@settings(max_examples=100)
@given(st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES))
def test_any_record_is_an_instruction_or_an_error(data: bytes) -> None:
    with suppress(ArtifactError):
        (found,) = decode(data, "p")
        assert found.op in OPS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", ""),
        ("# a comment", ""),
        ("VE", "expected an engine and an operation of it, found 'VE'"),
        ("PE exp size=1 d=act.int8@0:1 a=act.int8@0:1", "expected an engine and an operation of it, found 'PE exp'"),
        ("VE exp size=1 d=act.int8@0:1", "the field 'a' is missing"),
        ("VE exp d=act.int8@0:1 a=act.int8@0:1", "the field 'size' is missing"),
        ("VE exp size=1 d=act.int8@0:1 a=act.int8@0:1 size=2", "each once, found 'size=2'"),
        ("VE exp size=1 d=act.int8@0:1 a=act.int8@0:1 slope=2.0", "a exp has no field 'slope'"),
        ("VE exp size=x d=act.int8@0:1 a=act.int8@0:1", "size: expected integers with commas, found 'x'"),
        ("VE exp size=1 d=act.int9@0:1 a=act.int8@0:1", "d: expected SPACE.TYPE@ADDRESS:STRIDES"),
        ("VE exp size=1 d=imm.int8=1 a=act.int8@0:1", "d: expected SPACE.TYPE@ADDRESS:STRIDES, found 'imm.int8=1'"),
        ("VE exp size=1 d=act.int8@0:1 a=imm.int4=1", "a: expected a type, found 'int4'"),
        ("VE exp size=1 d=act.int8@0:1 a=imm.int32=1.5", "a: expected integers with commas, found '1.5'"),
        ("VE exp size=1 d=act.int8@0:1 a=imm.float32=z", "a: expected a number, found 'z'"),
        ("VE exp size=1 d=act.int8@0:1 a=act.int8@0:1 wait=XX:1", "wait: expected ENGINE:COUNT, found 'XX:1'"),
        ("LD load size=1 d=act.int8@0:1 a=mem.int8@0:1", "the field 'fill' is missing"),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str) -> None:
    text = f"# first\n{line}\n"
    if not message:
        assert parse_instructions(text) == []
        return
    with pytest.raises(ParseError) as caught:
        parse_instructions(text, "file")
    assert str(caught.value).startswith("file: line 2: ")
    assert message in str(caught.value)


# -- files ----------------------------------------------------------------------------------------

CASE = gemm_requantize(20, 10, 30, (16, 8, 16))
PROGRAM = CASE.program
DATA = write_program(PROGRAM)
BODY = PREFIX.size + struct.unpack_from("<8sII", DATA)[2]


def sealed(data: bytes) -> bytes:
    """Return bytes with a seal that fits, as one makes who means harm."""
    return data + hashlib.sha256(data).digest()


def with_header(**changes: object) -> bytes:
    header = json.loads(DATA[PREFIX.size : BODY]) | changes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + PREFIX.size) % 64)
    return sealed(PREFIX.pack(b"hcompnpu", 1, len(text)) + text + DATA[BODY:-SEAL_BYTES])


HEADER = json.loads(DATA[PREFIX.size : BODY])
WRONG = {
    "empty": (b"", "not a program of the NPU"),
    "foreign": (b"PK" + DATA[2:], "not a program of the NPU: expected a file that starts with 'hcompnpu'"),
    "version": (DATA[:8] + b"\x09" + DATA[9:], "expected version 1, found 9: compile the model again"),
    "truncated": (DATA[:100], "truncated: the header ends at byte"),
    "flipped": (DATA[:-40] + bytes([DATA[-40] ^ 1]) + DATA[-39:], "damaged: its sha256 does not fit"),
    "no header": (sealed(PREFIX.pack(b"hcompnpu", 1, 2) + b"[]"), "header: expected an object"),
    "machine": (with_header(machine={}), "header: machine: array is missing: add a table"),
    "count": (with_header(instructions=10**6), "truncated: 1000000 instructions end at byte"),
    "fewer": (with_header(instructions=1), "bytes behind the last constant"),
    "negative": (with_header(instructions=-1), "instructions: expected an integer"),
    "name": (with_header(name="a\nb"), "name: expected 1 to 1024 printable characters, found"),
    "role": (with_header(buffers=[HEADER["buffers"][0] | {"role": "king"}]), "expected one of input, constant"),
    "dtype": (with_header(buffers=[HEADER["buffers"][0] | {"dtype": "int4"}]), "dtype: expected one of int8"),
    "shape": (with_header(buffers=[HEADER["buffers"][0] | {"shape": [1 << 39] * 4}]), "shape: expected at most"),
    "twice": (with_header(buffers=[*HEADER["buffers"], HEADER["buffers"][-1]]), "two have this name"),
    "overlapping": (
        with_header(buffers=[*HEADER["buffers"], HEADER["buffers"][-1] | {"name": "z"}]),
        "expected an address that is a multiple of 64 from",
    ),
    "too large": (
        with_header(buffers=[*HEADER["buffers"], HEADER["buffers"][-1] | {"name": "z", "address": 1 << 40}]),
        "the machine 'edge' has a memory of",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_file_is_named(name: str) -> None:
    data, message = WRONG[name]
    with pytest.raises(ArtifactError) as caught:
        read_program(data, "p.npu")
    assert message in str(caught.value)
    assert str(caught.value).startswith("p.npu: ")
    assert "\n" not in str(caught.value)


def test_hidden_bytes_in_a_record_are_refused() -> None:
    place = BODY + RECORD_BYTES - 1
    changed = sealed(DATA[:place] + b"\x01" + DATA[place + 1 : -SEAL_BYTES])
    with pytest.raises(ArtifactError, match="a field that an instruction does not have is not zero"):
        read_program(changed)


FUZZED = {name: CASES[name]() for name in ("rotated_cache", "attention", "depthwise", "layer_norm")} | {"gemm": CASE}


@pytest.mark.parametrize("name", FUZZED)
def test_a_changed_byte_under_a_new_seal_runs_or_is_an_error(name: str) -> None:
    data = write_program(FUZZED[name].program)
    body = PREFIX.size + struct.unpack_from("<8sII", data)[2]
    code = len(FUZZED[name].program.instructions) * RECORD_BYTES
    anywhere = st.integers(PREFIX.size, len(data) - SEAL_BYTES - 1)

    @settings(max_examples=100)
    @given(anywhere | st.integers(body, body + code - 1), st.integers(0, 255))
    def check(place: int, value: int) -> None:
        changed = sealed(data[:place] + bytes([value]) + data[place + 1 : -SEAL_BYTES])
        with suppress(HcompError):
            run_program(read_program(changed, "p.npu"), FUZZED[name].inputs)

    check()


def test_constants_are_views_of_the_file() -> None:
    back = read_program(DATA)
    assert not back.constants["w"].flags.owndata
    empty = Program("nothing", PROGRAM.machine, (), [], {})
    assert read_program(write_program(empty)) == replace(empty, instructions=[])
    assert math.prod(back.constants["w"].shape) == np.prod(PROGRAM.constants["w"].shape)
