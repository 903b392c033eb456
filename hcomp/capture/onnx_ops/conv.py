"""Convolutions: Conv, ConvTranspose, Col2Im; automatic padding with symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.reduce_scan import product
from hcomp.capture.onnx_ops.shape import length, whole_numbers
from hcomp.dims import Dim, DimLike, ceildiv, dim_max, floordiv
from hcomp.errors import CaptureError


@dataclass(frozen=True)
class Window:
    """How a kernel moves over the spatial axes; padding is begins, then ends."""

    kernel: tuple[DimLike, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[DimLike, ...]

    def attrs(self) -> dict[str, tuple[DimLike, ...]]:
        """Return the attributes that convolution and pooling nodes share."""
        return {"strides": self.strides, "dilation": self.dilation, "padding": self.padding}


def of_rank(rank: Callable[[NodeContext], int], converter: Converter) -> Converter:
    """Return a converter whose data, where its rank comes at run time, has the rank that the node needs.

    Branches of an If may differ in rank; what reads their result says which one it must be.
    """

    def convert(c: NodeContext) -> str | Sequence[str]:
        if not c.ranked(0):
            wanted = rank(c)
            # Every size is kept, so that any other rank is an error of the run.
            data = c.emit("onnx_reshape", 0, c.tensor([0] * wanted, "int64"), rank=wanted)
            c.inputs = (data, *c.inputs[1:])
        return converter(c)

    return convert


def halves(total: DimLike, mode: str) -> tuple[DimLike, DimLike]:
    """Return padding before and after; the odd one comes last for SAME_UPPER, else first."""
    small = floordiv(total, 2)
    large = total - small
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def window_of(c: NodeContext, sizes: Sequence[DimLike], kernel: Sequence[DimLike]) -> Window:
    """Return the window that a node's attributes describe over the spatial `sizes`."""
    n = len(sizes)
    strides = tuple(c.attr("strides", (1,) * n))
    dilation = tuple(c.attr("dilations", (1,) * n))
    pads = tuple(c.attr("pads", (0,) * (2 * n)))
    mode = c.attr("auto_pad", "NOTSET")
    if not len(strides) == len(dilation) == len(kernel) == n or len(pads) != 2 * n:
        raise c.refuse(f"its strides, dilations, pads or kernel do not fit {n} spatial axes")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for size, k, stride, step in zip(sizes, kernel, strides, dilation, strict=True):
            # One output for each stride begun; what the kernel then lacks is padding.
            extent = (k - 1) * step + 1
            needed = (ceildiv(size, stride) - 1) * stride + extent - size
            # A kernel that spans its stride never lacks less than nothing; the plain expression
            # cancels where the output's size is computed.
            spans = isinstance(extent, int) and extent >= stride
            pairs.append(halves(needed if spans else dim_max(0, needed), mode))
        pads = tuple(b for b, _ in pairs) + tuple(e for _, e in pairs)
    elif mode == "VALID":
        pads = (0,) * (2 * n)
    elif mode not in ("NOTSET", ""):
        raise c.refuse(f"its auto_pad {mode!r} is not one of the standard's")
    # A stride beyond the input takes one step, as one over all of it does; kernels count in 32 bits.
    reach = [size + pads[i] + pads[i + n] for i, size in enumerate(sizes)]
    strides = tuple(min(s, max(1, r)) if isinstance(r, int) else s for s, r in zip(strides, reach, strict=True))
    return Window(tuple(kernel), strides, dilation, pads)


def with_bias(c: NodeContext, y: str, index: int) -> str:
    """Return `y` plus the bias in input `index`, one number a channel."""
    if not c.has(index):
        return y
    bias = c.shape(index)
    return c.emit("add", y, c.reshape(index, bias + (1,) * (c.rank(y) - 2)))


def shape_text(sizes: Sequence[DimLike]) -> str:
    """Return sizes as errors print them: "[3,N]"."""
    return f"[{','.join(str(s) for s in sizes)}]"


def _kernel(c: NodeContext, sizes: Sequence[DimLike]) -> tuple[DimLike, ...]:
    """Return the kernel's sizes: those of the weight, which the attribute may only repeat."""
    given = tuple(c.attr("kernel_shape", tuple(sizes)))
    differ = any(isinstance(s, int) and s != g for s, g in zip(sizes, given, strict=False))
    if len(given) != len(sizes) or differ:
        raise CaptureError(f"its kernel_shape is {shape_text(given)}, but its weight has {shape_text(sizes)}")
    return given


def _conv(c: NodeContext) -> str:
    x, w = c.shape(0), c.shape(1)
    window = window_of(c, x[2:], _kernel(c, w[2:]))
    y = c.emit("conv", 0, 1, groups=c.attr("group", 1), **window.attrs())
    return with_bias(c, y, 2)


def _conv_transpose(c: NodeContext) -> str:
    """ConvTranspose: with output_shape or SAME the padding follows from the output's size."""
    sizes, w = c.shape(0)[2:], c.shape(1)
    n = len(sizes)
    kernel = _kernel(c, w[2:])
    strides = tuple(c.attr("strides", (1,) * n))
    dilation = tuple(c.attr("dilations", (1,) * n))
    extra: tuple[DimLike, ...] = tuple(c.attr("output_padding", (0,) * n))
    padding: tuple[DimLike, ...] = tuple(c.attr("pads", (0,) * (2 * n)))
    mode, wanted = c.attr("auto_pad", "NOTSET"), c.attr("output_shape")
    if mode not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise c.refuse(f"its auto_pad {mode!r} is not one of the standard's")
    if mode == "VALID":
        padding = (0,) * (2 * n)
    full = [
        (size - 1) * stride + (k - 1) * step + 1 + more
        for size, stride, k, step, more in zip(sizes, strides, kernel, dilation, extra, strict=True)
    ]
    if wanted is None and mode.startswith("SAME"):
        wanted = tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    if wanted is not None:
        wanted = tuple(wanted)[-n:]  # some exporters write batch and channels too
        surplus = [f - o for f, o in zip(full, wanted, strict=True)]
        pairs = [halves(dim_max(0, s), mode) for s in surplus]
        padding = tuple(b for b, _ in pairs) + tuple(e for _, e in pairs)
        # A larger output than the windows reach has zeros at its end.
        extra = tuple(e + dim_max(0, -s) for e, s in zip(extra, surplus, strict=True))
    y = c.emit(
        "conv_transpose", 0, 1, strides=strides, dilation=dilation, padding=padding,
        output_padding=extra, groups=c.attr("group", 1),
    )  # fmt: skip
    return with_bias(c, y, 2)


def _col2im(c: NodeContext) -> str:
    """Col2Im: overlapping blocks added up: a transposed convolution by the identity."""
    image, block = c.known(1), c.known(2)
    if image is None or block is None:
        axes = length(c, 2)
        if axes is None:
            raise c.refuse("the number of its spatial axes is known only at run time")
        return c.emit(
            "onnx_col2im", 0, 1, 2, rank=axes + 2, strides=c.attr("strides", (1,) * axes),
            dilation=c.attr("dilations", (1,) * axes), padding=c.attr("pads", (0,) * (2 * axes)),
        )  # fmt: skip
    kernel = whole_numbers(c, block, "block sizes")
    n = len(kernel)
    strides = tuple(c.attr("strides", (1,) * n))
    dilation = tuple(c.attr("dilations", (1,) * n))
    pads = tuple(c.attr("pads", (0,) * (2 * n)))
    batch, rows, _ = c.shape()
    elements = product(kernel)
    channels = floordiv(rows, elements)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = [floordiv(size + pads[i] + pads[i + n] - spans[i], strides[i]) + 1 for i, size in enumerate(image)]
    reached = [(counts[i] - 1) * strides[i] + spans[i] - pads[i] - pads[i + n] for i in range(n)]
    columns = c.reshape(0, (batch * channels, elements, *counts))
    if isinstance(elements, Dim):
        raise c.refuse("its block sizes are not numbers")
    weight = c.tensor(np.eye(elements).reshape(elements, 1, *kernel), c.dtype(0))
    y = c.emit(
        "conv_transpose", columns, weight, strides=strides, dilation=dilation, padding=pads,
        output_padding=tuple(size - r for size, r in zip(image, reached, strict=True)),
    )  # fmt: skip
    return c.reshape(y, (batch, channels, *image))


CONV: dict[str, Converter] = {
    "Conv": of_rank(lambda c: c.rank(1), _conv),
    "ConvTranspose": of_rank(lambda c: c.rank(1), _conv_transpose),
    "Col2Im": of_rank(lambda c: 3, _col2im),
}
