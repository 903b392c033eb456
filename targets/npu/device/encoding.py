"""The binary form: 240 bytes an instruction, little endian, the same fields at the same place for all.

    0  u1 operation, u1 number of sizes, u1 number of paddings, u1 zero, 4 x u1 type of d a b c,
    8  4 x u1 space of d a b c (255: no operand), 4 bytes zero, 5 x u4 wait, 7 x u4 sizes
   64  6 x u2 padding before, 6 x u2 padding after
   88  4 x u8 address of d a b c (of an immediate operand: its 4 bytes)
  120  24 x i4 strides, six of d, six of a, ...
  216  4 x 4 bytes of immediate numbers, each i4 or f4 as the operation says, 8 bytes zero

Fields that an instruction does not have are zero, so that equal instructions have equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from hcomp.errors import ArtifactError
from hcomp.targets.npu.device.isa import (
    BY_CODE,
    DTYPES,
    MAX_SIZES,
    MAX_STRIDES,
    OPS,
    SPACES,
    Imm,
    Instruction,
    Op,
    Source,
    View,
)

RECORD = struct.Struct("<8B4B4x5I7I12H4Q24i16s8x")
RECORD_BYTES = RECORD.size
NONE = 255

_DTYPE = {name: code for code, name in enumerate(DTYPES)}
_SPACE = {name: code for code, name in enumerate(SPACES)}
_PAD = tuple((0,) * (MAX_STRIDES - n) for n in range(MAX_STRIDES + 1))
_PAD_SIZES = tuple((0,) * (MAX_SIZES - n) for n in range(MAX_SIZES + 1))
_ABSENT = (0, NONE, 0, _PAD[0])
_WORD = {kind: struct.Struct(f"<{kind}") for kind in "if"}


def encode(instructions: Iterable[Instruction]) -> bytes:
    """Return the records of instructions, which must be valid (`check`)."""
    return b"".join(map(_encode, instructions))


def _encode(one: Instruction) -> bytes:
    op = OPS[one.op]
    fields = [_operand(operand) for operand in (one.d, one.a, one.b, one.c)]
    (td, sd, ad, rd), (ta, sa, aa, ra), (tb, sb, ab, rb), (tc, sc, ac, rc) = fields
    n = len(one.sizes)
    imm = b"".join(_WORD[kind].pack(value) for (_, kind), value in zip(op.imm, one.imm, strict=True))
    pads = len(one.before)
    return RECORD.pack(
        op.code, n, pads, 0, td, ta, tb, tc, sd, sa, sb, sc,
        *one.wait, *one.sizes, *_PAD_SIZES[n],
        *one.before, *_PAD[pads], *one.after, *_PAD[pads],
        ad, aa, ab, ac, *rd, *ra, *rb, *rc, imm,
    )  # fmt: skip


def _operand(operand: Source) -> tuple[int, int, int, tuple[int, ...]]:
    if operand is None:
        return _ABSENT
    if isinstance(operand, Imm):
        kind = "f" if "float" in operand.dtype else "i"
        return _DTYPE[operand.dtype], _SPACE["imm"], int.from_bytes(_WORD[kind].pack(operand.value), "little"), _PAD[0]
    space, dtype, address, strides = operand
    return _DTYPE[dtype], _SPACE[space], address, strides + _PAD[len(strides)]


def decode(data: bytes | memoryview, name: str = "program") -> list[Instruction]:
    """Return the instructions in records; `check` has still to say whether they are valid.

    Raises:
        ArtifactError: a record is damaged: says which and where.
    """
    if len(data) % RECORD_BYTES:
        raise ArtifactError(
            f"{name}: the instructions are damaged: expected records of {RECORD_BYTES} bytes, found {len(data)} bytes"
        )
    return [_decode(fields, i, name) for i, fields in enumerate(RECORD.iter_unpack(data))]


def _decode(fields: tuple[Any, ...], index: int, name: str) -> Instruction:
    op = BY_CODE.get(fields[0])
    n, pads = fields[1], fields[2]
    if op is None:
        raise _damaged(name, index, f"expected the code of an operation, found {fields[0]}")
    if not 1 <= n <= MAX_SIZES or pads > MAX_STRIDES:
        raise _damaged(name, index, f"expected 1 to {MAX_SIZES} sizes and at most {MAX_STRIDES} paddings")
    counts = _stride_counts(op, n)
    operands: list[Source] = []
    for i in range(4):
        dtype, space = fields[4 + i], fields[8 + i]
        if space == NONE:
            operands.append(None)
        elif space >= len(SPACES) or dtype >= len(DTYPES):
            raise _damaged(name, index, f"expected a type and a space of operand {'dabc'[i]}, found {dtype}, {space}")
        elif SPACES[space] == "imm":
            operands.append(_immediate(DTYPES[dtype], fields[36 + i]))
        else:
            strides = fields[40 + 6 * i : 40 + 6 * i + counts[i]]
            operands.append(View(SPACES[space], DTYPES[dtype], fields[36 + i], strides))
    words: bytes = fields[64]
    imm = tuple(_WORD[kind].unpack_from(words, 4 * i)[0] for i, (_, kind) in enumerate(op.imm))
    d, a, b, c = operands
    if not isinstance(d, View):
        raise _damaged(name, index, "expected a view as destination, found none")
    before, after = fields[24 : 24 + pads], fields[30 : 30 + pads]
    return Instruction(op.name, fields[17 : 17 + n], d, a, b, c, imm, before, after, fields[12:17])


def _immediate(dtype: str, bits: int) -> Imm:
    kind = "f" if "float" in dtype else "i"
    return Imm(dtype, _WORD[kind].unpack((bits & 0xFFFFFFFF).to_bytes(4, "little"))[0])


def _stride_counts(op: Op, sizes: int) -> tuple[int, int, int, int]:
    """Return how many strides the operands d, a, b and c have."""
    if op.form == "gemm":
        return 2, 6, 2, 0
    n = min(sizes, MAX_STRIDES)
    return n, n, n, n


def _damaged(name: str, index: int, what: str) -> ArtifactError:
    return ArtifactError(f"{name}: instruction {index} is damaged: {what}")
