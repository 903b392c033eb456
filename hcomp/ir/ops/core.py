"""What a row of the operator table is, and the typing rules that many rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hcomp.dims import Dim, DimLike, bcast, lower_bound, sign
from hcomp.errors import HcompError
from hcomp.ir.types import Shape, TensorType, Type

REQUIRED: Any = object()
"""The default of an attribute that a node must give."""


class TypeRuleError(HcompError):
    """A node whose inputs or attributes its operator does not accept."""


@dataclass(frozen=True)
class Infer:
    """What a typing rule sees: the input types, the attributes, and a source of new symbols.

    `needs` collects what the rule cannot tell before run time, see `nonnegative`, and `equal` the sizes
    that have to be equal, see `equal_sizes`; most callers do not ask for them.
    """

    op: str
    types: tuple[Type | None, ...]
    attrs: Mapping[str, Any]
    fresh: Callable[[str], Dim]
    needs: list[tuple[DimLike, str]] | None = None
    equal: list[tuple[DimLike, DimLike]] | None = None

    def tensor(self, index: int) -> TensorType:
        """Return the type of input `index`, which must be a tensor."""
        found = self.types[index] if index < len(self.types) else None
        if not isinstance(found, TensorType):
            raise self.error(f"input {index} must be a tensor, found {found}")
        return found

    def shape(self, index: int) -> Shape:
        """Return the shape of input `index`; only called where all ranks are known."""
        shape = self.tensor(index).shape
        if shape is None:
            raise self.error(f"the rank of input {index} is not known")
        return shape

    def dtype(self, index: int = 0) -> str:
        """Return the element type of input `index`."""
        return self.tensor(index).dtype

    def axis(self, value: int, rank: int) -> int:
        """Return `value` counted from the front, checked against `rank`."""
        if not -rank <= value < rank:
            raise self.error(f"axis {value} is outside a tensor of rank {rank}")
        return value % rank

    def error(self, message: str) -> TypeRuleError:
        """Return the error to raise, with the operator named."""
        return TypeRuleError(f"{self.op}: {message}")


DtypeRule: TypeAlias = Callable[[Infer], Any]
"""Returns one dtype name, or a tuple of them for several outputs."""
ShapeRule: TypeAlias = Callable[[Infer], Any]
"""Returns one shape, or a list of them for several outputs; runs only where all ranks are known."""


@dataclass(frozen=True)
class Op:
    """One row of the operator table.

    `attrs` maps each attribute to its default (REQUIRED: none). `cost` is the cost class that
    the roofline uses. `host_only` is the sentence why the operator has no compiled form, or "".
    `spelled` says that the attributes give the output's shape, whatever the rank of the input.
    """

    name: str
    dtypes: DtypeRule
    shapes: ShapeRule
    attrs: Mapping[str, Any] = field(default_factory=dict)
    cost: str = "elementwise"
    host_only: str = ""
    spelled: bool = False

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Return `attrs` with defaults filled in.

        Raises:
            TypeRuleError: an attribute is unknown or missing.
        """
        unknown = attrs.keys() - self.attrs.keys()
        if unknown:
            raise TypeRuleError(f"{self.name}: unknown attribute {sorted(unknown)[0]!r}")
        full = {**self.attrs, **attrs}
        for name, value in full.items():
            if value is REQUIRED:
                raise TypeRuleError(f"{self.name}: the attribute {name!r} is missing")
        return full

    def infer(self, context: Infer) -> tuple[Type, ...]:
        """Return the output types; a rank unknown on the way in is unknown on the way out."""
        dtypes = self.dtypes(context)
        if not isinstance(dtypes, tuple | list):
            dtypes = (dtypes,)
        if not self.spelled and any(isinstance(t, TensorType) and t.shape is None for t in context.types):
            return tuple(TensorType(d, None) for d in dtypes)
        shapes = self.shapes(context)
        if not isinstance(shapes, list):
            shapes = [shapes]
        if len(dtypes) == 1 and len(shapes) > 1:
            dtypes = tuple(dtypes) * len(shapes)
        return tuple(TensorType(d, None if s is None else tuple(s)) for d, s in zip(dtypes, shapes, strict=True))


def same(context: Infer) -> str:
    """The dtype of the first input."""
    return context.dtype(0)


def fixed(dtype: str) -> DtypeRule:
    """The dtype `dtype`, whatever the inputs."""
    return lambda context: dtype


def common(context: Infer) -> str:
    """The dtype that all inputs share; operands are never promoted silently."""
    found = {t.dtype for t in context.types if isinstance(t, TensorType)}
    if len(found) != 1:
        raise context.error(f"the inputs must have one dtype, found {sorted(found)}")
    return found.pop()


def from_attr(context: Infer) -> str:
    """The dtype in the attribute `dtype`."""
    dtype: str = context.attrs["dtype"]
    return dtype


def accumulated(context: Infer) -> str:
    """The attribute `out_dtype`, or the first input's dtype where it is empty."""
    dtype: str = context.attrs["out_dtype"] or context.dtype(0)
    return dtype


def first_shape(context: Infer) -> Shape:
    """The shape of the first input."""
    return context.shape(0)


def broadcast_dims(context: Infer, a: DimLike, b: DimLike) -> DimLike:
    """Return the size of two dims broadcast together."""
    if isinstance(a, int) and isinstance(b, int) and a != b and 1 not in (a, b):
        raise context.error(f"the sizes {a} and {b} do not broadcast")
    return bcast(a, b)


def broadcast_shapes(context: Infer, *shapes: Shape) -> Shape:
    """Return the shape of several shapes broadcast together, as numpy does it."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[DimLike] = [1] * rank
    for shape in shapes:
        for position, dim in enumerate(shape, start=rank - len(shape)):
            result[position] = broadcast_dims(context, result[position], dim)
    return tuple(result)


def broadcast(context: Infer) -> Shape:
    """The shape of all inputs broadcast together."""
    return broadcast_shapes(context, *(context.shape(i) for i in range(len(context.types))))


def normal_axes(context: Infer, rank: int) -> tuple[int, ...]:
    """Return the attribute `axis` (int, tuple, or None for all) counted from the front."""
    axis = context.attrs["axis"]
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(context.axis(a, rank) for a in axes)


def nonnegative(context: Infer, dim: DimLike, problem: str) -> DimLike:
    """Return `dim`, refused with `problem` where it is below zero for all sizes.

    Where that depends on the sizes it is noted among the needs. Dimensions in `problem` stand in
    braces: the error shows their numbers.
    """
    if sign(dim) == -1:
        raise context.error(problem.replace("{", "").replace("}", ""))
    low = lower_bound(dim)
    if context.needs is not None and (low is None or low < 0):
        context.needs.append((dim, problem))
    return dim


def equal_sizes(context: Infer, a: DimLike, b: DimLike, problem: str) -> DimLike:
    """Return the size that `a` and `b` both are: the known one, if there is one.

    Two known ones that differ are refused with `problem`; others are noted among the equal sizes.
    """
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise context.error(problem)
    if context.equal is not None and a != b:
        context.equal.append((a, b))
    return a if isinstance(a, int) else b
