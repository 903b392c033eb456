"""What a converter sees of its ONNX node: inputs as values of the graph being built, attributes.

A converter is a function `NodeContext -> name | tuple of names`. It reads every attribute of its
operator with `attr`: one that it leaves unread makes the node extern, never a silent wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from hcomp.capture.onnx_types import attribute_value
from hcomp.dims import DimLike
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.types import Shape, TensorType, Type

if TYPE_CHECKING:
    from hcomp.capture.onnx_graph import Scope


class Refused(Exception):
    """A node that its converter cannot express; the text is the reason that reports print."""


Converter: TypeAlias = "Callable[[NodeContext], str | Sequence[str]]"


class NodeContext:
    """One ONNX node being converted.

    Attributes:
        b: the builder of the graph that the node goes into.
        inputs: the value names of its inputs, "" where absent.
        opset: the version of the node's own domain that the model imports.
        scope: the surrounding graph, for operators with subgraphs.
    """

    def __init__(self, node: NodeProto, inputs: Sequence[str], scope: Scope, opset: int) -> None:
        self.node = node
        self.inputs = tuple(inputs)
        self.scope = scope
        self.opset = opset
        self.b: GraphBuilder = scope.builder
        self._attributes = {a.name: a for a in node.attribute}
        self._read: set[str] = set()

    # -- attributes ---------------------------------------------------------------------------
    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute (str, int, float, tuple, TensorProto, GraphProto), or `default`."""
        self._read.add(name)
        found = self._attributes.get(name)
        return default if found is None else attribute_value(found)

    def required(self, name: str) -> Any:
        """Return an attribute that the operator's schema demands."""
        if name not in self._attributes:
            raise self.refuse(f"its attribute {name!r} is missing")
        return self.attr(name)

    def ignore(self, *names: str) -> None:
        """Declare attributes that do not change the result (say why beside the call)."""
        self._read.update(names)

    def unread(self) -> list[str]:
        """Return the attributes that the converter has not asked for."""
        return sorted(self._attributes.keys() - self._read)

    # -- inputs -------------------------------------------------------------------------------
    def has(self, index: int) -> bool:
        """Say whether input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def input(self, index: int) -> str:
        """Return the value name of input `index`, which must be present."""
        if not self.has(index):
            raise self.refuse(f"its input {index} is missing")
        return self.inputs[index]

    def optional(self, index: int) -> str:
        """Return the value name of input `index`, or "" where it is absent."""
        return self.inputs[index] if self.has(index) else ""

    def wants(self, index: int) -> bool:
        """Say whether output `index` is used under a name."""
        return index < len(self.node.output) and self.node.output[index] != ""

    # -- values by index or by name -------------------------------------------------------------
    def name(self, value: int | str) -> str:
        """Return a value's name, given an input's index or the name itself."""
        return self.input(value) if isinstance(value, int) else value

    def any_type(self, value: int | str = 0) -> Type:
        """Return the type of a value of any kind."""
        return self.b.types[self.name(value)]

    def type(self, value: int | str = 0) -> TensorType:
        """Return the type of a value, refusing what is no tensor."""
        found = self.any_type(value)
        if not isinstance(found, TensorType):
            raise self.refuse(f"the value {self.name(value)} is no tensor but {found}")
        return found

    def dtype(self, value: int | str = 0) -> str:
        """Return a tensor's element type."""
        return self.type(value).dtype

    def shape(self, value: int | str = 0) -> Shape:
        """Return a tensor's shape; a rank unknown before run time refuses the node."""
        shape = self.type(value).shape
        if shape is None:
            raise self.refuse(f"the rank of {self.name(value)} is known only at run time")
        return shape

    def rank(self, value: int | str = 0) -> int:
        """Return a tensor's rank; unknown refuses the node."""
        return len(self.shape(value))

    def ranked(self, value: int | str = 0) -> bool:
        """Say whether a tensor's rank is known."""
        return self.type(value).shape is not None

    def axis(self, axis: int, value: int | str = 0, *, extra: int = 0) -> int:
        """Return `axis` counted from the front of a value's rank (plus `extra`)."""
        rank = self.rank(value) + extra
        if not -rank <= axis < rank:
            raise self.refuse(f"its axis {axis} is outside a tensor of rank {rank}")
        return axis % rank

    def const(self, value: int | str) -> NDArray[Any] | None:
        """Return the contents of a value that is known when compiling, else None ("" too)."""
        if isinstance(value, int) and not self.has(value):
            return None
        name = self.name(value)
        return self.b.const_value(name) if name else None

    def known(self, value: int | str) -> list[DimLike] | None:
        """Return the integers in a value, flattened, where they are sizes or constants; else None."""
        if isinstance(value, int) and not self.has(value):
            return None
        found = self.b.known(self.name(value))
        return None if found is None else list(found.ravel())

    def ints(self, index: int, attribute: str) -> list[DimLike] | None:
        """Return a parameter that is an attribute in old opsets and an input in newer ones.

        Returns None where it is absent, and raises `RunTime` where its value comes at run time.
        """
        given = self.attr(attribute)
        if given is not None:
            return list(given) if isinstance(given, tuple) else [given]
        if not self.has(index):
            return None
        found = self.known(index)
        if found is None:
            raise RunTime(index)
        return found

    # -- emission -----------------------------------------------------------------------------
    def emit(self, op: str, *inputs: int | str, **attrs: Any) -> str:
        """Add a node with one output; inputs are indices of this node's inputs, or value names."""
        return self.b.emit(op, *(self.name(i) for i in inputs), **attrs)

    def emit_many(self, op: str, *inputs: int | str, **attrs: Any) -> tuple[str, ...]:
        """Add a node with several outputs."""
        return self.b.emit_many(op, [self.name(i) for i in inputs], attrs)

    def scalar(self, number: float | int | bool, dtype: str) -> str:
        """Return a 0-D constant of the given element type."""
        from hcomp.dtypes import numpy_dtype

        return self.b.constant(np.array(number).astype(numpy_dtype(dtype)), "c")

    def tensor(self, values: Any, dtype: str) -> str:
        """Return a constant tensor of the given element type."""
        from hcomp.dtypes import numpy_dtype

        return self.b.constant(np.asarray(values).astype(numpy_dtype(dtype)), "c")

    def cast(self, value: int | str, dtype: str) -> str:
        """Return the value in another element type (itself where it has it already)."""
        name = self.name(value)
        return name if self.dtype(name) == dtype else self.b.emit("cast", name, dtype=dtype)

    def reshape(self, value: int | str, shape: Sequence[DimLike]) -> str:
        """Return the value in another shape (itself where it has it already)."""
        name = self.name(value)
        same = self.type(name).shape == tuple(shape)
        return name if same else self.b.emit("reshape", name, shape=tuple(shape))

    def refuse(self, reason: str) -> Refused:
        """Return the exception to raise where the node cannot be expressed."""
        return Refused(reason)


class RunTime(Exception):
    """A parameter whose value is known only at run time; `index` is the input that holds it."""

    def __init__(self, index: int) -> None:
        super().__init__(f"its parameter, input {index}, is known only at run time")
        self.index = index
