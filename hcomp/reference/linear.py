"""Reference functions of matmul and convolution, by BLAS.

float16 and bfloat16 are accumulated in float32. Integers are multiplied as floats where every
sum is certain to be exact in them, which is many times faster than numpy's integer matmul.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import wraps
from inspect import Parameter, signature
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hcomp.reference.numeric import (
    Array,
    Function,
    is_integer_array,
    narrow,
    out_dtype_of,
    quiet_table,
    widen,
)

Ints = Sequence[int]

_BUFFER = 1 << 20
"""Elements of the patch matrix that a convolution builds at once: what stays near the processor."""
_CACHED = 1 << 16
"""Elements of the output that a depthwise convolution works on at once."""
_FEW = 4
"""Up to so many outputs for each input channel, passes over the output are faster than patches."""


def matmul(a: Array, b: Array, *, out_dtype: str = "") -> Array:
    """Return numpy.matmul(a, b) in `out_dtype` ("": the dtype of `a`); integers wrap."""
    target = out_dtype_of(a, out_dtype)
    left, right = _operands(a, b, a.shape[-1], target)
    return _rounded(np.matmul(left, right), target)


def _operands(a: Array, b: Array, terms: int, target: np.dtype[Any]) -> tuple[Array, Array]:
    """Return both operands in a dtype in which sums of `terms` products are right."""
    wide: Any
    if not is_integer_array(a):
        wide = np.result_type(widen(a), widen(b))
    else:
        largest = _magnitude(a) * _magnitude(b) * terms
        wide = np.float32 if largest < 2**24 else np.float64 if largest < 2**53 else np.int64
    return a.astype(wide, copy=False), b.astype(wide, copy=False)


def _magnitude(x: Array) -> int:
    """Return the largest absolute value in an integer tensor."""
    if x.size == 0:
        return 0
    if x.dtype.kind == "V":
        return 16
    return max(int(x.max()), -int(x.min()))


def _rounded(x: Array, target: np.dtype[Any]) -> Array:
    """Return a sum in `target`: exact floats go by int64, so that they wrap."""
    if target.kind in "iu" and np.asarray(x).dtype.kind == "f":
        x = np.asarray(x).astype(np.int64)
    return narrow(x, target)


def either_layout(function: Function) -> Function:
    """Return a function of data [N, C, *spatial] that takes, with `channels_last`, [N, *spatial, C] too."""

    @wraps(function)
    def run(x: Array, *rest: Any, channels_last: bool = False, **attrs: Any) -> Any:
        if not channels_last:
            return function(x, *rest, **attrs)
        return np.ascontiguousarray(np.moveaxis(function(np.moveaxis(x, -1, 1), *rest, **attrs), 1, -1))

    own = signature(function)
    layout = Parameter("channels_last", Parameter.KEYWORD_ONLY, default=False)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), layout])  # type: ignore[attr-defined]
    return run


@either_layout
def conv(
    x: Array,
    weight: Array,
    *,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    out_dtype: str = "",
) -> Array:
    """Return the cross-correlation of x [N, C, *spatial] with weight [O, C/groups, *kernel].

    `padding` is the begins of the spatial axes, then the ends; negative entries crop.
    """
    target = out_dtype_of(x, out_dtype)
    kernel = weight.shape[2:]
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ValueError(f"{x.shape[1]} channels, weight {list(weight.shape)} and {groups} groups do not fit")
    data, taps = _operands(x, weight, prod(weight.shape[1:]), target)
    fit_windows(x.shape[2:], kernel, padding, dilation)
    windows = window_view(padded(data, padding, 0), kernel, strides, dilation)
    if weight.shape[1] == 1 and weight.shape[0] <= _FEW * x.shape[1]:
        return _rounded(_depthwise(windows, taps), target)
    return _rounded(_by_patches(windows, taps, groups), target)


def fit_windows(sizes: Ints, kernel: Ints, padding: Ints, dilation: Ints) -> None:
    """Check that a window fits into the padded tensor; a stride could round none up to a size of 0.

    Raises:
        ValueError: one does not.
    """
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    whole = [s + b + a for s, b, a in zip(sizes, padding, padding[len(sizes) :], strict=False)]
    if any(reach > size for reach, size in zip(span, whole, strict=True)):
        raise ValueError(f"windows of {span} do not fit into {whole}")


def padded(x: Array, padding: Ints, value: Any) -> Array:
    """Return x [N, C, *spatial] with `value` around it; negative padding crops."""
    n = x.ndim - 2
    if not any(padding):
        return x
    before, after = padding[:n], padding[n:]
    cut = [slice(None)] * 2
    inside = [slice(None)] * 2
    shape = list(x.shape[:2])
    for size, b, a in zip(x.shape[2:], before, after, strict=True):
        cut.append(slice(max(-b, 0), size - max(-a, 0)))
        shape.append(max(size + b + a, 0))
        inside.append(slice(max(b, 0), shape[-1] - max(a, 0)))
    result = np.full(shape, value, x.dtype)
    result[tuple(inside)] = x[tuple(cut)]
    return result


def window_view(x: Array, kernel: Ints, strides: Ints, dilation: Ints) -> Array:
    """Return a view [N, C, *out, *kernel] of x [N, C, *spatial]: all whole windows of it.

    Raises:
        ValueError: a window is so much larger than the tensor that their number is negative.
    """
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    out = [(size - reach) // step + 1 for size, reach, step in zip(x.shape[2:], span, strides, strict=True)]
    if min(out, default=1) < 0 or min(kernel, default=1) < 1:
        raise ValueError(f"windows of {span} do not fit into {list(x.shape[2:])}")
    steps = x.strides[2:]
    moves = [s * step for s, step in zip(steps, strides, strict=True)]
    taps = [s * d for s, d in zip(steps, dilation, strict=True)]
    shape = (*x.shape[:2], *out, *kernel)
    return as_strided(x, shape, (*x.strides[:2], *moves, *taps), writeable=False)


def _depthwise(windows: Array, weight: Array) -> Array:
    """Return the convolution whose every output channel reads one input channel."""
    n = weight.ndim - 2
    batch, channels = windows.shape[:2]
    out = windows.shape[2 : 2 + n]
    repeat = weight.shape[0] // channels
    result = np.zeros((batch, channels, repeat, *out), windows.dtype)
    taps = weight.reshape(channels, repeat, *weight.shape[2:])
    # As many channels at once as stay in the cache from one tap to the next.
    step = max(_CACHED // max(repeat * prod(out), 1), 1)
    for image, start in product(range(batch), range(0, channels, step)):
        part = slice(start, start + step)
        target, source = result[image, part], windows[image, part, None]
        scratch = np.empty_like(target)
        for tap in np.ndindex(*weight.shape[2:]):
            factor = taps[(part, slice(None), *tap)].reshape(-1, repeat, *(1,) * n)
            target += np.multiply(source[(..., *tap)], factor, out=scratch)
    return result.reshape(batch, weight.shape[0], *out)


def _by_patches(windows: Array, weight: Array, groups: int) -> Array:
    """Return the convolution as weight [O/g, C/g * kernel] times patches, part by part."""
    n = weight.ndim - 2
    batch, channels = windows.shape[:2]
    out = windows.shape[2 : 2 + n]
    each_in, each_out = channels // groups, weight.shape[0] // groups
    result = np.empty((batch, weight.shape[0], *out), windows.dtype)
    matrix = weight.reshape(groups, each_out, -1)
    order = (0, *range(1 + n, 1 + 2 * n), *range(1, 1 + n))
    for image in range(batch):
        for group in range(groups):
            channel = slice(group * each_in, (group + 1) * each_in)
            target = result[image, group * each_out : (group + 1) * each_out]
            for rows in _row_blocks(out, matrix.shape[2]):
                # [C/g, *out, *kernel] -> [C/g * kernel, out]
                patches = windows[image, channel, rows].transpose(order)
                part = matrix[group] @ patches.reshape(matrix.shape[2], -1)
                target[:, rows] = part.reshape(target[:, rows].shape)
    return result


def _row_blocks(out: Ints, depth: int) -> Iterator[slice]:
    """Yield ranges of the first spatial axis whose patch matrices fit the buffer."""
    row = max(prod(out[1:]) * depth, 1)
    step = max(_BUFFER // row, 1)
    for start in range(0, out[0], step):
        yield slice(start, min(start + step, out[0]))


@either_layout
def conv_transpose(
    x: Array,
    weight: Array,
    *,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    output_padding: Ints,
    groups: int = 1,
) -> Array:
    """Return the transpose of `conv`: x [N, C, *spatial], weight [C, O/groups, *kernel].

    `padding` is cut from the result, `output_padding` added to the end of its axes.
    """
    data, taps = _operands(x, weight, x.shape[1] * prod(weight.shape[2:]), x.dtype)
    kernel = weight.shape[2:]
    length = [
        (size - 1) * s + (k - 1) * d + 1 + extra
        for size, s, k, d, extra in zip(x.shape[2:], strides, kernel, dilation, output_padding, strict=True)
    ]
    if any(size < b + a for size, b, a in zip(length, padding, padding[len(length) :], strict=False)):
        raise ValueError(f"the padding {list(padding)} cuts more off {length} than there is")
    batch, each_in, each_out = x.shape[0], x.shape[1] // groups, weight.shape[1]
    total = np.zeros((batch, groups * each_out, *length), data.dtype)
    for group in range(groups):
        channel = slice(group * each_in, (group + 1) * each_in)
        matrix = taps[channel].reshape(each_in, -1).T
        # [N, O/g, *kernel, *spatial]: what every input element adds at every tap.
        parts = np.matmul(matrix, data[:, channel].reshape(batch, each_in, -1))
        parts = parts.reshape(batch, each_out, *kernel, *x.shape[2:])
        target = total[:, group * each_out : (group + 1) * each_out]
        for tap in np.ndindex(*kernel):
            place = tuple(
                slice(t * d, t * d + (size - 1) * s + 1, s)
                for t, d, size, s in zip(tap, dilation, x.shape[2:], strides, strict=True)
            )
            target[(slice(None), slice(None), *place)] += parts[(slice(None), slice(None), *tap)]
    return _rounded(padded(total, [-p for p in padding], 0), x.dtype)


TABLE: dict[str, Function] = quiet_table({"matmul": matmul, "conv": conv, "conv_transpose": conv_transpose})
