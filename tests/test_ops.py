"""Every operator: the typing rule, with numbers and symbols, says what the reference returns."""

import inspect
from itertools import count
from typing import Any

import numpy as np
import pytest

from hcomp.dims import Dim, evaluate, symbol
from hcomp.dtypes import dtype_name
from hcomp.ir.ops import OPS, REQUIRED, Infer
from hcomp.ir.types import OptionalType, SequenceType, TensorType, Type
from hcomp.reference import REFERENCE
from hcomp.testing import random_value
from tests.op_case import SIZES, Case, Input
from tests.op_cases import CASES

NAMED = [
    pytest.param(op, case, id=f"{op}-{i}") for op, cases in CASES.items() if op in OPS for i, case in enumerate(cases)
]


def _fixed(value: Any, sizes: dict[str, int]) -> Any:
    """Return a shape, attribute or type with the sizes put in."""
    if isinstance(value, Dim):
        known = value.symbols <= sizes.keys()
        return evaluate(value, sizes) if known else value
    if isinstance(value, tuple):
        return tuple(_fixed(v, sizes) for v in value)
    if isinstance(value, TensorType) and value.shape is not None:
        return TensorType(value.dtype, _fixed(value.shape, sizes))
    if isinstance(value, OptionalType):
        return OptionalType(_fixed(value.element, sizes))
    return value


def _infer(op: str, case: Case, sizes: dict[str, int]) -> tuple[Type, ...]:
    """Return the output types; fresh symbols are called F0, F1, ..."""
    numbers = count()
    types = tuple(None if i is None else _fixed(i.type, sizes) for i in case.inputs)
    attrs = OPS[op].complete({k: _fixed(v, sizes) for k, v in case.attrs.items()})
    return OPS[op].infer(Infer(op, types, attrs, lambda hint: symbol(f"F{next(numbers)}")))


def _value(given: Input | None, seed: str, sizes: dict[str, int]) -> Any:
    if given is None:
        return None
    if given.value is not None or not isinstance(given.type, TensorType):
        return given.value
    return random_value(given.type, seed, sizes, low=given.low, high=given.high)


def _run(op: str, case: Case, sizes: dict[str, int]) -> tuple[Any, ...]:
    inputs = [_value(g, f"{op} {i}", sizes) for i, g in enumerate(case.inputs)]
    attrs = OPS[op].complete({k: _fixed(v, sizes) for k, v in case.attrs.items()})
    result = REFERENCE[op](*inputs, **attrs)
    return result if isinstance(result, tuple) else (result,)


def _assert_fits(value: Any, expected: Type, bound: dict[str, int]) -> None:
    """Check a value against its type; `bound` holds the sizes of fresh symbols met so far."""
    if isinstance(expected, SequenceType):
        assert isinstance(value, list)
        for element in value:
            _assert_fits(element, expected.element, bound)
    elif isinstance(expected, TensorType):
        assert isinstance(value, np.ndarray)
        assert dtype_name(value.dtype) == expected.dtype
        if expected.shape is None:
            return
        assert len(value.shape) == len(expected.shape)
        for size, dim in zip(value.shape, expected.shape, strict=True):
            fixed = _fixed(dim, bound)
            assert size == (fixed if isinstance(fixed, int) else bound.setdefault(str(dim), size))


@pytest.mark.parametrize(("op", "case"), NAMED)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(str(n) for n in s.values()))
def test_typing_rule_says_what_the_reference_returns(op: str, case: Case, sizes: dict[str, int]) -> None:
    types, values = _infer(op, case, sizes), _run(op, case, sizes)
    assert len(values) == len(types)
    bound: dict[str, int] = {}
    for value, expected in zip(values, types, strict=True):
        _assert_fits(value, expected, bound)


@pytest.mark.parametrize(("op", "case"), NAMED)
def test_symbolic_typing_agrees_with_static_typing(op: str, case: Case) -> None:
    symbolic = _infer(op, case, {})
    for sizes in SIZES:
        assert tuple(_fixed(t, sizes) for t in symbolic) == _infer(op, case, sizes)


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operator_has_cases_and_a_reference_with_the_same_attributes(op: str) -> None:
    assert len(CASES.get(op, [])) >= 2, f"{op} has no cases in op_cases.py"
    parameters = inspect.signature(REFERENCE[op]).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert named.keys() == OPS[op].attrs.keys()
    for name, default in OPS[op].attrs.items():
        if default is not REQUIRED and named[name] is not inspect.Parameter.empty:
            assert named[name] == default, f"{op}: default of {name}"


def test_a_reference_never_changes_its_inputs() -> None:
    for op, cases in CASES.items():
        for case in cases:
            if op not in OPS:
                continue
            inputs = [_value(g, f"{op} {i}", SIZES[0]) for i, g in enumerate(case.inputs)]
            for array in inputs:
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)
            attrs = OPS[op].complete({k: _fixed(v, SIZES[0]) for k, v in case.attrs.items()})
            REFERENCE[op](*inputs, **attrs)
