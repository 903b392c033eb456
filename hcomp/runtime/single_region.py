"""A program that is one region of native code, without slots: arrays in, arrays out.

Where the region has a way without the VM and its results are small, numpy allots them: then the region is
one call. Their shapes are learned from the first run at each shape of the inputs, which the VM does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, TypeAlias

import numpy as np
from tvm_ffi import from_dlpack

from hcomp.artifact.program import Launch, Program
from hcomp.runtime.launch import failed
from hcomp.runtime.resources import Resources
from hcomp.runtime.sizes import size_check
from hcomp.runtime.vm import Direct, elements

Array: TypeAlias = Any
Shapes: TypeAlias = "tuple[tuple[int, ...], ...] | None"
Execute = Callable[[list[np.ndarray], Shapes], list[Any] | None]
"""What gives the outputs of some inputs of some shapes, None where those are always the same.

It returns None where the outputs' memory is not theirs alone.
"""
Finish = Callable[[Array], Any]

MAX_KNOWN = 4096
"""For so many shapes of the inputs those of the results are remembered."""
MOST_BYTES = 1 << 16
"""Above, the VM's pool is better than numpy, whose large arrays are new pages each time."""


def single_region(program: Program, resources: Resources) -> Execute | None:
    """Return what calls the one region of native code of a program; None where there are more.

    Behind it may stand numpy functions of one of its results each, such as ZipMap.
    """
    step, *rest = program.steps
    if not isinstance(step, Launch) or step.executor != "vm" or step.symbols:
        return None
    sources: dict[str, tuple[int, Finish | None]] = {name: (i, None) for i, name in enumerate(step.outputs)}
    for behind in rest:
        if not isinstance(behind, Launch) or behind.needs or not {*behind.inputs} <= {*step.outputs}:
            return None
        if (functions := resources.functions.get(behind.region)) is None:
            return None
        for name, (place, function) in zip(behind.outputs, functions, strict=True):
            sources[name] = (step.outputs.index(behind.inputs[place]), _named(behind, function))
    if sorted(step.inputs) != sorted(program.inputs) or not sources.keys() >= {*program.outputs}:
        return None
    finish = _finish([sources[name] for name in program.outputs], len(step.outputs))
    return _execute(program, step, resources, finish)


def _named(step: Launch, function: Finish) -> Finish:
    """Return a function of an array whose errors name its step."""

    def finish(array: Array) -> Any:
        try:
            return function(array)
        except Exception as error:  # numpy raises errors of many classes
            raise failed(step, error) from error

    return finish


def _finish(sources: Sequence[tuple[int, Finish | None]], count: int) -> Callable[[list[Array]], list[Any]] | None:
    """Return what makes the outputs of the region's results; None where they are the results."""
    if sources == [(i, None) for i in range(count)]:
        return None

    def finish(results: list[Array]) -> list[Any]:
        return [results[i] if function is None else function(results[i]) for i, function in sources]

    return finish


def _execute(
    program: Program, step: Launch, resources: Resources, finish: Callable[[list[Array]], list[Any]] | None
) -> Execute:
    """Return what calls the region, by the VM or without it."""
    region, constants = resources.kernels[step.region], resources.addresses()
    # The inputs of the one step are the program's, so their slots are their positions there.
    places = {name: (program.inputs.index(value), axis) for name, (value, axis) in step.sizes.items()}
    check = size_check(step.needs, places)
    given = None if step.inputs == program.inputs else [program.inputs.index(name) for name in step.inputs]
    is_owned = False

    def by_machine(arrays: list[np.ndarray], shapes: Shapes) -> list[Array] | None:
        nonlocal is_owned
        if check is not None:
            check(arrays)
        try:
            result = region.call(arrays if given is None else [arrays[i] for i in given], None)
        except Exception as error:  # generated code raises what its kernels ask for
            raise failed(step, error) from error
        made = [result] if len(step.outputs) == 1 else elements(result)
        # The code has no branches, so what held once holds again.
        is_owned = is_owned or have_own_memory(arrays, made, constants)
        return [np.from_dlpack(tensor) for tensor in made] if is_owned else None

    results = by_machine if region.direct is None else _without_machine(step, region.direct, given, by_machine)
    if finish is None:
        return results

    def execute(arrays: list[np.ndarray], shapes: Shapes) -> list[Any] | None:
        made = results(arrays, shapes)
        return None if made is None else finish(made)

    return execute


def _without_machine(step: Launch, direct: Direct, given: Sequence[int] | None, by_machine: Execute) -> Execute:
    """Return what calls the region's own function with numpy's memory, once the shapes are known."""
    known: dict[Shapes, list[tuple[tuple[int, ...], np.dtype]]] = {}
    empty, (function, constants) = np.empty, direct
    single = len(step.outputs) == 1

    def execute(arrays: list[np.ndarray], shapes: Shapes) -> list[Array] | None:
        kinds = known.get(shapes)
        if kinds is None:
            made = by_machine(arrays, shapes)
            if made is not None and len(known) < MAX_KNOWN and 0 < sum(a.nbytes for a in made) <= MOST_BYTES:
                known[shapes] = [(a.shape, a.dtype) for a in made]
            return made
        made = [empty(*kinds[0])] if single else [empty(*kind) for kind in kinds]
        if given is not None:
            arrays = [arrays[i] for i in given]
        try:
            function(*arrays, *constants, *made)
        except Exception as error:  # generated code raises what its kernels ask for
            raise failed(step, error) from error
        return made

    return execute


def have_own_memory(arrays: Sequence[np.ndarray], made: Sequence[Any], constants: Container[int]) -> bool:
    """Say whether each tensor has memory that is neither an array's, nor a constant's, nor another's."""
    taken = [from_dlpack(array).data_ptr() for array in arrays]
    for tensor in made:
        address = tensor.data_ptr()
        if address in taken or address in constants:
            return False
        taken.append(address)
    return True
