"""A tensor in one of the machine's memories, sliced and turned as numpy's are: nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from types import EllipsisType
from typing import TypeAlias

from hcomp.errors import CodegenError
from hcomp.targets.npu.device.isa import ITEM_BYTES

Index: TypeAlias = "int | slice | EllipsisType | None"


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is and how to walk it.

    Attributes:
        space: mem, act, wgt or acc.
        dtype: of its elements.
        address: its first byte.
        shape: elements by axis.
        strides: elements between neighbours by axis; 0 repeats.
    """

    space: str
    dtype: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def dense(cls, space: str, dtype: str, address: int, shape: Sequence[int]) -> Tensor:
        """Return a row-major tensor."""
        return cls(space, dtype, address, tuple(shape), row_major(shape))

    @property
    def size(self) -> int:
        """Return how many elements it has."""
        return prod(self.shape)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Tensor:
        """Return a part, as numpy's basic indexing does."""
        given = index if isinstance(index, tuple) else (index,)
        taken = sum(1 for i in given if i is not None and i is not Ellipsis)
        if taken > len(self.shape):
            raise CodegenError(f"expected at most {len(self.shape)} indices, found {taken}")
        if Ellipsis not in given:
            given = (*given, Ellipsis)
        place, offset = 0, 0
        shape: list[int] = []
        strides: list[int] = []
        for i in given:
            if i is None:
                shape.append(1)
                strides.append(0)
            elif i is Ellipsis:
                kept = len(self.shape) - taken
                shape += self.shape[place : place + kept]
                strides += self.strides[place : place + kept]
                place += kept
            else:
                n, stride = self.shape[place], self.strides[place]
                place += 1
                if isinstance(i, slice):
                    start, stop, step = i.indices(n)
                    count = len(range(start, stop, step))
                    offset += start * stride if count else 0
                    shape.append(count)
                    strides.append(stride * step)
                else:
                    if not -n <= i < n:
                        raise CodegenError(f"index {i} is out of range for {n} elements")
                    offset += (i % n) * stride
        address = self.address + offset * ITEM_BYTES[self.dtype]
        return Tensor(self.space, self.dtype, address, tuple(shape), tuple(strides))

    def transpose(self, *axes: int) -> Tensor:
        """Return the axes in another order, reversed for none given."""
        order = axes or tuple(reversed(range(len(self.shape))))
        if sorted(order) != list(range(len(self.shape))):
            raise CodegenError(f"expected every axis of {list(self.shape)} once, found {list(order)}")
        return replace(self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order))

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        """Return it repeated to a shape by numpy's rules."""
        if tuple(shape) == self.shape:
            return self
        extra = len(shape) - len(self.shape)
        if extra < 0 or any(n not in (1, m) for n, m in zip(self.shape, shape[extra:], strict=True)):
            raise CodegenError(f"{list(self.shape)} does not broadcast to {list(shape)}")
        fitting = zip(self.shape, shape[extra:], self.strides, strict=True)
        strides = (0,) * extra + tuple(s if n == m else 0 for n, m, s in fitting)
        return replace(self, shape=tuple(shape), strides=strides)

    def reshape(self, *shape: int) -> Tensor:
        """Return it with other axes; only what needs no copy.

        Raises:
            CodegenError: the elements would have to move.
        """
        if prod(shape) != self.size:
            raise CodegenError(f"{list(self.shape)} has {self.size} elements and {list(shape)} has {prod(shape)}")
        strides: list[int] = []
        groups = _groups(self.shape, self.strides)
        n, stride = groups.pop() if groups else (1, 1)
        for want in reversed(shape):
            while n == 1 and want > 1 and groups:
                n, stride = groups.pop()
            if n % want:
                raise CodegenError(f"{list(self.shape)} with strides {list(self.strides)} is no {list(shape)} in place")
            strides.append(stride)
            n, stride = n // want, stride * want
        return replace(self, shape=tuple(shape), strides=tuple(reversed(strides)))

    def windows(
        self, axes: Sequence[int], sizes: Sequence[int], steps: Sequence[int], dilations: Sequence[int]
    ) -> Tensor:
        """Return windows over some axes, which become their positions; the windows' axes come before the last axis.

        A tile [h, w, c] over axes (0, 1) becomes [oh, ow, kh, kw, c]: the rows and the inner axis of a
        convolution's product, or what a pooling reduces once the last axis is moved.
        """
        shape, strides = list(self.shape), list(self.strides)
        inner_shape, inner_strides = [], []
        for axis, size, step, dilation in zip(axes, sizes, steps, dilations, strict=True):
            span = (size - 1) * dilation + 1
            if span > shape[axis]:
                raise CodegenError(f"a window of {span} does not fit {shape[axis]} elements")
            inner_shape.append(size)
            inner_strides.append(strides[axis] * dilation)
            shape[axis] = (shape[axis] - span) // step + 1
            strides[axis] *= step
        shape[-1:-1], strides[-1:-1] = inner_shape, inner_strides
        return replace(self, shape=tuple(shape), strides=tuple(strides))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _groups(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (elements, stride) of runs of axes that walk as one."""
    found: list[tuple[int, int]] = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if found and found[-1][1] == n * stride:
            found[-1] = (found[-1][0] * n, stride)
        else:
            found.append((n, stride))
    return found


def merge_axes(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return a shape and its operands' strides with as few axes as walk all operands the same way; at least one."""
    sizes: list[int] = []
    kept: list[list[int]] = []
    for n, steps in zip(shape, zip(*strides, strict=True), strict=True):
        if n == 1:
            continue
        if sizes and all(outer == n * inner for outer, inner in zip(kept[-1], steps, strict=True)):
            sizes[-1] *= n
            kept[-1] = list(steps)
        else:
            sizes.append(n)
            kept.append(list(steps))
    if not sizes:
        return (1,), [(0,) for _ in strides]
    return tuple(sizes), [tuple(column) for column in zip(*kept, strict=True)]
