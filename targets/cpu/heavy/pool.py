"""Pooling of float32 data: the kernels' meaning, with the annotation that schedules them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tvm import te, tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor
from hcomp.codegen.relax_table.linear import at_axes
from hcomp.codegen.relax_table.pool import window_count
from hcomp.ir.ops.linear import spatial_axes
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.schedule.pool_shape import POOL, PoolShape

_MOST_STEPS = 1 << 24
"""Steps of a window that its kernels count; float32 holds no more of them exactly."""


def takes_pool(data: TensorType, attrs: Mapping[str, Any]) -> bool:
    """Return whether `pool_body` has a kernel for a pooling: with channels last their number is known."""
    channels = (data.shape or (0,))[-1] if attrs["channels_last"] else 1
    padded = all(isinstance(p, int) and p >= 0 for p in attrs["padding"])
    sized = isinstance(channels, int) and channels > 0 and prod(attrs["pool_size"]) <= _MOST_STEPS
    return data.dtype == "float32" and padded and sized


def pool_body(kind: str) -> KernelBody:
    """Return the kernel of `max_pool` ("max") or `avg_pool` ("mean")."""

    def body(kernel: Kernel) -> Tensor:
        attrs = kernel.attrs
        n = len(attrs["pool_size"])
        shape = PoolShape(
            kind=kind,
            channels_last=attrs["channels_last"],
            window=tuple(attrs["pool_size"]),
            strides=tuple(attrs["strides"]),
            begin=tuple(attrs["padding"][:n]),
            end=tuple(attrs["padding"][n:]),
            dilation=tuple(attrs["dilation"]),
            counts_padding=bool(attrs.get("count_include_pad")),
        )
        axes = spatial_axes(attrs, n + 2)
        sizes = kernel.dims(kernel.shape(0)[axes])
        steps = [kernel.axis(size, f"r{a}") for a, size in enumerate(shape.window)]

        def element(i: tuple[Expr, ...]) -> Expr:
            where = [
                p * shape.strides[a] + steps[a] * shape.dilation[a] - shape.begin[a] for a, p in enumerate(i[axes])
            ]
            inside = [tirx.all(w >= 0, w < s) for w, s in zip(where, sizes, strict=True)]
            value = kernel.read(0, at_axes(i, axes, where))
            if kind == "mean":
                value = value / window_count(kernel, i).astype("float32")
            return tirx.if_then_else(tirx.all(*inside), value, shape.start)

        reducer: Any = te.sum if kind == "mean" else te.max
        return te.compute(
            kernel.dims(kernel.out_shape),
            lambda *i: reducer(element(i), axis=steps),
            name="pool",
            attrs={POOL: shape.text()},
        )

    return body
