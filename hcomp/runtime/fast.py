"""The short way through a session: one region of native code, plain numpy arrays in and out.

Small models are called often, and there the general way (any value, any layout, any steps) costs
three times what the region does. This way gives None whenever something is not as it expects,
and then the general way does the work, errors included. Both give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm_ffi import from_dlpack

from hcomp.artifact.manifest import Manifest
from hcomp.artifact.program import Launch
from hcomp.artifact.types import TensorType
from hcomp.runtime.inputs import MISALIGNED, InputBinder, give_back, staged
from hcomp.runtime.launch import failed
from hcomp.runtime.resources import Resources, numpy_is_plain
from hcomp.runtime.sizes import size_check

FastRun = Callable[[Mapping[str, object]], dict[str, Any] | None]


def fast_run(manifest: Manifest, resources: Resources, binder: InputBinder) -> FastRun | None:
    """Return the short way for a program that has one, else None.

    It has one if it is a single region of native code with one output, whose inputs are the
    program's inputs in order, all of numpy's own number types.
    """
    program = manifest.program
    if len(program.steps) != 1 or not isinstance(step := program.steps[0], Launch):
        return None
    output = manifest.outputs[0] if manifest.outputs else None
    if (
        step.executor != "vm"
        or step.symbols
        or step.inputs != program.inputs
        or step.outputs != program.outputs
        or step.fresh_outputs != (True,)
        or output is None
        or not isinstance(output.type, TensorType)
        or not numpy_is_plain(output.type.dtype)
        or not binder.all_plain
    ):
        return None
    return _single_region(step, output.name, resources, binder)


def _single_region(  # noqa: C901  # split up, its calls would cost more than its work
    step: Launch, output: str, resources: Resources, binder: InputBinder
) -> FastRun:
    region = resources.kernels[step.region]
    constants = resources.addresses()
    rows = [(row.name, row.dtype) for row in binder.rows]
    all_spares = [row.spares for row in binder.rows]
    count, static, known = len(rows), binder.static_shapes, binder.known_shapes
    array_type, to_numpy = np.ndarray, np.from_dlpack
    # The inputs of the one step are the program's, so their slots are their positions.
    places = {name: (step.inputs.index(value), axis) for name, (value, axis) in step.sizes.items()}
    check = size_check(step.needs, places)

    def take(inputs: Mapping[str, object]) -> list[np.ndarray] | None:
        """Return the inputs if all are as the kernels want them, alignment apart."""
        arrays = []
        for name, dtype in rows:
            value = inputs.get(name)
            if type(value) is not array_type or value.dtype is not dtype or not value.flags.carray:
                return None
            arrays.append(value)
        shapes = [array.shape for array in arrays]
        return arrays if shapes == static or tuple(shapes) in known else None

    def run(inputs: Mapping[str, object]) -> dict[str, Any] | None:
        if len(inputs) != count or (arrays := take(inputs)) is None:
            return None
        if check is not None:
            check(arrays)
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
        try:
            result = region(tensors, None)
        except Exception as error:  # generated code raises what its kernels ask for
            raise failed(step, error) from error
        if borrowed:
            give_back(borrowed)
        address = result.data_ptr()
        return None if address in taken or address in constants else {output: to_numpy(result)}

    return run
