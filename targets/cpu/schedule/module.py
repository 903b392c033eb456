"""Schedule every PrimFunc of a Relax module, and say by which rule."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir.schedule.schedule import ScheduleError

from hcomp.codegen.kernel_list import RULE, SCHEDULED
from hcomp.errors import CodegenError
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.lanes import widen_reductions
from hcomp.targets.cpu.schedule.lower import lower_blocks
from hcomp.targets.cpu.schedule.rules import RULES
from hcomp.targets.cpu.schedule.vector_math import vectorise_math


def schedule_module(mod: tvm.IRModule, cpu: CpuFeatures) -> tvm.IRModule:
    """Return `mod` with every PrimFunc turned into fast loops for `cpu`.

    Expects a module after LegalizeOps, AnnotateTIROpPattern, FuseOps and FuseTIR. The PrimFuncs of
    the result are plain loops (no blocks), so no pass that reads blocks may follow; memory planning
    and the VM's code generation do not.

    Raises:
        CodegenError: a function that no rule could schedule; names the function and the rule.
    """
    before = {name: func for name, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
    scheduled = {
        name: func if SCHEDULED in (func.attrs or {}) else _schedule_function(str(name.name_hint), func, cpu)
        for name, func in before.items()
        if RULE not in (func.attrs or {})  # those came as loops that are finished
    }
    after = {name: _finished(func, cpu) for name, func in lower_blocks(tvm.IRModule(scheduled)).functions.items()}
    result = mod.clone() if hasattr(mod, "clone") else tvm.IRModule(mod.functions, attrs=mod.attrs)
    for name, func in after.items():
        result.update_func(mod.get_global_var(str(name.name_hint)), func)
    return result


def _finished(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return plain loops with the rewrites on loops done; functions that came scheduled stay as they are."""
    return func if SCHEDULED in (func.attrs or {}) else finished(func, cpu)


def finished(func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return plain loops with the rewrites on loops done, marked as scheduled."""
    return vectorise_math(widen_reductions(func, cpu)).with_attr(SCHEDULED, True)


def _schedule_function(name: str, func: tirx.PrimFunc, cpu: CpuFeatures) -> tirx.PrimFunc:
    for rule in RULES:
        try:
            result = rule.apply(func, cpu)
        except (ScheduleError, ValueError, TypeError, RuntimeError) as error:
            raise CodegenError(f"cpu: rule {rule.name!r} failed on kernel {name!r}: {error}") from error
        if result is not None:
            return result.with_attr(RULE, rule.name)
    raise CodegenError(f"cpu: no schedule rule matches kernel {name!r}")
