"""Which instructions are valid: the rules of README.md, each with the sentence that a user reads.

What passes here can be executed: every view lies inside its memory, every size is bounded, every
wait is for an instruction that comes before.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, NoReturn

from hcomp.errors import ArtifactError
from hcomp.targets.npu.device.isa import (
    ENGINES,
    INTEGERS,
    ITEM_BYTES,
    MAX_SIZES,
    MAX_STRIDES,
    OPS,
    Imm,
    Instruction,
    Op,
    View,
    strides_of,
)
from hcomp.targets.npu.device.machine import DATAFLOWS, Machine
from hcomp.targets.npu.device.regions import Region, may_overlap, region_of, writes_twice

if TYPE_CHECKING:
    from hcomp.targets.npu.device.program import Buffer

MAX_POINTS = 1 << 24
"""The largest iteration space of one instruction; of a gemm, of each of its matrices."""
MAX_STRIDE = 1 << 31
RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(1 << 31), (1 << 31) - 1)}
MAX_BLOCK = 1024


class _Invalid(Exception):
    """Why an instruction is not valid."""


def check_instructions(
    instructions: Sequence[Instruction], machine: Machine, buffers: Sequence[Buffer], name: str
) -> None:
    """Check every instruction of a program.

    Raises:
        ArtifactError: one is not valid: says which, what is wrong, and what is right.
    """
    checker = Checker(machine)
    for buffer in sorted(buffers, key=lambda b: b.address):
        checker.add_buffer(buffer)
    issued = [0] * len(ENGINES)
    for index, one in enumerate(instructions):
        reason = checker.why_not(one) or _why_not_wait(one.wait, issued)
        if reason:
            raise ArtifactError(f"{name}: instruction {index} ({one.op}): {reason}")
        issued[OPS[one.op].engine] += 1


def _why_not_wait(wait: Sequence[int], issued: Sequence[int]) -> str:
    for engine, count in enumerate(wait):
        if not 0 <= count <= issued[engine]:
            return f"waits for {count} of {ENGINES[engine]}, of which {issued[engine]} come before it"
    return ""


def _fail(message: str) -> NoReturn:
    raise _Invalid(message)


class Checker:
    """Checks single instructions for a machine; their waits are not looked at."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.size = {name: pad.size for name, pad in machine.scratchpad.items()}
        self.buffers: list[Buffer] = []
        self.starts: list[int] = []

    def add_buffer(self, buffer: Buffer) -> None:
        """Declare a buffer in device memory, behind those declared before."""
        if buffer.size:
            self.buffers.append(buffer)
            self.starts.append(buffer.address)

    def why_not(self, one: Instruction) -> str:
        """Return why an instruction is not valid, or ""."""
        try:
            self._check(one)
        except _Invalid as error:
            return str(error)
        return ""

    def _check(self, one: Instruction) -> None:
        op = OPS.get(one.op)
        if op is None:
            _fail("there is no such operation")
        _check_sizes(op, one)
        _check_imm(op, one)
        for name in ("d", *op.sources):
            operand = getattr(one, name)
            if operand is None:
                _fail(f"expected an operand {name}, found none")
            _check_type(op, one, name, operand.dtype)
            if isinstance(operand, Imm):
                _check_number(op, name, operand)
        for name in "abc":
            if name not in op.sources and getattr(one, name) is not None:
                _fail(f"expected no operand {name}, found one")
        # Before the views: some have sizes that come from the immediate numbers.
        _FORMS[op.form](op, one, self.machine)
        views = (name for name in ("d", *op.sources) if isinstance(getattr(one, name), View))
        _check_written(op, one, {name: self._view(op, one, name, getattr(one, name)) for name in views})

    def _view(self, op: Op, one: Instruction, name: str, view: View) -> Region:
        allowed = _spaces(op, name)
        if view.space not in allowed:
            _fail(f"operand {name}: expected a place in {' or '.join(allowed)}, found {view.space}")
        strides = 2 if op.form == "gemm" and name != "a" else 6 if op.form == "gemm" else len(one.sizes)
        if len(view.strides) != strides or any(not -MAX_STRIDE <= s < MAX_STRIDE for s in view.strides):
            _fail(f"operand {name}: expected {strides} strides below 2^31, found {list(view.strides)}")
        if view.address % ITEM_BYTES[view.dtype]:
            _fail(f"operand {name}: expected an address that is a multiple of {ITEM_BYTES[view.dtype]}, "
                  f"found {view.address}")  # fmt: skip
        region = region_of(one, name)
        if view.space == "mem":
            self._in_buffer(name, region)
        elif region.low < 0 or region.high > self.size[view.space]:
            _fail(
                f"operand {name}: bytes {region.low} to {region.high} are not inside {view.space} "
                f"of {self.size[view.space]} bytes"
            )
        return region

    def _in_buffer(self, name: str, region: Region) -> None:
        place = bisect_right(self.starts, region.low) - 1
        if place < 0 or region.high > self.buffers[place].address + self.buffers[place].size:
            _fail(f"operand {name}: bytes {region.low} to {region.high} of the memory are not inside one buffer")
        buffer = self.buffers[place]
        if name == "d" and not buffer.writable:
            _fail(f"operand {name}: the buffer {buffer.name!r} is {buffer.role} and must not be written")


def _spaces(op: Op, name: str) -> tuple[str, ...]:
    if op.form == "gemm":
        return ({"d": "acc", "a": "act", "b": "wgt"}[name],)
    if op.form == "move" and (name == "d") == (op.name == "store"):
        return ("mem",)
    return ("act", "wgt", "acc")


def _check_sizes(op: Op, one: Instruction) -> None:
    expected = (MAX_SIZES, MAX_SIZES) if op.form == "gemm" else (1, MAX_STRIDES)
    if not expected[0] <= len(one.sizes) <= expected[1]:
        _fail(f"expected {expected[0]} to {expected[1]} sizes, found {len(one.sizes)}")
    if any(n < 1 for n in one.sizes):
        _fail(f"expected sizes of 1 or more, found {list(one.sizes)}")
    points = prod(one.sizes)
    if op.form == "gemm":
        m, k, n = prod(one.sizes[:3]), prod(one.sizes[3:6]), one.sizes[6]
        points = max(m * k, k * n, m * n)
    if points > MAX_POINTS:
        _fail(f"expected at most {MAX_POINTS} elements, found {points}: divide it")
    if len(one.before) != len(one.after) or len(one.before) not in (0, len(one.sizes)):
        _fail(f"expected no padding or one for each size, found {len(one.before)} before and {len(one.after)} after")
    if one.before:
        if op.name not in ("load", "loadw"):
            _fail("only loads have padding")
        for n, before, after in zip(one.sizes, one.before, one.after, strict=True):
            if min(before, after) < 0 or max(before, after) > 0xFFFF or before + after >= n:
                _fail(f"expected paddings below 65536 that leave an element, found {before} and {after} of {n}")


def _check_imm(op: Op, one: Instruction) -> None:
    if len(one.imm) != len(op.imm):
        _fail(f"expected {len(op.imm)} immediate numbers, found {len(one.imm)}")
    for (name, kind), value in zip(op.imm, one.imm, strict=True):
        low, high = RANGE["int32"]
        if kind == "i" and (not isinstance(value, int) or not low <= value <= high):
            _fail(f"{name}: expected an integer of 32 bits, found {value}")
        if kind == "f" and not _is_float32(value):
            _fail(f"{name}: expected a number of float32, found {value}")


def _check_type(op: Op, one: Instruction, name: str, dtype: str) -> None:
    allowed = getattr(op, name)
    if name in op.same and not isinstance(getattr(one, name), Imm):
        allowed = (one.d.dtype,)
    if dtype not in allowed:
        _fail(f"operand {name}: expected {' or '.join(allowed)}, found {dtype}")


def _check_number(op: Op, name: str, operand: Imm) -> None:
    never = op.form in ("move", "gemm", "reduce", "rope", "compress", "expand") or op.name == "copy"
    if never or name == "d" or (op.form == "row" and name == "a"):
        _fail(f"operand {name}: expected a view, found a number")
    if operand.dtype not in ("float32", "int32"):
        _fail(f"operand {name}: expected a number of float32 or int32, found {operand.dtype}")
    low, high = RANGE["int32"]
    fits = _is_float32(operand.value) if operand.dtype == "float32" else low <= operand.value <= high
    if not fits:
        _fail(f"operand {name}: expected a number of {operand.dtype}, found {operand.value}")


def _is_float32(value: float) -> bool:
    """Say whether a number is exactly one of float32, infinity too; NaN is none that a program needs."""
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return False
    return bool(nearest == value)


def _check_written(op: Op, one: Instruction, regions: dict[str, Region]) -> None:
    sizes, strides = strides_of(one, "d")
    if writes_twice(sizes, strides):
        _fail(f"operand d: sizes {list(sizes)} with strides {list(strides)} write a place twice")
    in_place = op.form in ("map", "select", "row")
    for name, region in regions.items():
        if name == "d" or not may_overlap(region, regions["d"]):
            continue
        source: View = getattr(one, name)
        same = source.address == one.d.address and source.strides == one.d.strides
        if not (in_place and same and ITEM_BYTES[source.dtype] == ITEM_BYTES[one.d.dtype]):
            _fail(f"operand {name} overlaps d; only an elementwise operation may write over a source, exactly")


def _check_move(op: Op, one: Instruction, machine: Machine) -> None:
    fill, dtype = one.imm[0] if one.imm else 0.0, one.d.dtype
    if dtype in INTEGERS and not (fill == int(fill) if math.isfinite(fill) else False):
        _fail(f"fill: expected an integer for {dtype}, found {fill}")
    if dtype in INTEGERS and not RANGE[dtype][0] <= fill <= RANGE[dtype][1]:
        _fail(f"fill: expected a number of {dtype}, found {fill}")


def _check_gemm(op: Op, one: Instruction, machine: Machine) -> None:
    accumulate, flow, *zeros = one.imm
    if accumulate not in (0, 1):
        _fail(f"accumulate: expected 0 or 1, found {accumulate}")
    if not 0 <= flow < len(DATAFLOWS) or DATAFLOWS[int(flow)] not in machine.array.dataflows:
        _fail(f"flow: the array has {' and '.join(machine.array.dataflows)}, found {flow}")
    a, b = one.a, one.b
    assert isinstance(a, View)
    assert isinstance(b, View)
    integer = a.dtype in INTEGERS
    if (b.dtype in INTEGERS) != integer or (not integer and a.dtype != b.dtype):
        _fail(f"expected two integers or one floating type, found {a.dtype} and {b.dtype}")
    if one.d.dtype != ("int32" if integer else "float32"):
        _fail(f"operand d: expected {'int32' if integer else 'float32'}, found {one.d.dtype}")
    for name, dtype, zero in zip("ab", (a.dtype, b.dtype), zeros, strict=True):
        low, high = RANGE[dtype] if integer else (0, 0)
        if not low <= zero <= high:
            _fail(f"{name}_zero: expected {low} to {high}, found {zero}")


def _check_map(op: Op, one: Instruction, machine: Machine) -> None:
    if op.name in ("requantize", "requantize_fixed"):
        low, high = RANGE[one.d.dtype]
        zero, least, most = one.imm
        if not (low <= least <= most <= high and low <= zero <= high):
            _fail(f"expected zero, low <= high in {low} to {high}, found {zero}, {least}, {most}")


def _check_reduce(op: Op, one: Instruction, machine: Machine) -> None:
    axes = int(one.imm[0])
    if not 1 <= axes <= len(one.sizes):
        _fail(f"axes: expected 1 to {len(one.sizes)}, found {axes}")
    if any(one.d.strides[len(one.sizes) - axes :]):
        _fail("operand d: expected strides 0 along the reduced sizes")


def _check_rope(op: Op, one: Instruction, machine: Machine) -> None:
    if one.imm[0] not in (0, 1):
        _fail(f"interleaved: expected 0 or 1, found {one.imm[0]}")
    if one.sizes[-1] % 2:
        _fail(f"expected an even last size, found {one.sizes[-1]}")


def _check_block(op: Op, one: Instruction, machine: Machine) -> None:
    bits, block = one.imm
    if bits not in (4, 8):
        _fail(f"bits: expected 4 or 8, found {bits}")
    if not 2 <= block <= MAX_BLOCK or block % 2:
        _fail(f"block: expected an even number of 2 to {MAX_BLOCK}, found {block}")
    packed = one.d if op.form == "compress" else one.a
    assert isinstance(packed, View)
    if packed.strides[-1] != 1:
        _fail(f"expected compressed bytes in a row, stride 1, found {packed.strides[-1]}")


def _check_nothing(op: Op, one: Instruction, machine: Machine) -> None:
    return


_FORMS = {
    "move": _check_move,
    "gemm": _check_gemm,
    "map": _check_map,
    "select": _check_nothing,
    "reduce": _check_reduce,
    "row": _check_nothing,
    "rope": _check_rope,
    "compress": _check_block,
    "expand": _check_block,
}
