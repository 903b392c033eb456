"""Operators that make tensors or move elements without computing: reshape, slice, pad, concat..."""

from hcomp.dims import DimLike, dim_max, dim_min
from hcomp.ir.ops.core import (
    REQUIRED,
    Infer,
    Op,
    common,
    first_shape,
    fixed,
    from_attr,
    nonnegative,
    normal_axes,
    same,
)
from hcomp.ir.types import Shape


def _reshape(context: Infer) -> Shape:
    """The attribute `shape`: every size spelled out, no -1 or 0 placeholders."""
    new = tuple(context.attrs["shape"])
    if context.tensor(0).shape is None:
        return new
    have, want = _product(context.shape(0)), _product(new)
    if isinstance(have, int) and isinstance(want, int) and have != want:
        raise context.error(f"{have} elements do not fill the shape {list(new)}")
    return new


def _product(shape: Shape) -> DimLike:
    total: DimLike = 1
    for dim in shape:
        total = total * dim
    return total


def _permute(context: Infer) -> Shape:
    shape, axes = context.shape(0), context.attrs["axes"]
    if sorted(axes) != list(range(len(shape))):
        raise context.error(f"the axes {axes} are no permutation of {len(shape)} dimensions")
    return tuple(shape[a] for a in axes)


def _expand_dims(context: Infer) -> Shape:
    shape = context.shape(0)
    rank = len(shape) + len(context.attrs["axis"])
    axes = normal_axes(context, rank)
    if len(set(axes)) != len(axes):
        raise context.error(f"an axis stands twice in {context.attrs['axis']}")
    rest = iter(shape)
    return tuple(1 if i in axes else next(rest) for i in range(rank))


def _squeeze(context: Infer) -> Shape:
    shape = context.shape(0)
    axes = normal_axes(context, len(shape))
    for axis in axes:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            raise context.error(f"axis {axis} has size {shape[axis]}, not 1")
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _broadcast_to(context: Infer) -> Shape:
    new = tuple(context.attrs["shape"])
    old = context.tensor(0).shape or ()
    if len(new) < len(old):
        raise context.error(f"rank {len(old)} does not broadcast to rank {len(new)}")
    for a, b in zip(reversed(old), reversed(new), strict=False):
        if isinstance(a, int) and isinstance(b, int) and a not in (1, b):
            raise context.error(f"size {a} does not broadcast to {b}")
    return new


def _concat(context: Infer) -> Shape:
    shapes = [context.shape(i) for i in range(len(context.types))]
    axis = context.axis(context.attrs["axis"], len(shapes[0]))
    total: DimLike = 0
    for shape in shapes:
        if len(shape) != len(shapes[0]):
            raise context.error(f"ranks {len(shapes[0])} and {len(shape)} differ")
        for i, (a, b) in enumerate(zip(shapes[0], shape, strict=True)):
            if i != axis and isinstance(a, int) and isinstance(b, int) and a != b:
                raise context.error(f"sizes {a} and {b} differ on axis {i}")
        total = total + shape[axis]
    # Where one input knows a size as a number, the result does.
    known = [next((s[i] for s in shapes if isinstance(s[i], int)), shapes[0][i]) for i in range(len(shapes[0]))]
    return tuple(total if i == axis else d for i, d in enumerate(known))


def _split(context: Infer) -> list[Shape]:
    shape = context.shape(0)
    axis, sizes = context.axis(context.attrs["axis"], len(shape)), context.attrs["sizes"]
    problem = (
        f"axis {axis} of {{{shape[axis]}}} cannot be split into pieces of [{', '.join(f'{{{s}}}' for s in sizes)}]"
    )
    return [(*shape[:axis], nonnegative(context, s, problem), *shape[axis + 1 :]) for s in sizes]


def _slice(context: Infer) -> Shape:
    """Element i of a sliced axis is the input's element begin + i * stride, i < size."""
    shape = list(context.shape(0))
    attrs = context.attrs
    for axis, size in zip(attrs["axes"], attrs["size"], strict=True):
        shape[context.axis(axis, len(shape))] = nonnegative(
            context, size, f"a slice of axis {axis} would have {{{size}}} elements"
        )
    return tuple(shape)


def _tile(context: Infer) -> Shape:
    return tuple(d * r for d, r in zip(context.shape(0), context.attrs["repeats"], strict=True))


def _pad(context: Infer) -> Shape:
    shape, padding = context.shape(0), context.attrs["padding"]
    n = len(shape)
    if len(padding) != 2 * n:
        raise context.error(f"padding must have {2 * n} entries, found {len(padding)}")
    if context.attrs["mode"] != "constant":
        for axis, size in enumerate(shape):
            _something_to_repeat(context, axis, size, padding[axis], padding[axis + n])
    return tuple(
        nonnegative(
            context,
            d + padding[i] + padding[i + n],
            f"the padding [{{{padding[i]}}}, {{{padding[i + n]}}}] cuts more off axis {i} of {{{d}}} than there is",
        )
        for i, d in enumerate(shape)
    )


def _something_to_repeat(context: Infer, axis: int, size: DimLike, before: DimLike, after: DimLike) -> None:
    """Refuse to fill padding from an axis of which nothing is left."""
    left = size + dim_min(before, 0) + dim_min(after, 0)
    added = dim_max(before, 0) + dim_max(after, 0)
    if added != 0:
        problem = f"axis {axis} of {{{size}}} has nothing to repeat in mode {context.attrs['mode']}"
        nonnegative(context, dim_max(left - 1, -added), problem)


def _require(context: Infer) -> Shape:
    nonnegative(context, context.attrs["least"], context.attrs["problem"])
    return context.shape(0)


SHAPE: tuple[Op, ...] = (
    Op("reshape", same, _reshape, {"shape": REQUIRED}, "view", spelled=True),
    Op("permute_dims", same, _permute, {"axes": REQUIRED}, "move"),
    Op("expand_dims", same, _expand_dims, {"axis": REQUIRED}, "view"),
    Op("squeeze", same, _squeeze, {"axis": REQUIRED}, "view"),
    # The input as it is, where the dimension `least` is not below zero; else the error `problem`.
    Op("require", same, _require, {"least": REQUIRED, "problem": REQUIRED}, "view"),
    Op("broadcast_to", same, _broadcast_to, {"shape": REQUIRED}, "move", spelled=True),
    Op("concat", common, _concat, {"axis": REQUIRED}, "move"),
    Op("split", lambda c: (c.dtype(0),) * len(c.attrs["sizes"]), _split, {"sizes": REQUIRED, "axis": 0}, "move"),
    Op(
        "strided_slice", same, _slice,
        {"axes": REQUIRED, "begin": REQUIRED, "size": REQUIRED, "strides": REQUIRED}, "move",
    ),
    Op("tile", same, _tile, {"repeats": REQUIRED}, "move"),
    # padding = begins of all axes, then ends (ONNX's order); negative entries crop. mode: constant, edge,
    # reflect, wrap. The value (constant mode) is an attribute.
    Op("pad", same, _pad, {"padding": REQUIRED, "mode": "constant", "value": 0}, "move"),
    Op("flip", same, first_shape, {"axis": REQUIRED}, "move"),
    # Elements below (upper) or above (lower) the diagonal `k` become 0, in the last two axes.
    Op("trilu", same, first_shape, {"upper": True, "k": 0}, "move"),
    Op("full", from_attr, lambda c: tuple(c.attrs["shape"]),
       {"shape": REQUIRED, "value": REQUIRED, "dtype": REQUIRED}, "move"),
    # Element i is start + i * step; start and step are numbers or dimensions.
    Op("arange", from_attr, lambda c: (c.attrs["size"],),
       {"size": REQUIRED, "start": 0, "step": 1, "dtype": "int64"}, "move"),
    # The values of dimension expressions as an int64 tensor; a shape of () takes one value.
    Op("dims", fixed("int64"), lambda c: () if c.attrs["scalar"] else (len(c.attrs["values"]),),
       {"values": REQUIRED, "scalar": False}, "move"),
)  # fmt: skip
