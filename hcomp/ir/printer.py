"""The text form of a graph: what people read in dumps and what `parse_graph` reads back.

    graph @mlp(%x: float32[N, 64]) {
      const %w : float32[64, 16] = sha256:1f0c...
      %h = matmul(%x, %w) : float32[N, 16] from "/fc/MatMul" "MatMul"
      return %h
    }

The text is deterministic: attributes are sorted, those that equal the operator's default are left
out, and constants of more than INLINE elements stand as the digest of their contents.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hcomp.dims import Dim
from hcomp.dtypes import is_float
from hcomp.ir.graph import Attribute, Constant, Graph, Node, Origin, Value
from hcomp.ir.ops import OPS, REQUIRED
from hcomp.ir.types import OpaqueType, OptionalType, SequenceType, TensorType, Type

INLINE = 16
"""Constants of at most so many elements stand in the text with their values."""

PLAIN_NAME = r"[A-Za-z0-9_./-]+(?::+[A-Za-z0-9_./-]+)*"
"""Names that need no quotes; a colon may not end one, because `%x: float32[2]` follows."""
PLAIN_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
LITERALS: Mapping[str, Attribute] = {
    "none": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
}
"""Attribute values that are words; a dimension spelled like one stands in parentheses."""

Subject: TypeAlias = Value | Constant | Node | Graph

_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a graph's text and the inputs, constant, node or graph that it shows."""

    text: str
    subjects: tuple[Subject, ...]


def print_graph(graph: Graph, annotations: Mapping[str, str] | None = None) -> str:
    """Return the text of `graph`, ending in a line break.

    Args:
        graph: Any graph, also one that breaks invariants.
        annotations: Text to show as `on TEXT` by the name of a node's first output (devices).
    """
    return "".join(line.text + "\n" for line in graph_lines(graph, annotations))


def graph_lines(
    graph: Graph, annotations: Mapping[str, str] | None = None, prefix: str = "", indent: int = 0
) -> Iterator[Line]:
    """Yield the lines of `graph`, each with what it shows; `prefix` stands before the first."""
    left = "  " * indent
    yield from _header(graph, left + prefix, left)
    for constant in graph.constants:
        yield Line(f"{left}  {_constant_text(constant)}", (constant,))
    for node in graph.nodes:
        text = f"{left}  {node_text(node, (annotations or {}).get(_key(node), ''))}"
        if not node.graphs:
            yield Line(text, (node,))
            continue
        yield Line(text + " with {", (node,))
        for name, body in node.graphs.items():
            yield from graph_lines(body, annotations, f"{word_text(name)} = ", indent + 2)
        yield Line(f"{left}  }}", (node,))
    returned = ", ".join(name_text(name) for name in graph.outputs)
    yield Line(f"{left}  return {returned}".rstrip(), (graph,))
    yield Line(f"{left}}}", (graph,))


def node_text(node: Node, annotation: str = "") -> str:
    """Return a node on one line, without its subgraphs."""
    outputs = ", ".join(name_text(v.name) for v in node.outputs) or "_"
    inputs = ", ".join(name_text(name) if name else "_" for name in node.inputs)
    text = f"{outputs} = {word_text(node.op)}({inputs})"
    attrs = _shown_attrs(node)
    if attrs:
        text += " {" + ", ".join(f"{word_text(k)} = {v}" for k, v in attrs.items()) + "}"
    if node.payload:
        text += f' payload = base64"{base64.b64encode(node.payload).decode()}"'
    if annotation:
        text += f" on {word_text(annotation)}"
    if node.outputs:
        text += " : " + ", ".join(type_text(v.type) for v in node.outputs)
    return text + _origin_text(node.origin)


def name_text(name: str) -> str:
    """Return a value's name as the text shows it: `%x`, or `%"any text"`."""
    return "%" + (name if re.fullmatch(PLAIN_NAME, name) else quote(name))


def word_text(word: str) -> str:
    """Return an operator's, attribute's or device's name, quoted where it is no plain word."""
    return word if re.fullmatch(PLAIN_WORD, word) else quote(word)


def quote(text: str) -> str:
    r"""Return `text` in double quotes; `"` and `\` are escaped, what is unprintable is \u{hex}."""
    escaped = "".join("\\" + c if c in '"\\' else c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text)
    return f'"{escaped}"'


def type_text(value_type: Type) -> str:
    """Return a type as it reads back: `float32[N, 3]`, `float32[...]`, `sequence<...>`."""
    match value_type:
        case TensorType():
            return str(value_type)
        case SequenceType(element=element):
            return f"sequence<{type_text(element)}>"
        case OptionalType(element=element):
            return f"optional<{type_text(element)}>"
        case OpaqueType(text=text):
            return f"opaque<{quote(text)}>"


def attribute_text(value: Any) -> str:
    """Return an attribute's value as it reads back exactly.

    What is no attribute value (a numpy array, say) comes out as `?`, which does not read back: the
    verifier names it.
    """
    match value:
        case None | bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return quote(value)
        case Dim():
            return f"({value})" if str(value) in LITERALS else str(value)
        case tuple():
            return f"[{', '.join(attribute_text(v) for v in value)}]"
    return f"? {type(value).__name__}"


def _key(node: Node) -> str:
    return node.outputs[0].name if node.outputs else ""


def _header(graph: Graph, start: str, left: str) -> Iterator[Line]:
    """Yield the first line; the inputs get a line each where they do not fit on one."""
    name = graph.name if re.fullmatch(PLAIN_NAME, graph.name) else quote(graph.name)
    inputs = [f"{name_text(v.name)}: {type_text(v.type)}" for v in graph.inputs]
    one_line = f"{start}graph @{name}({', '.join(inputs)}) {{"
    if len(one_line) <= _WIDTH or len(inputs) < 2:
        yield Line(one_line, (graph, *graph.inputs))
        return
    yield Line(f"{start}graph @{name}(", (graph,))
    for value, text in zip(graph.inputs, inputs, strict=True):
        yield Line(f"{left}    {text}" + ("," if value is not graph.inputs[-1] else ""), (value,))
    yield Line(f"{left}) {{", (graph,))


def _shown_attrs(node: Node) -> dict[str, str]:
    """Return the attributes that differ from their defaults, as text."""
    texts = {name: attribute_text(value) for name, value in node.attrs.items()}
    row = OPS.get(node.op)
    if row is None:
        return texts
    defaults = {k: attribute_text(v) for k, v in row.attrs.items() if v is not REQUIRED}
    return {name: text for name, text in texts.items() if defaults.get(name) != text}


def _origin_text(origin: Origin) -> str:
    parts = [origin.name, origin.op, origin.domain, *origin.others]
    while parts and not parts[-1]:
        parts.pop()
    return f" from {' '.join(quote(p) for p in parts)}" if parts else ""


def _constant_text(constant: Constant) -> str:
    head = f"const {name_text(constant.name)} : {type_text(constant.type)} = "
    if constant.array.size > INLINE:
        return f"{head}sha256:{constant.digest}"
    if constant.type.dtype == "string":
        return head + _strings_text(constant)
    texts = [_element_text(item, constant.type.dtype) for item in constant.array.ravel()]
    if None in texts:
        return f'{head}base64"{base64.b64encode(_little_endian(constant)).decode()}"'
    return f"{head}[{', '.join(t for t in texts if t is not None)}]"


def _strings_text(constant: Constant) -> str:
    items = constant.array.ravel().tolist()
    try:
        texts = [quote(i.decode() if isinstance(i, bytes) else str(i)) for i in items]
    except UnicodeDecodeError:
        return f"sha256:{constant.digest}"
    return f"[{', '.join(texts)}]"


def _element_text(item: Any, dtype: str) -> str | None:
    """Return a number that reads back to the same bits, or None where no number does."""
    if dtype == "bool":
        return str(bool(item)).lower()
    if not is_float(dtype):
        return None if dtype.startswith("complex") else str(int(item))
    if np.isnan(item):
        # NaNs differ in sign and payload, which no number says.
        return None
    short = str(item)
    # "-0" would read back as the integer 0.
    return short if short != "-0" and _reads_back(short, item) else repr(float(item))


def _reads_back(text: str, item: Any) -> bool:
    """Say whether the shortest spelling survives the way through float64."""
    try:
        again: bool = item.dtype.type(float(text)) == item
    except ValueError:
        return False
    return again


def _little_endian(constant: Constant) -> bytes:
    array = constant.array
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
