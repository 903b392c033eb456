"""One heavy operator as a call of one function whose only symbols are the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx


def shape_of(x: relax.Expr) -> list[Any]:
    """Return the sizes of a tensor expression."""
    shape = x.ty.shape
    return list(shape.values if hasattr(shape, "values") else shape)


def call_kernel(
    bb: relax.BlockBuilder,
    name: str,
    operands: Sequence[relax.Expr],
    compute: Callable[..., te.Tensor],
    result: Sequence[Any],
) -> relax.Expr:
    """Return the call of a new function that computes `compute` of float32 `operands`.

    Each symbolic size becomes a fresh variable of the function. TVM's own `emit_te` passes an input
    size such as `(h - 1) // 2` as an extra argument, which FuseTIR then refuses.

    Args:
        bb: builder of the calling function.
        name: hint for the function's name.
        operands: float32 tensors of known rank.
        compute: the meaning, over placeholders of the operands.
        result: sizes of the result in the caller's variables.
    """
    plain = (tirx.IntImm, tirx.Var)
    if not all(isinstance(size, plain) for operand in operands for size in shape_of(operand)):
        # A product of symbols has no name of its own; FuseTIR needs both of its kernels to spell it.
        return bb.emit_te(compute, *operands, primfunc_name_hint=name, primfunc_attrs={"op_pattern": 4})
    inputs = []
    for number, operand in enumerate(operands):
        sizes = [
            size if isinstance(size, tirx.IntImm) else tirx.Var(f"s{number}_{axis}", "int64")
            for axis, size in enumerate(shape_of(operand))
        ]
        inputs.append(te.placeholder(sizes, "float32", f"x{number}"))
    func = te.create_prim_func([*inputs, compute(*inputs)]).without_attr("global_symbol")
    # 4 is Relax's pattern of heavy operators: elementwise work may be fused after it.
    func = func.with_attr("tirx.noalias", True).with_attr("op_pattern", 4)
    function = bb.add_func(func, name)
    return bb.emit(relax.call_tir(function, list(operands), relax.TensorType(result, "float32")))
