"""Rows for pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.codegen.relax_table.linear import at_axes, padded, window_reach
from hcomp.codegen.relax_table.reduce import REDUCTIONS, reducer
from hcomp.codegen.relax_table.shape import int64
from hcomp.ir.ops.linear import spatial_axes


def _windows(kernel: Kernel, fill: Expr, dtype: str) -> tuple[list[Expr], Any]:
    """Return the steps through a window, and a function that reads one step of one window."""
    attrs = kernel.attrs
    strides, dilation, size = attrs["strides"], attrs["dilation"], attrs["pool_size"]
    n = len(size)
    axes = spatial_axes(attrs, n + 2)
    # A window may hang over the end, by padding or by rounding the number of windows up.
    reach = window_reach(kernel.out_shape[axes], size, strides, dilation)
    if not any(attrs["padding"]) and not attrs["ceil_mode"]:
        reach = list(kernel.shape(0)[axes])
    read = padded(kernel, fill, attrs["padding"][:n], reach, axes=axes)
    steps = [kernel.axis(size[a], f"r{a}") for a in range(n)]

    def element(i: Sequence[Expr]) -> Expr:
        spatial = [p * int64(strides[a]) + steps[a] * int64(dilation[a]) for a, p in enumerate(i[axes])]
        return read(at_axes(i, axes, spatial)).astype(dtype)

    return steps, element


def _max_pool(kernel: Kernel) -> Tensor:
    dtype = wide_dtype(kernel.out_dtype)
    steps, element = _windows(kernel, REDUCTIONS["max"][1](dtype), dtype)
    largest = reducer("max")
    made = kernel.compute(lambda *i: largest(element(i), axis=steps), shape=kernel.out_shape, name="max_pool")
    return made if dtype == kernel.out_dtype else kernel.compute(lambda *i: made(*i))


def _avg_pool(kernel: Kernel) -> Tensor:
    own = kernel.out_dtype
    dtype = wide_dtype(own) if "float" in own else "float64"
    fill = constant(0, wide_dtype(kernel.dtype()))
    steps, element = _windows(kernel, fill, dtype)
    total_of = reducer("sum")
    total = kernel.compute(lambda *i: total_of(element(i), axis=steps), shape=kernel.out_shape, name="sum_pool")
    return kernel.compute(lambda *i: total(*i) / window_count(kernel, i).astype(dtype))


def window_count(kernel: Kernel, i: Sequence[Expr]) -> Expr:
    """Return how many steps of a window count: elements, and padding where that is included."""
    attrs, own = kernel.attrs, kernel.shape(0)
    n = len(attrs["pool_size"])
    axes = spatial_axes(attrs, n + 2)
    padding = kernel.dims(attrs["padding"])
    count = int64(1)
    for a in range(n):
        window, spacing = int64(attrs["pool_size"][a]), int64(attrs["dilation"][a])
        start = i[axes][a] * int64(attrs["strides"][a]) - padding[a]
        low, high = int64(0), kernel.dim(own[axes][a])
        if attrs["count_include_pad"]:
            low, high = int64(0) - padding[a], high + padding[a + n]
        first = tirx.max(_ceil(low - start, spacing), int64(0))
        last = tirx.min(_ceil(high - start, spacing), window)
        count = count * tirx.max(last - first, int64(0))
    return tirx.max(count, int64(1))


def _ceil(a: Expr, b: Expr) -> Expr:
    return tirx.floordiv(a + b - int64(1), b)


KERNELS: dict[str, KernelBody] = {"max_pool": _max_pool, "avg_pool": _avg_pool}
