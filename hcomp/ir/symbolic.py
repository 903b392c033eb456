"""Evaluating shape arithmetic on dimension expressions, for values that are sizes.

A known value is a numpy object array whose items are ints and Dims. A comparison whose answer is
the same for all sizes is a number: `Equal(N, -1)` is 0. Else it is a dimension that is 0 or 1:
`Equal(N, 1)` is `1 - min(1, max(0, N - 1, 1 - N))`. Where a number is needed the result is unknown then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim, dim_max, dim_min, floordiv, lower_bound, sign
from hcomp.ir.types import TensorType, Type

MAX_KNOWN = 256
"""Values with more elements are data, not sizes."""

Known: TypeAlias = NDArray[Any]


FLOATS = ("float32", "float64")
WHOLE = frozenset(
    [
        "cast",
        "add",
        "subtract",
        "multiply",
        "negative",
        "maximum",
        "minimum",
        "floor",
        "ceil",
        "round",
        "trunc",
        "floor_divide",
        "reshape",
        "expand_dims",
        "squeeze",
        "broadcast_to",
        "permute_dims",
        "concat",
        "strided_slice",
        "take",
        "where",
    ]
)
"""Operators that give whole floats from whole floats."""

LARGEST_EXACT = 2**24
"""float32 holds every whole number below it."""


class Undecided(Exception):
    """The answer depends on sizes that are not known yet."""


def is_whole(array: NDArray[Any]) -> bool:
    """Say whether an array holds integers, or floats that are whole and exact."""
    if array.dtype.kind in "iub":
        return True
    if array.dtype.name not in FLOATS or not np.isfinite(array).all():
        return False
    return bool((np.abs(array) < LARGEST_EXACT).all() and (array == np.trunc(array)).all())


def evaluate_known(op: str, inputs: Sequence[Known | None], attrs: Mapping[str, Any], out: Type) -> Known | None:
    """Return the known value of `op` on known inputs, or None where there is none."""
    if not isinstance(out, TensorType) or not _tracked(op, out.dtype):
        return None
    if op == "dims":
        values = _objects(attrs["values"])
        return values.reshape(()) if attrs["scalar"] else values
    if op == "full":
        return _full(attrs)
    if op == "arange":
        size = attrs["size"]
        if not isinstance(size, int) or size > MAX_KNOWN:
            return None
        return _objects([attrs["start"] + attrs["step"] * i for i in range(size)])
    rule = RULES.get(op)
    if rule is None or any(i is None for i in inputs):
        return None
    size = out.elements()
    if isinstance(size, int) and size > MAX_KNOWN:
        return None
    try:
        result = rule(attrs, *inputs)
    except (Undecided, ZeroDivisionError, IndexError, ValueError):
        return None
    return None if result is None or result.size > MAX_KNOWN else result


def _tracked(op: str, dtype: str) -> bool:
    """Say whether a result of this dtype can be known.

    Exporters send sizes through floats (`arange(0, float(n))`): those that stay whole are kept.
    """
    return dtype in ("int64", "int32", "bool") or (dtype in FLOATS and op in WHOLE)


def _objects(values: Sequence[Any]) -> Known:
    result = np.empty(len(values), dtype=object)
    result[:] = list(values)
    return result


def _full(attrs: Mapping[str, Any]) -> Known | None:
    shape = attrs["shape"]
    if any(isinstance(d, Dim) for d in shape) or int(np.prod(shape)) > MAX_KNOWN:
        return None
    return np.full(shape, int(attrs["value"]), dtype=object)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Known]:
    def rule(attrs: Mapping[str, Any], *inputs: Known) -> Known:
        arrays = np.broadcast_arrays(*inputs)
        flat = zip(*(a.ravel() for a in arrays), strict=True)
        return _objects([function(*items) for items in flat]).reshape(arrays[0].shape)

    return rule


def _sign_of(difference: Any) -> int:
    found = sign(difference)
    if found is None:
        raise Undecided
    return found


def _differs(a: Any, b: Any) -> Any:
    """Return 1 where the two differ, else 0."""
    found = sign(a - b)
    return dim_min(1, dim_max(0, a - b, b - a)) if found is None else int(found != 0)


def _less_equal(a: Any, b: Any) -> Any:
    """Return 1 where `a` is at most `b`, else 0."""
    low = lower_bound(b - a)
    if low is not None and low >= 0:
        return 1
    found = sign(b - a)
    return dim_max(0, dim_min(1, b - a + 1)) if found is None else int(found >= 0)


def _divide(a: Any, b: Any) -> Any:
    """Truncating division; it equals flooring where neither side is negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    low = lower_bound(a)
    if low is None or low < 0 or _sign_of(b) <= 0:
        raise Undecided
    return floordiv(a, b)


def _where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, Dim):
        raise Undecided
    return a if condition else b


def _cast(attrs: Mapping[str, Any], x: Known) -> Known | None:
    if attrs["dtype"] in ("int64", "int32", *FLOATS):
        return x
    if attrs["dtype"] == "bool":
        return _elementwise(lambda v: _differs(v, 0))(attrs, x)
    return None


def _slice(attrs: Mapping[str, Any], x: Known) -> Known:
    index: list[Any] = [slice(None)] * x.ndim
    for axis, begin, size, stride in zip(attrs["axes"], attrs["begin"], attrs["size"], attrs["strides"], strict=True):
        if not isinstance(begin, int) or not isinstance(size, int):
            raise Undecided
        index[axis] = np.arange(size) * stride + begin
        x = x[tuple(index)]
        index[axis] = slice(None)
    return x


def _take(attrs: Mapping[str, Any], x: Known, indices: Known) -> Known:
    if any(isinstance(i, Dim) for i in indices.ravel()):
        raise Undecided
    picked: Known = np.asarray(np.take(x, indices.astype(np.int64), axis=attrs["axis"]), dtype=object)
    return picked


def _shape_of(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    shape: tuple[int, ...] = attrs["shape"]
    if any(isinstance(d, Dim) for d in shape):
        raise Undecided
    return shape


def _reduce(function: Callable[[Any, Any], Any], start: Any) -> Callable[..., Known]:
    def rule(attrs: Mapping[str, Any], x: Known) -> Known:
        if x.ndim != 1:
            raise Undecided
        total = start if start is not None else x[0]
        for item in x if start is not None else x[1:]:
            total = function(total, item)
        result = np.empty((1,) if attrs["keepdims"] else (), dtype=object)
        result[...] = total
        return result

    return rule


RULES: dict[str, Callable[..., Known | None]] = {
    "add": _elementwise(lambda a, b: a + b),
    "subtract": _elementwise(lambda a, b: a - b),
    "multiply": _elementwise(lambda a, b: a * b),
    "divide": _elementwise(_divide),
    "floor_divide": _elementwise(lambda a, b: floordiv(a, b)),
    "floor_mod": _elementwise(lambda a, b: a % b),
    "truncated_mod": _elementwise(lambda a, b: a - b * _divide(a, b)),
    "maximum": _elementwise(dim_max),
    "minimum": _elementwise(dim_min),
    "negative": _elementwise(lambda a: -a),
    "floor": lambda attrs, x: x,
    "ceil": lambda attrs, x: x,
    "round": lambda attrs, x: x,
    "trunc": lambda attrs, x: x,
    "abs": _elementwise(lambda a: dim_max(a, -a)),
    "equal": _elementwise(lambda a, b: 1 - _differs(a, b)),
    "not_equal": _elementwise(_differs),
    "less": _elementwise(lambda a, b: 1 - _less_equal(b, a)),
    "less_equal": _elementwise(_less_equal),
    "greater": _elementwise(lambda a, b: 1 - _less_equal(a, b)),
    "greater_equal": _elementwise(lambda a, b: _less_equal(b, a)),
    "logical_not": _elementwise(lambda a: 1 - a),
    "logical_and": _elementwise(dim_min),
    "logical_or": _elementwise(dim_max),
    "where": _elementwise(_where),
    "cast": _cast,
    "reshape": lambda attrs, x: x.reshape(_shape_of(attrs)),
    "expand_dims": lambda attrs, x: np.expand_dims(x, attrs["axis"]),
    "squeeze": lambda attrs, x: np.squeeze(x, attrs["axis"]),
    "broadcast_to": lambda attrs, x: np.array(np.broadcast_to(x, _shape_of(attrs)), dtype=object),
    "permute_dims": lambda attrs, x: x.transpose(attrs["axes"]),
    "concat": lambda attrs, *xs: np.concatenate(xs, axis=attrs["axis"]),
    "tile": lambda attrs, x: np.tile(x, attrs["repeats"]),
    "flip": lambda attrs, x: np.flip(x, attrs["axis"]),
    "strided_slice": _slice,
    "take": _take,
    "sum": _reduce(lambda a, b: a + b, 0),
    "prod": _reduce(lambda a, b: a * b, 1),
    "max": _reduce(dim_max, None),
    "min": _reduce(dim_min, None),
}
"""What shape arithmetic consists of; other operators give unknown values."""
