"""Vector accumulators for innermost reduction loops.

LLVM may not reorder floating-point sums, so `for k: s = s + f(k)` stays scalar. Here it becomes

    lanes[l] = identity;  for ko: lanes[l] = lanes[l] + f(ko * n + l);  s = s + lanes[0] + ...

with a scalar loop for what is left. The sum of many partial sums is also the more accurate one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.nest import (
    SERIAL,
    VECTORIZED,
    Stmt,
    as_int,
    imm,
    load,
    loads,
    loop,
    register_buffer,
    same,
    seq,
    store,
    substitute,
    used_vars,
)

_PRIM = tvm.ir.prim.expr
Combine = Callable[[Any, Any], Any]

_IDENTITY = {_PRIM.Add: 0.0, _PRIM.Mul: 1.0, _PRIM.Max: -math.inf, _PRIM.Min: math.inf}
_LIGHT = 4
_BYTES = {"float32": 4, "float64": 8}


def widen_reductions(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return `func` with its innermost floating-point reductions over vector accumulators."""

    def visit(node: Any) -> Any:
        return _widen(node, cpu)

    body = tvm_ffi.structural_map(func.body, (tirx.For, visit))
    return func if body.same_as(func.body) else func.with_body(body)


def _widen(node: Any, cpu: CpuFeatures) -> Any:
    body = node.body
    if int(node.kind) != SERIAL or not isinstance(body, tirx.BufferStore):
        return node
    dtype = str(body.buffer.dtype)
    # A register tile of one vector adds vectors already.
    if str(body.value.ty.dtype) != dtype:
        return node
    if dtype not in _BYTES or any(used_vars(i, [node.loop_var]) for i in body.indices):
        return node
    found = _terms(body)
    if found is None:
        return node
    width = cpu.lanes(_BYTES[dtype])
    extent = as_int(node.extent)
    if extent is not None and extent < 2 * width:
        return node
    combine, start, term = found
    return _emit(node, combine, tirx.const(start, dtype), term, width, extent)


def _terms(body: Any) -> tuple[Combine, float, Any] | None:
    """Return (combine, its identity, `f`) of `s = combine(s, f)`, or None."""
    value = body.value
    if isinstance(value, tirx.Select):
        return _extreme_terms(body)
    if type(value) not in _IDENTITY:
        return None
    for old, new in ((value.a, value.b), (value.b, value.a)):
        if _is_old(old, body) and not _reads(new, body):
            return type(value), _IDENTITY[type(value)], new
    return None


def _extreme_terms(body: Any) -> tuple[Combine, float, Any] | None:
    """Return the parts of a maximum or minimum that keeps NaN: `s = s if s > f or isnan(s) else f`."""
    condition, old, new = body.value.condition, body.value.true_value, body.value.false_value
    if not isinstance(condition, _PRIM.Or) or not _is_old(old, body) or _reads(new, body):
        return None
    is_nan = condition.b
    if not isinstance(is_nan, tvm.ir.Call) or not same(is_nan, tirx.isnan(old)):
        return None
    for order, combine, start in (
        (old > new, _intrinsic("llvm.maximum"), -math.inf),
        (old < new, _intrinsic("llvm.minimum"), math.inf),
    ):
        if same(condition.a, order) or same(condition.a, _turned(order)):
            return combine, start, new
    return None


def _intrinsic(name: str) -> Combine:
    """Return an operation of LLVM: its maximum keeps NaN, and TVM would take a vector of `isnan` apart."""
    return lambda a, b: tirx.call_llvm_pure_intrin(str(a.ty.dtype), name, a, b)


def _turned(order: Any) -> Any:
    """Return a > b for b < a, and the other way round: the simplifier writes what it likes."""
    return order.b < order.a if isinstance(order, _PRIM.GT) else order.b > order.a


def _is_old(value: Any, body: Any) -> bool:
    """Return whether a value is the one that the store replaces."""
    if not isinstance(value, tvm.ir.TensorLoad) or not value.source.same_as(body.buffer):
        return False
    return all(same(a, b) for a, b in zip(value.indices, body.indices, strict=True))


def _reads(value: Any, body: Any) -> bool:
    return any(item.source.same_as(body.buffer) for item in loads(value))


def _emit(node: Any, op: Combine, start: Any, term: Any, width: int, extent: int | None) -> Stmt:
    body = node.body
    dtype = str(body.buffer.dtype)
    groups = 4 if _weight(term) <= _LIGHT and (extent is None or extent >= 8 * width) else 2
    if extent is not None and extent < groups * width:
        groups = 1
    step = groups * width
    sums = register_buffer("lanes", step, dtype)
    k, first, total = node.loop_var, node.min, node.extent

    def at(position: Any) -> Any:
        return substitute(term, {k: first + position})

    def vector(base: int, value: Any) -> Stmt:
        return loop(imm(width), lambda at: store(sums, value(at), imm(base) + at), "lane", VECTORIZED)

    def step_body(ko: Any) -> Stmt:
        return seq(
            [
                vector(
                    g * width,
                    lambda lane, g=g: op(
                        load(sums, imm(g * width) + lane),
                        at(ko * imm(step) + imm(g * width) + lane),
                    ),
                )
                for g in range(groups)
            ]
        )

    whole = imm(extent // step) if extent is not None else tirx.floordiv(total, imm(step))
    out: list[Stmt] = [tirx.AllocBuffer(sums)]
    out.extend(vector(g * width, lambda _: start) for g in range(groups))
    out.append(loop(whole, step_body, "ko"))
    left = total - whole * imm(step) if extent is None else imm(extent % step)
    if as_int(left) != 0:
        done = whole * imm(step)
        out.append(loop(left, lambda r: _update(body, op, at(done + r)), "rest"))
    for half in _halvings(groups):
        out.extend(
            vector(
                g * width,
                lambda lane, g=g, half=half: op(
                    load(sums, imm(g * width) + lane),
                    load(sums, imm((g + half) * width) + lane),
                ),
            )
            for g in range(half)
        )
    value = load(sums, imm(0))
    parts = [load(sums, imm(lane)) for lane in range(width)]
    while len(parts) > 1:
        parts = [op(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    value = parts[0]
    out.append(_update(body, op, value))
    return seq(out)


def _update(body: Any, op: Combine, value: Any) -> Stmt:
    old = tirx.BufferLoad(body.buffer, body.indices)
    return tirx.BufferStore(body.buffer, op(old, value), body.indices)


def _halvings(groups: int) -> list[int]:
    halves = []
    while groups > 1:
        groups //= 2
        halves.append(groups)
    return halves


def _weight(term: Any) -> int:
    """Return a rough number of live vector values while `term` is computed."""
    total = len(loads(term))

    def visit(_: Any) -> None:
        nonlocal total
        total += _LIGHT

    tvm_ffi.structural_walk(term, (tvm.ir.Call, visit))
    return total
