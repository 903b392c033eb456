"""A region's functions a second time, for the VM's interpreter: a profile times kernels one by one there.

The copies stand in one module with the functions for native code until calls are lowered, as both call
the same kernels and the functions that compute sizes, which are in the region's object files.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax

Module: TypeAlias = Any

INTERPRETED = "interpreted_"
"""The names of the copies begin so."""
ENTRY = "main"
INTERPRETED_ENTRY = INTERPRETED + ENTRY


def with_interpreted(module: Module) -> Module:
    """Return a module with a copy of each function of Relax that has none yet; copies call copies."""
    builder = relax.BlockBuilder(module)
    names = _relax_functions(module)
    for name in names:
        if not name.startswith(INTERPRETED) and INTERPRETED + name not in names:
            copy = relax.utils.copy_with_new_vars(module[name])
            # Of functions that are the same, the builder adds one alone.
            builder.add_func(copy.with_attr("global_symbol", INTERPRETED + name), INTERPRETED + name)
    module = builder.get()
    names = _relax_functions(module)
    copies = {v: names[INTERPRETED + name] for name, v in names.items() if INTERPRETED + name in names}
    for name, variable in names.items():
        if name.startswith(INTERPRETED):
            called = tvm_ffi.structural_map(module[variable], (tvm.ir.GlobalVar, lambda v: copies.get(v, v)))
            module.update_func(variable, called)
    return module


def native_part(module: Module) -> Module:
    """Return the module without the copies."""
    dropped = {v for name, v in _relax_functions(module).items() if name.startswith(INTERPRETED)}
    return tvm.IRModule({v: f for v, f in module.functions.items() if v not in dropped}, attrs=module.attrs)


def interpreted_part(module: Module) -> Module:
    """Return the module with the copies alone, entered by ENTRY."""
    names = _relax_functions(module)
    dropped = {v for name, v in names.items() if not name.startswith(INTERPRETED) or name == INTERPRETED_ENTRY}
    functions = {v: f for v, f in module.functions.items() if v not in dropped}
    functions[names[ENTRY]] = module[INTERPRETED_ENTRY].with_attr("global_symbol", ENTRY)
    return tvm.IRModule(functions, attrs=module.attrs)


def _relax_functions(module: Module) -> dict[str, Any]:
    return {str(v.name_hint): v for v, f in module.functions.items() if isinstance(f, relax.Function)}
