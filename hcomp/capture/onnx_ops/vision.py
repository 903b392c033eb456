"""Warping and regions: GridSample, AffineGrid, RoiAlign, MaxRoiPool, DeformConv."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.conv import window_of, with_bias

MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}


def _grid_sample(c: NodeContext) -> str:
    mode = c.attr("mode", "linear")
    padding = c.attr("padding_mode", "zeros")
    if mode not in MODES or padding not in ("zeros", "border", "reflection"):
        raise c.refuse(f"its mode {mode!r} with the padding {padding!r} is none of the standard's")
    grid = c.cast(1, c.dtype(0))
    corners = bool(c.attr("align_corners", 0))
    return c.emit("grid_sample", 0, grid, mode=MODES[mode], padding=padding, align_corners=corners)


def _roi_align(c: NodeContext) -> str:
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    shift = c.attr("coordinate_transformation_mode", default)
    if shift not in ("half_pixel", "output_half_pixel"):
        raise c.refuse(f"its coordinate_transformation_mode {shift!r} is none of the standard's")
    return c.emit(
        "roi_align", 0, 1, 2, size=(c.attr("output_height", 1), c.attr("output_width", 1)),
        mode=c.attr("mode", "avg"), sampling_ratio=c.attr("sampling_ratio", 0),
        scale=c.attr("spatial_scale", 1.0), half_pixel=shift == "half_pixel",
    )  # fmt: skip


def _max_roi_pool(c: NodeContext) -> str:
    return c.emit("max_roi_pool", 0, 1, size=c.required("pooled_shape"), scale=c.attr("spatial_scale", 1.0))


def _deform_conv(c: NodeContext) -> str:
    if c.rank(0) != 4:
        raise c.refuse("only two spatial axes have a lowering")
    kernel = c.attr("kernel_shape") or c.shape(1)[2:]
    window = window_of(c, c.shape(0)[2:], kernel)
    made = c.b.emit(
        "deform_conv", c.input(0), c.input(1), c.input(2), c.optional(4), strides=window.strides,
        padding=window.padding, dilation=window.dilation, groups=c.attr("group", 1),
        offset_groups=c.attr("offset_group", 1),
    )  # fmt: skip
    return with_bias(c, made, 3)


VISION: dict[str, Converter] = {
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "DeformConv": _deform_conv,
}
