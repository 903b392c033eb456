"""Fewer calls of the VM's builtins in a lowered region: each costs about 0.1 us at every run.

TVM checks every argument and result of every function, and makes each shape anew where it is used. Of
these only the inputs of an entry come from outside: constants are as they were compiled, and a region's
inner functions get what that has checked.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import relax

from hcomp.codegen.interpreted import ENTRY, INTERPRETED_ENTRY

_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")
_MAKE_SHAPE = "vm.builtin.make_shape"
_STORES = 1
"""The code of `match_shape` for an axis whose size it keeps; the others compare, or do nothing."""
_FIRST_CODE = 3


def without_idle_calls(module: Any, constants: int) -> Any:
    """Return a module, lowered by VMShapeLower, whose functions call less.

    Args:
        module: functions take inputs, then `constants` constants, then perhaps a shape.
        constants: how many there are.
    """
    for name, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            inner = name.name_hint not in (ENTRY, INTERPRETED_ENTRY)
            module.update_func(name, _trimmed(function, set() if inner else _inputs(function, constants)))
    return module


def _inputs(function: Any, constants: int) -> set[Any]:
    """Return the parameters that come from outside of the artifact."""
    tensors = [p for p in function.params if not isinstance(p.ty, relax.ShapeType)]
    return set(tensors[: len(tensors) - constants])


def _trimmed(function: Any, foreign: set[Any]) -> Any:
    shapes: dict[Any, Any] = {}
    same: dict[Any, Any] = {}
    blocks = []
    for block in function.body.blocks:
        kept = []
        for binding in block.bindings:
            if _is_idle_check(binding.value, foreign):
                continue
            value = _renamed(binding.value, same)
            if _called(value) == _MAKE_SHAPE:
                key = (value.args[0], *(int(a.value) for a in value.args[1:]))
                if key in shapes:
                    same[binding.var] = shapes[key]
                    continue
                shapes[key] = binding.var
            kept.append(binding if value is binding.value else relax.VarBinding(binding.var, value))
        blocks.append(relax.BindingBlock(kept))
    body = relax.SeqExpr(blocks, _renamed(function.body.body, same))
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _renamed(value: Any, same: dict[Any, Any]) -> Any:
    return tvm_ffi.structural_map(value, (relax.Var, lambda v: same.get(v, v))) if same else value


def _called(value: Any) -> str:
    is_packed = isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc)
    return str(value.op.global_symbol) if is_packed else ""


def _is_idle_check(value: Any, foreign: set[Any]) -> bool:
    """Return whether a call checks, and does nothing else, what the artifact's own code has made."""
    if _called(value) not in _CHECKS or value.args[0] in foreign:
        return False
    codes = value.args[_FIRST_CODE:-1:2] if _called(value) == _CHECKS[1] else []
    return all(int(code.value) != _STORES for code in codes)
