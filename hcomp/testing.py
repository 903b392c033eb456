"""What tests share: seeded inputs, one rule for tolerances, and a comparison that says where.

Differences are measured against the dtype and the number of terms that go into one result; no
test has a tolerance of its own.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import evaluate
from hcomp.dtypes import dtype_name, is_float, is_integer, numpy_dtype
from hcomp.ir.flat import program_constants, to_program
from hcomp.ir.graph import Graph
from hcomp.ir.types import OptionalType, SequenceType, TensorType, Type
from hcomp.reference.interpreter import Extern, Interpreter
from hcomp.reference.numeric import integer_range

EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "float4_e2m1fn": 2.0**-1,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
}
"""The distance from 1 to the next number."""

ROUNDINGS = 16
"""How many roundings of one kind a result without a sum may take (exp, tanh, a division...)."""


def generator(seed: str) -> np.random.Generator:
    """Return a random generator for this text (a test's name); always the same one."""
    return np.random.default_rng(zlib.crc32(seed.encode()))


def random_array(
    dtype: str,
    shape: Sequence[int],
    seed: str,
    *,
    low: float | None = None,
    high: float | None = None,
) -> NDArray[Any]:
    """Return an array of random numbers.

    Floats are normally distributed, or evenly between `low` and `high`; integers are even over
    [-100, 100], or [low, high], or what the type holds of that.
    """
    random = generator(f"{seed} {dtype} {list(shape)}")
    if dtype == "bool":
        return random.random(tuple(shape)) < 0.5
    if dtype == "string":
        words = [f"w{n}" for n in random.integers(0, 10, math.prod(shape))]
        return np.array(words, object).reshape(tuple(shape))
    if is_integer(dtype):
        least, most = integer_range(dtype)
        begin = max(least, -100 if low is None else math.ceil(low))
        end = min(most, 100 if high is None else math.floor(high))
        whole = random.integers(begin, end, tuple(shape), endpoint=True)
        return np.asarray(whole).astype(numpy_dtype(dtype))
    if low is None and high is None:
        numbers: NDArray[Any] = random.standard_normal(tuple(shape))
    else:
        numbers = random.uniform(low or 0.0, 1.0 if high is None else high, tuple(shape))
    return np.asarray(numbers).astype(numpy_dtype(dtype))


def random_value(
    value_type: Type,
    seed: str,
    sizes: Mapping[str, int] | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a random value of a type; symbols take their size from `sizes`.

    An unknown rank is taken as 2, a sequence gets three elements, an optional holds a value.
    """
    match value_type:
        case TensorType(dtype=dtype, shape=shape):
            dims = (2, 3) if shape is None else tuple(evaluate(d, sizes or {}) for d in shape)
            return random_array(dtype, dims, seed, low=low, high=high)
        case SequenceType(element=element):
            return [random_value(element, f"{seed} {i}", sizes) for i in range(3)]
        case OptionalType(element=element):
            return random_value(element, seed, sizes)
    raise TypeError(f"no random value of type {value_type}")


def random_inputs(graph: Graph, seed: str, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return a random value for every input of a graph, by name."""
    return {v.name: random_value(v.type, f"{seed} {v.name}", sizes) for v in graph.inputs}


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any],
    symbols: Mapping[str, int] | None = None,
    extern: Extern | None = None,
) -> dict[str, Any]:
    """Return the outputs of a graph by name, as the numpy reference computes them."""
    interpreter = Interpreter(to_program(graph), extern)
    values = [inputs[v.name] for v in graph.inputs]
    found = interpreter.run_named(values, program_constants(graph), symbols)
    return dict(zip(graph.outputs, found, strict=True))


def tolerance(dtype: str, terms: int = 1) -> float:
    """Return the relative difference that two right results of `dtype` may have.

    `terms` is the number of products or summands that go into one element: rounding errors of a
    sum grow with its square root. Narrow floats are summed in float32 and rounded once, so there
    the terms count in float32. Integers and bool must be equal.
    """
    if not (is_float(dtype) or dtype.startswith("complex")):
        return 0.0
    epsilon = EPSILON[dtype]
    wide = min(epsilon, EPSILON["float32"])
    return epsilon * (1.0 if epsilon > wide else 0.0) + wide * ROUNDINGS * math.sqrt(max(terms, 1))


def assert_close(actual: Any, expected: Any, *, terms: int = 1, scale: float | None = None, context: str = "") -> None:
    """Raise AssertionError unless two values agree in dtype, shape and contents.

    The difference of two elements may be `tolerance` times the larger of |expected| and `scale`;
    `scale` is the size of what was added up (default: the mean of |expected|, so that elements
    where terms cancel are measured against their surroundings). NaN equals NaN, infinities must be
    the same. The message names the largest difference, where it is, and both values.
    """
    if isinstance(expected, list | tuple):
        assert isinstance(actual, list | tuple), f"{context}: expected a list, found {type(actual)}"
        assert len(actual) == len(expected), f"{context}: {len(actual)} of {len(expected)} values"
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, e, terms=terms, scale=scale, context=f"{context}[{i}]")
        return
    if expected is None:
        assert actual is None, f"{context}: expected nothing, found {actual!r}"
        return
    _assert_same_kind(actual, expected, context)
    dtype = dtype_name(expected.dtype)
    if not expected.size:
        return
    if dtype == "string":
        assert actual.tolist() == expected.tolist(), f"{context}: the texts differ"
        return
    a, e = _comparable(actual), _comparable(expected)
    with np.errstate(all="ignore"):
        finite = np.isfinite(e)
        least = np.abs(e[finite]).mean() if scale is None and finite.any() else scale or 0.0
        allowed = tolerance(dtype, terms) * np.maximum(np.abs(e), least)
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        distance = np.where(same, 0.0, np.abs(a - e))
        wrong = ~same & ~((distance <= allowed) & finite)
    if wrong.any():
        raise AssertionError(_report(a, e, distance, allowed, wrong, context))


def _assert_same_kind(actual: Any, expected: Any, context: str) -> None:
    assert isinstance(actual, np.ndarray), f"{context}: expected an array, found {type(actual)}"
    kinds = dtype_name(actual.dtype), dtype_name(expected.dtype)
    assert kinds[0] == kinds[1], f"{context}: dtype {kinds[0]}, expected {kinds[1]}"
    shapes = list(actual.shape), list(expected.shape)
    assert shapes[0] == shapes[1], f"{context}: shape {shapes[0]}, expected {shapes[1]}"


def _comparable(x: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as float64 or complex128; 64-bit integers as exact longdouble."""
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        return x.astype(np.longdouble)
    return x.astype(np.float64)


def _report(
    actual: NDArray[Any],
    expected: NDArray[Any],
    distance: NDArray[Any],
    allowed: NDArray[Any],
    wrong: NDArray[Any],
    context: str,
) -> str:
    excess = np.where(wrong, np.where(np.isnan(distance), np.inf, distance - allowed), -np.inf)
    at = np.unravel_index(int(np.argmax(excess)), expected.shape)
    return (
        f"{context}: {int(wrong.sum())} of {expected.size} elements differ; the largest difference"
        f" is {distance[at]:.3g} (allowed {allowed[at]:.3g}) at {[int(i) for i in at]}:"
        f" {actual[at]!r}, expected {expected[at]!r}"
    )
