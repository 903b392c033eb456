"""A graph as a JSON-able program: what the reference interpreter runs, also where no IR is.

    {"inputs": [VALUE], "constants": [name], "symbols": [name], "nodes": [NODE], "outputs": [name]}
    VALUE = {"name", "dtype": str | null, "shape": [1, "N", "2*N + 1"] | null}
    NODE = {"op", "label", "inputs": [name | ""], "outputs": [VALUE], "attrs", "graphs", "payload"}

`constants` are those of the graph, then those of its subgraphs; their contents are handed over
when the program runs. `symbols` are the sizes that attributes need and no value brings along.
Attributes: a dimension is {"dim": "2*N"}, a float that JSON lacks {"float": "nan"}, a tuple a list.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim, is_symbol, symbols_of
from hcomp.ir.graph import Constant, Graph, Node, Value
from hcomp.ir.types import TensorType

Program: TypeAlias = dict[str, Any]
_Owners: TypeAlias = dict[tuple[int, str], str]
"""From (id of the graph, constant's name) to the constant's name in the whole program."""


def to_program(graph: Graph) -> Program:
    """Return `graph` as a program; see the module's text for its form."""
    return _program(graph, _constant_names(graph))


def program_constants(graph: Graph) -> dict[str, NDArray[np.generic]]:
    """Return the contents of the program's constants by name, in its order."""
    names = _constant_names(graph)
    return {names[id(owner), c.name]: c.array for owner, c in _all_constants(graph)}


def _all_constants(graph: Graph) -> Iterator[tuple[Graph, Constant]]:
    for constant in graph.constants:
        yield graph, constant
    for node in graph.nodes:
        for inner in node.graphs.values():
            yield from _all_constants(inner)


def _constant_names(graph: Graph) -> _Owners:
    """Return one name for each constant; names are unique only within their graph."""
    names: _Owners = {}
    arrays: dict[str, NDArray[np.generic]] = {}
    for owner, constant in _all_constants(graph):
        name, count = constant.name, 1
        while arrays.get(name, constant.array) is not constant.array:
            count += 1
            name = f"{constant.name}_{count}"
        arrays[name] = constant.array
        names[id(owner), constant.name] = name
    return names


def _program(graph: Graph, names: _Owners) -> Program:
    own = {c.name: names[id(graph), c.name] for c in graph.constants}
    constants = dict.fromkeys(names[id(owner), c.name] for owner, c in _all_constants(graph))
    return {
        "inputs": [_value(v) for v in graph.inputs],
        "constants": list(constants),
        "symbols": sorted(_unbound_symbols(graph)),
        "nodes": [_node(node, own, names) for node in graph.nodes],
        "outputs": [own.get(name, name) for name in graph.outputs],
    }


def _node(node: Node, own: Mapping[str, str], names: _Owners) -> dict[str, Any]:
    return {
        "op": node.op,
        "label": node.label,
        "inputs": [own.get(name, name) for name in node.inputs],
        "outputs": [_value(v) for v in node.outputs],
        "attrs": {key: _attribute(value) for key, value in node.attrs.items()},
        "graphs": {key: _program(inner, names) for key, inner in node.graphs.items()},
        "payload": base64.b64encode(node.payload).decode(),
    }


def _value(value: Value) -> dict[str, Any]:
    if not isinstance(value.type, TensorType):
        return {"name": value.name, "dtype": None, "shape": None}
    shape = value.type.shape
    dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
    return {"name": value.name, "dtype": value.type.dtype, "shape": dims}


def _attribute(value: Any) -> Any:
    if isinstance(value, Dim):
        return {"dim": str(value)}
    if isinstance(value, tuple):
        return [_attribute(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _unbound_symbols(graph: Graph) -> set[str]:
    """Return the symbols that nodes need before a value of the graph has them as a plain size."""
    bound = _plain_sizes(graph.inputs)
    missing: set[str] = set()
    for node in graph.nodes:
        needed = set(symbols_of(tuple(node.attrs.values())))
        for inner in node.graphs.values():
            needed |= _unbound_symbols(inner)
        missing |= needed - bound
        bound |= _plain_sizes(node.outputs)
    return missing


def _plain_sizes(values: tuple[Value, ...]) -> set[str]:
    return {
        str(dim)
        for value in values
        if isinstance(value.type, TensorType)
        for dim in value.type.shape or ()
        if is_symbol(dim)
    }
