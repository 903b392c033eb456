"""Views and repetitions: Reshape, Squeeze, Transpose, Expand, Tile; sizes as values."""

from __future__ import annotations

from collections.abc import Sequence

from hcomp.capture.context import Converter, NodeContext, RunTime
from hcomp.capture.onnx_ops.reduce_scan import product
from hcomp.dims import Dim, DimLike, bcast, floordiv


def whole_numbers(c: NodeContext, values: Sequence[DimLike], what: str) -> list[int]:
    """Return parameters that must be numbers, not sizes; else the node is refused."""
    if any(isinstance(v, Dim) for v in values):
        raise c.refuse(f"its {what} depend on sizes")
    return [v for v in values if isinstance(v, int)]


def length(c: NodeContext, value: int | str) -> int | None:
    """Return how many elements a 1-D value has, or None where that is unknown."""
    shape = c.type(value).shape
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
        return None
    return shape[0]


def _reshape(c: NodeContext) -> str:
    """Reshape: 0 keeps a size, -1 takes what is left."""
    allowzero = bool(c.attr("allowzero", 0))
    try:
        wanted = c.ints(1, "shape")
    except RunTime:
        return c.emit("onnx_reshape", 0, 1, allowzero=allowzero, rank=length(c, 1))
    if wanted is None:
        raise c.refuse("its shape is missing")
    if not c.ranked():
        keeps = any(isinstance(d, int) and d == 0 for d in wanted) and not allowzero
        if keeps or any(isinstance(d, int) and d == -1 for d in wanted):
            return c.emit("onnx_reshape", 0, 1, allowzero=allowzero, rank=len(wanted))
        return c.emit("onnx_reshape", 0, c.b.shape_value(wanted), rank=len(wanted))
    return c.reshape(0, resolved_shape(c, c.shape(), wanted, allowzero))


def resolved_shape(
    c: NodeContext, shape: Sequence[DimLike], wanted: Sequence[DimLike], allowzero: bool
) -> tuple[DimLike, ...]:
    """Return Reshape's target with its 0 and -1 replaced by sizes."""
    sizes: list[DimLike] = []
    missing = None
    for position, size in enumerate(wanted):
        if isinstance(size, int) and size == 0 and not allowzero:
            if position >= len(shape):
                raise c.refuse(f"its shape keeps dimension {position}, which its input lacks")
            sizes.append(shape[position])
        elif isinstance(size, int) and size == -1:
            if missing is not None:
                raise c.refuse("its shape has two entries of -1")
            missing = position
            sizes.append(-1)
        else:
            sizes.append(size)
    if missing is not None:
        rest = [d for i, d in enumerate(sizes) if i != missing]
        sizes[missing] = _quotient(list(shape), rest)
    return tuple(sizes)


def _quotient(whole: list[DimLike], parts: list[DimLike]) -> DimLike:
    """Return the product of `whole` divided by that of `parts`, equal sizes taken out first."""
    left = []
    for part in parts:
        if isinstance(part, Dim) and part in whole:
            whole.remove(part)
        else:
            left.append(part)
    divisor = product(left)
    if isinstance(divisor, int) and divisor == 0:
        return 0
    return floordiv(product(whole), divisor)


def _flatten(c: NodeContext) -> str:
    shape = c.shape()
    axis = c.axis(c.attr("axis", 1), extra=1) if len(shape) == c.attr("axis", 1) else None
    if axis is None:
        axis = c.axis(c.attr("axis", 1)) if shape else 0
    return c.reshape(0, (product(shape[:axis]), product(shape[axis:])))


def _squeeze(c: NodeContext) -> str:
    """Squeeze: the named axes, or every axis of size 1."""
    try:
        axes = c.ints(1, "axes")
    except RunTime:
        count = length(c, 1)
        rank = None if count is None or not c.ranked() else c.rank() - count
        return c.emit("onnx_squeeze", 0, 1, rank=rank)
    if axes is None:
        if not c.type(0).is_static:
            return c.b.emit("onnx_squeeze", c.input(0), "", rank=None)
        axes = [i for i, d in enumerate(c.shape()) if d == 1]
    if not axes:
        return c.input(0)
    return c.emit("squeeze", 0, axis=tuple(whole_numbers(c, axes, "axes")))


def _unsqueeze(c: NodeContext) -> str:
    """Unsqueeze: axes of size 1 at the given positions of the result."""
    try:
        axes = c.ints(1, "axes")
    except RunTime:
        count = length(c, 1)
        rank = None if count is None or not c.ranked() else c.rank() + count
        dtypes = [c.dtype(0)]
        bound = {"axis": c.input(1)}
        return c.b.dynamic("expand_dims", [c.input(0)], static={}, bound=bound, dtypes=dtypes, rank=rank)[0]
    if axes is None:
        raise c.refuse("its axes are missing")
    if not axes:
        return c.input(0)
    return c.emit("expand_dims", 0, axis=tuple(whole_numbers(c, axes, "axes")))


def _transpose(c: NodeContext) -> str:
    given = c.attr("perm")
    if given is not None and not c.ranked():
        return c.emit("permute_dims", 0, axes=given)
    rank = c.rank()
    axes = tuple(reversed(range(rank))) if given is None else tuple(c.axis(a) for a in given)
    return c.input(0) if axes == tuple(range(rank)) else c.emit("permute_dims", 0, axes=axes)


def _expand(c: NodeContext) -> str:
    """Expand: the data and the shape broadcast together, either may be the longer."""
    wanted = c.known(1)
    if wanted is None or not c.ranked():
        count = length(c, 1)
        rank = None if count is None or not c.ranked() else max(count, c.rank())
        return c.emit("onnx_expand", 0, 1, rank=rank)
    return expand_to(c, c.input(0), wanted)


def expand_to(c: NodeContext, value: str, wanted: Sequence[DimLike]) -> str:
    """Return a value broadcast together with the sizes `wanted`."""
    shape = c.shape(value)
    rank = max(len(shape), len(wanted))
    have = (1,) * (rank - len(shape)) + shape
    want = [1] * (rank - len(wanted)) + list(wanted)
    for a, b in zip(have, want, strict=True):
        if isinstance(a, int) and isinstance(b, int) and a != b and 1 not in (a, b):
            raise c.refuse(f"its input of shape {list(shape)} does not expand to {list(wanted)}")
    sizes = tuple(bcast(a, b) for a, b in zip(have, want, strict=True))
    return value if sizes == shape else c.emit("broadcast_to", value, shape=sizes)


def _tile(c: NodeContext) -> str:
    if c.opset < 6:
        raise c.refuse("its form before opset 6 tiles one axis")
    repeats = c.known(1)
    if repeats is None:
        bound, dtypes = {"repeats": c.input(1)}, [c.dtype(0)]
        rank = c.type(0).rank
        return c.b.dynamic("tile", [c.input(0)], static={}, bound=bound, dtypes=dtypes, rank=rank)[0]
    return c.emit("tile", 0, repeats=tuple(repeats))


def _shape(c: NodeContext) -> str:
    """Shape: the sizes as a tensor, with start and end of opset 15."""
    start, end = c.attr("start", 0), c.attr("end")
    if not c.ranked():
        return c.emit("onnx_shape", 0, start=start, end=end)
    return c.b.shape_value(c.shape()[start:end])


def _size(c: NodeContext) -> str:
    if not c.ranked():
        return c.emit("onnx_size", 0)
    return c.b.shape_value([product(c.shape())], scalar=True)


SHAPE: dict[str, Converter] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Shape": _shape,
    "Size": _size,
}
