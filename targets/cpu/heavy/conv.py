"""Convolution with a constant weight over one to three spatial axes, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from hcomp.targets.cpu.choices import Choices, Space, first_of
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.matmul import Pack
from hcomp.targets.cpu.schedule.conv_shape import CONV, ConvShape
from hcomp.targets.cpu.schedule.nest import as_int, imm
from hcomp.targets.cpu.schedule.winograd import largest_error, transformed_taps

_SPEED = {1: 0.5, 2: 0.93, 3: 1.0, 4: 1.0}
"""By vectors in a panel, the share of the peak that its register tile reaches (measured with AVX2)."""


_FEWEST_CHANNELS = 8
_TYPICAL = 28
_TRANSFORMS = {2: (6.0, 5.0), 4: (17.0, 14.0)}
"""By tile, cycles that transforming one channel of one tile takes, of the data and of the result."""

_BYTES_A_CYCLE = 4.5
"""What one core reads from memory in a cycle of its clock: a network's weights do not stay in the caches."""

POSITIONS = (0, 32, 64, 128, 192, 384)
"""About how many output positions a task may have; 0 is what the schedule takes by itself."""

_MOST_ERROR = 5e-5
"""Relative to the largest result; float32 itself has 6e-8 for each of some thousand sums."""


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
    choices: Choices | None = None,
    exact: bool = False,
) -> relax.Expr:
    """Return the convolution of `x` with a constant weight.

    Args:
        bb: builder of the function that the convolution belongs to.
        x: float32 [N, *spatial, C], any of N and the spatial sizes symbolic.
        weight: float32 [O, C / groups, *kernel], not empty.
        strides: one number an axis.
        padding: zeros before every axis, then zeros after every axis; none negative.
        dilation: one number an axis.
        groups: number of groups.
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor.
        sizes: the output's spatial sizes as the caller spells them (TIR expressions), where it does.
        choices: measured blocks; without it they are the analytic ones.
        exact: whether sums of whole numbers have to be exact, which Winograd's filtering is not.

    Returns:
        [N, *output, O].
    """
    outputs = weight.shape[0] // groups
    columns = panel_columns(outputs, cpu)
    shape = ConvShape.of(weight.shape[2:], weight.shape[1], outputs, strides, padding, dilation, groups, columns)
    known = [as_int(size) for size in sizes or ()]
    shape = shape if exact else replace(shape, tile=winograd_tile(weight, shape, known))
    if choices is not None:
        picked = choices.pick(conv_signature(shape, known), conv_space(weight, shape, cpu))
        shape = replace(shape, **picked)  # type: ignore[arg-type]  # its names are the fields of whole numbers
    packed = pack("taps", pack_taps(weight, shape))
    return bb.emit_te(
        lambda image, taps: conv_te(image, taps, shape, sizes),
        x,
        packed,
        primfunc_name_hint="packed_conv",
        primfunc_attrs={"op_pattern": 4},
    )


def conv_signature(shape: ConvShape, sizes: Sequence[int | None]) -> str:
    """Return what a convolution's choice is kept under; sizes that are not known are question marks."""

    def by(values: Sequence[int | None]) -> str:
        return "x".join("?" if v is None else str(v) for v in values)

    return (
        f"conv float32 {by(shape.kernel)} stride {by(shape.strides)} pad {by((*shape.begin, *shape.end))}"
        f" dilation {by(shape.dilation)} groups {shape.groups} of {shape.inputs} to {shape.outputs} at {by(sizes)}"
    )


def conv_space(weight: np.ndarray, shape: ConvShape, cpu: CpuFeatures) -> Space:
    """Return what may be chosen for a convolution whose `shape` has the analytic choice."""
    space: dict[str, Sequence[int]] = {"positions": first_of(shape.positions, POSITIONS)}
    if shape.depthwise:
        return space
    lanes = cpu.lanes()
    if shape.outputs >= lanes:
        space["columns"] = first_of(shape.columns, [v * lanes for v in _SPEED])
    if takes_winograd(shape):
        accurate = [m for m in _TRANSFORMS if largest_error(weight, m) <= _MOST_ERROR]
        space["tile"] = first_of(shape.tile, [0, *accurate])
    return space


def panel_columns(outputs: int, cpu: CpuFeatures) -> int:
    """Return the columns of a panel: the fastest, with what is computed in vain counted; then the widest."""
    lanes = cpu.lanes()
    if outputs < lanes:
        return outputs

    def seconds(vectors: int) -> float:
        columns = vectors * lanes
        return -(-outputs // columns) * columns / _SPEED[vectors]

    return lanes * min(_SPEED, key=lambda v: (seconds(v), -v))


def takes_winograd(shape: ConvShape) -> bool:
    """Say whether Winograd's filtering can compute a convolution, and has enough channels for it."""
    fits = shape.kernel == (3, 3) and shape.strides == (1, 1) and shape.groups == 1
    return fits and min(shape.inputs, shape.outputs) >= _FEWEST_CHANNELS


def winograd_tile(weight: np.ndarray, shape: ConvShape, sizes: Sequence[int | None]) -> int:
    """Return the tile of Winograd's filtering that is fastest for a convolution, or 0 if it is none.

    A tile whose error on these weights is above `_MOST_ERROR` is no choice.
    """
    costs = filtering_costs(shape, sizes)
    for m in sorted(costs, key=costs.__getitem__):
        if m == 0 or largest_error(weight, m) <= _MOST_ERROR:
            return m
    return 0


def filtering_costs(shape: ConvShape, sizes: Sequence[int | None]) -> dict[int, float]:
    """Return what a convolution costs by the tile of Winograd's filtering that can compute it; 0 is none.

    In cycles with two multiply-adds of 8 lanes each. Unknown sizes count as `_TYPICAL`.
    """
    height, width = (size or _TYPICAL for size in (*sizes, None, None)[:2])
    products = shape.inputs * shape.panels * shape.columns / 16
    costs = {0: 9 * height * width * products}
    if not takes_winograd(shape):
        return costs
    for m, (spread, gathered) in _TRANSFORMS.items():
        down, across = (-(-size // d // m) * d for size, d in zip((height, width), shape.dilation, strict=True))
        tiles = down * across
        moved = tiles * (shape.inputs * spread + shape.outputs * gathered)
        components = (m + 2) ** 2
        # Few tiles use each weight seldom: reading them is what takes the time.
        reading = components * shape.inputs * shape.outputs * 4 / _BYTES_A_CYCLE
        costs[m] = moved + max(components * -(-tiles // 3) * 3 * products, reading)
    return costs


def pack_taps(weight: np.ndarray, shape: ConvShape) -> np.ndarray:
    """Return [O, I, *kernel] in the order that `ConvShape` describes."""
    if shape.tile:
        width = shape.panels * shape.columns
        taps = np.zeros(((shape.tile + 2) ** 2, shape.inputs, width), np.float32)
        taps[:, :, : shape.outputs] = transformed_taps(weight, shape.tile).reshape(-1, shape.inputs, shape.outputs)
        split = taps.reshape(-1, shape.inputs, shape.panels, shape.columns)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3))
    if shape.depthwise:
        return np.ascontiguousarray(weight.reshape(shape.groups, -1).T)
    width = shape.panels * shape.columns
    padded = np.zeros((shape.groups, width, shape.inputs, *shape.kernel), weight.dtype)
    padded[:, : shape.outputs] = weight.reshape(shape.groups, shape.outputs, shape.inputs, *shape.kernel)
    return panels_of(padded, shape)


def panels_of(padded: np.ndarray, shape: ConvShape) -> np.ndarray:
    """Return outputs that fill their panels, [groups, panels * columns, I, *kernel], panel by panel, taps outermost."""
    split = padded.reshape(shape.groups, shape.panels, shape.columns, shape.inputs, *shape.kernel)
    order = (0, 1, *range(4, split.ndim), 3, 2)
    return np.ascontiguousarray(split.transpose(order)).reshape(shape.groups, shape.panels, shape.depth, shape.columns)


def conv_te(image: te.Tensor, taps: te.Tensor, shape: ConvShape, spelled: Sequence[Any] | None = None) -> te.Tensor:
    """Return the meaning of a packed convolution; the schedule replaces its loops."""
    axes = range(len(shape.kernel))
    sizes = list(image.shape[1:-1])
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

    def element(n: Any, *rest: Any) -> Any:
        *position, o = rest
        where = [position[a] * shape.strides[a] + tap[a] * shape.dilation[a] - shape.begin[a] for a in axes]
        group, own = o // shape.outputs, o % shape.outputs
        value = image(n, *where, group * shape.inputs + channel)
        inside = [tirx.all(w >= 0, w < s) for w, s in zip(where, sizes, strict=True)]
        if shape.padded:
            value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, str(image.dtype)))
        number: Any = imm(0)
        for a in axes:
            number = number * shape.kernel[a] + tap[a]
        if shape.depthwise:
            weight = taps(number, o)
        elif shape.tile:
            # Only names the operand: the transformed weight has no element that is this tap.
            weight = taps(number, own // shape.columns, channel, own % shape.columns)
        elif shape.group:
            place = number * shape.inputs + channel
            at = place % shape.run
            lane = own % shape.columns * shape.group + at % shape.group
            weight = taps(group, own // shape.columns, place // shape.run, at // shape.group, lane)
            value, weight = value.astype("int32"), weight.astype("int32")
        else:
            weight = taps(group, own // shape.columns, number * shape.inputs + channel, own % shape.columns)
        return te.sum(value * weight, axis=[*tap, channel])

    return te.compute(
        (image.shape[0], *extents, imm(shape.groups * shape.outputs)),
        element,
        name="packed_conv",
        attrs={CONV: shape.text()},
    )
