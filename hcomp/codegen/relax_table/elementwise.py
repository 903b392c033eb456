"""Rows for operators that compute each element by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from hcomp.codegen.kernel import Expr, Kernel, KernelBody, Tensor, constant
from hcomp.codegen.relax_table import scalar
from hcomp.codegen.relax_table.loops import (
    Buffer,
    local,
    nest,
    repeat_while,
    statements,
    store,
    when,
)
from hcomp.codegen.relax_table.shape import int64

Function = Callable[..., Expr]


def elementwise(function: Function) -> KernelBody:
    """Return a kernel that applies `function` to the operands' elements, broadcast together."""

    def body(kernel: Kernel) -> Tensor:
        shape = kernel.out_shape
        count = range(len(kernel.inputs))
        return kernel.compute(lambda *i: function(*(kernel.spread(n, i, shape) for n in count)))

    return body


def with_attrs(function: Function) -> KernelBody:
    """Return an elementwise kernel whose `function` takes the node's attributes first."""

    def body(kernel: Kernel) -> Tensor:
        shape = kernel.out_shape
        return kernel.compute(lambda *i: function(kernel.attrs, kernel.spread(0, i, shape)))

    return body


def _cast(kernel: Kernel) -> Tensor:
    shape, dtype = kernel.out_shape, kernel.out_dtype
    return kernel.compute(lambda *i: scalar.cast(kernel.spread(0, i, shape), dtype))


def _bitcast(kernel: Kernel) -> Tensor:
    dtype = kernel.out_dtype
    return kernel.compute(lambda *i: tirx.reinterpret(dtype, kernel.tensor(0)(*i)))


def _where(kernel: Kernel) -> Tensor:
    shape = kernel.out_shape

    def pick(*i: Expr) -> Expr:
        condition, a, b = (kernel.spread(n, i, shape) for n in range(3))
        return tirx.Select(scalar.truth(condition), a, b)

    return kernel.compute(pick)


def _isinf(attrs: Any, x: Expr) -> Expr:
    infinite = constant(math.inf, str(x.ty.dtype))
    tests = [tirx.EQ(x, infinite)] if attrs["positive"] else []
    tests += [tirx.EQ(x, -infinite)] if attrs["negative"] else []
    if not tests:
        return tirx.const(False, "bool")
    return tests[0] if len(tests) == 1 else tirx.Or(*tests)


def _power(kernel: Kernel) -> Tensor:
    """Integers are squared and multiplied in a loop; a negative exponent truncates 1 / a**-b."""
    exponent = kernel.scalars.get(1)
    if "int" not in kernel.out_dtype or (exponent is not None and 0 <= exponent <= 8):
        return elementwise(scalar.power)(kernel)
    shape, dtype = kernel.out_shape, kernel.out_dtype
    zero, one = constant(0, dtype), constant(1, dtype)

    def emit(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
        found = dict(zip(present, ins, strict=True))
        with nest(kernel, shape) as i:
            base, left, result = (local(dtype) for _ in range(3))
            store(base, [int64(0)], kernel.spread(0, i, shape, found.get(0)))
            given = kernel.spread(1, i, shape, found.get(1))
            store(left, [int64(0)], scalar.maximum(given, zero))
            store(result, [int64(0)], one)
            with repeat_while(tirx.GT(left[0], zero)):
                with when(tirx.EQ(tirx.bitwise_and(left[0], one), one)):
                    store(result, [int64(0)], result[0] * base[0])
                store(base, [int64(0)], base[0] * base[0])
                store(left, [int64(0)], tirx.shift_right(left[0], one))
            a = kernel.spread(0, i, shape, found.get(0))
            odd = tirx.EQ(tirx.bitwise_and(given, one), one)
            unit = tirx.Or(tirx.EQ(a, one), tirx.EQ(a, zero - one))
            inverse = tirx.Select(unit, tirx.Select(odd, a, one), zero)
            store(outs[0], i, tirx.Select(tirx.LT(given, zero), inverse, result[0]))

    present = [n for n in range(2) if n not in kernel.scalars]
    tensors = [kernel.tensor(n) for n in present]
    (made,) = statements(kernel, tensors, [(shape, dtype)], emit, "power")
    return made


UNARY: dict[str, Function] = {
    "abs": scalar.absolute,
    "acos": scalar.libm("acos"),
    "acosh": scalar.libm("acosh"),
    "asin": scalar.libm("asin"),
    "asinh": scalar.libm("asinh"),
    "atan": scalar.libm("atan"),
    "atanh": scalar.libm("atanh"),
    "bitwise_not": scalar.bitwise_not,
    "ceil": scalar.on_floats(tirx.ceil),
    "cos": tirx.cos,
    "cosh": scalar.libm("cosh"),
    "erf": tirx.erf,
    "exp": tirx.exp,
    "expm1": scalar.libm("expm1"),
    "floor": scalar.on_floats(tirx.floor),
    "gelu": scalar.gelu,
    "gelu_tanh": scalar.gelu_tanh,
    "log": tirx.log,
    "log1p": scalar.libm("log1p"),
    "logical_not": lambda x: tirx.Not(scalar.truth(x)),
    "negative": scalar.negative,
    "relu": scalar.relu,
    "round": scalar.on_floats(tirx.nearbyint),
    "rsqrt": lambda x: constant(1.0, str(x.ty.dtype)) / tirx.sqrt(x),
    "sigmoid": scalar.sigmoid,
    "sign": scalar.sign,
    "silu": lambda x: x * scalar.sigmoid(x),
    "sin": tirx.sin,
    "sinh": scalar.libm("sinh"),
    "softplus": scalar.softplus,
    "sqrt": tirx.sqrt,
    "square": lambda x: x * x,
    "tan": scalar.libm("tan"),
    "tanh": scalar.libm("tanh"),
    "trunc": scalar.on_floats(tirx.trunc),
}

BINARY: dict[str, Function] = {
    "add": scalar.add,
    "subtract": lambda a, b: a - b,
    "multiply": scalar.multiply,
    "divide": scalar.divide,
    "floor_divide": scalar.floor_divide,
    "maximum": scalar.maximum,
    "minimum": scalar.minimum,
    "floor_mod": scalar.floor_mod,
    "truncated_mod": scalar.truncated_mod,
    "bitwise_and": scalar.bitwise_and,
    "bitwise_or": scalar.bitwise_or,
    "bitwise_xor": scalar.bitwise_xor,
    "logical_and": lambda a, b: tirx.And(scalar.truth(a), scalar.truth(b)),
    "logical_or": lambda a, b: tirx.Or(scalar.truth(a), scalar.truth(b)),
    "logical_xor": lambda a, b: scalar.differ(scalar.truth(a), scalar.truth(b)),
    "left_shift": scalar.left_shift,
    "right_shift": scalar.right_shift,
    "equal": lambda a, b: scalar.compare(tirx.EQ, a, b),
    "not_equal": lambda a, b: scalar.compare(scalar.not_equal, a, b),
    "less": lambda a, b: scalar.compare(tirx.LT, a, b),
    "less_equal": lambda a, b: scalar.compare(tirx.LE, a, b),
    "greater": lambda a, b: scalar.compare(tirx.GT, a, b),
    "greater_equal": lambda a, b: scalar.compare(tirx.GE, a, b),
}

KERNELS: dict[str, KernelBody] = {
    **{name: elementwise(function) for name, function in {**UNARY, **BINARY}.items()},
    "power": _power,
    "isnan": elementwise(scalar.is_nan),
    "isfinite": elementwise(scalar.is_finite),
    "isinf": with_attrs(_isinf),
    "leaky_relu": with_attrs(scalar.leaky_relu),
    "clip": with_attrs(scalar.clip),
    "where": _where,
    "cast": _cast,
    "bitcast": _bitcast,
}
