"""The short way through a session: native code alone, plain numpy arrays in and out.

Small models are called often, and there the general way (any value, any layout, any steps) costs
three times what a region does. This way gives None whenever something is not as it expects,
and then the general way does the work, errors included. Both give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm_ffi import from_dlpack

from hcomp.artifact.manifest import Manifest
from hcomp.artifact.program import If, Launch, Program, Step
from hcomp.artifact.types import TensorType
from hcomp.runtime.inputs import MISALIGNED, InputBinder, give_back, one_element, staged
from hcomp.runtime.launch import failed
from hcomp.runtime.resources import Resources, numpy_is_plain
from hcomp.runtime.sizes import size_check
from hcomp.runtime.steps import Code
from hcomp.runtime.vm import elements

FastRun = Callable[[Mapping[str, object]], dict[str, Any] | None]
Take = Callable[[Mapping[str, object]], list[np.ndarray] | None]
Execute = Callable[[list[np.ndarray], list[Any]], Sequence[Any]]


def fast_run(manifest: Manifest, code: Code, resources: Resources, binder: InputBinder) -> FastRun | None:
    """Return the short way for a program that has one, else None.

    It has one if it consists of regions of native code and branches of such, which read all inputs
    and make all outputs, all of numpy's own number types.
    """
    program = manifest.program
    if (
        not all(_is_native(step) for step in program.steps)
        or not program.outputs
        or not all(code.fresh)
        or not all(isinstance(o.type, TensorType) and numpy_is_plain(o.type.dtype) for o in manifest.outputs)
        or not binder.all_plain
    ):
        return None
    execute = _single_region(program, resources) or (lambda arrays, tensors: code.run(tensors))
    return _with_arrays(execute, [output.name for output in manifest.outputs], resources, binder)


def _is_native(step: Step) -> bool:
    match step:
        case Launch():
            return step.executor == "vm"
        case If():
            return all(_is_native(inner) for branch in (step.then_program, step.else_program) for inner in branch.steps)
    return False


def _single_region(program: Program, resources: Resources) -> Execute | None:
    """Return what calls the one region of a program, without slots; None where there are more."""
    if len(program.steps) != 1 or not isinstance(step := program.steps[0], Launch) or step.symbols:
        return None
    if sorted(step.inputs) != sorted(program.inputs) or sorted(step.outputs) != sorted(program.outputs):
        return None
    region = resources.kernels[step.region]
    # The inputs of the one step are the program's, so their slots are their positions there.
    places = {name: (program.inputs.index(value), axis) for name, (value, axis) in step.sizes.items()}
    check = size_check(step.needs, places)
    given = None if step.inputs == program.inputs else [program.inputs.index(name) for name in step.inputs]
    single = len(step.outputs) == 1
    made = [step.outputs.index(name) for name in program.outputs]

    def execute(arrays: list[np.ndarray], tensors: list[Any]) -> Sequence[Any]:
        if check is not None:
            check(arrays)
        try:
            result = region(tensors if given is None else [tensors[i] for i in given], None)
        except Exception as error:  # generated code raises what its kernels ask for
            raise failed(step, error) from error
        if single:
            return (result,)
        parts = elements(result)
        return [parts[i] for i in made]

    return execute


def _taking(binder: InputBinder) -> Take:
    """Return what takes the inputs if all are as the kernels want them, alignment apart."""
    rows = [(row.name, row.dtype, row.shape, row) for row in binder.rows]
    static, known = binder.static_shapes, binder.known_shapes
    count, array_type = len(rows), np.ndarray

    def take(given: Mapping[str, object]) -> list[np.ndarray] | None:
        if len(given) != count:
            return None
        arrays = []
        for name, dtype, shape, row in rows:
            value = given.get(name)
            if type(value) is not array_type or value.dtype is not dtype or not value.flags.carray:
                return None
            arrays.append(value if shape is None or value.shape == shape else one_element(row, value))
        shapes = [array.shape for array in arrays]
        return arrays if shapes == static or tuple(shapes) in known else None

    return take


def _with_arrays(execute: Execute, outputs: Sequence[str], resources: Resources, binder: InputBinder) -> FastRun:
    """Return the short way: `execute` between taking the inputs and giving the outputs."""
    constants = resources.addresses()
    take = _taking(binder)
    all_spares = [row.spares for row in binder.rows]
    to_numpy = np.from_dlpack

    def run(given: Mapping[str, object]) -> dict[str, Any] | None:
        if (arrays := take(given)) is None:
            return None
        tensors, taken, borrowed = [], [], []
        for array, spares in zip(arrays, all_spares, strict=False):
            tensor = from_dlpack(array)
            address = tensor.data_ptr()
            if address & MISALIGNED:
                if (spare := staged(array, spares)) is None:
                    return None
                borrowed.append((spares, spare))
                tensor = spare[1]
                address = tensor.data_ptr()
            tensors.append(tensor)
            taken.append(address)
        made = execute(arrays, tensors)
        if borrowed:
            give_back(borrowed)
        found = {}
        for name, tensor in zip(outputs, made, strict=False):
            address = tensor.data_ptr()
            if address in taken or address in constants:
                return None
            taken.append(address)
            found[name] = to_numpy(tensor)
        return found

    return run
