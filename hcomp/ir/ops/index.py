"""Operators that address elements by index tensors: take, gather, scatter."""

from hcomp.ir.ops.core import Infer, Op, first_shape, same
from hcomp.ir.types import Shape


def _take(context: Infer) -> Shape:
    """x.shape[:axis] + indices.shape + x.shape[axis+1:]."""
    x = context.shape(0)
    axis = context.axis(context.attrs["axis"], len(x))
    return x[:axis] + context.shape(1) + x[axis + 1 :]


def _gather_elements(context: Infer) -> Shape:
    if len(context.shape(0)) != len(context.shape(1)):
        raise context.error("data and indices must have one rank")
    return context.shape(1)


def _gather_nd(context: Infer) -> Shape:
    x, indices, batch = context.shape(0), context.shape(1), context.attrs["batch_dims"]
    depth = indices[-1]
    if not isinstance(depth, int):
        raise context.error(f"the last size of the indices must be a number, found {depth}")
    return indices[:-1] + x[batch + depth :]


_SCATTER = {"reduction": "none"}
"""none, add, mul, max or min."""

INDEX: tuple[Op, ...] = (
    # In all of them a negative index counts from the end, and one outside is an error at run time
    # (compiled code clamps its reads and raises a guard; it never reads or writes outside).
    Op("take", same, _take, {"axis": 0}, "gather"),
    Op("gather_elements", same, _gather_elements, {"axis": 0}, "gather"),
    Op("gather_nd", same, _gather_nd, {"batch_dims": 0}, "gather"),
    Op("scatter_elements", same, first_shape, {"axis": 0, **_SCATTER}, "scatter"),
    Op("scatter_nd", same, first_shape, _SCATTER, "scatter"),
)
