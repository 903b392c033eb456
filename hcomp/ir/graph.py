"""The graph: immutable, typed, in SSA form; values are named, nodes are in topological order.

Subgraphs (`if`, `loop`) are closed: what they use from outside is an explicit input of the node
and of the subgraph, so every pass may look at one graph at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim
from hcomp.dtypes import dtype_name
from hcomp.ir.factors import Factors
from hcomp.ir.types import TensorType, Type

Attribute: TypeAlias = "int | float | str | bool | Dim | tuple[Attribute, ...] | None"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node came from, in the user's words: the model's node name and operator.

    `others` are the names of further nodes that it stands for.
    """

    name: str
    op: str = ""
    domain: str = ""
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        operator = f"{self.domain}::{self.op}" if self.domain else self.op
        return f"{self.name} ({operator})" if operator else self.name


@dataclass(frozen=True, slots=True)
class Value:
    """A named value and its type; the name is unique within its graph."""

    name: str
    type: Type


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose contents are known when compiling.

    Two constants are equal when dtype, shape and bytes are: what the digest says. `factors`, if there are
    any, say how a dequantised weight came about; the text form leaves them out.
    """

    name: str
    array: NDArray[np.generic]
    factors: Factors | None = None

    @cached_property
    def type(self) -> TensorType:
        """The constant's type."""
        return TensorType(dtype_name(self.array.dtype), tuple(self.array.shape))

    @cached_property
    def digest(self) -> str:
        """The sha256 of dtype, shape and little-endian contents, in hexadecimal."""
        return array_digest(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.name == other.name and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.name, self.array.shape))


def array_digest(array: NDArray[np.generic]) -> str:
    """Return the sha256 of an array's dtype, shape and little-endian contents."""
    state = hashlib.sha256(f"{dtype_name(array.dtype)}{list(array.shape)}".encode())
    if array.dtype.kind in "OUST":
        for item in array.ravel():
            data = item if isinstance(item, bytes) else str(item).encode()
            state.update(len(data).to_bytes(8, "little") + data)
    else:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        state.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


@dataclass(frozen=True)
class Node:
    """One operation: `inputs` are value names, "" for an optional input that is absent."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    graphs: Mapping[str, Graph] = field(default_factory=lambda: MappingProxyType({}))
    origin: Origin = Origin("")
    payload: bytes = b""
    """For `extern`: the serialized ONNX model of the node; else empty."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(sorted(self.attrs.items()))))
        object.__setattr__(self, "graphs", MappingProxyType(dict(sorted(self.graphs.items()))))

    @property
    def output(self) -> str:
        """The name of the first output."""
        return self.outputs[0].name

    @property
    def used_inputs(self) -> tuple[str, ...]:
        """The inputs that are present."""
        return tuple(name for name in self.inputs if name)

    @property
    def label(self) -> str:
        """What reports call the node: the user's name, or the name of its first output."""
        return self.origin.name or (self.outputs[0].name if self.outputs else self.op)

    @property
    def labels(self) -> tuple[str, ...]:
        """What reports call all the nodes that it stands for."""
        return (self.label, *self.origin.others)


@dataclass(frozen=True)
class Graph:
    """A whole model, or the body of an `if` or `loop`."""

    name: str
    inputs: tuple[Value, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """The type of every value by name."""
        found: dict[str, Type] = {v.name: v.type for v in self.inputs}
        found.update((c.name, c.type) for c in self.constants)
        for node in self.nodes:
            found.update((v.name, v.type) for v in node.outputs)
        return found

    @cached_property
    def constant(self) -> Mapping[str, NDArray[np.generic]]:
        """The contents of the constants by name."""
        return {c.name: c.array for c in self.constants}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that makes each value; inputs and constants have none."""
        return {v.name: node for node in self.nodes for v in node.outputs}

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, in order, each once."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.used_inputs):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def walk(self) -> Iterator[Node]:
        """Yield every node, those of subgraphs after the node that holds them."""
        for node in self.nodes:
            yield node
            for graph in node.graphs.values():
                yield from graph.walk()
