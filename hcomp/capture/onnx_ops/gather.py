"""Elements by index: the Gather and Scatter families, OneHot, NonZero, Unique, Compress."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import axis_of, like
from hcomp.capture.onnx_ops.reduce_scan import product
from hcomp.dims import DimLike


def _gather(c: NodeContext) -> str:
    return c.emit("take", 0, 1, axis=axis_of(c, c.attr("axis", 0)))


def _gather_elements(c: NodeContext) -> str:
    return c.emit("gather_elements", 0, 1, axis=axis_of(c, c.attr("axis", 0)))


def _gather_nd(c: NodeContext) -> str:
    batch = c.attr("batch_dims", 0)
    if any(c.ranked(i) and not 0 <= batch < c.rank(i) for i in (0, 1)):
        raise c.refuse(f"its batch_dims {batch} leave no axis to index")
    return c.emit("gather_nd", 0, 1, batch_dims=batch)


_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _reduction(c: NodeContext) -> str:
    name: str = c.attr("reduction", "none")
    if name not in _REDUCTIONS:
        raise c.refuse(f"its reduction {name!r} is none of {', '.join(_REDUCTIONS)}")
    return name


def _scatter_elements(c: NodeContext) -> str:
    axis = axis_of(c, c.attr("axis", 0))
    return c.emit("scatter_elements", 0, 1, 2, axis=axis, reduction=_reduction(c))


def _scatter_nd(c: NodeContext) -> str:
    return c.emit("scatter_nd", 0, 1, 2, reduction=_reduction(c))


def _tensor_scatter(c: NodeContext) -> str:
    """TensorScatter: an update goes into a cache from each batch's write index on.

    In circular mode it continues at the front.
    """
    axis, mode = c.axis(c.attr("axis", -2)), c.attr("mode", "linear")
    if mode not in ("linear", "circular"):
        raise c.refuse(f"its mode {mode!r} is neither linear nor circular")
    shape = c.shape(1)
    trailing = (1,) * (len(shape) - axis - 1)
    index = c.reshape(c.emit("arange", size=shape[axis]), (shape[axis], *trailing))
    if c.has(2):
        starts = c.reshape(c.cast(2, "int64"), (shape[0],) + (1,) * (len(shape) - 1))
        index = c.emit("add", index, starts)
    if mode == "circular":
        size = c.b.shape_value([c.shape(0)[axis]], scalar=True)
        index = c.emit("floor_mod", index, size)
    index = c.emit("broadcast_to", index, shape=shape)
    return c.emit("scatter_elements", 0, index, 1, axis=axis)


def _one_hot(c: NodeContext) -> str:
    """OneHot: the second of the values at the index along a new axis, the first elsewhere."""
    shape = c.shape(0)
    axis = c.axis(c.attr("axis", -1), extra=1)
    depth = c.known(1)
    if depth is None:
        count = c.cast(c.reshape(1, ()), "int64")
        static = {"start": 0, "step": 1, "dtype": "int64"}
        bound = {"size": count}
        places = c.b.dynamic("arange", [], static=static, bound=bound, dtypes=["int64"], rank=1)[0]
        size: DimLike = c.shape(places)[0]
    else:
        size = depth[0]
        count = c.b.shape_value([size], scalar=True)
        places = c.emit("arange", size=size)
    indices = c.cast(0, "int64")
    below = c.emit("less", indices, like(c, 0, indices))
    wrapped = c.emit("where", below, c.emit("add", indices, count), indices)
    spread = c.reshape(wrapped, (*shape[:axis], 1, *shape[axis:]))
    aligned = c.reshape(places, (size,) + (1,) * (len(shape) - axis))
    off, on = (
        c.reshape(c.emit("strided_slice", 2, axes=(0,), begin=(i,), size=(1,), strides=(1,)), ()) for i in (0, 1)
    )
    return c.emit("where", c.emit("equal", spread, aligned), on, off)


def _compress(c: NodeContext) -> str:
    axis = c.attr("axis")
    return c.emit("compress", 0, 1, axis=None if axis is None else c.axis(axis))


def _nonzero(c: NodeContext) -> str:
    """NonZero: one row an axis; a scalar has no rows."""
    if c.rank() > 0:
        return c.emit("nonzero", 0)
    found = c.emit("nonzero", c.reshape(0, (1,)))
    count = c.shape(found)[1]
    return c.emit("strided_slice", found, axes=(0, 1), begin=(0, 0), size=(0, count), strides=(1, 1))


def _unique(c: NodeContext) -> Sequence[str]:
    axis = c.attr("axis")
    axis = None if axis is None else c.axis(axis)
    return c.emit_many("unique", 0, axis=axis, sorted=bool(c.attr("sorted", 1)))


def _reverse_sequence(c: NodeContext) -> str:
    """ReverseSequence: the first `length` steps of each batch entry turned round."""
    time, batch = c.attr("time_axis", 0), c.attr("batch_axis", 1)
    shape = c.shape()
    if {time, batch} != {0, 1}:
        raise c.refuse(f"its axes are {time} (time) and {batch} (batch), not 0 and 1")
    rest = (1,) * (len(shape) - 2)
    steps = c.emit("arange", size=shape[time])
    lengths = c.cast(1, "int64")
    steps = c.reshape(steps, _along(time, shape[time], rest))
    lengths = c.reshape(lengths, _along(batch, shape[batch], rest))
    turned = c.emit("subtract", c.emit("subtract", lengths, like(c, 1, lengths)), steps)
    index = c.emit("where", c.emit("less", steps, lengths), turned, steps)
    if product(shape[2:]) != 1:
        index = c.emit("broadcast_to", index, shape=shape)
    return c.emit("gather_elements", 0, c.reshape(index, shape), axis=time)


def _along(axis: int, size: DimLike, rest: tuple[int, ...]) -> tuple[DimLike, ...]:
    return (size, 1, *rest) if axis == 0 else (1, size, *rest)


GATHER: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "OneHot": _one_hot,
    "Compress": _compress,
    "NonZero": _nonzero,
    "Unique": _unique,
    "ReverseSequence": _reverse_sequence,
}
