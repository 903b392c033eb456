"""Rows for operators that address elements by index tensors.

A negative index counts from the end. Every read and write is held inside its buffer; an index
that is outside stops the region with an IndexError that names the node (a guard), unless the
indices are constant and were checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import te, tirx

from hcomp.codegen.kernel import FLAG, Expr, Kernel, KernelBody, Tensor, wide, wide_dtype
from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table import scalar
from hcomp.codegen.relax_table.loops import nest, statements, store
from hcomp.codegen.relax_table.reduce import reduced
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike
from hcomp.ir.graph import Node
from hcomp.ir.types import TensorType

_ANY = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda dtype: tirx.const(0, dtype), name="any")
"""1 where any element is 1; 0 for no elements."""


def inside(index: Expr, size: Expr) -> Expr:
    """Return an index as int64, counted from the front and held inside an axis of `size`."""
    index = index.astype("int64")
    counted = tirx.Select(index < int64(0), index + size, index)
    return tirx.max(tirx.min(counted, size - int64(1)), int64(0))


def _outside(index: Expr, size: Expr) -> Expr:
    index = index.astype("int64")
    wrong = tirx.Or(index < int64(0) - size, index >= size)
    return tirx.Select(wrong, tirx.const(1, FLAG.dtype), tirx.const(0, FLAG.dtype))


def index_guard(lowering: Lowering, node: Node, axes: Sequence[int], depth_last: bool) -> list[Expr]:
    """Return the check of the node's indices against the sizes of `axes`, or none if they fit.

    Args:
        lowering: the region.
        node: a node with data as input 0 and indices as input 1.
        axes: the data's axes that are addressed.
        depth_last: whether the indices' last axis runs over `axes`.
    """
    data, name = lowering.type(node.inputs[0]), node.inputs[1]
    sizes = [(data.shape or ())[a] for a in axes]
    if _known_to_fit(lowering.array(name), sizes):
        return []
    shape = lowering.type(name).shape or ()

    def body(kernel: Kernel) -> Tensor:
        # Input 0 is the indices here: the check reads nothing else.
        steps = [kernel.axis(d, f"k{a}") for a, d in enumerate(shape)]
        limits = kernel.dims(sizes)

        def wrong() -> Expr:
            limit = limits[-1]
            for place in reversed(range(len(limits) - 1) if depth_last else range(0)):
                limit = tirx.Select(steps[-1] == int64(place), limits[place], limit)
            return _outside(kernel.read(0, steps), limit)

        if not steps:
            return kernel.compute(wrong, name="flag")
        return reduced(kernel, _ANY, wrong, steps, shape, tirx.const(0, FLAG.dtype))

    text = " or ".join(str(s) for s in dict.fromkeys(sizes))
    return [lowering.guard(node.label, f"an index is outside an axis of size {text}", [name], body)]


def _known_to_fit(array: Any, sizes: Sequence[DimLike]) -> bool:
    """Say whether constant indices are inside all of `sizes`."""
    if array is None or not sizes or not all(isinstance(s, int) for s in sizes):
        return False
    low = min(int(s) for s in sizes if isinstance(s, int))
    return array.size == 0 or bool(array.min() >= -low and array.max() < low)


def _require_batch(kernel: Kernel, batch: int) -> None:
    for a, b in zip(kernel.shape(0)[:batch], kernel.shape(1)[:batch], strict=True):
        kernel.require_equal(a, b)


def _take(kernel: Kernel) -> Tensor:
    shape, rank = kernel.shape(0), len(kernel.shape(1))
    axis = kernel.attrs["axis"] % len(shape)
    size = kernel.dim(shape[axis])

    def pick(*i: Expr) -> Expr:
        index = inside(kernel.read(1, i[axis : axis + rank]), size)
        return kernel.read(0, (*i[:axis], index, *i[axis + rank :]))

    return kernel.compute(pick)


def _gather_elements(kernel: Kernel) -> Tensor:
    shape = kernel.shape(0)
    axis = kernel.attrs["axis"] % len(shape)
    size = kernel.dim(shape[axis])

    def pick(*i: Expr) -> Expr:
        index = inside(kernel.read(1, i), size)
        return kernel.read(0, [index if a == axis else _held(kernel, a, p) for a, p in enumerate(i)])

    return kernel.compute(pick)


def _gather_nd(kernel: Kernel) -> Tensor:
    shape, indices, batch = kernel.shape(0), kernel.shape(1), kernel.attrs["batch_dims"]
    depth, lead = indices[-1], len(indices) - 1
    assert isinstance(depth, int)
    sizes = kernel.dims(shape[batch : batch + depth])
    _require_batch(kernel, batch)

    def pick(*i: Expr) -> Expr:
        at = [inside(kernel.read(1, (*i[:lead], int64(d))), sizes[d]) for d in range(depth)]
        return kernel.read(0, (*i[:batch], *at, *i[lead:]))

    return kernel.compute(pick)


_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "none": lambda old, new: new,
    "add": scalar.add,
    "mul": scalar.multiply,
    "max": scalar.maximum,
    "min": scalar.minimum,
}
Address: TypeAlias = Callable[[Kernel, Any, Sequence[Expr]], list[Expr]]
"""Gives where an update goes: from the kernel, the indices' buffer and the update's position."""


def _scatter(address: Address) -> KernelBody:
    """Return a kernel that copies the data and then writes one update after the other."""

    def body(kernel: Kernel) -> Tensor:
        shape, dtype = kernel.shape(0), kernel.out_dtype
        held = wide_dtype(dtype)
        combine = _COMBINE[kernel.attrs["reduction"]]
        _require_updates(kernel)

        def emit(ins: Sequence[Any], outs: Sequence[Any]) -> None:
            data, indices, updates = ins
            with nest(kernel, shape) as at:
                store(outs[0], at, wide(data[tuple(at)]))
            with nest(kernel, kernel.shape(2)) as i:
                place = address(kernel, indices, i)
                store(outs[0], place, combine(outs[0][tuple(place)], wide(updates[tuple(i)])))

        inputs = [kernel.tensor(n) for n in range(3)]
        (made,) = statements(kernel, inputs, [(shape, held)], emit, "scatter")
        return made if held == dtype else kernel.compute(lambda *i: made(*i))

    return body


def _require_updates(kernel: Kernel) -> None:
    """Have the updates be of the shape that the indices (and the data's tail) give."""
    data, indices, updates = (kernel.shape(n) for n in range(3))
    if "axis" in kernel.attrs:
        wanted = indices
    else:
        depth = indices[-1]
        assert isinstance(depth, int)
        wanted = indices[:-1] + data[depth:]
    for a, b in zip(updates, wanted, strict=True):
        kernel.require_equal(a, b)


def _element_address(kernel: Kernel, indices: Any, i: Sequence[Expr]) -> list[Expr]:
    shape = kernel.shape(0)
    axis = kernel.attrs["axis"] % len(shape)
    index = inside(indices[tuple(i)], kernel.dim(shape[axis]))
    return [index if a == axis else _held(kernel, a, p) for a, p in enumerate(i)]


def _held(kernel: Kernel, axis: int, position: Expr) -> Expr:
    """Return a position of the indices as one of the data, which may not be smaller there."""
    data, indices = kernel.shape(0)[axis], kernel.shape(1)[axis]
    if data == indices or (isinstance(data, int) and isinstance(indices, int) and indices <= data):
        return position
    return tirx.min(position, kernel.dim(data) - int64(1))


def _nd_address(kernel: Kernel, indices: Any, i: Sequence[Expr]) -> list[Expr]:
    shape, lead = kernel.shape(0), len(kernel.shape(1)) - 1
    depth = kernel.shape(1)[-1]
    assert isinstance(depth, int)
    sizes = kernel.dims(shape[:depth])
    at = [inside(indices[(*i[:lead], int64(d))], sizes[d]) for d in range(depth)]
    return [*at, *i[lead:]]


def _axis_rule(body: KernelBody) -> Rule:
    def rule(lowering: Lowering, node: Node) -> Any:
        rank = len(lowering.type(node.inputs[0]).shape or ())
        axis = node.attrs["axis"]
        assert isinstance(axis, int)
        guards = index_guard(lowering, node, [axis % rank], depth_last=False)
        return lowering.kernel(node, body, after=guards)

    return rule


def _nd_rule(body: KernelBody, batch_of: Callable[[Node], int]) -> Rule:
    def rule(lowering: Lowering, node: Node) -> Any:
        indices: TensorType = lowering.type(node.inputs[1])
        depth = (indices.shape or (0,))[-1]
        assert isinstance(depth, int)
        batch = batch_of(node)
        axes = range(batch, batch + depth)
        guards = index_guard(lowering, node, axes, depth_last=True) if depth else []
        return lowering.kernel(node, body, after=guards)

    return rule


def _batch_dims(node: Node) -> int:
    batch = node.attrs["batch_dims"]
    assert isinstance(batch, int)
    return batch


RULES: dict[str, Rule] = {
    "take": _axis_rule(_take),
    "gather_elements": _axis_rule(_gather_elements),
    "gather_nd": _nd_rule(_gather_nd, _batch_dims),
    "scatter_elements": _axis_rule(_scatter(_element_address)),
    "scatter_nd": _nd_rule(_scatter(_nd_address), lambda node: 0),
}
