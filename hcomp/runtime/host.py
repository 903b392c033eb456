"""Regions that run on the host: numpy reference programs and ONNX Runtime models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm_ffi import from_dlpack

from hcomp.errors import ArtifactError
from hcomp.runtime.library import one_line
from hcomp.runtime.values import to_array

HostRegion = Callable[[list[Any], list[int]], Sequence[Any]]
HostFunctions = Sequence[tuple[int, Callable[[Any], Any]]]


def reference_region(program: memoryview, threads: int) -> tuple[HostRegion, HostFunctions | None]:
    """Return a region that the numpy reference interprets; ONNX Runtime runs its extern nodes.

    Where each output is a function of one input, also return these: the inputs' places and the functions.

    Raises:
        ArtifactError: the bytes are no program of the interpreter.
    """
    from hcomp.reference.interpreter import Interpreter

    try:
        interpreter = Interpreter(json.loads(bytes(program)), _extern_runner(threads))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{type(error).__name__}: {one_line(error)[:200]}"
        raise ArtifactError(f"the reference program cannot be read: {text}") from error
    return interpreter.run, interpreter.functions()


def _extern_runner(threads: int) -> Callable[[bytes, list[Any]], Sequence[Any]]:
    """Return a function that runs a serialized ONNX model; each is loaded once."""
    loaded: dict[bytes, HostRegion] = {}

    def run(model: bytes, values: list[Any]) -> Sequence[Any]:
        if model not in loaded:
            loaded[model] = onnx_region(memoryview(model), threads)
        return loaded[model](values, [])

    return run


def onnx_region(model: memoryview, threads: int) -> HostRegion:
    """Return a region that ONNX Runtime runs; its inputs are the model's, by position.

    Raises:
        ArtifactError: ONNX Runtime refuses the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised anyway
    # Idle workers must not take the cores from our own kernels.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(bytes(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base below Exception
        reason = one_line(error)
        raise ArtifactError(f"ONNX Runtime refuses the model: {reason}") from error
    inputs = [argument.name for argument in session.get_inputs()]
    outputs = [argument.name for argument in session.get_outputs()]
    types = [argument.type for argument in (*session.get_inputs(), *session.get_outputs())]
    if any(name in ONNX_NUMBERS for name in types):
        return lambda values, _: _run_with_ort_values(session, inputs, outputs, values)

    def run(values: list[Any], _: list[int]) -> Sequence[Any]:
        found: Sequence[Any] = session.run(outputs, dict(zip(inputs, values, strict=True)))
        return found

    return run


# ONNX Runtime's name, onnx.TensorProto's number (fixed by the standard) and our name of the
# types that it neither takes from numpy nor gives to it.
ONNX_NUMBERS = {
    "tensor(bfloat16)": 16,
    "tensor(float8e4m3fn)": 17,
    "tensor(float8e4m3fnuz)": 18,
    "tensor(float8e5m2)": 19,
    "tensor(float8e5m2fnuz)": 20,
}


def _run_with_ort_values(session: Any, inputs: list[str], outputs: list[str], values: list[Any]) -> list[Any]:
    """Run a model with bfloat16 and its like: bits go in, and DLPack comes out."""
    feeds = {}
    for name, value, argument in zip(inputs, values, session.get_inputs(), strict=True):
        feeds[name] = _to_ort(value, ONNX_NUMBERS.get(argument.type))
    found = session.run_with_ort_values(outputs, feeds)
    return [to_array(from_dlpack(v._ortvalue)) if v.data_type() in ONNX_NUMBERS else v.numpy() for v in found]


def _to_ort(value: np.ndarray, number: int | None) -> Any:
    from onnxruntime import OrtValue

    if number is None:
        return OrtValue.ortvalue_from_numpy(value)
    bits = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)
