"""Operators of detection, warping and spectra: rare enough for a numpy kernel only."""

from hcomp.dims import DimLike
from hcomp.ir.ops.core import REQUIRED, Infer, Op, from_attr, same
from hcomp.ir.ops.linear import window_size
from hcomp.ir.types import Shape

RARE = "it has a numpy kernel only"


def _grid_sample(context: Infer) -> Shape:
    """Data [N, C, *sizes], grid [N, *out, rank] -> [N, C, *out]."""
    x, grid = context.shape(0), context.shape(1)
    if len(grid) != len(x):
        raise context.error(f"data of rank {len(x)} and a grid of rank {len(grid)} do not fit")
    return (x[0], x[1], *grid[1:-1])


def _roi(context: Infer) -> Shape:
    """Data [N, C, H, W], one row of the second input a region -> [regions, C, height, width]."""
    size: tuple[int, int] = context.attrs["size"]
    return (context.shape(1)[0], context.shape(0)[1], *size)


def _deform_conv(context: Infer) -> Shape:
    """Data [N, C, H, W], weight [O, C/groups, kh, kw], offset, mask -> [N, O, oh, ow]."""
    x, w = context.shape(0), context.shape(1)
    n = len(x) - 2
    return (x[0], w[0], *(window_size(context, x[i + 2], w[i + 2], i, n) for i in range(n)))


def _dft(context: Infer) -> Shape:
    """Data [..., 1 or 2]: real, or pairs of real and imaginary part. The transformed axis becomes `length`."""
    shape, attrs = list(context.shape(0)), context.attrs
    axis = context.axis(attrs["axis"], len(shape))
    length: DimLike = shape[axis] if attrs["length"] is None else attrs["length"]
    if attrs["onesided"] and attrs["inverse"]:
        length = 2 * (shape[axis] - 1) if attrs["length"] is None else length
    elif attrs["onesided"]:
        length = length // 2 + 1
    shape[axis] = length
    shape[-1] = 1 if attrs["onesided"] and attrs["inverse"] else 2
    return tuple(shape)


def _stft(context: Infer) -> Shape:
    """Signal [B, L, 1 or 2], window [length] or absent -> [B, frames, bins, 2]."""
    signal, attrs = context.shape(0), context.attrs
    length = attrs["length"]
    bins = length // 2 + 1 if attrs["onesided"] else length
    return (signal[0], (signal[1] - length) // attrs["step"] + 1, bins, 2)


def _affine_grid(context: Infer) -> Shape:
    theta = context.shape(0)
    rank = theta[1]
    if not isinstance(rank, int) or rank not in (2, 3):
        raise context.error(f"affine maps are of rank 2 or 3, found {rank}")
    return (theta[0], *(context.fresh("grid") for _ in range(rank)), rank)


VISION: tuple[Op, ...] = (
    # mode: nearest, linear or cubic; padding: zeros, border or reflection. Grid entries (x, y[, z]) in [-1, 1].
    Op("grid_sample", same, _grid_sample,
       {"mode": "linear", "padding": "zeros", "align_corners": False}, "host", RARE),
    # Inputs x, rois [R, 4] (x1, y1, x2, y2), batch index [R] int64. mode: avg or max; half_pixel shifts by -0.5.
    Op("roi_align", same, _roi,
       {"size": REQUIRED, "mode": "avg", "sampling_ratio": 0, "scale": 1.0, "half_pixel": True}, "host", RARE),
    # Inputs x, rois [R, 5] (batch, x1, y1, x2, y2).
    Op("max_roi_pool", same, _roi, {"size": REQUIRED, "scale": 1.0}, "host", RARE),
    # Inputs x, weight, offset [N, G*2*kh*kw, oh, ow] (row, column of each tap), mask [N, G*kh*kw, oh, ow] or "".
    Op("deform_conv", same, _deform_conv,
       {"strides": REQUIRED, "padding": REQUIRED, "dilation": REQUIRED, "groups": 1, "offset_groups": 1},
       "host", RARE),
    # length None keeps the size, else pads with zeros or cuts. onesided: real to half spectrum, or back.
    Op("dft", same, _dft, {"axis": REQUIRED, "length": None, "inverse": False, "onesided": False}, "host", RARE),
    Op("stft", same, _stft, {"length": REQUIRED, "step": REQUIRED, "onesided": True}, "host", RARE),
    # Inputs bins, length, rate, low, high, 0-D.
    Op("mel_weights", from_attr, lambda c: (c.fresh("spectrum"), c.fresh("mels")), {"dtype": REQUIRED}, "host", RARE),
    # theta [N, 2, 3] with size [4] or [N, 3, 4] with size [5].
    Op("affine_grid", same, _affine_grid, {"align_corners": False}, "host", RARE),
)  # fmt: skip
