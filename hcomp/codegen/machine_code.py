"""From lowered functions to a region's files: a program of the Relax VM, and object code by LLVM.

LLVM takes most of a compile's time, so the functions are dealt into groups that are built side by
side: TVM's passes and LLVM run outside of Python's lock. The groups depend on the functions alone,
never on the machine's cores, so the same region gives the same bytes everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import tvm
from tvm import relax, s_tir, tirx

from hcomp.codegen.direct_call import DIRECT
from hcomp.codegen.kernel_calls import DRIVER
from hcomp.codegen.vm_loops import with_loops

Module: TypeAlias = Any
Function: TypeAlias = Any

PROGRAM = "program.vm"
INTERPRETED = "interpreted.vm"
MOST_OBJECTS = 8
"""As many object files at most: each costs 0.05 ms when the artifact is loaded."""
KERNELS_AN_OBJECT = 3
"""Below so many, a further object file costs more than it brings."""


def machine_code(module: Module, target: Any) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the VM's program and the object files of a module whose kernels are plain loops.

    Memory is planned and calls are lowered. Relax functions become native code too: a call
    costs a third less than in the VM's bytecode.
    """
    builder = relax.ExecBuilder()
    module = tvm.get_global_func("relax.VMTIRCodeGen")(builder, module)
    functions = {v: f for v, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    groups = _groups(functions)
    with TemporaryDirectory(prefix="hcomp-") as folder:

        def build(number: int) -> bytes:
            called = [] if number else [v for group in groups[1:] for v in group]
            with target, tvm.transform.PassContext(opt_level=3):
                built = _llvm(tvm.IRModule(groups[number], attrs=module.attrs), called, target)
                return _written(built, Path(folder, f"{number}.o"), "o")

        return _program(builder, target), tuple(_side_by_side(build, len(groups)))


def interpreted(module: Module, target: Any) -> bytes:
    """Return the program of a module for the VM's interpreter, which calls the same kernels.

    A profile times kernels one by one there: in native code nothing stands between them.
    """
    builder = relax.ExecBuilder()
    tvm.get_global_func("relax.VMCodeGen")(builder, module)
    return _program(builder, target)


def _program(builder: Any, target: Any) -> bytes:
    """Return the program that a code generation has left in `builder`."""
    program = tvm.get_global_func("relax.VMLink")(builder, target, None, [], {})
    with TemporaryDirectory(prefix="hcomp-") as folder:
        return _written(program, Path(folder, PROGRAM), "relax.VMExecutable")


def usable_cores() -> int:
    """Return how many processors this process may run on."""
    return len(os.sched_getaffinity(0)) or 1


def _side_by_side(build: Callable[[int], bytes], count: int) -> Sequence[bytes]:
    threads = min(count, usable_cores())
    if threads == 1:  # an interrupt then reaches the passes
        return [build(number) for number in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(build, range(count)))


def _groups(functions: dict[Any, Function]) -> list[dict[Any, Function]]:
    """Deal functions into groups: the region's own, which call all others and are long, come first."""
    names = sorted(functions, key=lambda v: str(v.name_hint))
    region = [v for v in names if str(v.name_hint).startswith(("__vmtir__", DRIVER, DIRECT))]
    kernels = [v for v in names if v not in region]
    count = max(1, min(MOST_OBJECTS - 1, len(kernels) // KERNELS_AN_OBJECT))
    dealt = [kernels[start::count] for start in range(count)]
    groups = [[*region, *dealt[0]]] if count == 1 else [region, *dealt]
    return [{v: functions[v] for v in group} for group in groups]


def _llvm(module: Module, called: Sequence[Any], target: Any) -> Any:
    """Return the LLVM module of functions without blocks, which call those in `called` of other modules."""
    module = tirx.transform.BindTarget(target.with_host(target))(module)
    module = tvm.transform.Sequential(_loop_passes())(module)
    for name, function in list(module.functions.items()):
        module.update_func(name, with_loops(_trusting(function)))
    module = tvm.transform.Sequential([tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()])(module)
    if called:
        module.update_func(tvm.ir.GlobalVar(_DECLARES), _declaring([str(v.name_hint) for v in called], target))
    return tvm.get_global_func("target.build.llvm")(module, target)


_DECLARES = "__declares"
"""Comes before all other names: TVM generates functions in the order of their names."""


def _declaring(names: Sequence[str], target: Any) -> Function:
    """Return a function that nobody calls, whose calls declare packed functions of other object files.

    TVM looks for the callee of a packed call among the functions of the LLVM module, by its symbol. It
    declares one that it does not find by a wrong name, and anew for every call.
    """
    nothing = tirx.reinterpret("handle", tirx.IntImm("int64", 0))
    zero = tirx.IntImm("int32", 0)
    calls = [tirx.call_extern("int32", f"__tvm_ffi_{name}", nothing, nothing, zero, nothing) for name in names]
    body = tirx.SeqStmt([tirx.Evaluate(call) for call in calls])
    return tirx.PrimFunc([], body).with_attrs({"global_symbol": _DECLARES, "target": target})


def _loop_passes() -> list[Any]:
    """Return TVM's own pipeline (`tvm.s_tir.pipeline`) without what blocks and GPUs need.

    What is left out does nothing to plain loops, but some of it analyses them at length.
    """
    return [
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]


def _trusting(function: Function) -> Function:
    """Return a packed function without the checks of its arguments, which are half of the object code.

    Kernels are called by the region's function alone, with tensors that it has allocated or checked
    on entry, and the runtime hands over contiguous memory. A kernel's own assertions stay. TVM's
    promise that memory starts on multiples of 64 goes too: arrays of others start where they like, and
    an instruction for any address is as fast where the address is a multiple.
    """

    def visit(statement: Any) -> Any:
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([visit(s) for s in statement.seq if not isinstance(s, tirx.AssertStmt)])
        if isinstance(statement, tirx.AttrStmt) and statement.attr_key == "storage_alignment":
            return visit(statement.body)
        if isinstance(statement, tirx.AttrStmt) and statement.attr_key != "compute_scope":
            return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, visit(statement.body))
        if isinstance(statement, tirx.IfThenElse) and isinstance(statement.then_case, tirx.AssertStmt):
            return tirx.Evaluate(0)
        return statement

    return function.with_body(visit(function.body))


def _written(module: Any, path: Path, kind: str) -> bytes:
    module.write_to_file(str(path), kind)
    return path.read_bytes()
