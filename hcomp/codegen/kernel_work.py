"""What a kernel computes and moves, counted on its TIR before it is scheduled.

Numbers are dimensions over the kernel's own sizes, so that a profile can evaluate them for the sizes
of a run. They are what the mathematics asks for: padding, tiles that overlap and transformed
convolutions do not change them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tvm
from tvm import s_tir, tirx
from tvm.tirx.buffer import is_buffer_var

from hcomp.dims import Dim, DimLike, dim_max, dim_min, symbol

Expr: TypeAlias = Any

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Mod", "Min", "Max")
_COMBINE: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Min": dim_min,
    "Max": dim_max,
}
_CONDITIONAL = "if_then_else"

OPERATIONS, BYTES = "hcomp.operations", "hcomp.bytes"
"""Attributes of a function: its work over its own sizes, where its loops do more than the definition asks for."""


@dataclass(frozen=True)
class KernelWork:
    """The work of one kernel.

    Attributes:
        parameters: for each parameter its shape, or None for a size that is handed over by itself.
        names: the name of each parameter that is a size, else "".
        operations: arithmetic operations, a multiply-add being two; None where loops do not say.
        bytes: what is read and written of the parameters, each element once; None likewise.
    """

    parameters: tuple[tuple[DimLike, ...] | None, ...]
    names: tuple[str, ...]
    operations: DimLike | None
    bytes: DimLike | None


def kernel_work(function: tirx.PrimFunc) -> KernelWork:
    """Return the work of a function: blocks or plain loops, with a buffer for each operand."""
    shapes: list[tuple[DimLike, ...] | None] = []
    names = []
    try:
        for parameter in function.params:
            is_buffer = is_buffer_var(parameter)
            shapes.append(tuple(_dim(d, {}) for d in parameter.ty.shape) if is_buffer else None)
            names.append("" if is_buffer else str(parameter.name))
        attrs = function.attrs or {}
        if OPERATIONS in attrs:
            return KernelWork(tuple(shapes), tuple(names), _dim(attrs[OPERATIONS], {}), _dim(attrs[BYTES], {}))
        count = _Count()
        count.statement(function.body, 1)
        whole = {
            p: _times(shape, item_bytes(p))
            for p, shape in zip(function.params, shapes, strict=True)
            if shape is not None
        }
        moved: DimLike = 0
        for parameter, size in whole.items():
            touched = count.touched.get(parameter)
            moved = moved + (size if touched is None else dim_min(size, touched))
    except _UnknownError:
        return KernelWork(tuple(shapes), tuple(names), None, None)
    return KernelWork(tuple(shapes), tuple(names), count.operations, moved)


def item_bytes(buffer: Any) -> int:
    """Return the bytes of one element of a buffer."""
    return (int(tvm.DataType(str(buffer.ty.dtype)).bits) + 7) // 8


class _UnknownError(Exception):
    """An extent that is no dimension, such as one that was read from a tensor."""


@dataclass
class _Count:
    """The sums over a walk through statements; `values` are what bound variables stand for."""

    operations: DimLike = 0
    touched: dict[Any, DimLike] = field(default_factory=dict)
    values: dict[Any, DimLike] = field(default_factory=dict)
    cells: dict[Any, DimLike] = field(default_factory=dict)

    def statement(self, node: Any, times: DimLike) -> None:
        """Count a statement that runs `times` times."""
        match node:
            case tirx.SeqStmt():
                for part in node.seq:
                    self.statement(part, times)
            case tirx.For() | tirx.AttrStmt() | s_tir.SBlockRealize():
                self._nested(node, times)
            case tirx.BufferStore():
                self._store(node, times)
            case tirx.IfThenElse():
                self._branches(node, times)
            case tirx.Bind():
                self._bind(node.var, node.value)
            case tirx.While():
                raise _UnknownError

    def _nested(self, node: Any, times: DimLike) -> None:
        if isinstance(node, tirx.For):
            self.values[node.loop_var] = 0  # the first one is as long as any
            times = times * self.dim(node.extent)
        self.statement(node.block.body if isinstance(node, s_tir.SBlockRealize) else node.body, times)

    def _branches(self, node: Any, times: DimLike) -> None:
        """Count the branch of more operations: the others are for ends and small sizes."""
        before = self.operations
        self.statement(node.then_case, times)
        first = self.operations - before
        self.operations = before
        if node.else_case is not None:
            self.statement(node.else_case, times)
        self.operations = before + dim_max(first, self.operations - before)

    def _bind(self, variable: Any, value: Any) -> None:
        if isinstance(value, tvm.ir.TensorLoad) and value.source in self.cells:
            self.values[variable] = self.cells[value.source]
            return
        try:
            self.values[variable] = self.dim(value)
        except _UnknownError:
            self.value(value, 1)

    def _store(self, node: Any, times: DimLike) -> None:
        if str(node.buffer.ty.dtype) == "int64" and _elements(node.buffer) == 1:
            try:
                self.cells[node.buffer] = self.dim(node.value)  # a size that is handed on in memory
            except _UnknownError:
                self.cells.pop(node.buffer, None)
        lanes = _lanes(node.value)
        self._touch(node.buffer, times * lanes)
        for index in node.indices:
            self.value(index, times, counted=False)
        self.value(node.value, times)

    def _touch(self, buffer: Any, elements: DimLike) -> None:
        self.touched[buffer] = self.touched.get(buffer, 0) + elements * item_bytes(buffer)

    def value(self, node: Expr, times: DimLike, *, counted: bool = True) -> None:
        """Count an expression; of indices only what they read."""
        kind = type(node).__name__
        match node:
            case tvm.ir.TensorLoad():
                self._touch(node.source, times * _lanes(node))
                for index in node.indices:
                    self.value(index, times, counted=False)
            case tvm.ir.Call():
                self._call(node, times, counted=counted)
            case tirx.Select():
                self.value(node.condition, times, counted=False)
                self.value(node.true_value, times, counted=counted)
                self.value(node.false_value, times, counted=counted)
            case tirx.Broadcast() | tirx.Cast():
                self.value(node.value, times, counted=counted)
            case _ if hasattr(node, "a") and hasattr(node, "b"):
                if counted and kind in _ARITHMETIC:
                    self.operations = self.operations + times * _lanes(node)
                self.value(node.a, times, counted=counted)
                self.value(node.b, times, counted=counted)

    def _call(self, node: Any, times: DimLike, *, counted: bool) -> None:
        name = str(getattr(node.op, "name", ""))
        if name.endswith(_CONDITIONAL):
            condition, *arms = node.args
            self.value(condition, times, counted=False)
        else:
            arms = list(node.args)
            if counted and str(node.ty.dtype) not in ("handle", "") and not name.endswith("reinterpret"):
                self.operations = self.operations + times * _call_operations(node)
        for arm in arms:
            if isinstance(arm, tvm.ir.Expr):
                self.value(arm, times, counted=counted)

    def dim(self, value: Expr) -> DimLike:
        """Return an extent as a dimension."""
        return _dim(value, self.values)


def _call_operations(call: Any) -> int:
    """Return what a call counts as: one for each lane; where it adds up neighbours, its products and sums."""
    lanes = _lanes(call)
    widest = max((_lanes(a) for a in call.args), default=lanes)
    return lanes if widest <= lanes else 2 * widest - lanes


def _lanes(value: Expr) -> int:
    try:
        return int(tvm.DataType(str(value.ty.dtype)).lanes)
    except (AttributeError, ValueError):
        return 1


def _elements(buffer: Any) -> int | None:
    known = [int(d) if isinstance(d, tirx.IntImm) else None for d in buffer.ty.shape]
    return known[0] if len(known) == 1 else None


def _times(shape: tuple[DimLike, ...], factor: int) -> DimLike:
    total: DimLike = factor
    for dim in shape:
        total = total * dim
    return total


def _dim(value: Expr, values: dict[Any, DimLike]) -> DimLike:
    """Return an integer expression as a dimension; a variable without a value is a size."""
    if isinstance(value, int | Dim):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    if isinstance(value, tvm.ir.Var):
        return values[value] if value in values else symbol(str(value.name))
    if isinstance(value, tirx.Cast):
        return _dim(value.value, values)
    combine = _COMBINE.get(type(value).__name__)
    if combine is None:
        raise _UnknownError
    return combine(_dim(value.a, values), _dim(value.b, values))
