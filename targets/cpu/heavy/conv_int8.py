"""Exact integer convolution of bytes with a constant weight, channels last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.conv import conv_te, emit_conv, filtering_costs, panel_columns
from hcomp.targets.cpu.heavy.matmul import Pack
from hcomp.targets.cpu.schedule.byte_panel import GROUP, LANES, has_pair_products
from hcomp.targets.cpu.schedule.conv_shape import ConvShape

BYTES = ("int8", "uint8")

_EXACT = 1 << 24
"""Whole numbers up to here are float32."""

_FEWEST_INPUTS = 3
"""Below so many channels of a group its groups of four are mostly zeros."""


_COST = 0.75
"""Time of the products of a convolution against that of the same ones in float32 (measured with AVX2)."""


def takes_conv_int8(weight: np.ndarray, attrs: Any, cpu: CpuFeatures) -> bool:
    """Say whether `emit_conv_int8` computes the convolution of bytes with a weight [O, I, *kernel] of bytes."""
    return _has_groups(weight, attrs["groups"], cpu) or _is_exact(weight)


def _is_exact(weight: np.ndarray) -> bool:
    """Say whether all sums of products with bytes are whole numbers that float32 has."""
    most = np.abs(weight.astype(np.int64)).reshape(weight.shape[0], -1).sum(axis=1).max(initial=0)
    return bool(most * 255 < _EXACT)


def _has_groups(weight: np.ndarray, groups: int, cpu: CpuFeatures) -> bool:
    return has_pair_products(cpu) and (groups == 1 or weight.shape[1] >= _FEWEST_INPUTS)


def conv_is_faster_in_bytes(
    weight: np.ndarray, attrs: Mapping[str, Any], sizes: Sequence[int | None], cpu: CpuFeatures
) -> bool:
    """Say whether a convolution with a weight that is bytes times a scale is faster in bytes than in float32.

    Args:
        weight: [O, C / groups, *kernel], int8 or uint8.
        attrs: the operator's.
        sizes: the output's spatial sizes; None where not known.
        cpu: the processor.
    """
    outputs, inputs, *kernel = weight.shape
    groups = attrs["groups"]
    if 0 in weight.shape or not _has_groups(weight, groups, cpu) or outputs // groups < LANES:
        return False
    columns = panel_columns(outputs // groups, cpu)
    shape = ConvShape.of(
        kernel, inputs, outputs // groups, attrs["strides"], attrs["padding"], attrs["dilation"], groups, columns
    )
    costs = filtering_costs(shape, sizes)
    return _COST * costs[0] <= min(costs.values())


def emit_conv_int8(
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
    sizes: Sequence[Any],
) -> relax.Expr:
    """Return the int32 convolution of `x` with a constant weight, where `takes_conv_int8` says so.

    Args:
        bb: builder of the function that the convolution belongs to.
        x: int8 or uint8 [N, *spatial, C]; a zero point is the caller's to subtract.
        weight: int8 or uint8 [O, C / groups, *kernel], not empty.
        strides: one number an axis.
        padding: zeros before every axis, then zeros after every axis; none negative.
        dilation: one number an axis.
        groups: number of groups.
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor.
        sizes: the output's spatial sizes (TIR expressions).

    Returns:
        [N, *output, O] int32.
    """
    if not _has_groups(weight, groups, cpu):
        wide = _cast(bb, x, "float32")
        made = emit_conv(
            bb, wide, weight.astype(np.float32), strides=strides, padding=padding, dilation=dilation, groups=groups,
            pack=pack, cpu=cpu, sizes=sizes, exact=True,
        )  # fmt: skip
        return _cast(bb, made, "int32")
    outputs, inputs, *kernel = weight.shape
    shape = ConvShape.of(
        kernel, inputs, outputs // groups, strides, padding, dilation, groups, columns=LANES, group=GROUP
    )
    return bb.emit_te(
        lambda image, taps: conv_te(image, taps, shape, sizes),
        x,
        pack("groups", pack_groups(weight, shape)),
        primfunc_name_hint="packed_conv_int8",
        primfunc_attrs={"op_pattern": 4},
    )


def _cast(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    return bb.emit_te(lambda t: te.compute(t.shape, lambda *i: t(*i).astype(dtype), name="cast"), value)


def pack_groups(weight: np.ndarray, shape: ConvShape) -> np.ndarray:
    """Return [O, I, *kernel] as [groups][panels][runs][ceil(run / 4)][columns * 4], filled up with zeros."""
    width, (runs, run) = shape.panels * shape.columns, (shape.runs, shape.run)
    whole = -(-run // GROUP) * GROUP
    padded = np.zeros((shape.groups, width, runs, whole), weight.dtype)
    taps = np.moveaxis(weight, 1, -1)  # [O, *kernel, I]
    padded[:, : shape.outputs, :, :run] = taps.reshape(shape.groups, shape.outputs, runs, run)
    split = padded.reshape(shape.groups, shape.panels, shape.columns, runs, whole // GROUP, GROUP)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2, 5)).reshape(
        shape.groups, shape.panels, runs, whole // GROUP, shape.columns * GROUP
    )
