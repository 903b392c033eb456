"""Kernels that no tensor expression describes: loops with a state, written as TIR statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from hcomp.codegen.kernel import Expr, Kernel, Tensor
from hcomp.dims import DimLike
from hcomp.ir.types import Shape

Buffer: TypeAlias = Any
"""A tirx.Buffer: `buffer[i, j]` reads, `store` writes."""
Emit: TypeAlias = Callable[[Sequence[Buffer], Sequence[Buffer]], None]
"""Emits the statements, given the buffers of the inputs and of the outputs."""


def statements(
    kernel: Kernel,
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[Shape, str]],
    emit: Emit,
    name: str,
) -> tuple[Tensor, ...]:
    """Return tensors that the statements of `emit` write; `outputs` gives shapes and types."""
    shapes = [kernel.dims(shape) for shape, _ in outputs]
    dtypes = [dtype for _, dtype in outputs]

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Any:
        with IRBuilder() as builder:
            with script.seq_scope():
                emit(ins, outs)
            return builder.get().body  # without the scope around it, which LLVM warns of

    buffers = [
        tirx.decl_buffer(shape, dtype, f"{name}{i}", layout=None)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    made = te.extern(shapes, list(inputs), build, name=name, dtype=dtypes, out_buffers=buffers)
    return tuple(made) if isinstance(made, list | tuple) else (made,)


def store(buffer: Buffer, position: Sequence[Expr], value: Expr) -> None:
    """Emit a write."""
    script.buffer_store(buffer, value, list(position))


@contextmanager
def nest(kernel: Kernel, sizes: Sequence[DimLike]) -> Iterator[list[Expr]]:
    """Open one loop a size around what is emitted inside; gives the loops' variables."""
    with ExitStack() as stack:
        zero = tirx.IntImm("int64", 0)
        yield [stack.enter_context(script.serial(zero, kernel.dim(size))) for size in sizes]


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """Emit what is inside for where `condition` holds."""
    with script.If(condition), script.Then():
        yield


@contextmanager
def repeat_while(condition: Expr) -> Iterator[None]:
    """Emit what is inside to be repeated as long as `condition` holds."""
    with script.While(condition):
        yield


def local(dtype: str, size: int = 1) -> Buffer:
    """Return a small buffer that lives where it is made."""
    return script.alloc_buffer([size], dtype, scope="local")
