"""Bounds as calls: `x < c ? c : x` names x twice, so that inlining what x is would double it at every bound.

Written as a call, x stands there once, and a chain of quantising, bounds and dequantising is one expression.
`vectorise_math` gives the calls their meaning at the end.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from hcomp.targets.cpu.schedule.nest import same

LOWER, UPPER = "lower_bound", "upper_bound"

_CALLED = {f"{name}f" for name in (LOWER, UPPER)}


def named_bounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with its bounds of float32 by numbers as calls; NaN stays as before."""
    body = tvm_ffi.structural_map(func.body, (tirx.Select, _named))
    return func if body.same_as(func.body) else func.with_body(body)


def is_bound(call: Any) -> bool:
    """Say whether a call is a bound, which takes one instruction."""
    return str(getattr(call.op, "name", "")) == "tirx.call_pure_extern" and call.args[0].value in _CALLED


def _named(choice: Any) -> Any:
    condition, bound, x = choice.condition, choice.true_value, choice.false_value
    if str(choice.ty.dtype) != "float32" or not isinstance(bound, tirx.FloatImm):
        return choice
    if not isinstance(condition, tirx.LT | tirx.GT):
        return choice
    smaller, larger = (condition.a, condition.b) if isinstance(condition, tirx.LT) else (condition.b, condition.a)
    for name, one, other in ((LOWER, smaller, larger), (UPPER, larger, smaller)):
        if same(one, x) and same(other, bound):
            return tirx.call_pure_extern("float32", f"{name}f", x, bound)
    return choice
