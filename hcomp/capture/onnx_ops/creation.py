"""Tensors from nothing or from sizes: Constant, ConstantOfShape, Range, EyeLike; and Dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like
from hcomp.capture.onnx_ops.shape import length
from hcomp.capture.onnx_types import element_type, to_array
from hcomp.dims import ceildiv, dim_max
from hcomp.errors import CaptureError

MAX_DENSE = 1 << 32
"""Bytes of a sparse constant that is written out."""
MAX_RANGE = 1 << 16
"""Longer ranges are made at run time."""


def _constant(c: NodeContext) -> str:
    """Constant: one of its attributes holds the value."""
    hint = c.node.output[0]
    given = {name: c.attr(name) for name in _FORMS}
    present = [name for name, value in given.items() if value is not None]
    if len(present) != 1:
        raise c.refuse(f"it has {len(present)} values, not one")
    return c.b.constant(_FORMS[present[0]](given[present[0]]), hint)


def _dense(sparse: Any) -> Any:
    """Return a SparseTensorProto as a dense array."""
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    if prod(sparse.dims) * values.itemsize > MAX_DENSE:
        raise CaptureError(f"its sparse value of shape {list(sparse.dims)} is too large")
    result = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return result


def _text(values: Sequence[str]) -> Any:
    result = np.empty(len(values), dtype=object)
    result[:] = list(values)
    return result


_FORMS: dict[str, Callable[[Any], Any]] = {
    "value": to_array,
    "sparse_value": _dense,
    "value_int": lambda v: np.array(v, np.int64),
    "value_ints": lambda v: np.array(v, np.int64),
    "value_float": lambda v: np.array(v, np.float32),
    "value_floats": lambda v: np.array(v, np.float32),
    "value_string": lambda v: _text([v]).reshape(()),
    "value_strings": _text,
}


def _constant_of_shape(c: NodeContext) -> str:
    given = c.attr("value")
    value = np.zeros(1, np.float32) if given is None else to_array(given)
    if value.dtype.kind in "OUST":
        raise c.refuse("it works on text")
    from hcomp.dtypes import dtype_name

    settings = {"value": value.ravel()[0].item(), "dtype": dtype_name(value.dtype)}
    shape = c.known(0)
    if shape is not None:
        return c.emit("full", shape=tuple(shape), **settings)
    bound, dtypes = {"shape": c.input(0)}, [settings["dtype"]]
    return c.b.dynamic("full", [], static=settings, bound=bound, dtypes=dtypes, rank=length(c, 0))[0]


def _range(c: NodeContext) -> str:
    """Range: start, start + delta, ... below (above) the limit; sizes may be its bounds."""
    dtype = c.dtype(0)
    numbers = [c.const(i) for i in range(3)]
    if all(n is not None for n in numbers):
        from hcomp.reference.onnx_host import onnx_range

        first, last, by = (n.item() for n in numbers if n is not None)
        if by == 0:
            raise c.refuse("its step is 0")
        if (count := ceil((last - first) / by)) > MAX_RANGE:
            return c.emit("arange", size=count, start=first, step=by, dtype=dtype)
        made: Any = onnx_range(*(n for n in numbers if n is not None))
        return c.b.constant(made, c.node.output[0])
    known = [c.known(i) for i in range(3)]
    start, limit, delta = (None if k is None else k[0] for k in known)
    if start is None or limit is None or not isinstance(delta, int) or delta == 0:
        return c.emit("onnx_range", 0, 1, 2, rank=1)
    distance, step = (limit - start, delta) if delta > 0 else (start - limit, -delta)
    size = dim_max(0, ceildiv(distance, step))
    return c.emit("arange", size=size, start=start, step=delta, dtype=dtype)


def _eye_like(c: NodeContext) -> str:
    """EyeLike: ones on the diagonal k, in the shape of the input."""
    to = c.attr("dtype")
    dtype = c.dtype(0) if to is None else element_type(to)
    rows, columns = c.shape()
    down = c.reshape(c.emit("arange", size=rows, start=c.attr("k", 0)), (rows, 1))
    return c.cast(c.emit("equal", down, c.emit("arange", size=columns)), dtype)


def _dropout(c: NodeContext) -> Sequence[str]:
    """Dropout: the data itself and a mask of ones, or in training a random choice."""
    # Drawn in double precision, as the standard's own reference does: the same seed, the same mask.
    seed = c.attr("seed")
    c.ignore("is_test")  # before opset 7 every model here is for inference
    ratio_attribute = c.attr("ratio", 0.5)
    training = _flag(c)
    ratio = c.const(1) if c.has(1) else np.array(0.5 if c.opset >= 12 else ratio_attribute)
    if training is False or (ratio is not None and float(ratio.ravel()[0]) == 0):
        mask_dtype = c.dtype(0) if c.opset < 10 else "bool"
        # The standard leaves the mask of older opsets open outside training; ONNX Runtime clears it.
        filler = 1 if c.opset >= 12 else 0
        mask = c.emit("full", shape=c.shape(), value=filler, dtype=mask_dtype) if c.wants(1) else ""
        return c.input(0), mask
    dropped = c.cast(c.reshape(1, ()), "float64") if c.has(1) else c.scalar(0.5, "float64")
    drawn = c.emit("random_uniform", shape=c.shape(), dtype="float64", seed=seed)
    mask = c.emit("greater_equal", drawn, dropped)
    if training is None:
        mask = c.emit("logical_or", mask, c.emit("logical_not", c.reshape(2, ())))
        dropped = c.emit("where", c.reshape(2, ()), dropped, c.scalar(0, "float64"))
    kept = c.emit("subtract", c.scalar(1, "float64"), dropped)
    scaled = c.emit("divide", c.cast(0, "float64"), kept)
    return c.cast(c.emit("where", mask, scaled, like(c, 0, scaled)), c.dtype(0)), mask


def _flag(c: NodeContext) -> bool | None:
    """Return whether Dropout trains, or None where only run time knows."""
    if not c.has(2):
        return False
    value = c.const(2)
    return None if value is None else bool(value.ravel()[0])


CREATION: dict[str, Converter] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "Dropout": _dropout,
}
