"""What the steps of one session share: members, constants in memory, threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm_ffi import Tensor

from hcomp.artifact.program import Constant, Launch
from hcomp.artifact.store import Artifact
from hcomp.artifact.texts import read_texts
from hcomp.artifact.types import item_bytes
from hcomp.dtypes import numpy_dtype
from hcomp.errors import ArtifactError
from hcomp.runtime.values import BITS, CARRIERS, array_of, empty_tensor, reinterpret, to_tensor
from hcomp.runtime.vm import KernelRegion

if TYPE_CHECKING:
    from hcomp.runtime.kernel_clock import KernelClock


class Resources:
    """The artifact of a session, its constants as tensors, and the number of threads.

    `kernels` are the loaded regions of native code by name; `clock`, where there is one, times them. `functions`
    are the regions whose outputs each are a function of one input: the inputs' places and the functions.
    """

    def __init__(self, artifact: Artifact, threads: int, clock: KernelClock | None = None) -> None:
        self.threads = threads
        self.clock = clock
        self.kernels: dict[str, KernelRegion] = {}
        self.functions: dict[str, Sequence[tuple[int, Callable[[Any], Any]]]] = {}
        self._artifact = artifact
        self._tensors: dict[Constant, Tensor] = {}

    def member(self, step: Launch, key: str) -> memoryview:
        """Return the bytes of one of a launch's files."""
        if key not in step.files:
            raise ArtifactError(f"the step names no file {key!r}, which the executor {step.executor} needs")
        return self._artifact.member(step.files[key])

    def constant(self, spec: Constant) -> Tensor | np.ndarray:
        """Return a constant in the form in which values flow: a tensor where its type has one."""
        if spec.dtype in CARRIERS or spec.dtype.startswith("complex") or spec.dtype == "string":
            return self.constant_array(spec)
        return self.constant_tensor(spec)

    def constant_tensor(self, spec: Constant) -> Tensor:
        """Return a constant as a tensor over the artifact's memory (copied once if misaligned)."""
        if spec not in self._tensors:
            self._tensors[spec] = self._load(spec)
        return self._tensors[spec]

    def constant_array(self, spec: Constant) -> np.ndarray:
        """Return a constant as an array over the artifact's memory; nobody may write to it."""
        if spec.dtype.startswith("complex"):
            view = self._artifact.member(spec.file)
            array = np.frombuffer(view, numpy_dtype(spec.dtype)).reshape(spec.shape)
        elif spec.dtype == "string":
            texts = read_texts(self._artifact.member(spec.file), prod(spec.shape))
            array = np.array(texts, object).reshape(spec.shape)
        else:
            array = array_of(self.constant_tensor(spec), spec.dtype)
        array.flags.writeable = False
        return array

    def addresses(self) -> frozenset[int]:
        """Return where the constants are that were asked for."""
        return frozenset(tensor.data_ptr() for tensor in self._tensors.values())

    def _load(self, spec: Constant) -> Tensor:
        view = self._artifact.member(spec.file)
        if not view.nbytes:
            return empty_tensor(spec.shape, CARRIERS.get(spec.dtype, spec.dtype))
        if spec.dtype in CARRIERS or numpy_is_plain(spec.dtype):
            return to_tensor(np.frombuffer(view, numpy_dtype(spec.dtype)).reshape(spec.shape))
        bits = np.frombuffer(view, BITS[item_bytes(spec.dtype)]).reshape(spec.shape)
        return reinterpret(to_tensor(bits), spec.dtype)


def numpy_is_plain(dtype: str) -> bool:
    """Say whether numpy itself has the element type; asks without importing ml_dtypes."""
    return not dtype.startswith(("bfloat16", "float8", "float4")) and dtype not in CARRIERS
