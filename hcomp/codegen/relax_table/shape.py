"""Rows for operators that make tensors or move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant, wide_dtype
from hcomp.dims import DimLike, lower_bound
from hcomp.errors import CodegenError


def int64(value: int) -> Expr:
    """Return an int64 immediate."""
    return tirx.IntImm("int64", value)


def _permute(kernel: Kernel) -> Tensor:
    axes = kernel.attrs["axes"]

    def pick(*i: Expr) -> Expr:
        position: list[Any] = [None] * len(axes)
        for place, axis in enumerate(axes):
            position[axis] = i[place]
        return kernel.read(0, position)

    return kernel.compute(pick)


def _broadcast_to(kernel: Kernel) -> Tensor:
    shape = kernel.out_shape
    return kernel.compute(lambda *i: kernel.spread(0, i, shape))


def _concat(kernel: Kernel) -> Tensor:
    rank = len(kernel.out_shape)
    axis = kernel.attrs["axis"] % rank
    count = len(kernel.inputs)
    for n in range(count):
        for a, size in enumerate(kernel.shape(n)):
            if a != axis:
                kernel.require_equal(size, kernel.out_shape[a])
    starts: list[Expr] = [int64(0)]
    for n in range(count - 1):
        starts.append(starts[-1] + kernel.dim(kernel.shape(n)[axis]))

    def pick(*i: Expr) -> Expr:
        def part(n: int) -> Expr:
            return kernel.read(n, (*i[:axis], i[axis] - starts[n], *i[axis + 1 :]))

        found = part(count - 1)
        for n in reversed(range(count - 1)):
            found = tirx.if_then_else(i[axis] < starts[n + 1], part(n), found)
        return found

    return kernel.compute(pick)


def _slice_of(kernel: Kernel, axis: int, start: Expr, output: int) -> Tensor:
    found = kernel.outputs[output]
    return kernel.compute(
        lambda *i: kernel.read(0, (*i[:axis], i[axis] + start, *i[axis + 1 :])),
        shape=found.shape,
        dtype=found.dtype,
        name=f"out{output}",
    )


def _split(kernel: Kernel) -> tuple[Tensor, ...]:
    axis = kernel.attrs["axis"] % len(kernel.shape(0))
    start: DimLike = 0
    parts = []
    for output, size in enumerate(kernel.attrs["sizes"]):
        parts.append(_slice_of(kernel, axis, kernel.dim(start), output))
        start = start + size
    kernel.require_equal(start, kernel.shape(0)[axis])
    return tuple(parts)


def _require_inside(kernel: Kernel, length: DimLike, begin: DimLike, size: DimLike, stride: DimLike) -> None:
    """Have a slice's first and last element be inside an axis of `length`, unless it is empty."""
    last = begin + (size - 1) * stride
    bounds = (begin, length - 1 - begin, last, length - 1 - last)
    if size == 0 or all((low := lower_bound(b)) is not None and low >= 0 for b in bounds):
        return

    def holds(kernel: Kernel) -> Expr:
        inside = tirx.all(*(kernel.dim(b) >= int64(0) for b in bounds))
        return tirx.Or(kernel.dim(size) <= int64(0), inside)

    kernel.require(f"elements {begin} to {last} are outside an axis of size {length}", holds)


def _strided_slice(kernel: Kernel) -> Tensor:
    attrs, rank = kernel.attrs, len(kernel.shape(0))
    for parts in zip(attrs["axes"], attrs["begin"], attrs["size"], attrs["strides"], strict=True):
        _require_inside(kernel, kernel.shape(0)[parts[0] % rank], *parts[1:])
    steps = {
        axis % rank: (kernel.dim(begin), kernel.dim(stride))
        for axis, begin, stride in zip(attrs["axes"], attrs["begin"], attrs["strides"], strict=True)
    }

    def pick(*i: Expr) -> Expr:
        return kernel.read(0, [steps[a][0] + p * steps[a][1] if a in steps else p for a, p in enumerate(i)])

    return kernel.compute(pick)


def _tile(kernel: Kernel) -> Tensor:
    own = kernel.shape(0)
    repeats = kernel.attrs["repeats"]

    def pick(*i: Expr) -> Expr:
        return kernel.read(
            0,
            [p if r == 1 else tirx.floormod(p, kernel.dim(d)) for p, d, r in zip(i, own, repeats, strict=True)],
        )

    return kernel.compute(pick)


def _mirrored(position: Expr, size: Expr) -> Expr:
    """Return a position reflected at both borders, as often as it takes (the border not twice)."""
    one, two = int64(1), int64(2)
    period = tirx.max(two * size - two, one)
    folded = tirx.floormod(position, period)
    return tirx.Select(folded < size, folded, period - folded)


def _repeated(mode: str, source: Expr, size: Expr) -> Expr:
    match mode:
        case "edge":
            return tirx.max(tirx.min(source, size - int64(1)), int64(0))
        case "reflect":
            return _mirrored(source, size)
        case "wrap":
            return tirx.floormod(source, tirx.max(size, int64(1)))
    raise CodegenError(f"the pad mode {mode!r} is not known")


def _pad(kernel: Kernel) -> Tensor:
    attrs, own = kernel.attrs, kernel.shape(0)
    rank = len(own)
    begins = kernel.dims(attrs["padding"][:rank])
    padded = [attrs["padding"][a] != 0 or attrs["padding"][a + rank] != 0 for a in range(rank)]
    sizes = kernel.dims(own)
    if attrs["mode"] == "constant":
        return _pad_constant(kernel, begins, padded, sizes)

    def place(axis: int, position: Expr) -> Expr:
        if not padded[axis]:
            return position
        # A negative entry crops: what is left is then repeated.
        before, after = begins[axis], kernel.dim(attrs["padding"][axis + rank])
        cut = tirx.max(int64(0) - before, int64(0))
        size = sizes[axis] - cut - tirx.max(int64(0) - after, int64(0))
        source = position - tirx.max(before, int64(0))
        return cut + _repeated(attrs["mode"], source, size)

    return kernel.compute(lambda *i: kernel.read(0, [place(a, p) for a, p in enumerate(i)]))


def _pad_constant(kernel: Kernel, begins: Sequence[Expr], padded: Sequence[bool], sizes: Sequence[Expr]) -> Tensor:
    dtype = kernel.out_dtype
    raw = kernel.attrs["value"]
    value = constant(bool(raw) if dtype == "bool" else raw, dtype)

    def pick(*i: Expr) -> Expr:
        source = [p - b if pad else p for p, b, pad in zip(i, begins, padded, strict=True)]
        inside = [
            test for p, s, pad in zip(source, sizes, padded, strict=True) if pad for test in (p >= int64(0), p < s)
        ]
        found = kernel.read(0, source)
        if not inside:
            return found
        return tirx.if_then_else(tirx.all(*inside), found, value)

    return kernel.compute(pick)


def _flip(kernel: Kernel) -> Tensor:
    own = kernel.shape(0)
    given = kernel.attrs["axis"]
    axes = {a % len(own) for a in (given if isinstance(given, tuple) else (given,))}
    last = [kernel.dim(d) - int64(1) for d in own]
    return kernel.compute(lambda *i: kernel.read(0, [last[a] - p if a in axes else p for a, p in enumerate(i)]))


def _trilu(kernel: Kernel) -> Tensor:
    upper, k = kernel.attrs["upper"], kernel.attrs["k"]
    if isinstance(k, int):
        # No tensor is that large, and the sum with a row stays a number.
        k = max(-(1 << 40), min(1 << 40, k))
    k = kernel.dim(k)
    dtype = kernel.out_dtype
    zero = constant(False if dtype == "bool" else 0, dtype)

    def pick(*i: Expr) -> Expr:
        diagonal = i[-2] + k
        kept = i[-1] >= diagonal if upper else i[-1] <= diagonal
        return tirx.Select(kept, kernel.read(0, i), zero)

    return kernel.compute(pick)


def _full(kernel: Kernel) -> Tensor:
    dtype, raw = kernel.out_dtype, kernel.attrs["value"]
    return kernel.compute(lambda *_: _number(kernel, raw, dtype))


def _number(kernel: Kernel, value: Any, dtype: str) -> Expr:
    if not isinstance(value, int | float):
        return kernel.dim(value).astype(wide_dtype(dtype))
    return constant(bool(value) if dtype == "bool" else value, dtype)


def _arange(kernel: Kernel) -> Tensor:
    dtype = wide_dtype(kernel.out_dtype)
    start, step = (_number(kernel, kernel.attrs[n], dtype) for n in ("start", "step"))
    return kernel.compute(lambda i: start + i.astype(dtype) * step)


def _dims(kernel: Kernel) -> Tensor:
    values = kernel.dims(kernel.attrs["values"])

    def pick(*i: Expr) -> Expr:
        found = values[-1]
        for place in reversed(range(len(values) - 1)):
            found = tirx.Select(i[0] == int64(place), values[place], found)
        return found

    return kernel.compute(pick)


KERNELS: dict[str, KernelBody] = {
    "permute_dims": _permute,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "split": _split,
    "strided_slice": _strided_slice,
    "tile": _tile,
    "pad": _pad,
    "flip": _flip,
    "trilu": _trilu,
    "full": _full,
    "arange": _arange,
    "dims": _dims,
}
