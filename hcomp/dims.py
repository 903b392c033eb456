"""Dimensions: integers known only at run time, as exact expressions of named symbols.

A dimension is a Python int, or a `Dim`: a polynomial with integer coefficients over atoms. An
atom is a symbol (a size that some input has, so never negative) or a call of `floordiv`, `max`,
`min` or `bcast` on dimensions. The polynomial is kept in one canonical order, so equal
expressions are mostly equal objects: `2*N + N == 3*N`, `(4*N)//4 == N`. Arithmetic that comes
out constant returns an int again.

`bcast(a, b)` is the size that numpy's broadcasting gives: `b` where `a` is 1, else `a`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

from hcomp.errors import ParseError


@dataclass(frozen=True, slots=True)
class Call:
    """An atom that is no symbol: `floordiv(a, b)`, `max(...)`, `min(...)` or `bcast(...)`."""

    function: str
    arguments: tuple[DimLike, ...]

    def __str__(self) -> str:
        if self.function == "floordiv":
            return "//".join(_factor_text(a) for a in self.arguments)
        return f"{self.function}({', '.join(str(a) for a in self.arguments)})"


@dataclass(frozen=True, eq=False)
class Dim:
    """A dimension that is not a constant; build it with `symbol`, `parse_dim` and arithmetic."""

    terms: tuple[tuple[Monomial, int], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of the symbols that this dimension depends on."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    found.update(*(symbols_of(a) for a in atom.arguments))
        return frozenset(found)

    def __add__(self, other: DimLike) -> DimLike:
        terms = dict(self.terms)
        for monomial, factor in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + factor
        return _polynomial(terms)

    __radd__ = __add__

    def __mul__(self, other: DimLike) -> DimLike:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                monomial = _times(left, right)
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _polynomial(terms)

    __rmul__ = __mul__

    def __neg__(self) -> DimLike:
        return self * -1

    def __sub__(self, other: DimLike) -> DimLike:
        return self + (-other)

    def __rsub__(self, other: DimLike) -> DimLike:
        return -self + other

    def __floordiv__(self, other: DimLike) -> DimLike:
        return floordiv(self, other)

    def __rfloordiv__(self, other: DimLike) -> DimLike:
        return floordiv(other, self)

    def __mod__(self, other: DimLike) -> DimLike:
        return self - other * floordiv(self, other)

    def __rmod__(self, other: DimLike) -> DimLike:
        return other - self * floordiv(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the dimension {self} has no truth value: compare it with `sign`")

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        # Symbols first, the constant last: "2*N + 1" reads better than "1 + 2*N".
        ordered = sorted(self.terms, key=lambda t: (t[0] == ONE, -sum(p for _, p in t[0])))
        text = ""
        for monomial, factor in ordered:
            # A minus in front binds tighter than //, so -(N//2) keeps its parentheses.
            piece = _monomial_text(monomial, abs(factor), bare=factor > 0 or bool(text))
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {piece}" if text else ("-" if factor < 0 else "") + piece
        return text

    __repr__ = __str__


DimLike: TypeAlias = int | Dim
Atom: TypeAlias = str | Call
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]

ONE: Monomial = ()


def symbol(name: str) -> Dim:
    """Return the dimension that is the symbol `name` alone (an identifier)."""
    if not name.isidentifier():
        raise ParseError(f"a dimension's name must be an identifier, found {name!r}")
    return Dim(((((name, 1),), 1),))


def is_symbol(dim: DimLike) -> bool:
    """Say whether `dim` is one symbol and nothing else, so that a size binds it."""
    if not isinstance(dim, Dim) or len(dim.terms) != 1:
        return False
    monomial, factor = dim.terms[0]
    return factor == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], str)


def symbols_of(value: object) -> frozenset[str]:
    """Return the symbols in a dimension, or in nested tuples of them (shapes, attributes)."""
    if isinstance(value, Dim):
        return value.symbols
    if isinstance(value, tuple | list):
        return frozenset().union(*(symbols_of(v) for v in value))
    return frozenset()


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """Return a // b rounded down; `b` is positive wherever it is not a constant."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1
    whole, rest = _divide_terms(a, b)
    if rest == 0:
        return whole
    if isinstance(rest, int) and isinstance(b, int):
        return whole + rest // b
    constant = dict(_terms(rest)).get(ONE, 0)
    nested = _single_call(rest - constant, "floordiv")
    if nested is not None and _is_positive(b) and _is_positive(nested.arguments[1]):
        # (x//a + c)//b == (x + c*a)//(a*b): chains of strides stay one division.
        inner, a_divisor = nested.arguments
        return whole + floordiv(inner + constant * a_divisor, a_divisor * b)
    return whole + _call("floordiv", rest, b)


def ceildiv(a: DimLike, b: DimLike) -> DimLike:
    """Return a / b rounded up, for positive `b`."""
    return floordiv(a + b - 1, b)


def dim_max(*dims: DimLike) -> DimLike:
    """Return the largest of `dims`."""
    return _extreme("max", dims, 1)


def dim_min(*dims: DimLike) -> DimLike:
    """Return the smallest of `dims`."""
    return _extreme("min", dims, -1)


def bcast(a: DimLike, b: DimLike) -> DimLike:
    """Return the size that broadcasting `a` with `b` gives.

    Two constants other than 1 must be equal: the caller checks that.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    parts: list[DimLike] = []
    for dim in (a, b):
        call = _single_call(dim, "bcast")
        parts += call.arguments if call else (dim,)
    unique = sorted(set(parts), key=str)
    kept = [p for p in unique if not any(_cut_from(p, other) for other in unique)]
    return kept[0] if len(kept) == 1 else _call("bcast", *kept)


def _cut_from(dim: DimLike, whole: DimLike) -> bool:
    """Say whether `dim` is `min(whole, n)` with n at least 1: what slices like table[:length] have.

    Where the two broadcast, they are equal or one of them is 1; the result is `whole` in each case.
    """
    call = _single_call(dim, "min")
    if call is None or whole not in call.arguments:
        return False
    lows = [lower_bound(a) for a in call.arguments if a != whole]
    return all(low is not None and low >= 1 for low in lows)


def sign(dim: DimLike) -> int | None:
    """Return -1, 0 or 1 where the sign of `dim` is the same for all sizes, else None."""
    if isinstance(dim, int):
        return (dim > 0) - (dim < 0)
    low, high = lower_bound(dim), lower_bound(-dim)
    if low is not None and low > 0:
        return 1
    return -1 if high is not None and high > 0 else None


def lower_bound(dim: DimLike) -> int | None:
    """Return a number that `dim` is never below, or None where none is known."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        if monomial == ONE:
            total += factor
            continue
        lows = [_atom_lower_bound(atom) for atom, _ in monomial]
        if factor > 0 and len(monomial) == 1 and monomial[0][1] == 1 and lows[0] is not None:
            total += factor * lows[0]
            continue
        if factor < 0 or any(low is None or low < 0 for low in lows):
            return None
        powers = (p for _, p in monomial)
        known = zip(lows, powers, strict=True)
        total += factor * prod(low**p for low, p in known if low is not None)
    return total


def evaluate(value: DimLike, sizes: Mapping[str, int]) -> int:
    """Return the number that `value` is for the given sizes of its symbols.

    Raises:
        KeyError: a symbol has no size.
    """
    if isinstance(value, int):
        return value
    total = 0
    for monomial, factor in value.terms:
        for atom, power in monomial:
            factor *= _atom_value(atom, sizes) ** power
        total += factor
    return total


def substitute(value: DimLike, replacement: Mapping[str, DimLike]) -> DimLike:
    """Return `value` with symbols replaced; symbols not named stay."""
    if isinstance(value, int) or not value.symbols & replacement.keys():
        return value
    total: DimLike = 0
    for monomial, factor in value.terms:
        piece: DimLike = factor
        for atom, power in monomial:
            new = replacement.get(atom, symbol(atom)) if isinstance(atom, str) else _substitute_call(atom, replacement)
            for _ in range(power):
                piece = piece * new
        total = total + piece
    return total


def parse_dim(text: str) -> DimLike:
    """Return the dimension that `text` spells, such as "N", "2*N + 1", "(N + 1)//2", "max(N, 3)".

    The operators and their precedence are Python's; every identifier is a symbol, keywords too.

    Raises:
        ParseError: the text is no such expression.
    """
    try:
        reader = _Reader(text)
        found = reader.sum()
        reader.expect("")
    except (ValueError, RecursionError, ZeroDivisionError) as error:
        raise ParseError(f"not a dimension: {text[:200]!r} ({error})") from None
    return found


_CALLS: dict[str, Callable[..., DimLike]] = {"max": dim_max, "min": dim_min, "bcast": bcast}
_TOKEN = re.compile(r"\s*(\w+|//|\*\*|[-+*%(),]|$)")


class _Reader:
    """Reads an expression from the front; `token` is the next token, "" at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self.token = self._scan()

    def take(self) -> str:
        """Return the token that stands here and go on to the next."""
        token, self.token = self.token, self._scan()
        return token

    def expect(self, token: str) -> None:
        """Pass over `token`, which must stand here."""
        if self.take() != token:
            raise ValueError(f"{token or 'the end'} expected")

    def sum(self) -> DimLike:
        total = self.product()
        while self.token in ("+", "-"):
            total = total + self.product() if self.take() == "+" else total - self.product()
        return total

    def product(self) -> DimLike:
        total = self.factor()
        while self.token in ("*", "//", "%"):
            match self.take():
                case "*":
                    total = total * self.factor()
                case "//":
                    total = floordiv(total, self.factor())
                case _:
                    total = total % self.factor()
        return total

    def factor(self) -> DimLike:
        if self.token == "-":
            self.take()
            return -self.factor()
        base = total = self.atom()
        if self.token == "**":
            self.take()
            power = int(self.take())
            if not 0 < power < 16:
                raise ValueError(f"the power {power} is out of range")
            for _ in range(power - 1):
                total = total * base
        return total

    def atom(self) -> DimLike:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        if token.isidentifier():
            return self.call(token) if self.token == "(" else symbol(token)
        return int(token)

    def call(self, name: str) -> DimLike:
        if name not in _CALLS:
            raise ValueError(f"no function {name}")
        self.expect("(")
        result = self.sum()
        while self.token == ",":
            self.take()
            result = _CALLS[name](result, self.sum())
        self.expect(")")
        return result

    def _scan(self) -> str:
        found = _TOKEN.match(self._text, self._next)
        if found is None:
            raise ValueError(f"unexpected {self._text[self._next :].strip()[:20]!r}")
        self._next = found.end()
        return found[1]


def _terms(value: DimLike) -> tuple[tuple[Monomial, int], ...]:
    return value.terms if isinstance(value, Dim) else ((ONE, value),)


def _polynomial(terms: dict[Monomial, int]) -> DimLike:
    kept = tuple(sorted(((m, c) for m, c in terms.items() if c), key=lambda t: _order(t[0])))
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ONE:
        return kept[0][1]
    return Dim(kept)


def _order(monomial: Monomial) -> tuple[tuple[str, int], ...]:
    return tuple((str(atom), power) for atom, power in monomial)


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


def _call(function: str, *arguments: DimLike) -> Dim:
    return Dim(((((Call(function, arguments), 1),), 1),))


def _single_call(dim: DimLike, function: str) -> Call | None:
    """Return the call that `dim` consists of, if it is one call of `function` and no more."""
    if isinstance(dim, Dim) and len(dim.terms) == 1:
        monomial, factor = dim.terms[0]
        if factor == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            atom = monomial[0][0]
            if isinstance(atom, Call) and atom.function == function:
                return atom
    return None


def _divide_terms(a: DimLike, b: DimLike) -> tuple[DimLike, DimLike]:
    """Split a into q*b + r, where q takes the terms of `a` that `b` divides exactly."""
    if isinstance(b, Dim) and len(b.terms) != 1:
        return 0, a
    divisor, factor = _terms(b)[0]
    powers = dict(divisor)
    whole: DimLike = 0
    rest: DimLike = 0
    for monomial, c in _terms(a):
        have = dict(monomial)
        if c % factor == 0 and all(have.get(atom, 0) >= p for atom, p in powers.items()):
            left = ((atom, p - powers.get(atom, 0)) for atom, p in monomial)
            whole = whole + _polynomial({tuple((x, p) for x, p in left if p): c // factor})
        else:
            rest = rest + _polynomial({monomial: c})
    return whole, rest


def _is_positive(dim: DimLike) -> bool:
    return isinstance(dim, int) and dim > 0


def _extreme(function: str, dims: tuple[DimLike, ...], direction: int) -> DimLike:
    parts: list[DimLike] = []
    for dim in dims:
        call = _single_call(dim, function)
        parts += call.arguments if call else (dim,)
    kept: list[DimLike] = []
    for part in parts:
        if any(_not_below(k, part, direction) for k in kept):
            continue
        kept = [k for k in kept if not _not_below(part, k, direction)] + [part]
    if len(kept) == 1:
        return kept[0]
    return _call(function, *sorted(kept, key=str))


def _not_below(a: DimLike, b: DimLike, direction: int) -> bool:
    """Say whether a >= b (direction 1) or a <= b (direction -1) for all sizes."""
    low = lower_bound((a - b) * direction)
    return low is not None and low >= 0


def _atom_lower_bound(atom: Atom) -> int | None:
    if isinstance(atom, str):
        return 0
    lows = [lower_bound(a) for a in atom.arguments]
    if atom.function == "max":
        known = [low for low in lows if low is not None]
        return max(known) if known else None
    if any(low is None for low in lows):
        return None
    numbers = [low for low in lows if low is not None]
    if atom.function == "floordiv":
        divisor = atom.arguments[1]
        if isinstance(divisor, int):
            return numbers[0] // divisor if divisor > 0 else None
        return min(numbers[0], 0)  # the divisor is positive, and may be 1 or very large
    return min(numbers)


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return sizes[atom]
    values = [evaluate(a, sizes) for a in atom.arguments]
    match atom.function:
        case "floordiv":
            return values[0] // values[1]
        case "max":
            return max(values)
        case "min":
            return min(values)
    return next((v for v in values if v != 1), 1)


def _substitute_call(call: Call, replacement: Mapping[str, DimLike]) -> DimLike:
    arguments = [substitute(a, replacement) for a in call.arguments]
    if call.function == "floordiv":
        return floordiv(arguments[0], arguments[1])
    result = arguments[0]
    for argument in arguments[1:]:
        result = _CALLS[call.function](result, argument)
    return result


def _factor_text(dim: DimLike) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _monomial_text(monomial: Monomial, factor: int, *, bare: bool) -> str:
    pieces = [str(factor)] if factor != 1 or not monomial else []
    for atom, power in monomial:
        single = str(atom)
        alone = bare and not pieces and len(monomial) == power == 1
        if isinstance(atom, Call) and atom.function == "floordiv" and not alone:
            single = f"({single})"
        pieces += [single] * power
    return "*".join(pieces)
