"""A program: a machine, buffers in device memory, instructions; and the file that holds one.

    8 bytes   "hcompnpu"
    u4 u4     version, bytes of the header
    header    JSON: name, machine, buffers; filled with blanks to a multiple of 64
    240 x n   instructions (`encoding`)
    data      of the constants in the order of the buffers, each from a multiple of 64 of the file on
    32 bytes  sha256 of all before

Programs come from strangers: `read_program` checks every field and every instruction.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.artifact.fields import Fields, as_integer, parse_json
from hcomp.errors import ArtifactError, UsageError
from hcomp.targets.npu.device.check import check_instructions
from hcomp.targets.npu.device.encoding import RECORD_BYTES, decode, encode
from hcomp.targets.npu.device.formats import STORAGE
from hcomp.targets.npu.device.isa import DTYPES, ITEM_BYTES, Instruction
from hcomp.targets.npu.device.machine import Machine, machine_from

MAGIC = b"hcompnpu"
VERSION = 1
ALIGNMENT = 64
PREFIX = struct.Struct("<8sII")
SEAL_BYTES = 32
ROLES = ("input", "constant", "output", "scratch")
"""Only outputs and scratch are written."""
MAX_HEADER = 1 << 26
MAX_RANK = 32
MAX_NAME = 1024


@dataclass(frozen=True)
class Buffer:
    """A tensor in device memory, row major, from a multiple of 64 on.

    Attributes:
        name: unique in its program.
        role: one of ROLES.
        dtype, shape: of its elements; no element is fine.
        address: its first byte.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    address: int

    @property
    def size(self) -> int:
        """Return its bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def writable(self) -> bool:
        """Say whether instructions may write it."""
        return self.role in ("output", "scratch")


@dataclass(frozen=True)
class Program:
    """What the simulators run.

    Attributes:
        name: what reports call it.
        machine: what it was made for.
        buffers: in the order of their addresses, none overlapping.
        instructions: in program order.
        constants: name -> the bytes of a constant, as an array of numpy's type of the same bytes (bfloat16
            as uint16).
    """

    name: str
    machine: Machine
    buffers: tuple[Buffer, ...]
    instructions: Sequence[Instruction]
    constants: Mapping[str, NDArray[Any]]

    @property
    def memory_bytes(self) -> int:
        """Return the device memory that it needs."""
        return max((b.address + b.size for b in self.buffers), default=0)

    def of_role(self, role: str) -> tuple[Buffer, ...]:
        """Return its buffers of one role."""
        return tuple(buffer for buffer in self.buffers if buffer.role == role)


def check_program(program: Program, name: str = "") -> None:
    """Check everything that the simulators rely on; `name` is what errors call it instead of its own.

    Raises:
        ArtifactError: a buffer or an instruction is not valid: says which, what is wrong, and what is right.
    """
    name = name or program.name
    _check_buffers(program, name)
    check_instructions(program.instructions, program.machine, program.buffers, name)


def _check_buffers(program: Program, name: str) -> None:
    end, names = 0, set()
    for buffer in program.buffers:
        what = f"{name}: buffer {buffer.name!r}"
        if buffer.name in names:
            raise ArtifactError(f"{what}: two have this name")
        names.add(buffer.name)
        if buffer.address < end or buffer.address % ALIGNMENT:
            raise ArtifactError(
                f"{what}: expected an address that is a multiple of {ALIGNMENT} from {end} on, found {buffer.address}"
            )
        end = buffer.address + buffer.size
        if end > program.machine.memory.size:
            raise ArtifactError(
                f"{what}: ends at byte {end}, and the machine {program.machine.name!r} has a memory of "
                f"{program.machine.memory.size}"
            )
        if buffer.role == "constant":
            data = program.constants.get(buffer.name)
            if data is None or data.nbytes != buffer.size:
                raise ArtifactError(
                    f"{what}: expected {buffer.size} bytes of data, found {0 if data is None else data.nbytes}"
                )


def write_program(program: Program) -> bytes:
    """Return the bytes of a valid program; equal programs have equal bytes."""
    header = json.dumps(
        {
            "name": program.name,
            "instructions": len(program.instructions),
            "machine": program.machine.to_dict(),
            "buffers": [
                {"name": b.name, "role": b.role, "dtype": b.dtype, "shape": list(b.shape), "address": b.address}
                for b in program.buffers
            ],
        },
        separators=(",", ":"),
    ).encode()
    header += b" " * (-(len(header) + PREFIX.size) % ALIGNMENT)
    parts = [PREFIX.pack(MAGIC, VERSION, len(header)), header, encode(program.instructions)]
    place = sum(map(len, parts))
    for buffer in program.of_role("constant"):
        gap = -place % ALIGNMENT
        data = np.ascontiguousarray(program.constants[buffer.name]).tobytes()
        parts += [b"\0" * gap, data]
        place += gap + len(data)
    seal = hashlib.sha256()
    for part in parts:
        seal.update(part)
    return b"".join([*parts, seal.digest()])


def read_program(data: bytes | memoryview, name: str = "program") -> Program:
    """Return the program in a file's bytes, checked; `name` is what errors call it.

    The constants are views of `data`.

    Raises:
        ArtifactError: the bytes are no program, damaged, or a program that no machine could run.
    """
    view = memoryview(data)
    header, body = _header(view, name)
    fields = parse_json(header, f"{name}: header")
    count = fields.integer("instructions")
    try:
        machine = machine_from(fields.raw("machine"), f"{name}: header: machine")
    except UsageError as error:
        raise ArtifactError(str(error)) from None
    buffers = tuple(_buffer(item) for item in fields.objects("buffers"))
    end = len(view) - SEAL_BYTES
    code_end = body + count * RECORD_BYTES
    if code_end > end:
        raise ArtifactError(
            f"{name}: truncated: {count} instructions end at byte {code_end}, and the file has {len(view)}"
        )
    constants, place = _constants(view, buffers, code_end, end, name)
    if place != end:
        raise ArtifactError(f"{name}: damaged: {end - place} bytes behind the last constant")
    instructions = decode(view[body:code_end], name)
    program = Program(_name(fields), machine, buffers, instructions, constants)
    check_program(program, name)
    if encode(instructions) != view[body:code_end]:
        raise ArtifactError(f"{name}: damaged: a field that an instruction does not have is not zero")
    return program


def _header(view: memoryview, name: str) -> tuple[bytes, int]:
    """Return the header and where it ends, once the seal is right."""
    if len(view) < PREFIX.size or bytes(view[:8]) != MAGIC:
        raise ArtifactError(f"{name}: not a program of the NPU: expected a file that starts with {MAGIC.decode()!r}")
    _, version, size = PREFIX.unpack_from(view)
    if version != VERSION:
        raise ArtifactError(f"{name}: expected version {VERSION}, found {version}: compile the model again")
    end = PREFIX.size + size
    if size > MAX_HEADER or end + SEAL_BYTES > len(view):
        raise ArtifactError(f"{name}: truncated: the header ends at byte {end}, and the file has {len(view)}")
    if hashlib.sha256(view[:-SEAL_BYTES]).digest() != bytes(view[-SEAL_BYTES:]):
        raise ArtifactError(f"{name}: damaged: its sha256 does not fit: copy or compile it again")
    return bytes(view[PREFIX.size : end]), end


def _buffer(fields: Fields) -> Buffer:
    role, dtype = fields.text("role"), fields.text("dtype")
    if role not in ROLES:
        raise ArtifactError(f"{fields.path}: role: expected one of {', '.join(ROLES)}, found {role!r:.60}")
    if dtype not in DTYPES:
        raise ArtifactError(f"{fields.path}: dtype: expected one of {', '.join(DTYPES)}, found {dtype!r:.60}")
    shape = tuple(as_integer(n, f"{fields.path}: shape", 0, 1 << 40) for n in fields.items("shape"))
    if len(shape) > MAX_RANK or prod(shape) > 1 << 44:
        raise ArtifactError(f"{fields.path}: shape: expected at most {MAX_RANK} sizes, found {list(shape)!r:.60}")
    return Buffer(_name(fields), role, dtype, shape, fields.integer("address"))


def _name(fields: Fields) -> str:
    """Return the name in some fields, which goes into lines of text."""
    name = fields.text("name")
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ArtifactError(f"{fields.path}: name: expected 1 to {MAX_NAME} printable characters, found {name!r:.60}")
    return name


def _constants(
    view: memoryview, buffers: tuple[Buffer, ...], place: int, end: int, name: str
) -> tuple[dict[str, NDArray[Any]], int]:
    found = {}
    for buffer in buffers:
        if buffer.role != "constant":
            continue
        place += -place % ALIGNMENT
        if place + buffer.size > end:
            raise ArtifactError(f"{name}: truncated: the data of {buffer.name!r} ends at byte {place + buffer.size}")
        flat = np.frombuffer(view[place : place + buffer.size], STORAGE[buffer.dtype])
        found[buffer.name] = flat.reshape(buffer.shape)
        place += buffer.size
    return found, place
