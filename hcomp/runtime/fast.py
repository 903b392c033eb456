"""The short way through a session: native code, plain numpy arrays in and out.

Small models are called often, and there the general way (any value, any layout, any steps) costs
three times what a region does. This way gives None whenever something is not as it expects,
and then the general way does the work, errors included. Both give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm_ffi import from_dlpack

from hcomp.artifact.manifest import Manifest
from hcomp.artifact.program import If, Launch, Program, Step
from hcomp.artifact.types import TensorType, ValueType
from hcomp.runtime.inputs import InputBinder, one_element
from hcomp.runtime.launch import failed
from hcomp.runtime.resources import Resources, numpy_is_plain
from hcomp.runtime.sizes import size_check
from hcomp.runtime.steps import Code
from hcomp.runtime.vm import chosen

FastRun = Callable[[Mapping[str, object]], dict[str, Any] | None]
Execute = Callable[[list[np.ndarray]], Sequence[Any]]
Owned = Callable[[list[np.ndarray], Sequence[Any]], bool]
Finish = Callable[[Any], Any]


class Region(NamedTuple):
    """What makes a tensor for each output, and what makes the output of it: numpy's view, texts or maps."""

    execute: Execute
    finishes: list[Finish]


def fast_run(manifest: Manifest, code: Code, resources: Resources, binder: InputBinder) -> FastRun | None:
    """Return the short way for a program that has one, else None.

    It has one if it consists of regions of native code and branches of such, which read all inputs
    and make all outputs, all of numpy's own number types. Behind a single region, numpy functions may
    make texts and maps of its results.
    """
    program = manifest.program
    if (
        not program.outputs
        or not all(code.fresh)
        or not all(_is_plain(o.type) for o in manifest.outputs)
        or not binder.all_plain
    ):
        return None
    names = [output.name for output in manifest.outputs]
    constants = resources.addresses()
    if (region := _single_region(program, resources)) is not None:
        outputs = list(zip(names, region.finishes, strict=True))
        return _with_arrays(binder, outputs, region.execute, _once(_owned(constants, outputs)))
    if not all(_is_native(step) for step in program.steps):
        return None
    outputs = [(name, np.from_dlpack) for name in names]
    return _with_arrays(
        binder, outputs, lambda arrays: code.run([from_dlpack(a) for a in arrays]), _owned(constants, outputs)
    )


def _is_plain(type_: ValueType) -> bool:
    """Say whether numpy and Python have the type."""
    return not isinstance(type_, TensorType) or numpy_is_plain(type_.dtype)


def _is_native(step: Step) -> bool:
    match step:
        case Launch():
            return step.executor == "vm"
        case If():
            return all(_is_native(inner) for branch in (step.then_program, step.else_program) for inner in branch.steps)
    return False


def _single_region(program: Program, resources: Resources) -> Region | None:
    """Return what calls the one region of native code of a program, without slots; None where there are more.

    Behind it may stand numpy functions of one of its results each, such as ZipMap.
    """
    step, *rest = program.steps
    if not isinstance(step, Launch) or step.executor != "vm" or step.symbols:
        return None
    sources: dict[str, tuple[str, Finish]] = {name: (name, np.from_dlpack) for name in step.outputs}
    for behind in rest:
        if not isinstance(behind, Launch) or behind.needs or not {*behind.inputs} <= {*step.outputs}:
            return None
        if (functions := resources.functions.get(behind.region)) is None:
            return None
        for name, (place, function) in zip(behind.outputs, functions, strict=True):
            sources[name] = (behind.inputs[place], _finish(behind, function))
    if sorted(step.inputs) != sorted(program.inputs) or not sources.keys() >= {*program.outputs}:
        return None
    region = resources.kernels[step.region]
    # The inputs of the one step are the program's, so their slots are their positions there.
    places = {name: (program.inputs.index(value), axis) for name, (value, axis) in step.sizes.items()}
    check = size_check(step.needs, places)
    given = None if step.inputs == program.inputs else [program.inputs.index(name) for name in step.inputs]
    single = len(step.outputs) == 1
    made = [step.outputs.index(sources[name][0]) for name in program.outputs]

    def execute(arrays: list[np.ndarray]) -> Sequence[Any]:
        if check is not None:
            check(arrays)
        try:
            result = region(arrays if given is None else [arrays[i] for i in given], None)
        except Exception as error:  # generated code raises what its kernels ask for
            raise failed(step, error) from error
        return [result] * len(made) if single else chosen(result, made)

    return Region(execute, [sources[name][1] for name in program.outputs])


def _finish(step: Launch, function: Finish) -> Finish:
    """Return a function of an array as one of a tensor, whose errors name the step."""
    to_numpy = np.from_dlpack

    def finish(tensor: Any) -> Any:
        try:
            return function(to_numpy(tensor))
        except Exception as error:  # numpy raises errors of many classes
            raise failed(step, error) from error

    return finish


def _owned(constants: Container[int], outputs: Sequence[tuple[str, Finish]]) -> Owned:
    """Return what says whether each tensor that leaves as it is has memory of its own."""
    leave = [i for i, (_, finish) in enumerate(outputs) if finish is np.from_dlpack]

    def owned(arrays: list[np.ndarray], made: Sequence[Any]) -> bool:
        taken = [from_dlpack(array).data_ptr() for array in arrays]
        for i in leave:
            address = made[i].data_ptr()
            if address in taken or address in constants:
                return False
            taken.append(address)
        return True

    return owned


def _once(owned: Owned) -> Owned:
    """Return `owned` for a region: its code has no branches, so what held of it once holds again."""
    held = False

    def same(arrays: list[np.ndarray], made: Sequence[Any]) -> bool:
        nonlocal held
        held = held or owned(arrays, made)
        return held

    return same


def _with_arrays(binder: InputBinder, outputs: Sequence[tuple[str, Finish]], execute: Execute, owned: Owned) -> FastRun:
    """Return the short way: `execute` between taking the inputs and giving the outputs."""
    rows = [(row.name, row.dtype, row.shape, row) for row in binder.rows]
    count, array_type = len(rows), np.ndarray
    is_static, known = binder.static_shapes is not None, binder.known_shapes

    def run(given: Mapping[str, object]) -> dict[str, Any] | None:
        if len(given) != count:
            return None
        arrays = []
        for name, dtype, shape, row in rows:
            array = given.get(name)
            if type(array) is not array_type or array.dtype is not dtype or not array.flags.carray:
                return None
            if shape is not None and array.shape != shape:
                array = one_element(row, array)
                if array.shape != shape:
                    return None
            arrays.append(array)
        if not is_static and tuple([array.shape for array in arrays]) not in known:
            return None
        made = execute(arrays)
        if not owned(arrays, made):
            return None
        return {name: finish(tensor) for (name, finish), tensor in zip(outputs, made, strict=False)}

    return run
