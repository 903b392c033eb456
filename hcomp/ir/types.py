"""Types of values: tensors with symbolic dimensions, sequences and optionals of them."""

from dataclasses import dataclass
from typing import TypeAlias

from hcomp.dims import DimLike, evaluate, symbols_of
from hcomp.dtypes import item_bytes

Shape: TypeAlias = tuple[DimLike, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor: element type and shape; a shape of None means a rank known only at run time."""

    dtype: str
    shape: Shape | None

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    def elements(self) -> DimLike | None:
        """Return the number of elements, or None where the rank is unknown."""
        if self.shape is None:
            return None
        total: DimLike = 1
        for dim in self.shape:
            total = total * dim
        return total

    def bytes(self, sizes: dict[str, int]) -> int:
        """Return the bytes of one such tensor for given sizes; unknown sizes count as in `sizes`."""
        total = self.elements()
        return 0 if total is None else evaluate(total, sizes) * item_bytes(self.dtype)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join(str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type, of any length."""

    element: "Type"

    def __str__(self) -> str:
        return f"sequence<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or nothing."""

    element: "Type"

    def __str__(self) -> str:
        return f"optional<{self.element}>"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A value that only extern nodes understand (maps); `text` says what it is."""

    text: str

    def __str__(self) -> str:
        return f"opaque<{self.text}>"


Type: TypeAlias = TensorType | SequenceType | OptionalType | OpaqueType


def type_symbols(value_type: Type) -> frozenset[str]:
    """Return the symbols that a type mentions."""
    match value_type:
        case TensorType(shape=shape) if shape is not None:
            return symbols_of(shape)
        case SequenceType(element=element) | OptionalType(element=element):
            return type_symbols(element)
    return frozenset()
