"""From a Relax module to a region's files: fusion, schedules, memory plan, machine code.

The passes are Relax's, chosen one by one: constants are folded before codegen, so FoldConstant
(which compiles a function for every constant) has no place here, and views stay views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from hcomp.codegen.direct_call import with_direct_call
from hcomp.codegen.interpreted import interpreted_part, native_part, with_interpreted
from hcomp.codegen.kernel_calls import with_drivers
from hcomp.codegen.kernel_list import Calls, kernel_list, rules_of, works_of
from hcomp.codegen.kernel_nodes import aligned, call_nodes, kernel_calls, region_function
from hcomp.codegen.machine_code import interpreted, machine_code
from hcomp.codegen.relax_module import LoweredRegion
from hcomp.codegen.shape_functions import with_steady_shape_functions
from hcomp.codegen.size_order import with_sorted_sizes
from hcomp.codegen.vm_calls import without_idle_calls
from hcomp.errors import CodegenError
from hcomp.stopwatch import Stopwatch

Module: TypeAlias = Any
Scheduler: TypeAlias = Callable[[Module], Module]
"""Turns every TIR function of a module into plain loops."""

_FUSION_FAULT = "VarRemapGet"
"""What FuseTIR says when it meets a symbolic shape that it cannot carry into a fused function."""


@dataclass(frozen=True)
class BuiltRegion:
    """Machine code for one region.

    Attributes:
        program: the Relax VM's program.
        objects: object files, which call each other; none where the region has no code of its own.
        constants, symbols, fresh_outputs: as in LoweredRegion.
        fused: whether operators were fused; False where TVM could not and each has its own kernel.
        kernels: how many TIR functions the region has.
        interpreted: the same program for the VM's interpreter, which calls each kernel by itself.
        listing: what `kernel_list` says of the kernels.
        seconds: how long each stage took.
    """

    program: bytes
    objects: tuple[bytes, ...]
    constants: tuple[tuple[str, NDArray[np.generic]], ...]
    symbols: tuple[str, ...]
    fresh_outputs: tuple[bool, ...]
    fused: bool
    kernels: int
    interpreted: bytes = b""
    listing: bytes = b""
    seconds: dict[str, float] = field(default_factory=dict)


def build_region(
    lowered: LoweredRegion, target: Any, schedule: Scheduler, name: str = "region", clock: Stopwatch | None = None
) -> BuiltRegion:
    """Build the machine code of a region for `target` (a tvm.target.Target); `clock` goes on counting.

    Raises:
        CodegenError: TVM refused the module; names the region and gives TVM's first line.
    """
    clock = clock or Stopwatch()
    try:
        with target, tvm.transform.PassContext(opt_level=3):
            with clock.stage("fuse"):
                module, fused, calls = _fuse(lowered)
                works = works_of(module)
            with clock.stage("schedule"):
                module = schedule(module)
                rules = rules_of(module)
            kernels = sum(isinstance(f, tvm.tirx.PrimFunc) for f in module.functions.values())
            with clock.stage("plan memory"):
                module = with_direct_call(with_drivers(with_interpreted(module)))
                module = with_steady_shape_functions(tvm.transform.Sequential(_lower_passes())(module))
                module = without_idle_calls(module, len(lowered.constants))
            with clock.stage("machine code"):
                profiled = interpreted(interpreted_part(module), target)
                program, objects = machine_code(native_part(module), target)
    except (tvm.error.InternalError, ValueError, TypeError, RuntimeError, CodegenError) as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        if isinstance(error, CodegenError):
            raise
        raise CodegenError(f"region {name}: TVM refuses it: {first_line(error)}") from error
    return BuiltRegion(
        program,
        objects,
        lowered.constants,
        lowered.symbols,
        lowered.fresh_outputs,
        fused,
        kernels,
        profiled,
        kernel_list(works, rules, calls),
        clock.seconds,
    )


def _is_interrupt(error: BaseException | None) -> bool:
    """Say whether an error is a KeyboardInterrupt that passed through TVM: it comes out without a word."""
    while error is not None:
        if type(error) is RuntimeError and not str(error):
            return True
        error = error.__cause__
    return False


def _fuse(lowered: LoweredRegion) -> tuple[Module, bool, Calls]:
    """Return the module with operators fused, or as it was where TVM cannot fuse it, and the calls' nodes."""
    transform = relax.transform
    module = transform.AnnotateTIROpPattern()(lowered.module)
    try:
        groups = transform.FuseOps()(module)
        fused = tvm.transform.Sequential([transform.FuseTIR(), transform.DeadCodeElimination()])(groups)
    except (tvm.error.InternalError, RuntimeError) as error:
        if _FUSION_FAULT not in str(error):
            raise
        return module, False, call_nodes(module, module, lowered.origins)
    calls = call_nodes(module, groups, lowered.origins)
    fused = with_sorted_sizes(fused)
    return fused, True, aligned(calls, kernel_calls(region_function(fused)))


def _lower_passes() -> list[Any]:
    """Return the passes from calls of kernels to calls of the VM's builtins, memory planned."""
    transform = relax.transform
    return [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


def first_line(error: BaseException) -> str:
    """Return the line of TVM's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines and lines[0].startswith("Traceback") else (lines or ["no message"])[0]
