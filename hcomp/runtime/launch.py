"""Launching a region: its inputs in the executor's form, its errors in the user's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm_ffi import Tensor

from hcomp.artifact.program import Constant, Launch
from hcomp.artifact.types import TensorType
from hcomp.errors import ArtifactError, HcompError, RunError
from hcomp.runtime.host import HostRegion, onnx_region, reference_region
from hcomp.runtime.library import one_line
from hcomp.runtime.resources import Resources
from hcomp.runtime.threads import load_thread_pool
from hcomp.runtime.values import CARRIERS, from_carrier, to_array, to_host, to_tensor
from hcomp.runtime.vm import KernelRegion, elements, vm_region

Action = Callable[[list[object]], None]
Symbols = list[tuple[int, int]]


def launch_step(
    step: Launch,
    resources: Resources,
    constants: Sequence[Constant],
    inputs: list[int],
    symbols: Symbols,
    outputs: list[int],
) -> Action:
    """Return a step that runs one region; values are slot numbers, symbols (slot, axis).

    Raises:
        ArtifactError: the region cannot be loaded; names it.
    """
    try:
        if step.executor == "vm":
            kernels = resources.kernels[step.region] = _kernels(step, resources, constants)
            return _kernel_step(step, kernels, inputs, symbols, outputs)
        arrays = [resources.constant_array(spec) for spec in constants]
        return _host_step(step, _host_region(step, resources), arrays, inputs, symbols, outputs)
    except ArtifactError as error:
        raise ArtifactError(f"region {step.region}: {error}") from error


def _kernels(step: Launch, resources: Resources, constants: Sequence[Constant]) -> KernelRegion:
    """Return the region in native code, or for a profile in the VM's interpreter, its kernels watched."""
    load_thread_pool(resources.member(step, "threads"))
    objects = sorted(role for role in step.files if role.startswith("object"))
    code = [resources.member(step, role) for role in objects]
    bound = [resources.constant_tensor(spec) for spec in constants]
    if resources.clock is None:
        return vm_region(resources.member(step, "program"), code, bound)
    if "kernels" not in step.files:
        raise ArtifactError("there is no list of its kernels: compile the model again with this hcomp")
    watch = resources.clock.watch(step.region, resources.member(step, "kernels"))
    return vm_region(resources.member(step, "interpreted"), code, bound, watch)


def _host_region(step: Launch, resources: Resources) -> HostRegion:
    if step.executor == "reference":
        region, functions = reference_region(resources.member(step, "program"), resources.threads)
        if functions is not None:
            resources.functions[step.region] = functions
        return region
    return onnx_region(resources.member(step, "model"), resources.threads)


def _kernel_step(step: Launch, region: KernelRegion, inputs: list[int], symbols: Symbols, outputs: list[int]) -> Action:
    """Return a step that calls native code."""
    if "" in step.inputs:
        raise ArtifactError("generated code has no optional inputs")
    single = outputs[0] if len(outputs) == 1 else None
    finish = _finish_carried(step, outputs)

    def act(slots: list[object]) -> None:
        arguments = [slots[i] for i in inputs]
        for k, value in enumerate(arguments):
            if not isinstance(value, Tensor):
                # Kept in the slot, so that the next region need not convert it again.
                arguments[k] = slots[inputs[k]] = _as_tensor(step, k, value)
        try:
            sizes = [slots[i].shape[axis] for i, axis in symbols] if symbols else None  # type: ignore[attr-defined]
            result = region.call(arguments, sizes)
        except Exception as error:  # generated code raises what its kernels ask for
            raise failed(step, error) from error
        if single is not None and isinstance(result, Tensor):
            slots[single] = result
        else:
            _spread(step, (result,) if isinstance(result, Tensor) else elements(result), slots, outputs)
        if finish is not None:
            finish(slots)

    return act


def _host_step(
    step: Launch,
    region: HostRegion,
    constants: list[Any],
    inputs: list[int],
    symbols: Symbols,
    outputs: list[int],
) -> Action:
    """Return a step that calls numpy functions or ONNX Runtime."""

    def act(slots: list[object]) -> None:
        arguments = [to_host(slots[i]) for i in inputs]
        try:
            sizes = [int(slots[i].shape[axis]) for i, axis in symbols]  # type: ignore[attr-defined]
            results = region([*arguments, *constants], sizes)
        except Exception as error:  # numpy and ONNX Runtime raise errors of many classes
            raise failed(step, error) from error
        # A numpy function may return a scalar object instead of an array without dimensions.
        arrays = [np.asarray(r) if isinstance(r, np.generic) else r for r in results]
        _spread(step, arrays, slots, outputs)

    return act


def _spread(step: Launch, results: Sequence[Any], slots: list[object], outputs: list[int]) -> None:
    if len(results) != len(outputs):
        raise RunError(f"region {step.region} returned {len(results)} values, the artifact says {len(outputs)}")
    for i, value in zip(outputs, results, strict=True):
        slots[i] = value


def _finish_carried(step: Launch, outputs: list[int]) -> Action | None:
    """Return what gives outputs of sub-byte types, which kernels return as bytes, their type."""
    types = [(i, step.types.get(name)) for i, name in zip(outputs, step.outputs, strict=True)]
    carried = [(i, t.dtype) for i, t in types if isinstance(t, TensorType) and t.dtype in CARRIERS]
    if not carried:
        return None

    def finish(slots: list[object]) -> None:
        for i, dtype in carried:
            slots[i] = from_carrier(to_array(slots[i]), dtype)

    return finish


def _as_tensor(step: Launch, index: int, value: object) -> Tensor:
    try:
        return to_tensor(value)
    except RunError as error:
        raise RunError(f"region {step.region}: input {step.inputs[index]!r}: {error}") from error


def failed(step: Launch, error: Exception) -> RunError:
    """Return the error of a region that failed: the region, its first nodes, and the reason."""
    nodes = f" ({', '.join(step.nodes[:3])}{', ...' if len(step.nodes) > 3 else ''})" if step.nodes else ""
    reason = str(error) if isinstance(error, HcompError) else one_line(error)
    return RunError(f"region {step.region}{nodes} failed on {step.device}: {reason}")
