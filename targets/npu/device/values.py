"""What a program computes: its instructions one after the other on numpy arrays, without any time.

README.md is the specification; integers and roundings are exact. Instructions run in program order
unless a caller gives another legal one (`hazards`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.errors import RunError
from hcomp.targets.npu.device import rows
from hcomp.targets.npu.device.formats import STORAGE, Floats, from_float, from_int, to_float
from hcomp.targets.npu.device.functions import FUNCTIONS, INTEGER_FUNCTIONS, F
from hcomp.targets.npu.device.isa import INTEGERS, ITEM_BYTES, OPS, Imm, Instruction, Source, View, strides_of
from hcomp.targets.npu.device.program import Program

Stored = NDArray[Any]
EXACT_FLOAT32 = 1 << 24
"""Sums of integers below it are exact in float32, so that its faster product will do."""


def run_program(program: Program, inputs: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the outputs of a checked program by name.

    Arrays have the buffers' shapes and types; bfloat16 is ml_dtypes' or its bits in uint16, and comes
    out as uint16.

    Raises:
        RunError: an input is missing, unknown, or has another type or shape; or there is no memory.
    """
    try:
        state = State(program, inputs)
        state.run(program.instructions)
    except MemoryError:
        raise RunError(f"{program.name}: no memory left for {program.memory_bytes} bytes of buffers") from None
    return state.outputs()


class State:
    """All memories of a machine while a program runs."""

    def __init__(self, program: Program, inputs: Mapping[str, Stored]) -> None:
        _check_memory(program)
        self.program = program
        self.pads = {name: np.zeros(pad.size, np.uint8) for name, pad in program.machine.scratchpad.items()}
        self.starts: list[int] = []
        self.memory: list[Stored] = []
        given = _checked_inputs(program, inputs)
        for buffer in program.buffers:
            if not buffer.size:
                continue
            source = given.get(buffer.name, program.constants.get(buffer.name))
            data = np.zeros(buffer.size, np.uint8) if source is None else _bytes_of(source)
            self.starts.append(buffer.address)
            self.memory.append(data)

    def run(self, instructions: Iterable[Instruction]) -> None:
        """Execute instructions in the order given."""
        with np.errstate(all="ignore"):
            for one in instructions:
                _FORMS[OPS[one.op].form](self, one)

    def outputs(self) -> dict[str, Stored]:
        """Return the output buffers by name."""
        found = {}
        for buffer in self.program.of_role("output"):
            dtype = STORAGE[buffer.dtype]
            place = bisect_right(self.starts, buffer.address) - 1
            data = self.memory[place] if buffer.size else np.zeros(0, np.uint8)
            found[buffer.name] = data.view(dtype).reshape(buffer.shape)
        return found

    def view(self, one: Instruction, name: str) -> Stored:
        """Return an operand of an instruction, which is a view, as an array of stored numbers."""
        view: View = getattr(one, name)
        sizes, strides = strides_of(one, name)
        item = ITEM_BYTES[view.dtype]
        if view.space == "mem":
            place = bisect_right(self.starts, view.address) - 1
            data, offset = self.memory[place], view.address - self.starts[place]
        else:
            data, offset = self.pads[view.space], view.address
        return np.ndarray(sizes, STORAGE[view.dtype], data, offset, [s * item for s in strides])

    def floats(self, one: Instruction, name: str) -> Floats:
        """Return a source as float32."""
        source: Source = getattr(one, name)
        if isinstance(source, Imm):
            return np.asarray(source.value, np.float32)
        assert source is not None
        return to_float(self.view(one, name), source.dtype)

    def integers(self, one: Instruction, name: str) -> NDArray[np.int32]:
        """Return an integer source as int32."""
        source: Source = getattr(one, name)
        if isinstance(source, Imm):
            return np.asarray(source.value, np.int32)
        return self.view(one, name).astype(np.int32)

    def write(self, one: Instruction, values: Any) -> None:
        """Write float32 numbers to the destination, in its type."""
        target = self.view(one, "d")
        target[...] = from_float(np.broadcast_to(values, target.shape), one.d.dtype)


def _check_memory(program: Program) -> None:
    """Refuse a program that needs more memory than there is, before any is taken: files say what they like."""
    pads = sum(pad.size for pad in program.machine.scratchpad.values())
    buffers = sum(buffer.size for buffer in program.buffers)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if pads + buffers > there:
        raise RunError(
            f"{program.name}: needs {buffers} bytes of buffers and {pads} of scratchpads, "
            f"and this computer has {there} bytes of memory"
        )


def _checked_inputs(program: Program, inputs: Mapping[str, Stored]) -> dict[str, Stored]:
    wanted = {buffer.name: buffer for buffer in program.of_role("input")}
    if unknown := sorted(inputs.keys() - wanted.keys()):
        raise RunError(f"{program.name}: no input is called {unknown[0]!r}: there are {', '.join(wanted) or 'none'}")
    found = {}
    for name, buffer in wanted.items():
        if name not in inputs:
            raise RunError(f"{program.name}: the input {name!r} of {buffer.dtype}{list(buffer.shape)} is missing")
        array = np.asarray(inputs[name])
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # numpy's files forget the name of bfloat16 and keep its bits.
        types = {buffer.dtype, "uint16", "void16"} if buffer.dtype == "bfloat16" else {buffer.dtype}
        if array.dtype.name not in types or array.shape != buffer.shape:
            raise RunError(
                f"{program.name}: the input {name!r}: expected {buffer.dtype}{list(buffer.shape)}, "
                f"found {array.dtype.name}{list(array.shape)}"
            )
        found[name] = array
    return found


def _bytes_of(array: Stored) -> Stored:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8)


def _move(state: State, one: Instruction) -> None:
    target, source = state.view(one, "d"), state.view(one, "a")
    if one.before:
        target[...] = from_float(np.asarray(one.imm[0], np.float32).reshape(1), one.d.dtype)[0]
        target = target[tuple(slice(b, n - a) for n, b, a in zip(one.sizes, one.before, one.after, strict=True))]
    target[...] = source


def _gemm(state: State, one: Instruction) -> None:
    accumulate, _, a_zero, b_zero = one.imm
    target = state.view(one, "d")
    m = target.shape[0]
    k = one.sizes[3] * one.sizes[4] * one.sizes[5]
    a, b = one.a, one.b
    assert isinstance(a, View)
    assert isinstance(b, View)
    left, right = state.view(one, "a"), state.view(one, "b")
    if a.dtype in INTEGERS:
        largest = _largest(a.dtype, a_zero) * _largest(b.dtype, b_zero) * k
        kind: Any = np.float32 if largest <= EXACT_FLOAT32 else np.float64
        x, w = left.astype(kind).reshape(m, k), right.astype(kind)
        x -= kind(a_zero)
        w -= kind(b_zero)
        product = (x @ w).astype(np.int64).astype(np.int32)
    else:
        # Products of two 16-bit floats and their sums are exact, or all but exact, in float64.
        x = to_float(left, a.dtype).astype(np.float64).reshape(m, k)
        w = to_float(right, b.dtype).astype(np.float64)
        product = (x @ w).astype(np.float32)
    if accumulate:
        target += product
    else:
        target[...] = product


def _largest(dtype: str, zero: float) -> int:
    info = np.iinfo(dtype)
    return int(max(info.max - zero, zero - info.min))


def _map(state: State, one: Instruction) -> None:
    name, sources = one.op, OPS[one.op].sources
    if name == "copy":
        state.view(one, "d")[...] = state.view(one, "a")
    elif name in FUNCTIONS:
        state.write(one, FUNCTIONS[name](*(state.floats(one, s) for s in sources), *map(F, one.imm)))
    elif name in INTEGER_FUNCTIONS:
        found = INTEGER_FUNCTIONS[name](*(state.integers(one, s) for s in sources))
        target = state.view(one, "d")
        target[...] = from_int(np.broadcast_to(found, target.shape).astype(np.int32, copy=False), one.d.dtype)
    else:
        _LEVELS[name](state, one)


def _quantize(state: State, one: Instruction) -> None:
    x, scale, zero = (state.floats(one, name) for name in "abc")
    state.write(one, np.rint(x / scale) + zero)


def _dequantize(state: State, one: Instruction) -> None:
    # The difference of two int32 modulo 2^32, as the integer operations have it.
    level = state.integers(one, "a") - state.integers(one, "c")
    state.write(one, level.astype(np.float32) * state.floats(one, "b"))


def _requantize(state: State, one: Instruction) -> None:
    zero, low, high = map(F, one.imm)
    level = np.rint(state.floats(one, "a") * state.floats(one, "b")) + zero
    state.write(one, np.minimum(np.maximum(level, low), high))


def _requantize_fixed(state: State, one: Instruction) -> None:
    zero, low, high = map(int, one.imm)
    shift = np.clip(state.integers(one, "c"), 1, 62).astype(np.int64)
    product = state.integers(one, "a").astype(np.int64) * state.integers(one, "b")
    level = (product + (np.int64(1) << (shift - 1))) >> shift
    target = state.view(one, "d")
    target[...] = np.clip(level + zero, low, high)


def _select(state: State, one: Instruction) -> None:
    target = state.view(one, "d")
    chosen = []
    for name in "ab":
        source: Source = getattr(one, name)
        if not isinstance(source, Imm):
            chosen.append(state.view(one, name))
        elif source.dtype == "int32":  # which must not pass through float32
            chosen.append(from_int(state.integers(one, name).reshape(1), one.d.dtype))
        else:
            chosen.append(from_float(state.floats(one, name).reshape(1), one.d.dtype))
    target[...] = np.where(state.floats(one, "c") != 0, *chosen)


def _reduce(state: State, one: Instruction) -> None:
    axes = int(one.imm[0])
    if one.op == "idot":
        product = state.integers(one, "a").astype(np.int64) * state.integers(one, "b")
        total = product.sum(tuple(range(-axes, 0))).astype(np.int32)
        state.view(one, "d")[...] = from_int(total, one.d.dtype)
        return
    x = state.floats(one, "a")
    if one.op == "dot":
        x = x * state.floats(one, "b")
    state.write(one, rows.reduce(one.op, x.reshape(*x.shape[:-axes], -1), F(one.imm[1])))


def _row(state: State, one: Instruction) -> None:
    state.write(one, _ROWS[one.op](*(state.floats(one, s) for s in OPS[one.op].sources), F(one.imm[0])))


def _rope(state: State, one: Instruction) -> None:
    x, cosine, sine = (state.floats(one, s) for s in "abc")
    state.write(one, rows.rope(x, cosine, sine, interleaved=bool(one.imm[0])))


def _compress(state: State, one: Instruction) -> None:
    bits, block = map(int, one.imm)
    state.view(one, "d")[...] = rows.compress(state.floats(one, "a"), bits, block)


def _expand(state: State, one: Instruction) -> None:
    bits, block = map(int, one.imm)
    state.write(one, rows.expand(state.view(one, "a"), one.sizes[-1], bits, block))


_ROWS: dict[str, Callable[..., Floats]] = {
    "softmax": rows.softmax,
    "layer_norm": rows.layer_norm,
    "rms_norm": rows.rms_norm,
}
_LEVELS: dict[str, Callable[[State, Instruction], None]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "requantize": _requantize,
    "requantize_fixed": _requantize_fixed,
}
_FORMS: dict[str, Callable[[State, Instruction], None]] = {
    "move": _move,
    "gemm": _gemm,
    "map": _map,
    "select": _select,
    "reduce": _reduce,
    "row": _row,
    "rope": _rope,
    "compress": _compress,
    "expand": _expand,
}
