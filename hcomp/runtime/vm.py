"""Regions of native code: Relax VMs, one for every thread that is inside of the region.

A VM keeps registers and is not safe for two threads at once; its code and constants are. So a
region holds a pool of idle VMs that grows to the number of calls that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm_ffi import Shape, Tensor

from hcomp.errors import ArtifactError
from hcomp.runtime.library import Buffer, link, load_executable, one_line, tvm_function

ENTRY, DIRECT, CONSTANTS = "main", "__direct", "constants"
"""Functions of a region, see `hcomp.codegen.direct_call`."""
CPU_TYPE, CPU_ID, POOLED_MEMORY = 1, 0, 2

Watch = Callable[..., int]


class Direct(NamedTuple):
    """A region without the VM: `function(*inputs, *constants, *outputs)`, all of them checked by the caller."""

    function: Callable[..., None]
    constants: tuple[Tensor, ...]


class KernelRegion(NamedTuple):
    """A region of native code.

    Attributes:
        call: a function of its input tensors and its symbols (None where it has none), which returns a
            tensor or several. It may be called from many threads at once.
        direct: its way without the VM, where it has one.
    """

    call: Callable[[list[Any], list[int] | None], Any]
    direct: Direct | None = None


def vm_region(
    program: Buffer, objects: Sequence[Buffer], constants: Sequence[Tensor], watch: Watch | None = None
) -> KernelRegion:
    """Return a region. Of an interpreted program, `watch` is asked before and after every call.

    It is given the function, its name, and whether it is before.

    Raises:
        ArtifactError: the files are no VM program and object code for this machine.
    """
    kernels = link(objects) if objects else None
    executable = load_executable(program, kernels)
    bound = list(constants)

    def new_machine() -> Any:
        machine = executable["vm_load_executable"]()
        machine["vm_initialization"](CPU_TYPE, CPU_ID, POOLED_MEMORY)
        if watch is not None:
            machine["set_instrument"](watch)
        return machine

    try:
        machine = new_machine()
        idle: list[Callable[..., Any]] = [machine[ENTRY]]
        direct = None if watch is not None else _direct(kernels, machine, bound)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the kernels cannot be loaded: {one_line(error)}") from error

    def call(inputs: list[Any], symbols: list[int] | None) -> Any:
        arguments = inputs + bound if bound else inputs
        if symbols is not None:
            arguments = [*arguments, Shape(tuple(symbols))]
        try:
            function = idle.pop()  # atomic
        except IndexError:
            function = new_machine()[ENTRY]
        result = function(*arguments)
        # Only a machine that ended well is used again: an error leaves its frames on its stack.
        idle.append(function)
        return result

    return KernelRegion(call, direct)


def _direct(kernels: Any, machine: Any, bound: Sequence[Tensor]) -> Direct | None:
    """Return the region's way without the VM, if it has one."""
    if kernels is None or not kernels.implements_function(DIRECT):
        return None
    # Constants of the module are in the VM's program.
    return Direct(kernels[DIRECT], (*bound, *elements(machine[CONSTANTS]())))


def elements(result: Any) -> list[Any]:
    """Return what a region returned as a list; indexing its array takes three times as long."""
    get = tvm_function("ffi.ArrayGetItem")
    return [get(result, i) for i in range(len(result))]
