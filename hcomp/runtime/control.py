"""`if` and `loop`: steps that run whole programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tvm_ffi import Tensor

from hcomp.artifact.program import Loop
from hcomp.artifact.types import TensorType, ValueType
from hcomp.dims import Dim, DimLike, evaluate
from hcomp.dtypes import numpy_dtype
from hcomp.errors import RunError
from hcomp.runtime.values import aligned_empty, aligned_number, to_array

Action = Callable[[list[object]], None]
Run = Callable[[Sequence[object]], list[object]]


def if_step(then_run: Run, else_run: Run, inputs: list[int], outputs: list[int]) -> Action:
    """Return a step that runs one of two programs on the inputs after the condition."""
    condition, captured = inputs[0], inputs[1:]

    def act(slots: list[object]) -> None:
        run = then_run if _truth(slots[condition]) else else_run
        results = run([slots[i] for i in captured])
        for i, value in zip(outputs, results, strict=True):
            slots[i] = value

    return act


def loop_step(
    step: Loop, body: Run, inputs: list[int], outputs: list[int], places: Mapping[str, tuple[int, int]]
) -> Action:
    """Return a step that repeats a program; scans are stacked along a new first axis.

    `places` gives the slot and the axis of the scans' symbols, as far as any value has them.
    """
    trip, condition = inputs[:2]
    carried, captured = inputs[2 : 2 + step.carried], inputs[2 + step.carried :]
    bounded, conditional = bool(step.inputs[0]), bool(step.inputs[1])
    scan_types = [(name, step.types.get(name)) for name in step.outputs[step.carried :]]

    def act(slots: list[object]) -> None:
        limit = _count(slots[trip]) if bounded else None
        going = _truth(slots[condition]) if conditional else True
        state = [slots[i] for i in carried]
        outer = [slots[i] for i in captured]
        scans: list[list[object]] = [[] for _ in scan_types]
        # Whenever the body starts, the condition is true: one tensor serves all trips.
        true = aligned_number(np.dtype(bool), 1)
        done = 0
        while going and (limit is None or done < limit):
            results = body([aligned_number(np.dtype(np.int64), done), true, *state, *outer])
            going = results[0] is true or _truth(results[0])
            state = results[1 : 1 + len(state)]
            for scan, value in zip(scans, results[1 + len(state) :], strict=True):
                scan.append(value)
            done += 1
        if done or not scans:
            stacked = [_stack(values, name) for values, (name, _) in zip(scans, scan_types, strict=True)]
        else:
            sizes = {symbol: _shape(slots[i])[axis] for symbol, (i, axis) in places.items()}
            stacked = [_empty_scan(name, type_, sizes) for name, type_ in scan_types]
        for i, value in zip(outputs, [*state, *stacked], strict=True):
            slots[i] = value

    return act


def _truth(value: object) -> bool:
    array = np.from_dlpack(value) if isinstance(value, Tensor) else to_array(value)
    if array.size != 1:
        raise RunError(f"a condition must have one element, found shape {list(array.shape)}")
    return bool(array.reshape(-1)[0])


def _count(value: object) -> int:
    array = to_array(value)
    if array.size != 1:
        raise RunError(f"a trip count must have one element, found shape {list(array.shape)}")
    return int(array.reshape(-1)[0])


def _stack(values: list[object], name: str) -> np.ndarray:
    """Return the values of one scan as one array."""
    arrays = [to_array(value) for value in values]
    first = arrays[0]
    if any(array.shape != first.shape for array in arrays):
        shapes = sorted({str(list(array.shape)) for array in arrays})
        raise RunError(f"scan output {name!r} has elements of different shapes: {', '.join(shapes)}")
    stacked = aligned_empty((len(arrays), *first.shape), first.dtype)
    for i, array in enumerate(arrays):
        stacked[i] = array
    return stacked


def _shape(value: object) -> Sequence[int]:
    return value.shape if isinstance(value, Tensor) else to_array(value).shape


def _empty_scan(name: str, type_: ValueType | None, sizes: Mapping[str, int]) -> np.ndarray:
    """Return the result of no iteration: sizes that nobody knows are 0.

    ONNX Runtime makes all sizes 0 that the model does not write as a number; what reads the result here
    was compiled for the sizes that its type has.
    """
    if not isinstance(type_, TensorType):
        raise RunError(f"no iteration was made, and the type of the scan output {name!r} is unknown")
    inner = [_size(dim, sizes) for dim in (type_.shape or (0,))[1:]]
    return np.empty((0, *inner), numpy_dtype(type_.dtype))


def _size(dim: DimLike, sizes: Mapping[str, int]) -> int:
    if not isinstance(dim, Dim):
        return dim
    try:
        return max(0, evaluate(dim, sizes)) if dim.symbols <= sizes.keys() else 0
    except ZeroDivisionError:
        return 0
