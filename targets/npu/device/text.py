"""The text form: one line an instruction, words separated by blanks, which reads back exactly.

    PE gemm size=1,1,64,1,1,128,64 d=acc.int32@0:64,1 a=act.int8@0:0,0,128,0,0,1 b=wgt.int8@0:64,1 accumulate=0
       flow=0 a_zero=0 b_zero=0 wait=LD:1,LW:1
    VE add size=64,64 d=act.float32@0:64,1 a=acc.float32@0:64,1 b=imm.float32=0.5

(the first is one line). A view is SPACE.TYPE@ADDRESS:STRIDES with the address in bytes and strides in
elements. A line is blank, a comment (`#`), or an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hcomp.errors import ParseError
from hcomp.targets.npu.device.isa import DTYPES, ENGINES, NO_WAIT, OPS, SPACES, Imm, Instruction, Source, View
from hcomp.targets.npu.device.program import Program

_VIEW = re.compile(r"(\w+)\.(\w+)@(\d{1,18}):(-?\d{1,10}(?:,-?\d{1,10})*)")
_IMM = re.compile(r"imm\.(\w+)=(\S+)")
_INTEGERS = re.compile(r"-?\d{1,18}(?:,-?\d{1,18})*")
_WAIT = re.compile(r"(\w+):(\d{1,9})")


def print_instruction(one: Instruction) -> str:
    """Return an instruction as a line."""
    op = OPS[one.op]
    words = [ENGINES[op.engine], one.op, f"size={_numbers(one.sizes)}", f"d={_operand(one.d)}"]
    words += [f"{name}={_operand(getattr(one, name))}" for name in op.sources]
    words += [f"{name}={value!r}" for (name, _), value in zip(op.imm, one.imm, strict=True)]
    if one.before:
        words += [f"before={_numbers(one.before)}", f"after={_numbers(one.after)}"]
    if any(one.wait):
        waits = (f"{ENGINES[e]}:{n}" for e, n in enumerate(one.wait) if n)
        words.append(f"wait={','.join(waits)}")
    return " ".join(words)


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def _operand(operand: Source) -> str:
    if isinstance(operand, Imm):
        return f"imm.{operand.dtype}={operand.value!r}"
    assert operand is not None
    return f"{operand.space}.{operand.dtype}@{operand.address}:{_numbers(operand.strides)}"


def print_program(program: Program) -> str:
    """Return a program as text: what it is and its buffers as comments, then its instructions."""
    machine = program.machine
    lines = [f"# {program.name}: {len(program.instructions)} instructions for {machine.name}"]
    for buffer in program.buffers:
        shape = ",".join(map(str, buffer.shape))
        lines.append(f"# mem@{buffer.address} {buffer.role} {buffer.name}: {buffer.dtype}[{shape}]")
    lines += map(print_instruction, program.instructions)
    return "\n".join(lines) + "\n"


def parse_instructions(text: str, name: str = "text") -> list[Instruction]:
    """Return the instructions in text; `check` has still to say whether they are valid.

    Raises:
        ParseError: a line is no instruction: says which, what was expected and what was found.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            found.append(_parse(words))
        except ValueError as error:
            raise ParseError(f"{name}: line {number}: {error}") from None
    return found


def _parse(words: list[str]) -> Instruction:
    op = OPS.get(words[1]) if len(words) > 1 else None
    if op is None or words[0] != ENGINES[op.engine]:
        raise ValueError(f"expected an engine and an operation of it, found {' '.join(words[:2])!r:.60}")
    given: dict[str, str] = {}
    for word in words[2:]:
        key, equals, value = word.partition("=")
        if not equals or key in given:
            raise ValueError(f"expected FIELD=VALUE, each once, found {word!r:.60}")
        given[key] = value
    d = _read_view("d", _take(given, "d"))
    a, b, c = (_read_operand(name, _take(given, name)) if name in op.sources else None for name in "abc")
    sizes = _read_integers("size", _take(given, "size"))
    imm = tuple(_read_number(name, _take(given, name), kind) for name, kind in op.imm)
    before, after = (_read_integers(key, given.pop(key)) if key in given else () for key in ("before", "after"))
    wait = _read_wait(given.pop("wait")) if "wait" in given else NO_WAIT
    if given:
        raise ValueError(f"a {op.name} has no field {next(iter(given))!r:.60}")
    return Instruction(op.name, sizes, d, a, b, c, imm, before, after, wait)


def _take(given: dict[str, str], key: str) -> str:
    if key not in given:
        raise ValueError(f"the field {key!r} is missing")
    return given.pop(key)


def _read_operand(name: str, text: str) -> Source:
    if number := _IMM.fullmatch(text):
        dtype = number[1]
        if dtype not in DTYPES:
            raise ValueError(f"{name}: expected a type, found {dtype!r:.60}")
        return Imm(dtype, _read_number(name, number[2], "f" if "float" in dtype else "i"))
    return _read_view(name, text)


def _read_view(name: str, text: str) -> View:
    view = _VIEW.fullmatch(text)
    if view is None or view[1] not in SPACES or view[2] not in DTYPES:
        raise ValueError(f"{name}: expected SPACE.TYPE@ADDRESS:STRIDES, found {text!r:.60}")
    return View(view[1], view[2], int(view[3]), _read_integers(name, view[4]))


def _read_number(name: str, text: str, kind: str) -> float | int:
    if kind == "i":
        return _read_integers(name, text)[0]
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, found {text!r:.60}") from None


def _read_integers(name: str, text: str) -> tuple[int, ...]:
    if not _INTEGERS.fullmatch(text):
        raise ValueError(f"{name}: expected integers with commas, found {text!r:.60}")
    return tuple(map(int, text.split(",")))


def _read_wait(text: str) -> tuple[int, ...]:
    counts = [0] * len(ENGINES)
    for part in text.split(","):
        found = _WAIT.fullmatch(part)
        if found is None or found[1] not in ENGINES:
            raise ValueError(f"wait: expected ENGINE:COUNT, found {part!r:.60}")
        counts[ENGINES.index(found[1])] = int(found[2])
    return tuple(counts)
