"""Elementary functions as arithmetic that vectorises, in place of one libm call an element.

`vectorise_math` replaces exp, exp2, exp10, expm1, log, log2, log10, log1p, tanh, sigmoid, erf, sin,
cos, tan, sinh, cosh, their inverses and pow on float32, also where they are called as the C library
(`tanhf`); float16 and bfloat16 go through float32, float64 keeps libm. Bounds against float64, tested:

    exp, exp2, exp10, expm1, log, log2, log10, log1p, sigmoid, erf, pow, asin, acos, atan, sinh, cosh,
    asinh, acosh, atanh: 4 units in the last place, tanh: 6 units, sin, cos: 2e-7 absolute for
    |x| <= 2**30.

Infinities, NaN and signed zero give what IEEE 754 asks for; results below 2**-125 may be zero. The
functions themselves are in `elementary.py` and `inverse.py`.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim.expr import Let

from hcomp.targets.cpu.schedule.elementary import FUNCTIONS
from hcomp.targets.cpu.schedule.inverse import INVERSE
from hcomp.targets.cpu.schedule.nest import VECTORIZED, buffer, load, seq, store

Expr = Any

_LONG = {"erf", "pow", "tan", *INVERSE}
"""Functions with so many names that TVM's simplifier takes seconds over nested ones."""

_FUNCTIONS = {
    f"{space}.{name}{suffix}": make
    for name, make in (FUNCTIONS | INVERSE).items()
    for space, suffix in (("tirx", ""), ("prim", ""), ("libm", "f"))
}


def vectorise_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with its elementary functions on small floats replaced by arithmetic."""
    entries = [(tirx.For, _expanded_loop), (tirx.BufferStore, _expanded_store)]
    rounded = tvm_ffi.structural_map(func.body, (tirx.Cast, _kept_rounding))
    stores = tvm_ffi.structural_map(rounded, entries, order="pre")
    body = tvm_ffi.structural_map(stores, (tvm.ir.Call, _expanded_call))
    return func if body.same_as(func.body) else func.with_body(body)


def _kept_rounding(cast: Any) -> Any:
    """Return a widened bfloat16 as a rounding of the float32 value under it.

    TVM's legalisation takes float32(bfloat16(x)) for x, so a fused chain would round once where its
    operators round one by one.
    """
    inner = cast.value
    if str(cast.ty.dtype) != "float32" or not isinstance(inner, tirx.Cast):
        return cast
    if str(inner.ty.dtype) != "bfloat16" or str(inner.value.ty.dtype) != "float32":
        return cast
    return tirx.call_pure_extern("float32", "bfloat16_roundf", inner.value)


def _expanded_loop(node: Any) -> Any:
    """Return a vector loop with the stores in it expanded: its cells have one element a lane."""
    if int(node.kind) != VECTORIZED:
        return node
    names = _Names(node.loop_var, int(node.extent.value))

    def visit(inner: Any) -> Any:
        return _expanded_into(inner, names)

    body = tvm_ffi.structural_map(node.body, (tirx.BufferStore, visit))
    if body.same_as(node.body):
        return node
    changed = tirx.For(node.loop_var, node.min, node.extent, node.kind, body)
    return tirx.SeqStmt([*names.cells, changed])


def _expanded_store(node: Any) -> Any:
    """Return a store outside vector loops with its functions expanded."""
    names = _Names()
    changed = _expanded_into(node, names)
    return node if changed is node else seq([*names.cells, changed])


def _expanded_into(node: Any, names: _Names) -> Any:
    """Return the store with its functions expanded, shared values stored before it.

    Values under a condition stay where they are: computing them earlier could read out of bounds.
    """
    guarded = False

    def look(call: Any) -> None:
        nonlocal guarded
        guarded = guarded or _name_of(call) == "tirx.if_then_else"

    tvm_ffi.structural_walk(node.value, (tvm.ir.Call, look))
    if guarded:
        return node

    def visit(call: Any) -> Any:
        return _expanded(call, names)

    value = tvm_ffi.structural_map(node.value, (tvm.ir.Call, visit))
    if value.same_as(node.value):
        return node
    before, names.statements = names.statements, []
    return seq([*before, tirx.BufferStore(node.buffer, value, node.indices)])


def _expanded_call(call: Any) -> Any:
    """Return a function under a condition as one expression, if that stays small enough for TVM."""
    if _name_of(call).partition(".")[2] in _LONG:
        return call
    names = _Lets()
    value = _expanded(call, names)
    return call if value is call else names.wrap(value)


def _name_of(call: Any) -> str:
    """Return the operator of a call; `libm.tanhf` for a call of the C library."""
    if not isinstance(call.op, tvm.ir.Op):
        return ""
    name = str(call.op.name)
    if name == "tirx.call_pure_extern":
        return f"libm.{call.args[0].value}"
    return name


def _expanded(call: Any, names: _Names) -> Expr:
    make = _FUNCTIONS.get(_name_of(call))
    if make is None:  # calls of other kinds may have types without a dtype
        return call
    dtype = str(call.ty.dtype)
    if dtype not in ("float32", "float16", "bfloat16"):
        return call
    args = [a for a in call.args if not isinstance(a, tvm.ir.StringImm)]
    if dtype == "float32":
        return make(names, *args)
    wide = make(names, *[tirx.Cast("float32", a) for a in args])
    return tirx.Cast(dtype, wide)


class _Names:
    """Names for shared subexpressions: cells that are stored before the result.

    A cell, not a bound variable: TVM's simplifier puts bound values back into every use, which folds
    `(x + 1) - 1` and grows long formulas without limit. LLVM turns cells into registers.
    """

    def __init__(self, lane: Any = 0, lanes: int = 1) -> None:
        self.lane, self.lanes = lane, lanes
        self.cells: list[Any] = []
        self.statements: list[Any] = []

    def __call__(self, value: Expr) -> Any:
        """Return the name of `value`."""
        cell = buffer("t", [self.lanes], str(value.ty.dtype))
        self.cells.append(tirx.AllocBuffer(cell))
        self.statements.append(store(cell, value, self.lane))
        return load(cell, self.lane)


class _Lets(_Names):
    """Names inside one expression, where no statement may come before it."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[tuple[Any, Expr]] = []

    def __call__(self, value: Expr) -> Any:
        """Bind `value`; an integer travels as float bits, because TVM would put it back inline."""
        dtype = str(value.ty.dtype)
        carried = "float32" if dtype == "int32" else dtype
        name = tirx.Var("t", carried)
        self.bound.append((name, value if carried == dtype else tirx.reinterpret(carried, value)))
        return name if carried == dtype else tirx.reinterpret(dtype, name)

    def wrap(self, value: Expr) -> Expr:
        """Return `value` with the names that it uses around it."""
        for name, bound in reversed(self.bound):
            value = Let(name, bound, value)
        return value
