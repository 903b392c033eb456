"""Convolution with a constant weight over one or two spatial axes, NCHW."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.matmul import Pack
from hcomp.targets.cpu.schedule.conv_shape import CONV, ConvShape
from hcomp.targets.cpu.schedule.nest import imm

MAX_PHASES = 4096
"""More places that strides step over are left to the ordinary convolution (a patch of 64 x 64 has as many)."""


def emit_conv(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weight: np.ndarray,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    pack: Pack,
    cpu: CpuFeatures,
    sizes: Sequence[Any] | None = None,
) -> relax.Expr:
    """Return the convolution of `x` with a constant weight.

    Args:
        bb: builder of the function that the convolution belongs to.
        x: [N, C, *spatial], any of N and the spatial sizes symbolic.
        weight: [O, C / groups, *kernel].
        strides: one number an axis.
        padding: zeros before every axis, then zeros after every axis.
        dilation: one number an axis.
        groups: number of groups.
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor.
        sizes: the output's spatial sizes as the caller spells them (TIR expressions), where it does.

    Returns:
        [N, O, *output]. Weights that are not float32 are given to the ordinary convolution.
    """
    rank = weight.ndim - 2
    begin, end = tuple(padding[:rank]), tuple(padding[rank:])
    # The loops are written once for each phase of the strides, so that huge ones would fill the memory.
    if weight.dtype != np.float32 or 0 in weight.shape or rank > 3 or prod(strides) > MAX_PHASES:
        return _plain(bb, x, weight, strides, padding, dilation, groups, pack)
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    shape = ConvShape(
        kernel=tuple(int(k) for k in weight.shape[2:]),
        strides=tuple(int(s) for s in strides),
        begin=tuple(int(p) for p in begin),
        end=tuple(int(p) for p in end),
        dilation=tuple(int(d) for d in dilation),
        groups=int(groups),
        inputs=int(inputs),
        outputs=int(outputs),
        rows=tile_rows(outputs, cpu),
    )
    packed = pack("taps", pack_taps(weight, shape))
    return bb.emit_te(
        lambda image, taps: conv_te(image, taps, shape, sizes),
        x,
        packed,
        primfunc_name_hint="packed_conv",
        primfunc_attrs={"op_pattern": 4},
    )


def tile_rows(outputs: int, cpu: CpuFeatures) -> int:
    """Return the output channels of one register tile."""
    full = 4 if cpu.registers < 32 else 8
    return min(full, outputs)


def pack_taps(weight: np.ndarray, shape: ConvShape) -> np.ndarray:
    """Return [O, I, *kernel] as [groups][tiles][I][*kernel][rows], padded with zeros."""
    rows, tiles = shape.rows, shape.tiles
    rank = len(shape.kernel)
    padded = np.zeros((shape.groups, tiles * rows, shape.inputs, *shape.kernel), weight.dtype)
    padded[:, : shape.outputs] = weight.reshape(shape.groups, shape.outputs, shape.inputs, *shape.kernel)
    split = padded.reshape(shape.groups, tiles, rows, shape.inputs, *shape.kernel)
    order = (0, 1, 3, *range(4, 4 + rank), 2)
    return np.ascontiguousarray(split.transpose(order))


def conv_te(image: te.Tensor, taps: te.Tensor, shape: ConvShape, spelled: Sequence[Any] | None = None) -> te.Tensor:
    """Return the meaning of a packed convolution; the schedule replaces its loops."""
    axes = range(len(shape.kernel))
    sizes = list(image.shape[2:])
    extents = spelled or [
        tirx.floordiv(
            sizes[a] + shape.begin[a] + shape.end[a] - (shape.kernel[a] - 1) * shape.dilation[a] - 1,
            shape.strides[a],
        )
        + 1
        for a in axes
    ]
    channel = te.reduce_axis((imm(0), imm(shape.inputs)), "channel")
    tap = [te.reduce_axis((imm(0), imm(shape.kernel[a])), f"tap{a}") for a in axes]

    def element(n: Any, o: Any, *position: Any) -> Any:
        where = [position[a] * shape.strides[a] + tap[a] * shape.dilation[a] - shape.begin[a] for a in axes]
        group, own = o // shape.outputs, o % shape.outputs
        value = image(n, group * shape.inputs + channel, *where)
        inside = [tirx.all(w >= 0, w < s) for w, s in zip(where, sizes, strict=True)]
        if any(shape.begin) or any(shape.end):
            value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32"))
        weight = taps(group, own // shape.rows, channel, *tap, own % shape.rows)
        return te.sum(value * weight, axis=[channel, *tap])

    return te.compute(
        (image.shape[0], imm(shape.groups * shape.outputs), *extents),
        element,
        name="packed_conv",
        attrs={CONV: shape.text()},
    )


def _plain(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weight: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    pack: Pack,
) -> relax.Expr:
    ops = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
    operator = ops[weight.ndim - 2]
    constant = pack("weight", weight)
    return bb.emit(operator(x, constant, list(strides), list(padding), list(dilation), groups))
