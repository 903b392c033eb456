"""Scaled dot-product attention as one operator, over tensors whose axes lie in any order."""

from hcomp.dims import DimLike
from hcomp.ir.ops.core import REQUIRED, Infer, Op, common, equal_sizes
from hcomp.ir.types import Shape

QUERY, KEY, INNER, COLUMN = "s", "l", "d", "e"
"""The axes that are no batch: rows of q, rows of k and v, columns of q and k, columns of v."""

MASKS = ("add", "where")


def batch_axes(q: str) -> str:
    """Return the letters of the batch axes of an attention whose first input has the axes `q`."""
    return "".join(c for c in q if c.isalpha() and c not in (QUERY, INNER))


def axis_sizes(context: Infer) -> dict[str, DimLike]:
    """Return the size of each letter of an attention's axes.

    Raises:
        TypeRuleError: an input's axes do not fit its shape, or two sizes of one letter differ.
    """
    sizes: dict[str, DimLike] = {}
    for number, axes in enumerate(context.attrs["axes"]):
        shape = context.shape(number)
        if len(shape) != len(axes) or len(set(filter(str.isalpha, axes))) != sum(map(str.isalpha, axes)):
            raise context.error(f"input {number} of rank {len(shape)} has the axes {axes!r}")
        for axis, size in zip(axes, shape, strict=True):
            if axis.isdigit():
                if isinstance(size, int) and int(axis) >= size:
                    raise context.error(f"input {number} has {size} elements on the axis that is read at {axis}")
                continue
            problem = f"the sizes {sizes.get(axis)} and {size} of axis {axis} differ"
            sizes[axis] = equal_sizes(context, sizes[axis], size, problem) if axis in sizes else size
    return sizes


def _dtype(context: Infer) -> str:
    kinds = context.attrs["masks"]
    if any(kind not in MASKS for kind in kinds) or len(context.types) != 3 + len(kinds):
        raise context.error(f"expected q, k, v and one input for each of the masks {list(kinds)}")
    for number, kind in enumerate(kinds, start=3):
        wanted = "bool" if kind == "where" else context.dtype(0)
        if context.dtype(number) != wanted:
            raise context.error(f"input {number} must be {wanted}, found {context.dtype(number)}")
    return common(Infer(context.op, context.types[:3], context.attrs, context.fresh))


def _shape(context: Infer) -> Shape:
    axes, output = context.attrs["axes"], context.attrs["output"]
    if len(axes) != len(context.types):
        raise context.error(f"{len(context.types)} inputs, but axes of {len(axes)}")
    q, k, v, *masks = ({c for c in own if c.isalpha()} for own in axes)
    batch = set(batch_axes(axes[0])) - {KEY, COLUMN}
    fit = (
        q == batch | {QUERY, INNER}
        and {KEY, INNER} <= k <= batch | {KEY, INNER}
        and {KEY, COLUMN} <= v <= batch | {KEY, COLUMN}
        and all(mask <= batch | {QUERY, KEY} for mask in masks)
        and sorted(output) == sorted(batch | {QUERY, COLUMN})
    )
    if not fit:
        raise context.error(f"the axes {', '.join(axes)} -> {output} are none of an attention")
    sizes = axis_sizes(context)
    return tuple(sizes[c] for c in output)


ATTENTION: tuple[Op, ...] = (
    # softmax(mask(scale * q @ k^T)) @ v. Inputs: q, k, v, then one for each of `masks`. `axes` has for each input a
    # letter an axis: s rows of q, l rows of k and v, d columns of q and k, e columns of v, others are batch axes, all
    # of which q has; a digit is an axis that is read at that index only. `output` has the axes of the result.
    # The masks are done in order: "add" adds the input, "where" puts `fill` where the input is false. Softmax runs
    # along l, as `softmax` does; with `zero_nan` its NaN become 0. Without any l the result is 0.
    Op("attention", _dtype, _shape,
       {"axes": REQUIRED, "output": REQUIRED, "scale": 1.0, "masks": (), "fill": float("-inf"), "zero_nan": False},
       "attention"),
)  # fmt: skip
