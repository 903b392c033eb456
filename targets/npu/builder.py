"""Writing programs: buffers, places on chip, operations on tensors; waits and order come by themselves.

    b = Builder("gemm", load_machine("laptop"))
    x, w = b.input("x", "int8", (64, 128)), b.constant("w", weights)
    y = b.output("y", "int32", (64, 64))
    a, k, acc = b.alloc("act", "int8", (64, 128)), b.alloc("wgt", "int8", (128, 64)), b.alloc("acc", "int32", (64, 64))
    b.load(a, x)
    b.load(k, w)
    b.gemm(acc, a, k)
    b.store(y, acc)
    program = b.finish()

Instructions are written in the order in which they make sense one after the other. `free` gives a place
back as soon as nothing more will be written there that is still to be read; who comes next waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.errors import CodegenError
from hcomp.targets.npu.allocator import Allocator
from hcomp.targets.npu.dependencies import Dependencies
from hcomp.targets.npu.device.check import RANGE, Checker
from hcomp.targets.npu.device.cycles import Durations
from hcomp.targets.npu.device.isa import (
    INTEGERS,
    ITEM_BYTES,
    OPS,
    VE,
    WS,
    Imm,
    Instruction,
    Source,
    View,
    packed_bytes,
)
from hcomp.targets.npu.device.machine import SCRATCHPADS, Machine
from hcomp.targets.npu.device.program import ALIGNMENT, Buffer, Program
from hcomp.targets.npu.order import schedule
from hcomp.targets.npu.tensor import Tensor, merge_axes

Operand = Tensor | float | int


class Builder:
    """One program being written."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.buffers: list[Buffer] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.memory_end = 0
        sizes = {space: machine.scratchpad[space].size for space in SCRATCHPADS}
        self.allocators = {space: Allocator(space, size) for space, size in sizes.items()}
        self.dependencies = Dependencies(sizes)
        self.checker = Checker(machine)
        self.instructions: list[Instruction] = []

    # -- places -----------------------------------------------------------------------------------

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a buffer that the caller of the program fills."""
        return self._buffer(name, "input", dtype, shape)

    def output(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a buffer that the caller of the program gets."""
        return self._buffer(name, "output", dtype, shape)

    def scratch(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a buffer in device memory for what does not fit on chip."""
        return self._buffer(name, "scratch", dtype, shape)

    def constant(self, name: str, array: NDArray[Any], dtype: str = "") -> Tensor:
        """Return a buffer with data; `dtype` where numpy's name is another, as for the bits of bfloat16 in uint16."""
        dtype = dtype or array.dtype.name
        made = self._buffer(name, "constant", dtype, array.shape)
        self.constants[name] = np.ascontiguousarray(array)
        return made

    def _buffer(self, name: str, role: str, dtype: str, shape: Sequence[int]) -> Tensor:
        made = Buffer(name, role, dtype, tuple(shape), self.memory_end)
        if made.address + made.size > self.machine.memory.size:
            raise CodegenError(
                f"{self.name}: the buffer {name!r} of {made.size} bytes ends behind the memory of {self.machine.name}, "
                f"{self.machine.memory.size} bytes"
            )
        self.buffers.append(made)
        self.checker.add_buffer(made)
        self.dependencies.add_buffer(made.address, made.size, writable=made.writable)
        self.memory_end += -(-max(made.size, 1) // ALIGNMENT) * ALIGNMENT
        return Tensor.dense("mem", dtype, made.address, shape)

    def alloc(self, space: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a place in a scratchpad, of which nothing is known yet.

        Raises:
            CodegenError: there is no room.
        """
        made = Tensor.dense(space, dtype, 0, shape)
        return replace(made, address=self.allocators[space].take(made.size * ITEM_BYTES[dtype]))

    def free(self, *tensors: Tensor) -> None:
        """Give back places that `alloc` gave; what was issued on them still runs."""
        for tensor in tensors:
            self.allocators[tensor.space].give_back(tensor.address)

    # -- instructions -----------------------------------------------------------------------------

    def load(self, d: Tensor, a: Tensor, *, pad: Sequence[tuple[int, int]] = (), fill: float = 0.0) -> None:
        """Copy device memory to a scratchpad; `pad` elements around it by axis take the value `fill`."""
        inner = tuple(n - sum(p) for n, p in zip(d.shape, pad, strict=True)) if pad else d.shape
        a = a.broadcast_to(inner)
        op = "loadw" if d.space == "wgt" else "load"
        imm = (float(np.float32(fill)),)
        if pad and any(map(sum, pad)):
            before, after = zip(*pad, strict=True)
            self.emit(
                Instruction(op, d.shape, _view(d, d.strides), _view(a, a.strides), imm=imm, before=before, after=after)
            )
        else:
            sizes, (to, of) = merge_axes(d.shape, (d.strides, a.strides))
            self.emit(Instruction(op, sizes, _view(d, to), _view(a, of), imm=imm))

    def store(self, d: Tensor, a: Tensor) -> None:
        """Copy a scratchpad to device memory."""
        sizes, (to, of) = merge_axes(d.shape, (d.strides, a.broadcast_to(d.shape).strides))
        self.emit(Instruction("store", sizes, _view(d, to), _view(a, of)))

    def gemm(
        self,
        d: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        inner: int = 1,
        accumulate: bool = False,
        flow: int = WS,
        a_zero: int = 0,
        b_zero: int = 0,
    ) -> None:
        """Multiply: d[m, n] (+)= (a[m, k] - a_zero) x (b[k, n] - b_zero).

        Args:
            inner: how many of the last axes of `a` are k; a convolution's windows have three.
        """
        m_sizes, (m_strides,) = merge_axes(a.shape[:-inner], (a.strides[:-inner],))
        k_sizes, (k_strides,) = merge_axes(a.shape[-inner:], (a.strides[-inner:],))
        rows, columns = d.reshape(-(-d.size // d.shape[-1]), d.shape[-1]), b.shape[-1]
        depth = b.reshape(b.size // columns, columns)
        if (prod(m_sizes), prod(k_sizes), columns) != (rows.shape[0], depth.shape[0], rows.shape[1]):
            raise CodegenError(f"gemm: {list(a.shape)} x {list(b.shape)} is no {list(d.shape)}")
        if max(len(m_sizes), len(k_sizes)) > 3:
            raise CodegenError(f"gemm: expected at most 3 strides for rows and for k, found {m_sizes} and {k_sizes}")
        m_pad, k_pad = 3 - len(m_sizes), 3 - len(k_sizes)
        self.emit(
            Instruction(
                "gemm",
                (1,) * m_pad + m_sizes + (1,) * k_pad + k_sizes + (columns,),
                _view(d, rows.strides),
                _view(a, (0,) * m_pad + m_strides + (0,) * k_pad + k_strides),
                _view(b, depth.strides),
                imm=(int(accumulate), flow, a_zero, b_zero),
            )
        )

    def vector(self, op: str, d: Tensor, *sources: Operand, **imm: float) -> None:
        """Compute d = op(sources) elementwise or along the last axis; sources broadcast, numbers are immediate.

        Reductions go over the axes of their first source behind those of `d` (`axes` is not given).

        Raises:
            CodegenError: there is no such operation, shapes do not fit, or a number is missing.
        """
        row = OPS.get(op)
        if row is None or row.engine != VE or len(sources) != len(row.sources):
            raise CodegenError(
                f"expected an operation of the vector unit with its sources, found {op} of {len(sources)}"
            )
        if row.form == "reduce":
            self._reduce(op, d, sources, imm)
            return
        numbers = _immediates(op, d, imm)
        shape = d.shape
        if row.form == "compress":
            shape = sources[0].shape if isinstance(sources[0], Tensor) else ()
        whole = 0 if row.form in ("map", "select") else 1
        views: list[Tensor] = [d]
        for name, source in zip(row.sources, sources, strict=True):
            if isinstance(source, Tensor):
                packed = (row.form == "expand" and name == "a") or row.form == "compress"
                half = row.form == "rope" and name in "bc"
                last = source.shape[-1] if packed else shape[-1] // 2 if half else shape[-1] if shape else 1
                views.append(source.broadcast_to((*shape[:-1], last) if shape else ()))
        outer = len(shape) - whole
        sizes, strides = merge_axes(shape[:outer], [v.strides[:outer] for v in views])
        if whole:
            # A row that stays whole has its own axis, and no axis of one element before it.
            if sizes == (1,):
                sizes, strides = (), [()] * len(views)
            sizes, strides = (*sizes, shape[-1]), [(*s, v.strides[-1]) for s, v in zip(strides, views, strict=True)]
        _check_block(op, d, sources, numbers)
        placed = iter([_view(v, s) for v, s in zip(views, strides, strict=True)])
        target = next(placed)
        operands: list[Source] = [
            next(placed) if isinstance(source, Tensor) else _number(op, name, source, d.dtype)
            for name, source in zip(row.sources, sources, strict=True)
        ]
        a, b, c = (*operands, None, None)[:3]
        self.emit(Instruction(op, sizes, target, a, b, c, numbers))

    def _reduce(self, op: str, d: Tensor, sources: Sequence[Operand], imm: dict[str, float]) -> None:
        kept = len(d.shape)
        views: list[Tensor] = []
        for source in sources:
            if not isinstance(source, Tensor) or (views and len(source.shape) > len(views[0].shape)):
                raise CodegenError(f"{op}: expected tensors, the first with the most axes, found {source}")
            views.append(source.broadcast_to(views[0].shape) if views else source)
        if views[0].shape[:kept] != d.shape:
            raise CodegenError(f"{op}: expected sources whose leading axes are {list(d.shape)}, found {sources}")
        outer, (to, *of) = merge_axes(d.shape, [v.strides[:kept] for v in (d, *views)])
        inner, along = merge_axes(views[0].shape[kept:], [v.strides[kept:] for v in views])
        if outer == (1,):
            outer, to, of = (), (), [()] * len(views)
        target = _view(d, (*to, *(0,) * len(inner)))
        a, b = (*(_view(v, (*o, *i)) for v, o, i in zip(views, of, along, strict=True)), None)[:2]
        self.emit(Instruction(op, (*outer, *inner), target, a, b, imm=_immediates(op, d, imm | {"axes": len(inner)})))

    def emit(self, one: Instruction) -> None:
        """Add an instruction; its waits are computed.

        Raises:
            CodegenError: it is not valid.
        """
        if reason := self.checker.why_not(one):
            raise CodegenError(f"{self.name}: instruction {len(self.instructions)} ({one.op}): {reason}")
        self.instructions.append(one._replace(wait=self.dependencies.issue(one)))

    def finish(self, *, reorder: bool = True) -> Program:
        """Return the program, in the order that suits the machine's memory unless told otherwise."""
        order = schedule(self.instructions, Durations(self.machine)) if reorder else self.instructions
        return Program(self.name, self.machine, tuple(self.buffers), tuple(order), self.constants)


def _view(tensor: Tensor, strides: tuple[int, ...]) -> View:
    return View(tensor.space, tensor.dtype, tensor.address, strides)


def _check_block(op: str, d: Tensor, sources: Sequence[Operand], numbers: Sequence[float]) -> None:
    """Refuse compressed rows of another length than their numbers take."""
    if OPS[op].form not in ("compress", "expand"):
        return
    plain, packed = (sources[0], d) if op == "compress" else (d, sources[0])
    if not isinstance(plain, Tensor) or not isinstance(packed, Tensor):
        raise CodegenError(f"{op}: expected a tensor, found a number")
    bits, block = map(int, numbers)
    size = packed_bytes(plain.shape[-1], bits, max(block, 1))
    if packed.shape[-1] != size:
        raise CodegenError(f"{op}: a row of {plain.shape[-1]} numbers takes {size} bytes, found {packed.shape[-1]}")


def _number(op: str, name: str, value: float, dtype: str) -> Source:
    """Return a number as an operand: a float where the operation takes one, unless it passes integers unchanged."""
    floats = "float32" in getattr(OPS[op], name) and not (name in OPS[op].same and dtype in INTEGERS)
    return Imm("float32", float(np.float32(value))) if floats else Imm("int32", int(value))


def _immediates(op: str, d: Tensor, given: dict[str, float]) -> tuple[float | int, ...]:
    """Return the immediate numbers in the table's order; the range of a requantization is its type's."""
    defaults: dict[str, float] = {"scale": 1.0, "zero": 0}
    if OPS[op].imm and OPS[op].imm[0][0] == "zero":
        defaults["low"], defaults["high"] = RANGE[d.dtype]
    found: list[float | int] = []
    for name, kind in OPS[op].imm:
        if name not in given and name not in defaults:
            raise CodegenError(f"{op}: the number {name!r} is missing")
        value = given.get(name, defaults.get(name, 0))
        found.append(int(value) if kind == "i" else float(np.float32(value)))
    if unknown := sorted(given.keys() - {name for name, _ in OPS[op].imm}):
        raise CodegenError(f"{op} has no number {unknown[0]!r}")
    return tuple(found)
