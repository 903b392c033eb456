"""Reading a graph's text: the inverse of `hcomp.ir.printer`.

The grammar, `*` for any number of times, `?` for optional:

    graph     = "graph" "@" name "(" (value ":" type ","?)* ")" "{" constant* node* return "}"
    constant  = "const" value ":" type "=" ("sha256:" hex | "[" element,* "]" | base64
                                            | "ramp" | "ones" | "zeros")
    node      = (value,* | "_") "=" word "(" (value | "_"),* ")" attributes? payload? placement?
                (":" type,*)? ("from" string*)? ("with" "{" (word "=" graph)* "}")?
    attributes = "{" (word "=" attribute),* "}"
    attribute = string | "none" | "true" | "false" | number | dimension | "[" attribute,* "]"
    payload   = "payload" "=" base64
    placement = "on" word
    return    = "return" value,*

A line that starts with `//` is a comment. A placement is read and dropped: it belongs to a plan.
Attributes that are left out get the operator's defaults.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import DimLike, parse_dim
from hcomp.dtypes import DTYPES, numpy_dtype
from hcomp.errors import ParseError
from hcomp.ir.graph import Attribute, Constant, Graph, Node, Origin, Value
from hcomp.ir.ops import OPS, REQUIRED
from hcomp.ir.printer import LITERALS
from hcomp.ir.scanner import Scanner
from hcomp.ir.types import OpaqueType, OptionalType, SequenceType, TensorType, Type

Constants = Mapping[str, NDArray[np.generic]]


def parse_graph(text: str, constants: Constants | None = None) -> Graph:
    """Return the graph that `text` spells.

    Args:
        text: What `print_graph` writes.
        constants: The contents of the constants that the text names by digest.

    Raises:
        ParseError: the text is no graph, or a constant's contents are missing; names line and
            column. Whether the graph makes sense is the verifier's business.
    """
    scanner = Scanner(text)
    try:
        graph = _Reader(scanner, constants or {}).graph()
    except RecursionError:
        raise ParseError("the graph's text is nested too deeply") from None
    if not scanner.at_end():
        raise scanner.error("the end of the text after the graph's last brace")
    return graph


class _Reader:
    """Reads one text; each method reads the part of the grammar that it is named after."""

    def __init__(self, scanner: Scanner, constants: Constants) -> None:
        self.scan = scanner
        self.known = constants

    def graph(self) -> Graph:
        scan = self.scan
        scan.word("graph")
        name = scan.name("@")
        scan.symbol("(")
        inputs = []
        while not scan.skip(")"):
            value = scan.name("%")
            scan.symbol(":")
            inputs.append(Value(value, self.type()))
            if not scan.skip(","):
                scan.symbol(")")
                break
        scan.symbol("{")
        constants = []
        while scan.skip_word("const"):
            constants.append(self.constant())
        nodes = []
        while not scan.skip_word("return"):
            nodes.append(self.node())
        outputs = self.names()
        scan.symbol("}")
        return Graph(name, tuple(inputs), tuple(constants), tuple(nodes), outputs)

    def names(self) -> tuple[str, ...]:
        """Read values separated by commas; none is allowed."""
        found = []
        if self.scan.sees("%"):
            found.append(self.scan.name("%"))
            while self.scan.skip(","):
                found.append(self.scan.name("%"))
        return tuple(found)

    def type(self) -> Type:
        scan = self.scan
        start = scan.position
        word = scan.plain_word("a type")
        if word in ("sequence", "optional", "opaque"):
            scan.symbol("<")
            inner = OpaqueType(scan.string()) if word == "opaque" else self.type()
            scan.symbol(">")
            if isinstance(inner, OpaqueType) and word == "opaque":
                return inner
            return SequenceType(inner) if word == "sequence" else OptionalType(inner)
        if word not in DTYPES:
            raise scan.error_at(start, f"expected a type, such as float32[2, 3], found {word!r}")
        scan.symbol("[")
        if scan.skip("..."):
            scan.symbol("]")
            return TensorType(word, None)
        shape: list[DimLike] = []
        while not scan.skip("]"):
            shape.append(self.dimension())
            if not scan.skip(","):
                scan.symbol("]")
                break
        return TensorType(word, tuple(shape))

    def dimension(self) -> DimLike:
        start, text = self.scan.expression()
        try:
            return parse_dim(text)
        except ParseError:
            raise self.scan.error_at(start, f"expected a dimension, found {text!r}") from None

    def constant(self) -> Constant:
        scan = self.scan
        name = scan.name("%")
        scan.symbol(":")
        start = scan.position
        found = self.type()
        if not isinstance(found, TensorType) or found.shape is None:
            raise scan.error_at(start, "expected a tensor type with a known shape for a constant")
        shape = tuple(d for d in found.shape if isinstance(d, int) and d >= 0)
        if len(shape) != len(found.shape):
            raise scan.error_at(start, "expected a constant's shape in numbers")
        scan.symbol("=")
        return Constant(name, self.contents(name, found.dtype, shape))

    def contents(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        scan = self.scan
        start = scan.position
        if scan.sees("["):
            return self.elements(dtype, shape)
        if scan.sees('base64"'):
            data = self.base64()
            if dtype == "string" or len(data) != prod(shape) * numpy_dtype(dtype).itemsize:
                raise scan.error_at(start, f"expected the bytes of {dtype}{list(shape)}, found {len(data)}")
            little = np.frombuffer(data, numpy_dtype(dtype).newbyteorder("<"))
            return little.astype(numpy_dtype(dtype)).reshape(shape)
        word = scan.plain_word("sha256:..., [values], ramp, ones or zeros")
        if word == "sha256":
            scan.symbol(":")
            return self.lookup(name, scan.digest(), dtype, shape, start)
        if word not in _FILL or dtype == "string":
            raise scan.error_at(start, f"expected sha256:..., [values], ramp, ones or zeros, found {word!r}")
        return _FILL[word](shape).astype(numpy_dtype(dtype))

    def lookup(self, name: str, digest: str, dtype: str, shape: tuple[int, ...], start: int) -> NDArray[Any]:
        """Return the contents for a digest; its type must be what the text says."""
        array = self.known.get(digest)
        if array is None:
            raise self.scan.error_at(start, f"the data of %{name} is missing: none was given for it")
        found = Constant(name, array).type
        if found != TensorType(dtype, shape):
            raise self.scan.error_at(start, f"the data of %{name} is {found}, the text says {TensorType(dtype, shape)}")
        return array

    def elements(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        scan = self.scan
        start = scan.position
        found = self.attribute()
        items = found if isinstance(found, tuple) else ()
        if len(items) != prod(shape):
            raise scan.error_at(start, f"expected {prod(shape)} elements, found {len(items)}")
        array = np.empty(len(items), numpy_dtype(dtype))
        try:
            for i, item in enumerate(items):
                array[i] = _element(item, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise scan.error_at(start, f"expected elements of {dtype} ({error})") from None
        return array.reshape(shape)

    def node(self) -> Node:
        scan = self.scan
        names = self.names()
        if not names and not scan.skip_word("_"):
            raise scan.error("a value, `return` or `const` (constants stand before nodes)")
        scan.symbol("=")
        op = scan.any_word("an operator")
        inputs = self.arguments()
        attrs = {**_defaults(op), **self.attributes()}
        payload = b""
        if scan.skip_word("payload"):
            scan.symbol("=")
            payload = self.base64()
        if scan.skip_word("on"):
            scan.any_word("a device")
        types = self.types(len(names))
        origin = self.origin()
        outputs = tuple(Value(n, t) for n, t in zip(names, types, strict=True))
        return Node(op, inputs, outputs, attrs, self.graphs(), origin, payload)

    def arguments(self) -> tuple[str, ...]:
        scan = self.scan
        scan.symbol("(")
        inputs = []
        while not scan.skip(")"):
            inputs.append("" if scan.skip_word("_") else scan.name("%"))
            if not scan.skip(","):
                scan.symbol(")")
                break
        return tuple(inputs)

    def types(self, count: int) -> tuple[Type, ...]:
        """Read one type for each of `count` outputs."""
        found: list[Type] = []
        for i in range(count):
            self.scan.symbol("," if i else ":")
            found.append(self.type())
        return tuple(found)

    def origin(self) -> Origin:
        parts: list[str] = []
        if self.scan.skip_word("from"):
            while self.scan.sees('"'):
                parts.append(self.scan.string())
        name, op, domain, *others = (*parts, *("",) * (3 - len(parts)))
        return Origin(name, op, domain, tuple(others))

    def graphs(self) -> dict[str, Graph]:
        scan = self.scan
        found: dict[str, Graph] = {}
        if scan.skip_word("with"):
            scan.symbol("{")
            while not scan.skip("}"):
                name = scan.any_word("a subgraph's name or }")
                scan.symbol("=")
                found[name] = self.graph()
        return found

    def attributes(self) -> dict[str, Attribute]:
        scan = self.scan
        attrs: dict[str, Attribute] = {}
        if not scan.skip("{"):
            return attrs
        while not scan.skip("}"):
            start = scan.position
            name = scan.any_word("an attribute's name")
            if name in attrs:
                raise scan.error_at(start, f"expected each attribute once, found {name} again")
            scan.symbol("=")
            attrs[name] = self.attribute()
            if not scan.skip(","):
                scan.symbol("}")
                break
        return attrs

    def attribute(self) -> Attribute:
        scan = self.scan
        if scan.sees('"'):
            return scan.string()
        if scan.skip("["):
            items: list[Attribute] = []
            while not scan.skip("]"):
                items.append(self.attribute())
                if not scan.skip(","):
                    scan.symbol("]")
                    break
            return tuple(items)
        start, text = scan.expression()
        if text in LITERALS:
            return LITERALS[text]
        try:
            return _number(text)
        except ValueError:
            pass
        try:
            return parse_dim(text)
        except ParseError:
            raise scan.error_at(start, f"expected a value, found {text!r}") from None

    def base64(self) -> bytes:
        start = self.scan.position
        self.scan.symbol("base64")
        try:
            return base64.b64decode(self.scan.string(), validate=True)
        except (binascii.Error, ValueError):
            raise self.scan.error_at(start, "expected base64 data") from None


def _defaults(op: str) -> dict[str, Attribute]:
    """Return the defaults of an operator's attributes; the verifier judges what is missing."""
    row = OPS.get(op)
    return {} if row is None else {k: v for k, v in row.attrs.items() if v is not REQUIRED}


def _number(text: str) -> int | float:
    """Return the int or float that `text` is; only what Python's repr writes counts."""
    if not text or text[-1] not in "0123456789." or "_" in text:
        raise ValueError(text)
    return float(text) if any(c in text for c in ".eE") else int(text)


def _element(item: Attribute, dtype: str) -> Any:
    """Return one element of a constant; a kind that does not fit is a TypeError."""
    kind = {"string": str, "bool": bool}.get(dtype)
    if kind is not None:
        if not isinstance(item, kind):
            raise TypeError(f"{item!r} is none")
        return item
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise TypeError(f"{item!r} is none")
    if isinstance(item, float) and numpy_dtype(dtype).kind in "iu":
        raise TypeError(f"{item!r} is none")
    return item


_FILL: Mapping[str, Callable[[tuple[int, ...]], NDArray[Any]]] = {
    "ramp": lambda shape: np.arange(prod(shape)).reshape(shape),
    "ones": np.ones,
    "zeros": np.zeros,
}
"""Contents for tests, written in one word; ramp is 0, 1, 2, ... in rows."""
