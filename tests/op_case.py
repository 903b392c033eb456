"""How test cases of operators are written: inputs and attributes over open sizes N and M."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hcomp.dims import DimLike, symbol
from hcomp.ir.types import SequenceType, TensorType, Type

N, M = symbol("N"), symbol("M")
SIZES = ({"N": 4, "M": 3}, {"N": 2, "M": 5}, {"N": 1, "M": 1})


@dataclass(frozen=True)
class Input:
    """One input: its type, and the range or the very contents of its values."""

    type: Type
    low: float | None = None
    high: float | None = None
    value: Any = None


@dataclass(frozen=True)
class Case:
    """One configuration of an operator."""

    inputs: tuple[Input | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


def t(dtype: str, *shape: DimLike, low: float | None = None, high: float | None = None) -> Input:
    """Return a tensor input of random values."""
    return Input(TensorType(dtype, shape), low, high)


def v(values: Any, dtype: str = "int64") -> Input:
    """Return an input that has these values."""
    array = np.array(values, object if dtype == "string" else dtype)
    return Input(TensorType(dtype, array.shape), value=array)


def case(*inputs: Input | None, **attrs: Any) -> Case:
    """Return a case."""
    return Case(inputs, attrs)


def sequence(*arrays: Sequence[Any]) -> Input:
    """Return a sequence of float32 tensors."""
    values = [np.array(a, np.float32) for a in arrays]
    return Input(SequenceType(TensorType("float32", None)), value=values)


F32 = t("float32", N, 3, M)
F16 = t("float16", M, N)
BF16 = t("bfloat16", N)
F64 = t("float64", N, M)
I8, I32, I64 = t("int8", N, M), t("int32", M), t("int64", 2, N)
U8, I4, U4 = t("uint8", N), t("int4", N, 2), t("uint4", 2, M)
BOOL = t("bool", N, M)
