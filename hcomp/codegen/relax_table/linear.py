"""Rows for matmul, convolution and pooling: plain loops that any target can schedule.

Float16 and bfloat16 products are added up in float32; integers in the output's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.codegen.relax_table.reduce import reduced, reducer
from hcomp.codegen.relax_table.shape import int64
from hcomp.dims import DimLike


def _accumulate(kernel: Kernel, a: Expr, b: Expr) -> Expr:
    dtype = wide_dtype(kernel.out_dtype)
    return a.astype(dtype) * b.astype(dtype)


def _matmul(kernel: Kernel) -> Tensor:
    a_shape, b_shape = kernel.shape(0), kernel.shape(1)
    step = kernel.axis(a_shape[-1])
    column = len(b_shape) > 1
    row = len(a_shape) > 1
    batch = kernel.out_shape[: len(kernel.out_shape) - row - column]

    def operand(index: int, at: Sequence[Expr], matrix: Sequence[Expr]) -> Expr:
        own = kernel.shape(index)
        lead = len(own) - len(matrix)
        tail = batch[len(batch) - lead :]
        # The trailing pair is read as it is: only the leading dimensions broadcast.
        return kernel.spread(
            index, [*at[len(batch) - lead :], *matrix], (*tail, *own[lead:])
        )

    def term(*i: Expr) -> Expr:
        at = i[: len(batch)]
        left = [i[len(batch)], step] if row else [step]
        right = [step, i[-1]] if column else [step]
        return _accumulate(kernel, operand(0, at, left), operand(1, at, right))

    return _sum(kernel, term, [step], [a_shape[-1]], "matmul")


def _sum(
    kernel: Kernel, term: Any, steps: Sequence[Expr], sizes: Sequence[DimLike], name: str
) -> Tensor:
    zero = constant(0, wide_dtype(kernel.out_dtype))
    return reduced(kernel, reducer("sum"), term, steps, sizes, zero, name)


def _padded(
    kernel: Kernel, fill: Expr, padding: Sequence[DimLike], extra: Sequence[DimLike]
) -> Any:
    """Return a function that reads the data at a padded position; `extra` pads more at the ends."""
    own = kernel.shape(0)
    n = len(own) - 2
    ends = [padding[a + n] + extra[a] for a in range(n)]
    if all(p == 0 for p in (*padding[:n], *ends)):
        return lambda position: kernel.read(0, position)
    shape = (*own[:2], *(own[a + 2] + padding[a] + ends[a] for a in range(n)))
    begins = kernel.dims(padding[:n])

    def value(*i: Expr) -> Expr:
        source = [p - b for p, b in zip(i[2:], begins, strict=True)]
        tests = [
            test
            for p, size in zip(source, own[2:], strict=True)
            for test in (p >= int64(0), p < kernel.dim(size))
        ]
        return tirx.if_then_else(tirx.all(*tests), kernel.read(0, (*i[:2], *source)), fill)

    made = kernel.compute(value, shape=shape, name="pad_temp")
    return lambda position: made(*position)


def _conv(kernel: Kernel) -> Tensor:
    attrs, data, weight = kernel.attrs, kernel.shape(0), kernel.shape(1)
    n = len(data) - 2
    groups, strides, dilation = attrs["groups"], attrs["strides"], attrs["dilation"]
    zero = constant(0, kernel.dtype())
    read = _padded(kernel, zero, attrs["padding"], [0] * n)
    channel = kernel.axis(weight[1], "rc")
    taps = [kernel.axis(weight[a + 2], f"r{a}") for a in range(n)]
    per_group = kernel.dim(weight[0]) // int64(groups) if groups != 1 else None

    def term(*i: Expr) -> Expr:
        source = channel
        if per_group is not None:
            source = tirx.floordiv(i[1], per_group) * kernel.dim(weight[1]) + channel
        spatial = [
            i[a + 2] * int64(strides[a]) + taps[a] * int64(dilation[a]) for a in range(n)
        ]
        return _accumulate(
            kernel, read((i[0], source, *spatial)), kernel.read(1, (i[1], channel, *taps))
        )

    return _sum(kernel, term, [channel, *taps], weight[1:], "conv")


KERNELS: dict[str, KernelBody] = {
    "matmul": _matmul,
    "conv": _conv,
}
