"""The short way through a session: native code, plain numpy arrays in and out.

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
from hcomp.artifact.program import If, Launch, Step
from hcomp.artifact.types import TensorType, ValueType
from hcomp.runtime.inputs import InputBinder, one_element
from hcomp.runtime.resources import Resources, numpy_is_plain
from hcomp.runtime.single_region import Execute, Shapes, have_own_memory, single_region
from hcomp.runtime.steps import Code

FastRun = Callable[[Mapping[str, object]], dict[str, Any] | None]


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
    execute = single_region(program, resources)
    if execute is None and all(_is_native(step) for step in program.steps):
        execute = _steps(code, resources)
    return None if execute is None else _with_arrays(binder, [output.name for output in manifest.outputs], execute)


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


def _steps(code: Code, resources: Resources) -> Execute:
    """Return what runs all steps; which branch is taken decides anew whether results have memory of their own."""
    constants = resources.addresses()

    def execute(arrays: list[np.ndarray], shapes: Shapes) -> list[Any] | None:
        made: Sequence[Any] = code.run([from_dlpack(a) for a in arrays])
        return [np.from_dlpack(t) for t in made] if have_own_memory(arrays, made, constants) else None

    return execute


def _with_arrays(binder: InputBinder, names: list[str], execute: Execute) -> FastRun:
    """Return the short way: `execute` between taking the inputs and naming the outputs."""
    rows = [(row.name, row.dtype, row.shape, row) for row in binder.rows]
    count, array_type = len(rows), np.ndarray
    is_static, known = binder.static_shapes is not None, binder.known_shapes
    # One output is the common case.
    alone = names[0] if len(names) == 1 else None

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
        shapes = None
        if not is_static:
            shapes = tuple([array.shape for array in arrays])
            if shapes not in known:
                return None
        made = execute(arrays, shapes)
        if made is None:
            return None
        return {alone: made[0]} if alone is not None else dict(zip(names, made))  # noqa: B905  (`strict` takes time)

    return run
