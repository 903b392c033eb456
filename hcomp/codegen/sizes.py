"""Names for computed sizes, so that kernels see plain symbols.

A size such as `(H - 33)//48 + 1` would stand in every loop bound and index of every kernel that
touches it. TVM then cannot prove what schedules and memory planning need, and compiles slowly.
Each such size gets a symbol of its own, computed once when the region starts. Equal sizes are
equal expressions (dimensions are canonical), so they get one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hcomp.dims import Call, Dim, DimLike, symbol, symbols_of
from hcomp.ir.graph import Graph, Value
from hcomp.ir.types import TensorType, Type


@dataclass
class _Names:
    """Hands out one symbol a computed size."""

    taken: set[str]
    of: dict[Dim, Dim] = field(default_factory=dict)

    def dim(self, dim: DimLike) -> DimLike:
        if isinstance(dim, int) or not _is_computed(dim):
            return dim
        if dim not in self.of:
            number = len(self.of) + 1
            while f"size_{number}" in self.taken:
                number += 1
            self.taken.add(f"size_{number}")
            self.of[dim] = symbol(f"size_{number}")
        return self.of[dim]

    def attr(self, value: Any) -> Any:
        if isinstance(value, Dim):
            return self.dim(value)
        return tuple(self.attr(v) for v in value) if isinstance(value, tuple) else value

    def type(self, value_type: Type) -> Type:
        if not isinstance(value_type, TensorType) or value_type.shape is None:
            return value_type
        return TensorType(value_type.dtype, tuple(self.dim(d) for d in value_type.shape))

    def values(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(Value(v.name, self.type(v.type)) for v in values)


def _is_computed(dim: Dim) -> bool:
    """Say whether a size is more than a product of symbols and a number: those stay as they are."""
    if len(dim.terms) > 1:
        return True
    return any(isinstance(atom, Call) for atom, _ in dim.terms[0][0])


def name_sizes(graph: Graph) -> tuple[Graph, Mapping[str, Dim]]:
    """Return the region with its computed sizes named, and what each name stands for."""
    taken: set[str] = set()
    for value_type in graph.types.values():
        if isinstance(value_type, TensorType):
            taken |= symbols_of(value_type.shape or ())
    for node in graph.nodes:
        taken |= symbols_of(tuple(node.attrs.values()))
    names = _Names(taken)
    inputs = names.values(graph.inputs)
    nodes = tuple(
        replace(
            node,
            outputs=names.values(node.outputs),
            attrs={key: names.attr(value) for key, value in node.attrs.items()},
        )
        for node in graph.nodes
    )
    named = Graph(graph.name, inputs, graph.constants, nodes, graph.outputs)
    return named, {str(name): dim for dim, name in names.of.items()}
