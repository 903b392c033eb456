"""Regions of native code: Relax VMs, one for every thread that is inside of the region.

A VM keeps registers and is not safe for two threads at once; its code and constants are. So a
region holds a pool of idle VMs that grows to the number of calls that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm_ffi import Shape, Tensor

from hcomp.errors import ArtifactError
from hcomp.runtime.library import Buffer, load_executable, one_line, tvm_function

ENTRY = "main"
CPU_TYPE, CPU_ID, POOLED_MEMORY = 1, 0, 2

KernelRegion = Callable[[list[Any], list[int] | None], Any]
Watch = Callable[..., int]


def vm_region(
    program: Buffer, objects: Sequence[Buffer], constants: Sequence[Tensor], watch: Watch | None = None
) -> KernelRegion:
    """Return a region as a function of its input tensors and its symbols (None where it has none).

    It may be called from many threads at once, and returns a tensor or several. Of an interpreted program,
    `watch` is asked before every call (the function, its name, then whether it is before or after).

    Raises:
        ArtifactError: the files are no VM program and object code for this machine.
    """
    executable = load_executable(program, objects)
    bound = list(constants)

    def new_machine() -> Callable[..., Any]:
        machine = executable["vm_load_executable"]()
        machine["vm_initialization"](CPU_TYPE, CPU_ID, POOLED_MEMORY)
        if watch is not None:
            machine["set_instrument"](watch)
        function: Callable[..., Any] = machine[ENTRY]
        return function

    try:
        idle = [new_machine()]
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the kernels cannot be loaded: {one_line(error)}") from error

    def call(inputs: list[Any], symbols: list[int] | None) -> Any:
        arguments = inputs + bound if bound else inputs
        if symbols is not None:
            arguments = [*arguments, Shape(tuple(symbols))]
        try:
            machine = idle.pop()  # atomic
        except IndexError:
            machine = new_machine()
        result = machine(*arguments)
        # Only a machine that ended well is used again: an error leaves its frames on its stack.
        idle.append(machine)
        return result

    return call


def elements(result: Any) -> list[Any]:
    """Return what a region returned as a list."""
    return chosen(result, range(len(result)))


def chosen(result: Any, places: Iterable[int]) -> list[Any]:
    """Return some of what a region of several results returned; indexing its array takes three times as long."""
    get = tvm_function("ffi.ArrayGetItem")
    return [get(result, i) for i in places]
