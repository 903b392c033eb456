"""Pooling of float32 data with channels last: the kernels' meaning, with the annotation that schedules them."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor
from hcomp.codegen.relax_table.pool import window_count
from hcomp.targets.cpu.schedule.pool import POOL, PoolShape


def pool_body(kind: str) -> KernelBody:
    """Return the kernel of `max_pool` ("max") or `avg_pool` ("sum") over [N, *spatial, C], C a number."""

    def body(kernel: Kernel) -> Tensor:
        attrs = kernel.attrs
        n = len(attrs["pool_size"])
        shape = PoolShape(
            kind=kind,
            window=tuple(attrs["pool_size"]),
            strides=tuple(attrs["strides"]),
            begin=tuple(attrs["padding"][:n]),
            dilation=tuple(attrs["dilation"]),
        )
        sizes = kernel.dims(kernel.shape(0)[1:-1])
        steps = [kernel.axis(size, f"r{a}") for a, size in enumerate(shape.window)]
        outside = tirx.const(0, "float32") if kind == "sum" else tirx.min_value("float32")

        def element(i: tuple[Expr, ...]) -> Expr:
            where = [
                i[a + 1] * shape.strides[a] + steps[a] * shape.dilation[a] - shape.begin[a] for a in range(n)
            ]  # fmt: skip
            inside = [tirx.all(w >= 0, w < s) for w, s in zip(where, sizes, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), kernel.read(0, (i[0], *where, i[-1])), outside)

        reducer: Any = te.sum if kind == "sum" else te.max
        made = te.compute(
            kernel.dims(kernel.out_shape),
            lambda *i: reducer(element(i), axis=steps),
            name="pool",
            attrs={POOL: shape.text()},
        )
        if kind == "max":
            return made
        return kernel.compute(lambda *i: made(*i) / window_count(kernel, i).astype("float32"))

    return body
