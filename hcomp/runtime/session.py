"""A session: an artifact loaded once and run any number of times, from any number of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm_ffi import Tensor

from hcomp.artifact.manifest import Manifest, ValueSpec
from hcomp.artifact.store import Artifact
from hcomp.artifact.types import TensorType, ValueType
from hcomp.errors import RunError
from hcomp.runtime.cpu import check_cpu
from hcomp.runtime.fast import fast_run
from hcomp.runtime.inputs import InputBinder, check_mapping
from hcomp.runtime.kernel_clock import KernelClock
from hcomp.runtime.kernel_profile import KernelProfile, profile_kernels
from hcomp.runtime.profile import Profile, profile_runs
from hcomp.runtime.resources import Resources
from hcomp.runtime.steps import compile_program
from hcomp.runtime.threads import use_threads, wanted_threads
from hcomp.runtime.values import array_of, copied, to_tensor


def load(path: str | os.PathLike[str], threads: int | None = None) -> Session:
    """Return a session for the artifact in a file.

    Raises:
        ArtifactError: the file is no artifact, is damaged, or does not fit this processor.
    """
    return Session(Artifact.open(path), threads)


class Session:
    """A loaded artifact; `run`, `__call__` and `profile` may be called from many threads at once.

    `threads` is how many threads the kernels of one call use; None means TVM_NUM_THREADS where it
    is set, else every physical core that the process may use.
    """

    def __init__(self, artifact: Artifact, threads: int | None = None) -> None:
        manifest = artifact.manifest
        launches = list(manifest.program.launches())
        self._uses_kernels = any(launch.executor == "vm" for launch in launches)
        if self._uses_kernels and manifest.cpu is not None:
            check_cpu(manifest.cpu)
        self.threads = wanted_threads(threads)
        self._artifact = artifact
        resources = Resources(artifact, self.threads)
        self._code = compile_program(manifest.program, resources)
        self._binder = InputBinder(manifest.inputs, self._code.kernel_inputs)
        self._constants = resources.addresses()
        self._fast = fast_run(manifest, self._code, resources, self._binder)
        self._results = [
            (spec.name, fresh, _reader(spec.type))
            for spec, fresh in zip(manifest.outputs, self._code.fresh, strict=True)
        ]

    @property
    def manifest(self) -> Manifest:
        """The artifact's manifest."""
        return self._artifact.manifest

    @property
    def inputs(self) -> tuple[ValueSpec, ...]:
        """Names and types of the inputs, in the model's order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[ValueSpec, ...]:
        """Names and types of the outputs, in the model's order."""
        return self.manifest.outputs

    def run(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Return the outputs by name, in the model's order.

        Inputs are numpy arrays, torch tensors, anything with DLPack, or Python numbers and lists
        of them. Outputs are torch tensors if an input was one, else numpy arrays; their memory is
        the caller's alone.

        Raises:
            RunError: an input is missing, unknown or of another type or shape, or a region failed.
        """
        if type(inputs) is not dict:
            check_mapping(inputs)
        if self._uses_kernels:
            use_threads(self.threads)
        if self._fast is not None and (short := self._fast(inputs)) is not None:
            return short
        try:
            return self._run_any(inputs)
        except MemoryError as error:
            raise RunError(f"out of memory: {error}") from None

    def _run_any(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Run in the way that takes any values, layouts and steps."""
        values, taken, torch = self._binder.bind(inputs)
        found: dict[str, Any] = {}
        seen: list[object] = []
        for (name, fresh, read), value in zip(self._results, self._code.run(values), strict=True):
            if fresh and isinstance(value, Tensor):
                address = value.data_ptr()
                if address in taken or address in self._constants:
                    value = copied(value)
                taken.add(address)
            elif not fresh or any(value is other for other in seen):
                value = copied(value)
            seen.append(value)
            found[name] = read(value) if not torch else _to_torch(value)
        return found

    def __call__(self, *args: object, **named: object) -> Any:
        """Return the outputs for inputs in the model's order, or by name.

        A model of one output returns it alone, others return a tuple.
        """
        if len(args) > len(self.inputs):
            raise RunError(f"the model has {len(self.inputs)} inputs, got {len(args)}")
        inputs = {spec.name: value for spec, value in zip(self.inputs, args, strict=False)}
        for name in named.keys() & inputs.keys():
            raise RunError(f"input {name!r} is given twice")
        outputs = tuple(self.run({**inputs, **named}).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def profile(self, inputs: Mapping[str, object], runs: int = 10) -> Profile:
        """Return the time of every region and copy over some runs, beside what the plan predicted.

        Raises:
            RunError: as `run`.
        """
        check_mapping(inputs)
        if self._uses_kernels:
            use_threads(self.threads)
        bound = self._binder.bind(inputs)
        return profile_runs(self.manifest, self._code, bound.values, runs)

    def profile_kernels(self, inputs: Mapping[str, object], runs: int = 10) -> KernelProfile:
        """Return the time, operations and bytes of every kernel of the compiled regions over some runs.

        The artifact's own kernels run in their order, on the data of the run, each measured by itself.

        Raises:
            RunError: as `run`.
            ArtifactError: the artifact has no list of its kernels: it was compiled by an older hcomp.
        """
        check_mapping(inputs)
        bound = self._binder.bind(inputs)
        use_threads(self.threads)
        clock = KernelClock()
        code = compile_program(self.manifest.program, Resources(self._artifact, self.threads, clock))
        return profile_kernels(code, clock, bound.values, runs, self.threads)


def _reader(type_: ValueType) -> Any:
    """Return the function that turns an output into what the caller gets."""
    if not isinstance(type_, TensorType):
        return _to_numpy
    dtype = type_.dtype

    def read(value: object) -> object:
        return array_of(value, dtype) if isinstance(value, Tensor) else value

    return read


def _to_numpy(value: object) -> object:
    if isinstance(value, Tensor):
        return array_of(value, str(value.dtype))
    if isinstance(value, list | tuple):
        return [_to_numpy(element) for element in value]
    return value


def _to_torch(value: object) -> object:
    """Return an output as a torch tensor over its memory; texts and maps stay as they are."""
    torch = sys.modules["torch"]
    if isinstance(value, list | tuple):
        return [_to_torch(element) for element in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return torch.from_numpy(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return value
    if isinstance(value, np.ndarray | Tensor):
        return torch.from_dlpack(to_tensor(value))
    return value
