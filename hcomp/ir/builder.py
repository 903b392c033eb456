"""Building a graph node by node, with types inferred and known values carried along.

The builder knows more about a value than its type: integers that are dimensions (`shape[2] + 1`)
are tracked through shape arithmetic as symbolic arrays, so that a Reshape by a computed shape
gets a symbolic target instead of a run-time one. See `known`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim, symbol, symbols_of
from hcomp.errors import HcompError
from hcomp.ir.factors import Factors, folded_factors
from hcomp.ir.graph import Constant, Graph, Node, Origin, Value
from hcomp.ir.ops import OPS, UNTYPED, Infer
from hcomp.ir.symbolic import MAX_KNOWN, evaluate_known, is_whole
from hcomp.ir.types import TensorType, Type

MAX_FOLDED = 4096
"""Larger constant results are left to the fold-constants pass."""


class Names:
    """Hands out names that no other value of the model has, and fresh symbols."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def unique(self, wanted: str) -> str:
        """Return `wanted`, or `wanted_2` and so on where it is taken."""
        name = wanted or "v"
        while name in self._used:
            count = self._next.get(wanted, 1) + 1
            self._next[wanted] = count
            name = f"{wanted}_{count}"
        self._used.add(name)
        return name

    def fresh_symbol(self, hint: str) -> Dim:
        """Return a new symbol named after `hint`."""
        return symbol(self.unique(hint if hint.isidentifier() else "d"))


class GraphBuilder:
    """Collects inputs, constants and nodes; `finish` returns the graph.

    Values are named by the caller's hint. A builder for a subgraph shares `names` with its parent.
    """

    def __init__(self, name: str, names: Names | None = None) -> None:
        self.name = name
        self.names = names or Names()
        self.types: dict[str, Type] = {}
        self.origin = Origin("")
        self._inputs: list[Value] = []
        self._constants: dict[str, NDArray[np.generic]] = {}
        self._factors: dict[str, Factors] = {}
        self._by_digest: dict[tuple[Any, ...], str] = {}
        self._nodes: list[Node] = []
        self._known: dict[str, NDArray[Any]] = {}

    @contextmanager
    def at(self, origin: Origin) -> Iterator[None]:
        """Give the nodes made inside the block this origin."""
        before, self.origin = self.origin, origin
        try:
            yield
        finally:
            self.origin = before

    def input(self, name: str, value_type: Type) -> str:
        """Add a graph input and return its name."""
        name = self.names.unique(name)
        self._inputs.append(Value(name, value_type))
        self.types[name] = value_type
        return name

    def constant(self, array: Any, hint: str = "const") -> str:
        """Add a constant tensor (small equal ones are shared) and return its name."""
        value: NDArray[np.generic] = np.asarray(array)
        key = None
        if value.nbytes <= 256 and value.dtype.kind not in "OUST":
            key = (value.dtype.str, value.dtype.name, value.shape, value.tobytes())
            if key in self._by_digest:
                return self._by_digest[key]
        constant = Constant(self.names.unique(hint), value)
        self._constants[constant.name] = value
        self.types[constant.name] = constant.type
        if key is not None:
            self._by_digest[key] = constant.name
        return constant.name

    def emit(self, op: str, *inputs: str, hint: str = "", **attrs: Any) -> str:
        """Add a node with one output, its type inferred, and return the output's name."""
        return self.emit_many(op, inputs, attrs, (hint,))[0]

    def emit_many(
        self, op: str, inputs: Sequence[str], attrs: dict[str, Any], hints: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Add a node with as many outputs as its operator has, and return their names.

        Raises:
            TypeRuleError: the operator does not accept these inputs or attributes.
        """
        row = OPS[op]
        full = row.complete({k: _plain(v) for k, v in attrs.items()})
        types = tuple(self.types[i] if i else None for i in inputs)
        found = row.infer(Infer(op, types, full, self.names.fresh_symbol))
        folded = self._fold(op, inputs, full, found, hints)
        if folded is not None:
            return folded
        outputs = self._outputs(op, found, hints)
        self._nodes.append(Node(op, tuple(inputs), outputs, full, origin=self.origin))
        if len(outputs) == 1:
            self._track(op, inputs, full, outputs[0])
        return tuple(v.name for v in outputs)

    def emit_typed(
        self,
        op: str,
        inputs: Sequence[str],
        types: Sequence[Type],
        *,
        attrs: dict[str, Any] | None = None,
        graphs: dict[str, Graph] | None = None,
        payload: bytes = b"",
        hints: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add an `if`, `loop` or `extern` node, whose output types the caller knows."""
        if op not in UNTYPED:
            raise HcompError(f"{op} has a typing rule: use emit")
        outputs = self._outputs(op, types, hints)
        plain = {k: _plain(v) for k, v in (attrs or {}).items()}
        self._nodes.append(Node(op, tuple(inputs), outputs, plain, graphs or {}, self.origin, payload))
        return tuple(v.name for v in outputs)

    def dynamic(
        self,
        op: str,
        inputs: Sequence[str],
        *,
        static: dict[str, Any],
        bound: dict[str, str],
        dtypes: Sequence[str],
        rank: int | None = None,
        hints: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Add `op` with the attributes `bound` filled from tensors at run time (on the host)."""
        attrs = {
            "op": op,
            "static": tuple(sorted(static.items())),
            "bind": tuple(bound),
            "dtypes": tuple(dtypes),
            "rank": rank,
        }
        return self.emit_many("dynamic", (*inputs, *bound.values()), attrs, hints)

    def const_value(self, name: str) -> NDArray[np.generic] | None:
        """Return the contents of `name` where they are constant, else None."""
        if name in self._constants:
            return self._constants[name]
        known = self._known.get(name)
        value_type = self.types.get(name)
        if known is None or not isinstance(value_type, TensorType):
            return None
        if any(isinstance(item, Dim) for item in known.ravel()):
            return None
        from hcomp.dtypes import numpy_dtype

        return known.astype(numpy_dtype(value_type.dtype))

    def known(self, name: str) -> NDArray[Any] | None:
        """Return the integer contents of `name` as an object array of ints and Dims, if known.

        Covers constants of at most MAX_KNOWN elements and everything computed from sizes.
        """
        if name in self._known:
            return self._known[name]
        array = self._constants.get(name)
        if array is None or array.size > MAX_KNOWN or not is_whole(array):
            return None
        return np.array([int(v) for v in array.ravel()], dtype=object).reshape(array.shape)

    def constant_array(self, name: str) -> NDArray[np.generic] | None:
        """Return the contents of `name` where it is a constant of this graph, else None."""
        return self._constants.get(name)

    def set_known(self, name: str, values: NDArray[Any]) -> None:
        """Record the integer contents of `name`, as an object array of ints and Dims."""
        self._known[name] = values

    def introduces(self, name: str) -> str | None:
        """Return a value of this graph that has the symbol `name` as a plain size, or None."""
        wanted = symbol(name)
        for value, value_type in self.types.items():
            shape = value_type.shape if isinstance(value_type, TensorType) else None
            if shape is not None and wanted in shape and value not in self._constants:
                return value
        return None

    def all_attrs(self) -> Iterator[Mapping[str, Any]]:
        """Yield the attributes of every node made so far."""
        return (node.attrs for node in self._nodes)

    def shape_value(self, values: Sequence[Any], *, scalar: bool = False, hint: str = "dims") -> str:
        """Return an int64 tensor that holds dimension expressions (a constant if they are numbers)."""
        if all(isinstance(v, int | np.integer) for v in values):
            array = np.array([int(v) for v in values], np.int64)
            return self.constant(array.reshape(()) if scalar else array, hint)
        return self.emit("dims", values=tuple(values), scalar=scalar, hint=hint)

    def finish(self, outputs: Sequence[str]) -> Graph:
        """Return the graph with these outputs; unused constants are left out."""
        used = set(outputs).union(*(n.used_inputs for n in self._nodes))
        constants = tuple(Constant(n, a, self._factors.get(n)) for n, a in self._constants.items() if n in used)
        return Graph(self.name, tuple(self._inputs), constants, tuple(self._nodes), tuple(outputs))

    def _fold(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: dict[str, Any],
        types: Sequence[Type],
        hints: Sequence[str],
    ) -> tuple[str, ...] | None:
        """Return the outputs as constants where the node is small and all of it is known.

        Exporters write scales and shapes as long constant expressions; converters need their values.
        A tensor without elements is known too, whatever made it: no kernel need run over nothing.
        """
        contents = {i: self._contents(i) for i in inputs if i}
        if OPS[op].host_only or any(array is None for array in contents.values()):
            return None
        if symbols_of(tuple(attrs.values())) or not all(_is_small(self.types[i]) for i in inputs if i):
            return None
        if not all(_is_small(t) for t in types):
            return None
        from hcomp.reference import REFERENCE

        result = REFERENCE[op](*(contents[i] if i else None for i in inputs), **attrs)
        arrays = result if isinstance(result, tuple) else (result,)
        names = tuple(self.constant(a, hints[i] if i < len(hints) and hints[i] else op) for i, a in enumerate(arrays))
        known = [self._factors.get(i) for i in inputs]
        factors = folded_factors(op, attrs, [contents[i] if i else None for i in inputs], known)
        if factors is not None:
            self._factors[names[0]] = factors
        return names

    def _contents(self, name: str) -> NDArray[Any] | None:
        """Return a constant's array, or one for a value that has no elements; else None."""
        if name in self._constants:
            return self._constants[name]
        found = self.types[name]
        if not isinstance(found, TensorType) or found.dtype == "string" or found.elements() != 0:
            return None
        from hcomp.dtypes import numpy_dtype

        sizes = [d for d in found.shape or () if isinstance(d, int)]
        return np.zeros(sizes, numpy_dtype(found.dtype)) if found.is_static else None

    def _outputs(self, op: str, types: Sequence[Type], hints: Sequence[str]) -> tuple[Value, ...]:
        names = [hints[i] if i < len(hints) and hints[i] else op for i in range(len(types))]
        values = tuple(Value(self.names.unique(n), t) for n, t in zip(names, types, strict=True))
        self.types.update((v.name, v.type) for v in values)
        return values

    def _track(self, op: str, inputs: Sequence[str], attrs: dict[str, Any], out: Value) -> None:
        known = evaluate_known(op, [self.known(i) if i else None for i in inputs], attrs, out.type)
        if known is not None:
            self._known[out.name] = known


def _is_small(value_type: Type) -> bool:
    """Say whether a tensor is static and of at most MAX_FOLDED elements (and no text)."""
    if not isinstance(value_type, TensorType) or value_type.dtype == "string":
        return False
    elements = value_type.elements()
    return isinstance(elements, int) and elements <= MAX_FOLDED


def _plain(value: Any) -> Any:
    """Return an attribute as plain Python: numpy scalars and lists have no place in a graph."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(_plain(v) for v in value)
    if isinstance(value, np.generic):
        return value.item()
    return value
