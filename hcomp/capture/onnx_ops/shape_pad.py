"""Pad, CenterCropPad, and the rearrangements of blocks between depth and space."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext, RunTime
from hcomp.capture.onnx_ops.shape import whole_numbers
from hcomp.dims import DimLike, dim_max, floordiv

_MODES = ("constant", "edge", "reflect", "wrap")


def _pad(c: NodeContext) -> str:
    """Pad: amounts and value are attributes before opset 11, then inputs; axes since 18."""
    mode = c.attr("mode", "constant")
    if mode not in _MODES:
        raise c.refuse(f"its mode {mode!r} is none of {', '.join(_MODES)}")
    number = c.attr("value", 0.0)
    try:
        amounts = c.ints(1, "paddings" if c.opset < 2 else "pads")
        axes = c.ints(3, "axes")
    except RunTime:
        names = [c.optional(i) for i in range(4)]
        return c.b.emit("onnx_pad", *names, mode=mode, rank=c.type(0).rank)
    if amounts is None:
        raise c.refuse("its pads are missing")
    padding = _all_axes(c, amounts, axes)
    if mode != "constant" or not c.has(2):
        if c.dtype(0) == "bool":
            number = bool(number)
        return c.emit("pad", 0, padding=padding, mode=mode, value=number)
    value = c.const(2)
    if value is not None and value.size == 1:
        return c.emit("pad", 0, padding=padding, mode=mode, value=value.ravel()[0].item())
    # A value known only at run time goes where a padded mask says "outside".
    inside = c.emit("full", shape=c.shape(), value=True, dtype="bool")
    mask = c.emit("pad", inside, padding=padding, mode=mode, value=False)
    return c.emit("where", mask, c.emit("pad", 0, padding=padding, mode=mode), c.reshape(2, ()))


def _all_axes(c: NodeContext, amounts: list[DimLike], axes: list[DimLike] | None) -> tuple[DimLike, ...]:
    """Return the begins of all axes, then the ends."""
    rank = c.rank()
    chosen = list(range(rank)) if axes is None else [
        c.axis(a) for a in whole_numbers(c, axes, "axes")
    ]  # fmt: skip
    if len(amounts) != 2 * len(chosen):
        raise c.refuse(f"it has {len(amounts)} pads for {len(chosen)} axes")
    padding: list[DimLike] = [0] * (2 * rank)
    for i, axis in enumerate(chosen):
        padding[axis], padding[axis + rank] = amounts[i], amounts[i + len(chosen)]
    return tuple(padding)


def _center_crop_pad(c: NodeContext) -> str:
    """CenterCropPad: the middle of an axis that is too long, zeros around one that is short."""
    axes = [c.axis(a) for a in c.attr("axes", tuple(range(c.rank())))]
    sizes = c.known(1)
    if sizes is None:
        return c.emit("onnx_center_crop_pad", 0, 1, axes=tuple(axes), rank=c.rank())
    shape = c.shape()
    padding: list[DimLike] = [0] * (2 * len(shape))
    begins: list[DimLike] = []
    kept: list[DimLike] = []
    for axis, size in zip(axes, sizes, strict=True):
        surplus, lack = dim_max(0, shape[axis] - size), dim_max(0, size - shape[axis])
        begins.append(floordiv(surplus, 2))
        kept.append(shape[axis] - surplus)
        padding[axis] = floordiv(lack, 2)
        padding[axis + len(shape)] = lack - floordiv(lack, 2)
    middle = c.emit(
        "strided_slice", 0, axes=tuple(axes), begin=tuple(begins), size=tuple(kept),
        strides=(1,) * len(axes),
    )  # fmt: skip
    padded = c.emit("pad", middle, padding=tuple(padding))
    wanted = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        wanted[axis] = size
    return c.reshape(padded, wanted)


def _depth_to_space(c: NodeContext) -> str:
    """DepthToSpace: the block's rows and columns are the slow (DCR) or the fast (CRD) channels."""
    size, mode = c.required("blocksize"), c.attr("mode", "DCR")
    n, channels, h, w = c.shape()
    deep = floordiv(channels, size * size)
    if mode == "DCR":
        split, order = (n, size, size, deep, h, w), (0, 3, 4, 1, 5, 2)
    elif mode == "CRD":
        split, order = (n, deep, size, size, h, w), (0, 1, 4, 2, 5, 3)
    else:
        raise c.refuse(f"its mode {mode!r} is neither DCR nor CRD")
    moved = c.emit("permute_dims", c.reshape(0, split), axes=order)
    return c.reshape(moved, (n, deep, h * size, w * size))


def _space_to_depth(c: NodeContext) -> str:
    """SpaceToDepth: the inverse of DepthToSpace in the same mode."""
    size, mode = c.required("blocksize"), c.attr("mode", "DCR")
    n, channels, h, w = c.shape()
    high, wide = floordiv(h, size), floordiv(w, size)
    if mode not in ("DCR", "CRD"):
        raise c.refuse(f"its mode {mode!r} is neither DCR nor CRD")
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    split = c.reshape(0, (n, channels, high, size, wide, size))
    moved = c.emit("permute_dims", split, axes=order)
    return c.reshape(moved, (n, channels * (size * size), high, wide))


def _trilu(c: NodeContext) -> str:
    """Trilu: the upper or lower triangle; the diagonal is an input."""
    upper = bool(c.attr("upper", 1))
    if not c.has(1):
        return c.emit("trilu", 0, upper=upper)
    k = c.known(1)
    if k is not None:
        return c.emit("trilu", 0, upper=upper, k=k[0])
    bound, dtypes = {"k": c.reshape(1, ())}, [c.dtype(0)]
    rank = c.type(0).rank
    return c.b.dynamic("trilu", [c.input(0)], static={"upper": upper}, bound=bound, dtypes=dtypes, rank=rank)[0]


PAD: dict[str, Converter] = {
    "Pad": _pad,
    "CenterCropPad": _center_crop_pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
}
