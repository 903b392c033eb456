"""Transposed convolution with a constant weight over one to three spatial axes, channels last.

Along an axis of stride s an output index f (counted before the padding is cut off) takes the taps
k = f (mod s), of the pixels (f - k) / s. So the outputs of one remainder, a phase, are an ordinary
convolution of step 1 with every s-th tap, and all phases of a position q = floor(f / s) read the same
pixels: they are one matrix product with all phases as output channels ("sub-pixel convolution",
Shi et al. 2016), whose stores put each phase in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.conv import emit_conv, panel_columns, panels_of
from hcomp.targets.cpu.heavy.matmul import Pack
from hcomp.targets.cpu.schedule.conv_shape import CONV, ConvShape
from hcomp.targets.cpu.schedule.nest import imm

_MOST_VECTORS = 4
"""Vectors of the widest panel."""


def takes_conv_transpose(attrs: Mapping[str, Any], weight: Sequence[int]) -> bool:
    """Return whether `emit_conv_transpose` takes a convolution of these attributes and weight's sizes."""
    rank = len(weight) - 2
    numbers = [*attrs["padding"], *attrs["output_padding"]]
    if not attrs["channels_last"] or 0 in weight or any(not isinstance(n, int) or n < 0 for n in numbers):
        return False
    dense = all(s == 1 or d == 1 for s, d in zip(attrs["strides"], attrs["dilation"], strict=True))
    begin, end = _margins(**{k: v for k, v in attrs.items() if k not in ("groups", "channels_last")}, kernel=weight[2:])
    return dense and 1 <= rank <= 3 and min(*begin, *end) >= 0


def _margins(
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the zeros that the convolution of all phases needs before and after each axis."""
    axes = range(len(kernel))
    reach = [(-(-kernel[a] // strides[a]) - 1) * dilation[a] for a in axes]
    last = _reached(kernel, padding, dilation, output_padding)
    return (
        tuple(reach[a] - padding[a] // strides[a] for a in axes),
        tuple(last[a] // strides[a] for a in axes),
    )


def _reached(
    kernel: Sequence[int], padding: Sequence[int], dilation: Sequence[int], output_padding: Sequence[int]
) -> list[int]:
    """Return how far the result goes past the first output of the last pixel, along each axis."""
    ends = padding[len(kernel) :]
    return [(k - 1) * d - e + o for k, d, e, o in zip(kernel, dilation, ends, output_padding, strict=True)]


def emit_conv_transpose(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weight: np.ndarray,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    pack: Pack,
    cpu: CpuFeatures,
    sizes: Sequence[Any],
) -> relax.Expr:
    """Return the transposed convolution of `x`, one that `takes_conv_transpose`.

    Args:
        bb: builder of the function that the convolution belongs to.
        x: float32 [N, *spatial, C], any of N and the spatial sizes symbolic.
        weight: float32 [C, O / groups, *kernel].
        strides: one number an axis.
        padding: what is cut from the start of every axis, then from the ends.
        dilation: one number an axis.
        output_padding: what is added to the end of every axis.
        groups: number of groups.
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor.
        sizes: the output's spatial sizes as the caller spells them (TIR expressions).

    Returns:
        [N, *sizes, O].
    """
    kernel, axes = weight.shape[2:], range(weight.ndim - 2)
    begin, end = _margins(kernel, strides, padding, dilation, output_padding)
    phases = _phases(weight, strides, groups)
    outputs, inputs = phases.shape[2:4]
    if all(s == 1 for s in strides):
        plain = phases.reshape(groups * outputs, inputs, *kernel)
        window: dict[str, Any] = {"strides": strides, "padding": (*begin, *end), "dilation": dilation, "groups": groups}
        return emit_conv(bb, x, plain, **window, pack=pack, cpu=cpu, sizes=sizes)
    together = _together(prod(strides), outputs, cpu)
    wide = outputs * together
    columns = panel_columns(outputs, cpu)
    if together > 1:
        columns = wide if wide < cpu.lanes() else -(-wide // cpu.lanes()) * cpu.lanes()
    last = _reached(kernel, padding, dilation, output_padding)
    shape = ConvShape(
        kernel=phases.shape[4:],
        strides=(1,) * len(kernel),
        begin=begin,
        end=end,
        dilation=tuple(dilation),
        groups=groups,
        inputs=inputs,
        outputs=outputs,
        columns=columns,
        phases=tuple(strides),
        before=tuple(padding[a] % strides[a] for a in axes),
        behind=tuple(strides[a] - 1 - last[a] % strides[a] for a in axes),
        together=together,
    )
    packed = pack("phases", _packed(phases, shape))
    return bb.emit_te(
        lambda image, taps: _conv_transpose_te(image, taps, shape, sizes),
        x,
        packed,
        primfunc_name_hint="packed_conv_transpose",
        primfunc_attrs={"op_pattern": 4},
    )


def _together(phases: int, outputs: int, cpu: CpuFeatures) -> int:
    """Return how many phases share a panel: as many as fit, so that each panel has as many."""
    most = max(1, _MOST_VECTORS * cpu.lanes() // outputs)
    return max(w for w in range(1, min(most, phases) + 1) if phases % w == 0)


def _phases(weight: np.ndarray, strides: Sequence[int], groups: int) -> np.ndarray:
    """Return [groups * I, O, *kernel] as [groups, phases, O, I, *taps], taps in the order of the pixels."""
    rank = weight.ndim - 2
    kernel = weight.shape[2:]
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    room = [t * s - k for t, s, k in zip(taps, strides, kernel, strict=True)]
    full = np.pad(weight, [(0, 0), (0, 0), *((0, r) for r in room)])
    pairs = [n for t, s in zip(taps, strides, strict=True) for n in (t, s)]
    split = full.reshape(groups, weight.shape[0] // groups, weight.shape[1], *pairs)
    tap_axes, phase_axes = range(3, 3 + 2 * rank, 2), range(4, 3 + 2 * rank, 2)
    turned = np.flip(split, tuple(tap_axes)).transpose(0, *phase_axes, 2, 1, *tap_axes)
    return turned.reshape(groups, prod(strides), weight.shape[1], -1, *taps)


def _packed(phases: np.ndarray, shape: ConvShape) -> np.ndarray:
    """Return the phases in the order that `ConvShape` describes."""
    number = phases.shape[1]
    width = shape.parts * shape.columns if shape.together == 1 else shape.columns
    rows = phases.reshape(shape.groups, number // shape.together, -1, shape.inputs, *shape.kernel)
    padded = np.zeros((*rows.shape[:2], width, *rows.shape[3:]), np.float32)
    padded[:, :, : rows.shape[2]] = rows
    return panels_of(padded, shape)


def _conv_transpose_te(image: te.Tensor, taps: te.Tensor, shape: ConvShape, sizes: Sequence[Any]) -> te.Tensor:
    """Return the meaning of a packed transposed convolution; the schedule replaces its loops."""
    axes = range(len(shape.kernel))
    channel = te.reduce_axis((imm(0), imm(shape.inputs)), "channel")
    tap = [te.reduce_axis((imm(0), imm(shape.kernel[a])), f"tap{a}") for a in axes]

    def element(n: Any, *rest: Any) -> Any:
        *position, o = rest
        full = [position[a] + shape.before[a] for a in axes]
        where = [full[a] // shape.phases[a] + tap[a] * shape.dilation[a] - shape.begin[a] for a in axes]
        group, own = o // shape.outputs, o % shape.outputs
        inside = [tirx.all(w >= 0, w < s) for w, s in zip(where, image.shape[1:-1], strict=True)]
        value = image(n, *where, group * shape.inputs + channel)
        value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32"))
        number, phase = imm(0), imm(0)
        for a in axes:
            number = number * shape.kernel[a] + tap[a]
            phase = phase * shape.phases[a] + full[a] % shape.phases[a]
        panel, column = phase * shape.parts + own // shape.columns, own % shape.columns
        if shape.together > 1:
            panel, column = phase // shape.together, phase % shape.together * shape.outputs + own
        return te.sum(value * taps(group, panel, number * shape.inputs + channel, column), axis=[*tap, channel])

    return te.compute(
        (image.shape[0], *sizes, imm(shape.groups * shape.outputs)),
        element,
        name="packed_conv_transpose",
        attrs={CONV: shape.text()},
    )
