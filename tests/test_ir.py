"""Graph text and verifier: what is printed reads back equal, what is wrong is named where it is."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcomp.dims import DimLike, dim_max, floordiv, symbol
from hcomp.dtypes import DTYPES, numpy_dtype
from hcomp.errors import InvariantError, ParseError
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Attribute, Constant, Graph, Node, Origin, Value
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.ops import OPS
from hcomp.ir.parser import parse_graph
from hcomp.ir.printer import attribute_text, print_graph
from hcomp.ir.types import OpaqueType, OptionalType, SequenceType, TensorType, Type
from hcomp.ir.verifier import Invariant, Violation, verify

# -- random graphs: any names, types, attributes; nothing that makes sense is needed --------------

texts = st.text(st.characters(exclude_categories=[]), max_size=6)
names = st.one_of(st.from_regex(r"[a-z_/.:-]{1,6}", fullmatch=True), texts.filter(bool))
symbols = st.sampled_from(["N", "seq_len", "inf", "none", "größe"]).map(symbol)
dims: st.SearchStrategy[DimLike] = st.one_of(
    st.integers(0, 9),
    symbols,
    st.tuples(symbols, st.integers(1, 5)).map(lambda p: floordiv(p[0] * 2 + 1, p[1])),
    st.tuples(symbols, symbols).map(lambda p: -dim_max(p[0], p[1] * 2) + 7),
)
tensor_types = st.builds(
    TensorType,
    st.sampled_from(DTYPES),
    st.one_of(st.none(), st.lists(dims, max_size=3).map(tuple)),
)
types: st.SearchStrategy[Type] = st.recursive(
    st.one_of(tensor_types, st.builds(OpaqueType, texts)),
    lambda inner: st.one_of(st.builds(SequenceType, inner), st.builds(OptionalType, inner)),
    max_leaves=3,
)
attributes: st.SearchStrategy[Attribute] = st.recursive(
    st.one_of(
        st.integers(-(2**63), 2**63),
        st.floats(allow_nan=False),
        st.booleans(),
        st.none(),
        texts,
        dims,
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
origins = st.builds(Origin, texts, texts, texts)


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = int(np.prod(shape))
    if dtype == "string":
        items = draw(st.lists(st.text(max_size=4), min_size=count, max_size=count))
        array = np.array([*items, None], dtype=object)[:-1].reshape(shape)
    else:
        size = count * numpy_dtype(dtype).itemsize
        data = draw(st.binary(min_size=size, max_size=size))
        array = np.frombuffer(data, numpy_dtype(dtype)).reshape(shape)
        if dtype == "bool" or dtype.endswith(("int4", "int2", "e2m1fn")):
            # Bytes that are no value of these types are none of ours.
            array = np.arange(count).astype(numpy_dtype(dtype)).reshape(shape)
    return Constant(draw(names), array)


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> Node:
    inputs = draw(st.lists(st.one_of(st.just(""), names), max_size=3))
    outputs = draw(st.lists(st.builds(Value, names, types), max_size=3))
    attrs = draw(st.dictionaries(names, attributes, max_size=3))
    bodies = st.dictionaries(names, graphs(depth - 1), max_size=2) if depth else st.just({})
    payload = draw(st.binary(max_size=8))
    # An operator of the table gets its defaults when read: see the test of that.
    op = draw(st.one_of(st.sampled_from(["if", "loop"]), names.filter(lambda n: n not in OPS)))
    return Node(op, tuple(inputs), tuple(outputs), attrs, draw(bodies), draw(origins), payload)


@st.composite
def graphs(draw: st.DrawFn, depth: int = 1) -> Graph:
    return Graph(
        draw(names),
        tuple(draw(st.lists(st.builds(Value, names, types), max_size=3))),
        tuple(draw(st.lists(constants(), max_size=2))),
        tuple(draw(st.lists(nodes(depth), max_size=3))),
        tuple(draw(st.lists(names, max_size=3))),
    )


def _data(graph: Graph) -> dict[str, Any]:
    bodies = [g for node in graph.walk() for g in node.graphs.values()]
    return {c.digest: c.array for g in (graph, *bodies) for c in g.constants}


@settings(max_examples=25)
@given(graphs())
def test_text_reads_back_equal(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text, _data(graph))
    assert print_graph(again) == text
    assert again == graph


@given(constants())
def test_small_constants_read_back_to_the_bit(constant: Constant) -> None:
    graph = Graph("g", (), (constant,), (), (constant.name,))
    # At most INLINE elements stand in the text; more need the data.
    given_data = _data(graph) if constant.array.size > 16 else {}
    (again,) = parse_graph(print_graph(graph), given_data).constants
    assert again.digest == constant.digest


def test_a_node_shows_all_its_parts() -> None:
    n = symbol("N")
    node = Node(
        "split",
        ("x", "", "a b"),
        (Value("y", TensorType("float32", (n, 3))), Value("z", TensorType("float32", None))),
        {"sizes": (n * 2 + 1, 4), "axis": 1},
        {},
        Origin("/m/Split", "Split", "ai.test"),
    )
    text = print_graph(Graph("main", (), (), (node,), ("y",)), {"y": "npu"})
    assert text.splitlines()[1] == (
        '  %y, %z = split(%x, _, %"a b") {axis = 1, sizes = [2*N + 1, 4]} on npu'
        ' : float32[N, 3], float32[...] from "/m/Split" "Split" "ai.test"'
    )


def test_an_attribute_that_is_its_default_is_left_out_and_comes_back() -> None:
    text = "graph @g(%x: float32[2, 3]) {\n  %y = softmax(%x) : float32[2, 3]\n  return %y\n}\n"
    graph = parse_graph(text)
    assert graph.nodes[0].attrs == {"axis": -1}
    assert print_graph(graph) == text


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), -0.0, 1e-45, 0.1, 5e300])
def test_floats_are_exact(value: float) -> None:
    text = "graph @g() {\n  %y = extern() {f = " + attribute_text(value) + "} : bool[]\n  return\n}"
    found = parse_graph(text).nodes[0].attrs["f"]
    assert isinstance(found, float)
    assert (found.hex()) == value.hex()


def test_nan_reads_back() -> None:
    text = "graph @g() {\n  %y = extern() {f = nan} : bool[]\n  return\n}"
    assert str(parse_graph(text).nodes[0].attrs["f"]) == "nan"


def test_constants_for_tests_are_filled() -> None:
    graph = parse_graph(
        "// a comment\ngraph @g() {\n"
        "  const %r : int32[2, 3] = ramp\n  const %o : float16[2] = ones\n"
        "  // another\n  const %z : bool[] = zeros\n  return %r\n}"
    )
    assert graph.constant["r"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert graph.constant["o"].tolist() == [1, 1]
    assert graph.constant["z"].tolist() is False


def test_missing_data_of_a_constant_is_said() -> None:
    graph = Graph("g", (), (Constant("w", np.zeros((8, 8), np.float32)),), (), ("w",))
    with pytest.raises(ParseError, match="the data of %w is missing"):
        parse_graph(print_graph(graph))


def test_data_of_another_type_is_refused() -> None:
    constant = Constant("w", np.zeros((8, 8), np.float32))
    text = print_graph(Graph("g", (), (constant,), (), ("w",)))
    with pytest.raises(ParseError, match=r"the data of %w is float32\[4\], the text says"):
        parse_graph(text, {constant.digest: np.zeros(4, np.float32)})


def _refused(body: str) -> str:
    with pytest.raises(ParseError) as caught:
        parse_graph("graph @g(%x: float32[2]) {\n" + body + "\n  return %y\n}")
    return str(caught.value)


def test_an_error_has_line_column_and_caret() -> None:
    assert _refused("  %y = relu(%x) : float33[2]") == (
        "line 2, column 19: expected a type, such as float32[2, 3], found 'float33'\n"
        "    %y = relu(%x) : float33[2]\n"
        "                    ^"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("  %y = relu(x) : bool[]", "column 13: expected a name that starts with `%`, found 'x)"),
        ("  %y = relu(%x)", "line 3, column 3: expected `:`, found 'return %y'"),
        ("  %y = relu(%x) : float32[2*]", "column 27: expected a dimension, found '2*'"),
        ("  %y = relu(%x) {a 1} : bool[]", "column 20: expected `=`"),
        ("  %y = relu(%x) {a = 1, a = 2} : bool[]", "expected each attribute once, found a again"),
        ("  %y = relu(%x) {a = 1.5.2} : bool[]", "expected a value, found '1.5.2'"),
        ('  %y = relu(%x) {a = "s} : bool[]', "expected a string in double quotes"),
        ('  %y = relu(%x) {a = "\\n"} : bool[]', "expected a string in double quotes"),
        ('  %y = extern() payload = base64"*" : bool[]', "expected base64 data"),
        ("  const %c : float32[2] = [1.0]", "expected 2 elements, found 1"),
        ("  const %c : int8[1] = [1.5]", "expected elements of int8 (1.5 is none)"),
        ("  const %c : int8[1] = [300]", "expected elements of int8"),
        ("  const %c : bool[1] = [1]", "expected elements of bool"),
        ("  const %c : float32[N] = ones", "expected a constant's shape in numbers"),
        ("  const %c : float32[...] = ones", "expected a tensor type with a known shape"),
        ("  const %c : float32[2] = twos", "found 'twos'"),
        ("  const %c : float32[2] = sha256:12", "expected 64 hexadecimal digits"),
        ('  const %c : float32[2] = base64"AAAA"', "expected the bytes of float32[2], found 3"),
        ("  relu(%x)", "expected a value, `return` or `const`"),
        ("  return %x\n} x", "expected the end of the text"),
    ],
)
def test_broken_text_is_refused(body: str, message: str) -> None:
    assert message in _refused(body)


def test_deep_nesting_is_refused() -> None:
    deep = "sequence<" * 3000 + "bool[]" + ">" * 3000
    with pytest.raises(ParseError, match="nested too deeply"):
        parse_graph(f"graph @g(%x: {deep}) {{\n  return %x\n}}")


@given(st.data())
def test_damaged_text_never_fails_otherwise(data: st.DataObject) -> None:
    text = print_graph(_small())
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 5))
    new = data.draw(st.text('%@{}[](),"=:.0aN\n\\', max_size=3))
    with suppress(ParseError):
        parse_graph(text[:at] + new + text[at + cut :])


def _small() -> Graph:
    b = GraphBuilder("small")
    x = b.input("x", TensorType("float32", (symbol("N"), 4)))
    w = b.constant(np.ones((4, 4), np.float32), "w")
    h = b.emit("matmul", x, w, hint="h")
    parts = b.emit_many("split", (h,), {"sizes": (1, 3), "axis": 1}, ("p", "q"))
    return b.finish([*parts, b.emit("softmax", h)])


# -- the verifier ---------------------------------------------------------------------------------


def test_a_good_graph_is_well_formed() -> None:
    verify(_small(), WELL_FORMED)


def test_attributes_must_be_plain_and_complete() -> None:
    good = _small()
    (node,) = [n for n in good.nodes if n.op == "softmax"]
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"axis": np.float64(1)}, "holds a float64, no plain value"),
        ({"axis": np.arange(3)}, "holds a ndarray, no plain value"),
        ({"axis": [1]}, "holds a list, no plain value"),
        ({}, "the attribute 'axis' is missing"),
    )
    for attrs, message in cases:
        bad = tuple(replace(n, attrs=attrs) if n is node else n for n in good.nodes)
        with pytest.raises(InvariantError, match=message):
            verify(replace(good, nodes=bad), WELL_FORMED)


def test_the_stage_and_the_number_of_violations_are_named() -> None:
    bad = replace(_small(), outputs=("a", "b"))
    with pytest.raises(InvariantError, match="after this: 2 violations in the graph"):
        verify(bad, WELL_FORMED, "after this")


def test_a_long_graph_is_shown_around_its_violation() -> None:
    b = GraphBuilder("long")
    x = b.input("x", TensorType("float32", (2,)))
    for _ in range(200):
        x = b.emit("relu", x)
    graph = b.finish([x])
    check = Invariant("no-100", lambda g: [Violation("this is it", g.nodes[100])])
    with pytest.raises(InvariantError) as caught:
        verify(graph, [check])
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 1 + 1 + 7 + 1 + 1
    assert lines[1].startswith("graph @long(")
    assert lines[7] == "  ^ error: this is it [no-100]"
    assert lines[2] == lines[-1] == "  ..."


def test_every_reason_of_a_typing_rule_is_a_violation_not_a_crash() -> None:
    good = _small()
    cases: tuple[dict[str, Any], ...] = (
        {"sizes": "text", "axis": 1},
        {"sizes": (1,), "axis": 9},
        {"sizes": 3, "axis": 1},
    )
    for attrs in cases:
        bad = tuple(replace(n, attrs=attrs) if n.op == "split" else n for n in good.nodes)
        with pytest.raises(InvariantError, match=r"\[typed\]"):
            verify(replace(good, nodes=bad), WELL_FORMED)


def test_a_spelled_shape_ends_an_unknown_rank() -> None:
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType("float32", None))
    assert builder.types[builder.emit("reshape", x, shape=(2, 3))] == TensorType("float32", (2, 3))
    assert builder.types[builder.emit("relu", x)] == TensorType("float32", None)
    pieces = builder.emit_many("split", [x], {"sizes": (1, 2), "axis": 0})
    assert [builder.types[p] for p in pieces] == [TensorType("float32", None)] * 2
