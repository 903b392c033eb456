"""One operator as one TIR function: the operands, the symbols, and the computation of a kernel.

Every kernel declares its output with the graph's own shape, so Relax never has to infer a
symbolic one. Float16 and bfloat16 are computed in float32 and rounded once, when stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.tirx.buffer import is_buffer_var

from hcomp.dims import Call, DimLike, is_symbol, symbols_of
from hcomp.errors import CodegenError
from hcomp.ir.types import Shape, TensorType

Expr: TypeAlias = Any
"""A TIR expression (tirx.PrimExpr)."""
Tensor: TypeAlias = Any
"""A te.Tensor."""
KernelBody: TypeAlias = Callable[["Kernel"], "Tensor | tuple[Tensor, ...]"]

HALVES = ("float16", "bfloat16")


def dim_expr(dim: DimLike, variable: Callable[[str], Expr]) -> Expr:
    """Return a dimension as an int64 TIR expression over `variable(symbol)`."""
    if isinstance(dim, int):
        return tirx.IntImm("int64", dim)
    total: Expr = None
    for monomial, factor in dim.terms:
        piece: Expr = None
        for atom, power in monomial:
            base = variable(atom) if isinstance(atom, str) else _call_expr(atom, variable)
            for _ in range(power):
                piece = base if piece is None else piece * base
        if piece is None:
            piece = tirx.IntImm("int64", factor)
        elif factor != 1:
            piece = piece * tirx.IntImm("int64", factor)
        total = piece if total is None else total + piece
    return total


def _call_expr(call: Call, variable: Callable[[str], Expr]) -> Expr:
    values = [dim_expr(a, variable) for a in call.arguments]
    result = values[0]
    for value in values[1:]:
        match call.function:
            case "floordiv":
                result = tirx.floordiv(result, value)
            case "max":
                result = tirx.max(result, value)
            case "min":
                result = tirx.min(result, value)
            case _:
                result = tirx.Select(tirx.EQ(result, tirx.IntImm("int64", 1)), value, result)
    return result


def constant(value: float | int | bool, dtype: str) -> Expr:
    """Return an immediate of `dtype`; the halves as float32, which they are computed in."""
    return tirx.const(value, "float32" if dtype in HALVES else dtype)


def wide(value: Expr) -> Expr:
    """Return `value` in the type it is computed in: float32 for float16 and bfloat16."""
    return value.astype("float32") if str(value.ty.dtype) in HALVES else value


def wide_dtype(dtype: str) -> str:
    """Return the type that values of `dtype` are computed in."""
    return "float32" if dtype in HALVES else dtype


def narrow(value: Expr, dtype: str) -> Expr:
    """Return `value` rounded to `dtype`, for storing."""
    return value if str(value.ty.dtype) == dtype else value.astype(dtype)


@dataclass(frozen=True)
class Requirement:
    """A condition on sizes: what is wrong where it does not hold, and the condition itself."""

    problem: str
    holds: Callable[[Kernel], Expr]


class Kernel:
    """A TIR function under construction.

    Attributes:
        attrs: the node's attributes.
        inputs: the type of each input, None where it is absent.
        outputs: the type of each output.
        requirements: what must hold of the sizes, by its text, where that is not certain here.
    """

    def __init__(
        self,
        attrs: Mapping[str, Any],
        inputs: Sequence[TensorType | None],
        outputs: Sequence[TensorType],
        scalars: Mapping[int, Any],
    ) -> None:
        self.attrs = attrs
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.scalars = scalars
        self.requirements: dict[str, Requirement] = {}
        self._variables: dict[str, Expr] = {}
        self._tensors: dict[int, Tensor] = {}

    def variable(self, name: str) -> Expr:
        """Return this kernel's variable for the symbol `name`."""
        if name not in self._variables:
            self._variables[name] = tirx.Var(name, "int64")
        return self._variables[name]

    def dim(self, dim: DimLike) -> Expr:
        """Return a dimension as an int64 expression."""
        return dim_expr(dim, self.variable)

    def dims(self, dims: Iterable[DimLike]) -> tuple[Expr, ...]:
        """Return several dimensions as expressions."""
        return tuple(self.dim(d) for d in dims)

    def shape(self, index: int) -> Shape:
        """Return the shape of input `index`."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None or found.shape is None:
            raise ValueError(f"input {index} has no shape")
        return found.shape

    def dtype(self, index: int = 0) -> str:
        """Return the element type of input `index`."""
        found = self.inputs[index]
        if found is None:
            raise ValueError(f"input {index} is absent")
        return found.dtype

    def has(self, index: int) -> bool:
        """Say whether the optional input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    @property
    def out_shape(self) -> Shape:
        """The shape of the first output."""
        shape = self.outputs[0].shape
        if shape is None:
            raise ValueError("the output has no shape")
        return shape

    @property
    def out_dtype(self) -> str:
        """The element type of the first output."""
        return self.outputs[0].dtype

    def require(self, problem: str, holds: Callable[[Kernel], Expr]) -> None:
        """Have the region stop with `problem` at run time unless the sizes fulfil `holds`."""
        self.requirements.setdefault(problem, Requirement(problem, holds))

    def require_equal(self, a: DimLike, b: DimLike) -> None:
        """Have two sizes be equal.

        Raises:
            CodegenError: they are numbers and differ.
        """
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise CodegenError(f"the sizes {a} and {b} differ")
        problem = f"the sizes {a} and {b} differ"
        self.require(problem, lambda kernel: tirx.EQ(kernel.dim(a), kernel.dim(b)))

    def tensor(self, index: int) -> Tensor:
        """Return input `index` as a TE tensor; asking makes it a parameter of the kernel."""
        if index not in self._tensors:
            self._tensors[index] = te.placeholder(self.dims(self.shape(index)), self.dtype(index), f"in{index}")
        return self._tensors[index]

    def read(self, index: int, position: Sequence[Expr]) -> Expr:
        """Return the element of input `index` at `position`, in the type it is computed in."""
        if index in self.scalars:
            return constant(self.scalars[index], self.dtype(index))
        return wide(self.tensor(index)(*position))

    def spread(self, index: int, position: Sequence[Expr], shape: Shape, buffer: Any = None) -> Expr:
        """Return the element of input `index` that broadcasting to `shape` puts at `position`.

        Inside of statements `buffer` is the input's buffer.
        """
        if index in self.scalars:
            return constant(self.scalars[index], self.dtype(index))
        own = self.shape(index)
        tail = position[len(position) - len(own) :]
        places = [
            self._place(have, want, i) for have, want, i in zip(own, shape[len(shape) - len(own) :], tail, strict=True)
        ]
        return self.read(index, places) if buffer is None else wide(buffer[tuple(places)])

    def _place(self, have: DimLike, want: DimLike, i: Expr) -> Expr:
        if have == want:
            return i
        zero, one = tirx.IntImm("int64", 0), tirx.IntImm("int64", 1)
        if have == 1:
            return zero

        def fits(kernel: Kernel) -> Expr:
            size = kernel.dim(have)
            return tirx.Or(tirx.EQ(size, kernel.dim(want)), tirx.EQ(size, one))

        self.require(f"a size {have} does not broadcast to {want}", fits)
        # The only element where the size turns out to be 1, else i.
        return i if isinstance(have, int) else tirx.max(tirx.min(i, self.dim(have) - one), zero)

    def compute(
        self,
        body: Callable[..., Expr],
        *,
        shape: Sequence[DimLike] | None = None,
        dtype: str = "",
        name: str = "out",
        tag: str = "",
    ) -> Tensor:
        """Return a TE tensor; without `shape` it is the first output, rounded to its type."""
        final = dtype or (self.out_dtype if shape is None else "")
        dims = self.dims(self.out_shape if shape is None else shape)

        def stored(*position: Expr) -> Expr:
            value = body(*position)
            return narrow(value, final) if final else value

        return te.compute(dims, stored, name=name, tag=tag)

    def axis(self, size: DimLike, name: str = "k") -> Expr:
        """Return a reduction axis of `size` steps."""
        return te.reduce_axis((tirx.IntImm("int64", 0), self.dim(size)), name)

    def finish(self, outputs: Sequence[Tensor], guards: int) -> tuple[Any, tuple[int, ...], tuple[str, ...]]:
        """Return the TIR function, the inputs it takes, and the symbols it takes behind them.

        The results of `guards` checks stand between inputs and symbols; they are not read, only
        waited for.
        """
        used = tuple(sorted(self._tensors))
        bound = {str(d) for i in used for d in self.shape(i) if is_symbol(d)}
        extra = tuple(sorted(n for n in self._variables if n not in bound))
        flags = [te.placeholder((), FLAG.dtype, f"guard{i}") for i in range(guards)]
        parameters = [self._tensors[i] for i in used] + flags
        parameters += [self._variables[n] for n in extra]
        function = te.create_prim_func([*parameters, *outputs], "int64")
        return function.without_attr("global_symbol"), used, extra


FLAG = TensorType("int32", ())
"""What a guard computes: 0 where all is well."""

OPAQUE = 8
"""Relax's pattern kind of a function that must not be fused."""


def checked(function: Any, message: str) -> Any:
    """Return a function that computes a FLAG, with an assertion behind it that the flag is 0."""
    root = function.body.block
    # Condition first: this TVM's Python signature names the first two the other way round.
    check = tirx.AssertStmt(
        tirx.EQ(tirx.BufferLoad(function.params[-1], []), tirx.const(0, FLAG.dtype)),
        tvm.ir.StringImm("IndexError"),
        [tvm.ir.StringImm(message)],
    )
    body = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint,
        tirx.SeqStmt([root.body, check]), root.init, root.alloc_buffers, root.match_buffers,
        root.annotations,
    )  # fmt: skip
    function = function.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), body))
    return function.with_attr("op_pattern", OPAQUE).with_attr("tirx.is_scheduled", True)


def with_output_shape(function: Any, shape: Shape) -> tuple[Any, tuple[str, ...]]:
    """Return a function whose last buffer, and the loops over it, have sizes as `shape` spells them.

    The symbols that the function does not know yet become parameters in front of that buffer; they
    are returned.
    """
    known = {}
    for parameter in function.params:
        sizes = parameter.ty.shape if is_buffer_var(parameter) else [parameter]
        known.update({str(d.name): d for d in sizes if isinstance(d, tvm.ir.Var)})
    missing = tuple(sorted(symbols_of(shape) - known.keys()))
    known.update({name: tirx.Var(name, "int64") for name in missing})
    old = function.params[-1]
    declared = old.ty
    sizes = [dim_expr(d, known.__getitem__) for d in shape]
    buffer_type = type(declared)(
        declared.dtype, declared.storage_scope, sizes, declared.strides, declared.elem_offset,
        declared.data_alignment, declared.offset_factor, declared.layout, declared.allocated_addr,
    )  # fmt: skip
    new = tvm.ir.Var(old.name, buffer_type)
    spelled = [
        (a, b) for a, b in zip(declared.shape, sizes, strict=True) if not isinstance(a, tirx.IntImm | tvm.ir.Var)
    ]

    def renamed(found: Any) -> Any:
        if found.same_as(old):
            return new
        return next((b for a, b in spelled if tvm_ffi.structural_equal(a, found)), found)

    function = tvm_ffi.structural_map(function, (tvm.ir.Expr, renamed), order="pre")
    parameters = [*function.params[:-1], *(known[name] for name in missing), function.params[-1]]
    return (
        tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs),
        missing,
    )


def with_flags(function: Any, count: int) -> Any:
    """Return a function with `count` more inputs in front: results of guards, not read."""
    flags = [tirx.decl_buffer([], FLAG.dtype, f"guard{i}", layout=None) for i in range(count)]
    return tirx.PrimFunc([*flags, *function.params], function.body, function.ret_type, function.attrs)


def inline_scalar(value: Any) -> Any:
    """Return a one-element array as a number that may stand in kernels, or None.

    NaN, the infinities and integers beyond int64 stay tensors.
    """
    if value.size != 1 or value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        return None
    number = value.reshape(()).item()
    if isinstance(number, float) and not math.isfinite(number):
        return None
    return None if isinstance(number, int) and abs(number) >= 2**63 else number
