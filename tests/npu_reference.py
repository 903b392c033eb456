"""The vector unit's operations written again from targets/npu/README.md, one number after the other.

Nothing of the simulator but the polynomials' coefficients is used; bfloat16 is ml_dtypes'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hcomp.targets.npu.device.functions import ERF, ERFC, EXP, LOG, TANH

Array = NDArray[Any]
f = np.float32
NUMPY = {name: np.dtype(name) for name in ("int8", "uint8", "int32", "float32", "float16")}
NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
NAN, INF = f(np.nan), f(np.inf)


def polynomial(coefficients: Sequence[float], x: np.float32) -> np.float32:
    total = f(coefficients[0])
    for c in coefficients[1:]:
        total = f(f(total * x) + f(c))
    return total


def exp(x: np.float32) -> np.float32:
    if math.isnan(x):
        return NAN
    x = min(max(x, f(-104)), f(89))
    n = np.rint(x * f(math.log2(math.e)))
    r = f(f(x - n * f(0.693359375)) - n * f(-2.1219444e-4))
    mantissa = f(f(f(polynomial(EXP, r) * f(r * r)) + r) + f(1))
    return f(float(mantissa) * 2.0 ** float(n))


def log(x: np.float32) -> np.float32:
    if math.isnan(x) or x < 0:
        return NAN
    if x == 0:
        return -INF
    if x == INF:
        return INF
    mantissa, e = math.frexp(float(x))
    if f(mantissa) < f(math.sqrt(0.5)):
        mantissa, e = mantissa * 2, e - 1
    u, g = f(f(mantissa) - f(1)), f(e)
    s = f(u * u)
    tail = f(f(f(polynomial(LOG, u) * u) * s) + f(g * f(-2.1219444e-4)))
    return f(f(u + f(tail - f(0.5) * s)) + f(g * f(0.693359375)))


def tanh(x: np.float32) -> np.float32:
    if abs(x) < f(0.625):
        s = f(x * x)
        return f(f(f(polynomial(TANH, s) * s) * x) + x)
    if math.isnan(x):
        return NAN
    return f(math.copysign(f(1) - f(2) / f(exp(min(f(2) * abs(x), f(40))) + f(1)), x))


def erf(x: np.float32) -> np.float32:
    if abs(x) < 1:
        return f(f(polynomial(ERF, f(x * x)) * x) + x)
    if math.isnan(x):
        return NAN
    return f(math.copysign(f(1) - exp(-polynomial(ERFC, min(abs(x), f(4)))), x))


def sigmoid(x: np.float32) -> np.float32:
    e = exp(-abs(x))
    return (f(1) if x >= 0 else e) / (f(1) + e)


def gelu(x: np.float32) -> np.float32:
    return f(f(0.5) * x) * f(f(1) + erf(f(x * f(math.sqrt(0.5)))))


def gelu_tanh(x: np.float32) -> np.float32:
    cube = f(f(x * x) * x)
    return f(f(0.5) * x) * f(f(1) + tanh(f(0.7978846) * f(x + f(f(0.044715) * cube))))


def smaller(a: np.float32, b: np.float32) -> np.float32:
    return NAN if math.isnan(a) or math.isnan(b) else min(a, b)


def larger(a: np.float32, b: np.float32) -> np.float32:
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


FLOAT: dict[str, Callable[..., Any]] = {
    "cast": lambda x: x,
    "neg": lambda x: -x,
    "abs": abs,
    "square": lambda x: x * x,
    "sqrt": lambda x: NAN if x < 0 else f(math.sqrt(x)),
    "rsqrt": lambda x: NAN if x < 0 else f(1) / np.sqrt(x),
    "reciprocal": lambda x: f(1) / x,
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: larger(x, f(0)),
    "leaky_relu": lambda x, slope: x if x >= 0 else x * slope,
    "clip": lambda x, low, high: smaller(larger(x, low), high),
    "floor": lambda x: f(math.floor(float(x))) if math.isfinite(x) else x,
    "ceil": lambda x: f(math.ceil(float(x))) if math.isfinite(x) else x,
    "round": lambda x: f(round(float(x))) if math.isfinite(x) else x,
    "trunc": lambda x: f(math.trunc(float(x))) if math.isfinite(x) else x,
    "sign": lambda x: NAN if math.isnan(x) else f(int(x > 0) - int(x < 0)),
    "hard_sigmoid": lambda x, slope, offset: smaller(larger(f(slope * x) + offset, f(0)), f(1)),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "min": smaller,
    "max": larger,
    "eq": lambda a, b: f(a == b),
    "ne": lambda a, b: f(a != b),
    "lt": lambda a, b: f(a < b),
    "le": lambda a, b: f(a <= b),
    "gt": lambda a, b: f(a > b),
    "ge": lambda a, b: f(a >= b),
    "mul_add": lambda a, b, c: f(a * b) + c,
}

INTEGER: dict[str, Callable[..., int]] = {
    "icast": lambda a: a,
    "iadd": lambda a, b: a + b,
    "isub": lambda a, b: a - b,
    "imul": lambda a, b: a * b,
    "imin": min,
    "imax": max,
    "iand": lambda a, b: a & b,
    "ior": lambda a, b: a | b,
    "ixor": lambda a, b: a ^ b,
    "ieq": lambda a, b: int(a == b),
    "ilt": lambda a, b: int(a < b),
    "ile": lambda a, b: int(a <= b),
}


def wrap(n: int) -> int:
    return (n + (1 << 31)) % (1 << 32) - (1 << 31)


def hold(n: float, dtype: str) -> int:
    info = np.iinfo(dtype)
    return int(min(max(n, info.min), info.max))


def store_float(x: Any, dtype: str) -> Any:
    """Return one float32 number in a type."""
    if "float" in dtype:
        return f(x).astype(NUMPY[dtype])
    if math.isnan(x):
        return 0
    return hold(x if math.isinf(x) else round(float(x)), dtype)


def elementwise(op: str, dtype: str, sources: Sequence[Array], imm: Sequence[float]) -> Array:
    """Return an elementwise operation of arrays of one shape."""
    result = np.empty(sources[0].shape, NUMPY[dtype])
    for index in np.ndindex(result.shape):
        values = [source[index] for source in sources]
        if op in INTEGER:
            result[index] = hold(wrap(INTEGER[op](*map(int, values))), dtype)
        elif op in FLOAT:
            result[index] = store_float(f(FLOAT[op](*map(f, values), *map(f, imm))), dtype)
        else:
            result[index] = LEVELS[op](values, imm, dtype)
    return result


def quantize(values: Sequence[Any], imm: Sequence[float], dtype: str) -> Any:
    x, scale, zero = map(f, values)
    return store_float(np.rint(x / scale) + zero, dtype)


def dequantize(values: Sequence[Any], imm: Sequence[float], dtype: str) -> Any:
    a, scale, zero = values
    return store_float(f(wrap(int(a) - int(zero))) * f(scale), dtype)


def requantize(values: Sequence[Any], imm: Sequence[float], dtype: str) -> Any:
    level = np.rint(f(values[0]) * f(values[1])) + f(imm[0])
    return store_float(smaller(larger(level, f(imm[1])), f(imm[2])), dtype)


def requantize_fixed(values: Sequence[Any], imm: Sequence[float], dtype: str) -> Any:
    a, b, c = map(int, values)
    shift = min(max(c, 1), 62)
    return int(min(max((a * b + (1 << (shift - 1)) >> shift) + imm[0], imm[1]), imm[2]))


def select(values: Sequence[Any], imm: Sequence[float], dtype: str) -> Any:
    return values[0] if f(values[2]) != 0 else values[1]


LEVELS = {
    "copy": lambda values, imm, dtype: values[0],
    "select": select,
    "quantize": quantize,
    "dequantize": dequantize,
    "requantize": requantize,
    "requantize_fixed": requantize_fixed,
}


def tree(values: Sequence[np.float32]) -> np.float32:
    left = [f(v) for v in values]
    while len(left) > 1:
        h = 1
        while h * 2 < len(left):
            h *= 2
        left = [left[i] + left[i + h] if i + h < len(left) else left[i] for i in range(h)]
    return left[0]


def row(op: str, x: Array, sources: Sequence[Array], imm: Sequence[float]) -> Array:
    """Return a row operation of one row of float32."""
    n = len(x)
    if op == "softmax":
        y = [f(v * f(imm[0])) + m for v, m in zip(x, sources[0], strict=True)]
        e = [exp(v - max(y)) for v in y]
        return np.array([v / tree(e) for v in e], f)
    share = f(1) / f(n)
    if op == "layer_norm":
        x = np.array([v - f(tree(list(x)) * share) for v in x], f)
    factor = f(1) / np.sqrt(f(tree([v * v for v in x]) * share) + f(imm[0]))
    if op == "layer_norm":
        return np.array([f(f(v * factor) * g) + b for v, g, b in zip(x, *sources, strict=True)], f)
    return np.array([f(v * factor) * g for v, g in zip(x, *sources, strict=True)], f)


def reduce(op: str, x: Sequence[np.float32], scale: float) -> np.float32:
    """Return a reduction of float32 numbers in row-major order."""
    match op:
        case "sum" | "dot":
            found = tree(x)
        case "sum_square":
            found = tree([v * v for v in x])
        case "amax":
            found = max(x)
        case "amin":
            found = min(x)
        case _:
            found = max(abs(v) for v in x)
    return f(found * f(scale))
