"""The functions that compute a region's sizes, the same each time the region is built.

VMShapeLower makes them while it walks hash tables of addresses: their stores and their numbers change from run
to run, and with them the artifact's bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

_SHAPE_FUNCTION = "shape_func"
"""How VMShapeLower names them."""


def with_steady_shape_functions(module: Any) -> Any:
    """Return a module behind VMShapeLower with its shape functions in an order that its text alone decides."""
    return _numbered(_with_sorted_stores(module))


def _with_sorted_stores(module: Any) -> Any:
    """Return the module with the stores of its shape functions in the order of their slots.

    VMShapeLower walks a hash table of addresses, so their order changes from run to run, and with
    it the artifact's bytes. Each store computes one slot from sizes that are there before.
    """
    for name, function in list(module.functions.items()):
        body = getattr(function, "body", None)
        if name.name_hint.startswith(_SHAPE_FUNCTION) and isinstance(body, tirx.SeqStmt):
            stores = list(body.seq)
            if all(isinstance(s, tirx.BufferStore) for s in stores):
                stores.sort(key=lambda s: int(s.indices[0]))
                module.update_func(name, function.with_body(tirx.SeqStmt(stores)))
    return module


def _numbered(module: Any) -> Any:
    """Return the module with its shape functions, equal ones once, numbered by the names of their callers.

    VMShapeLower numbers them as it comes across the callers, in a hash table too, and takes equal ones for
    others where their stores are in another order.
    """
    callers = sorted((str(v.name_hint), f) for v, f in module.functions.items() if isinstance(f, relax.Function))
    found: dict[Any, Any] = {}
    kept: list[tuple[Any, Any]] = []

    def note(variable: Any) -> None:
        if not str(variable.name_hint).startswith(_SHAPE_FUNCTION) or variable in found:
            return
        function = module[variable].without_attr("global_symbol")
        for new, other in kept:
            if tvm_ffi.structural_equal(function, other):
                found[variable] = new
                return
        new = found[variable] = tvm.ir.GlobalVar(f"{_SHAPE_FUNCTION}{len(kept)}")
        relax.expr._update_type(new, variable.ty)
        kept.append((new, function))

    for _, function in callers:
        tvm_ffi.structural_walk(function, (tvm.ir.GlobalVar, note))
    functions = {}
    for variable, function in module.functions.items():
        if variable in found:
            functions[found[variable]] = function.with_attr("global_symbol", found[variable].name_hint)
        elif isinstance(function, relax.Function):
            functions[variable] = tvm_ffi.structural_map(function, (tvm.ir.GlobalVar, lambda v: found.get(v, v)))
        else:
            functions[variable] = function
    return tvm.IRModule(functions, attrs=module.attrs)
