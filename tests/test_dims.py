"""Dimension expressions: what they compute is what arithmetic on the sizes computes."""

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcomp.dims import (
    DimLike,
    bcast,
    ceildiv,
    dim_max,
    dim_min,
    evaluate,
    floordiv,
    is_symbol,
    lower_bound,
    parse_dim,
    sign,
    substitute,
    symbol,
    symbols_of,
)
from hcomp.errors import ParseError

Sizes: TypeAlias = dict[str, int]
Strategy: TypeAlias = st.SearchStrategy[DimLike]

NAMES = ("N", "M", "seq_len", "h")
N, M = symbol("N"), symbol("M")

leaves: Strategy = st.one_of(st.integers(-6, 12), st.sampled_from(NAMES).map(symbol))
positive: Strategy = st.one_of(st.integers(1, 9), st.sampled_from(NAMES).map(lambda n: symbol(n) + 1))
divisors: Strategy = st.one_of(positive, st.integers(-9, -1))


def _grow(children: Strategy) -> Strategy:
    return st.one_of(
        st.tuples(st.sampled_from("+-*"), children, children).map(_arithmetic),
        st.tuples(children, divisors).map(lambda p: floordiv(*p)),
        st.tuples(children, positive).map(lambda p: p[0] % p[1]),
        st.tuples(children, children).map(lambda p: dim_max(*p)),
        st.tuples(children, children).map(lambda p: dim_min(*p)),
    )


def _arithmetic(parts: tuple[str, DimLike, DimLike]) -> DimLike:
    operator, a, b = parts
    return a + b if operator == "+" else a - b if operator == "-" else a * b


dims: Strategy = st.recursive(leaves, _grow, max_leaves=6)
sizes = st.fixed_dictionaries({name: st.integers(0, 20) for name in NAMES})


@given(dims, dims, sizes)
def test_arithmetic_is_that_of_the_sizes(a: DimLike, b: DimLike, env: Sizes) -> None:
    x, y = evaluate(a, env), evaluate(b, env)
    assert evaluate(a + b, env) == x + y
    assert evaluate(a - b, env) == x - y
    assert evaluate(a * b, env) == x * y
    assert evaluate(-a, env) == -x
    assert evaluate(dim_max(a, b), env) == max(x, y)
    assert evaluate(dim_min(a, b), env) == min(x, y)


@given(dims, divisors, sizes)
def test_division_rounds_down(a: DimLike, b: DimLike, env: Sizes) -> None:
    x, y = evaluate(a, env), evaluate(b, env)
    assert evaluate(a // b, env) == x // y
    assert evaluate(a % b, env) == x % y
    assert y < 0 or evaluate(ceildiv(a, b), env) == -(-x // y)


@given(st.lists(st.one_of(st.integers(1, 1), st.sampled_from(NAMES).map(symbol)), min_size=2), sizes)
def test_bcast_is_the_size_that_is_not_one(parts: list[DimLike], env: Sizes) -> None:
    # Broadcasting needs one size beside 1: give every symbol that size, or 1.
    env = {name: env["N"] if value % 2 else 1 for name, value in env.items()}
    total: DimLike = 1
    for part in parts:
        total = bcast(total, part)
    values = [evaluate(p, env) for p in parts]
    assert evaluate(total, env) == next((v for v in values if v != 1), 1)


def test_bcast_of_a_cut_table_is_the_length() -> None:
    # table[:length] of 512 rows, added to `length` rows: the usual position embedding.
    n = symbol("N")
    assert bcast(n, dim_min(512, n)) == n
    assert bcast(dim_min(512, n), n) == n
    assert bcast(n, dim_min(symbol("K"), n)) != n  # K may be 0


def test_bounds_see_through_a_quotient_below_zero() -> None:
    assert lower_bound(4 * floordiv(symbol("N") - 1, 32) + 4) == 0


@given(dims)
def test_text_reads_back(dim: DimLike) -> None:
    assert parse_dim(str(dim)) == dim


@given(dims, dims, dims)
def test_sums_and_products_are_canonical(a: DimLike, b: DimLike, c: DimLike) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0


@given(dims, sizes)
def test_bounds_are_sound(dim: DimLike, env: Sizes) -> None:
    value = evaluate(dim, env)
    low, found = lower_bound(dim), sign(dim)
    assert low is None or value >= low
    assert found is None or found == (value > 0) - (value < 0)


@given(dims, positive, sizes)
def test_substitution_is_evaluation_in_steps(dim: DimLike, replacement: DimLike, env: Sizes) -> None:
    new = substitute(dim, {"N": replacement})
    assert evaluate(new, env) == evaluate(dim, {**env, "N": evaluate(replacement, env)})


@given(dims)
def test_symbols_are_those_of_the_text(dim: DimLike) -> None:
    assert symbols_of(dim) == {name for name in NAMES if name in str(dim)}


def test_equal_expressions_are_one_object() -> None:
    assert 2 * N + N == 3 * N
    assert (4 * N) // 4 == N
    assert (N * M) // M == N
    assert N - N == 0
    assert ((N + 1) // 2 + 1) // 2 == (N + 3) // 4
    assert dim_max(N, 0) == N
    assert dim_max(N, N + 1) == N + 1
    assert dim_min(dim_min(N, M), N) == dim_min(M, N)


def test_minus_in_front_of_a_division_keeps_its_meaning() -> None:
    # -(N//2) and (-N)//2 differ for odd N.
    dim = -(N // 2)
    assert evaluate(parse_dim(str(dim)), {"N": 3}) == -1


@pytest.mark.parametrize("name", ["in", "class", "None", "True", "inf", "max", "\ufb01", "größe"])
def test_any_identifier_can_be_a_symbol(name: str) -> None:
    assert parse_dim(str(2 * symbol(name) + 1)) == 2 * symbol(name) + 1
    assert is_symbol(symbol(name))


@pytest.mark.parametrize("text", ["", "N +", "N M", "2.5", "f(N)", "max()", "N[0]", "0x10", "(" * 5000, "1//0", "N;M"])
def test_what_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="not a dimension"):
        parse_dim(text)


def test_a_dimension_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="compare it with `sign`"):
        bool(N)
