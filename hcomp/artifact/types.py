"""The types of a program's values as the manifest writes them and as errors print them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from hcomp.artifact.fields import MAX_INT, Fields, as_integer, as_text
from hcomp.dims import Dim, DimLike, parse_dim
from hcomp.dtypes import DTYPES
from hcomp.errors import ArtifactError, ParseError

MAX_RANK = 64
MAX_NESTING = 16

_BYTES = {"64": 8, "32": 4, "16": 2, "128": 16}


@dataclass(frozen=True)
class TensorType:
    """An array: its element type and shape; shape None means a rank known only at run time."""

    dtype: str
    shape: tuple[DimLike, ...] | None

    def __str__(self) -> str:
        return self.dtype + ("[...]" if self.shape is None else shape_text(self.shape))


@dataclass(frozen=True)
class SequenceType:
    """A list of values of one type."""

    element: ValueType

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True)
class OptionalType:
    """A value or None."""

    element: ValueType

    def __str__(self) -> str:
        return f"optional({self.element})"


@dataclass(frozen=True)
class OpaqueType:
    """A type that only ONNX Runtime knows, such as the maps of ai.onnx.ml; `text` is its name."""

    text: str

    def __str__(self) -> str:
        return self.text


ValueType: TypeAlias = TensorType | SequenceType | OptionalType | OpaqueType


def shape_text(shape: tuple[DimLike, ...]) -> str:
    """Return a shape as users read it: "[N,3,224,224]"."""
    return f"[{','.join(str(dim) for dim in shape)}]"


def item_bytes(dtype: str) -> int:
    """Return the bytes of one stored element; sub-byte types take a byte.

    Unlike `hcomp.dtypes.item_bytes` this never imports ml_dtypes, which costs 0.4 s.
    """
    digits = dtype.removeprefix("b").lstrip("abcdefghijklmnopqrstuvwxyz")
    return _BYTES.get(digits, 1)


def read_type(fields: Fields, depth: int = 0) -> ValueType:
    """Return the type that a manifest object spells.

    Raises:
        ArtifactError: unknown element type, bad dimension, or no known kind of type.
    """
    if depth > MAX_NESTING:
        raise ArtifactError(f"{fields.path}: types are nested too deeply")
    if fields.has("sequence"):
        return SequenceType(read_type(fields.object("sequence"), depth + 1))
    if fields.has("optional"):
        return OptionalType(read_type(fields.object("optional"), depth + 1))
    if fields.has("opaque"):
        return OpaqueType(fields.text("opaque"))
    return TensorType(read_dtype(fields, "dtype"), read_shape(fields, "shape"))


def read_dtype(fields: Fields, key: str) -> str:
    """Return an element type's name."""
    name = fields.text(key)
    if name not in DTYPES:
        raise ArtifactError(f"{fields.at(key)}: {name!r} is no element type")
    return name


def read_shape(fields: Fields, key: str) -> tuple[DimLike, ...] | None:
    """Return a shape, or None for null."""
    if fields.raw(key) is None:
        return None
    items = fields.items(key)
    if len(items) > MAX_RANK:
        raise ArtifactError(f"{fields.at(key)}: {len(items)} dimensions, at most {MAX_RANK} are possible")
    return tuple(_read_dim(item, f"{fields.at(key)}[{i}]") for i, item in enumerate(items))


def static_shape(type_: TensorType, where: str) -> tuple[int, ...]:
    """Return the shape of a type that has no symbols.

    Raises:
        ArtifactError: a dimension is symbolic, or the size in bytes is out of range.
    """
    shape = tuple(dim for dim in type_.shape or () if not isinstance(dim, Dim))
    if type_.shape is None or len(shape) != len(type_.shape):
        raise ArtifactError(f"{where}: a constant must have a static shape, found {type_}")
    if prod(shape) * item_bytes(type_.dtype) > MAX_INT:
        raise ArtifactError(f"{where}: {type_} is larger than any memory")
    return shape


def _read_dim(item: object, where: str) -> DimLike:
    if isinstance(item, int):
        return as_integer(item, where)
    text = as_text(item, where)
    if len(text) > 2000:
        raise ArtifactError(f"{where}: the dimension's expression is too long")
    try:
        return parse_dim(text)
    except ParseError as error:
        raise ArtifactError(f"{where}: {error}") from None
