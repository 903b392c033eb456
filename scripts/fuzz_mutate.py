"""Sound models and artifacts, and ways to damage them; all of it from a seeded `random.Random`."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from hcomp.artifact import Artifact
from hcomp.artifact.layout import write_zip
from models import MODELS

NUMBERS = (0, 1, -1, 2, 3, 5, 7, -2, -5, 16, 99, 1 << 31, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
REALS = (0.0, 1.0, -1.0, 0.5, 1e-12, 1e30, float("inf"), float("-inf"), float("nan"))
ELEMENTS = (1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 0, 99)
WORDS = ("", "NOTSET", "SAME_UPPER", "linear", "ij,jk->ik", "...i->i", "\u00e4", "reflect", "x" * 300)

SINGLE: tuple[tuple[str, Sequence[Any], Mapping[str, Any]], ...] = (
    ("Conv", [(1, 4, 7, 7), np.ones((2, 4, 3, 3), np.float32)], {"strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ("ConvTranspose", [(1, 4, 5, 5), np.ones((4, 2, 3, 3), np.float32)], {"strides": [2, 2], "output_padding": [1, 0]}),
    ("MaxPool", [(1, 2, 7, 7)], {"kernel_shape": [3, 2], "strides": [2, 1], "ceil_mode": 1}),
    ("AveragePool", [(1, 2, 7, 7)], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "count_include_pad": 1}),
    ("LRN", [(1, 6, 3, 3)], {"size": 3}),
    ("BatchNormalization", [(1, 3, 4, 4), *[np.full(3, v, np.float32) for v in (1, 0, 0, 2)]], {"epsilon": 1e-5}),
    ("LayerNormalization", [(2, 3, 4), np.ones(4, np.float32), np.ones(4, np.float32)], {"axis": -1}),
    ("GroupNormalization", [(1, 4, 3, 3), np.ones(4, np.float32), np.ones(4, np.float32)], {"num_groups": 2}),
    ("Gemm", [(3, 4), (4, 5), (5,)], {"alpha": 0.5, "beta": 2.0, "transA": 0}),
    ("MatMul", [(2, 3, 4), (4, 5)], {}),
    ("Einsum", [(3, 4), (4, 5)], {"equation": "ij,jk->ik"}),
    ("Softmax", [(2, 3, 4)], {"axis": 1}),
    ("Hardmax", [(2, 3, 4)], {"axis": -1}),
    ("Concat", [(2, 3), (2, 4)], {"axis": 1}),
    ("Transpose", [(2, 3, 4)], {"perm": [2, 0, 1]}),
    ("Reshape", [(2, 3, 4), np.array([0, -1])], {"allowzero": 0}),
    ("Squeeze", [(2, 1, 4), np.array([1])], {}),
    ("Unsqueeze", [(2, 4), np.array([1, 3])], {}),
    ("Flatten", [(2, 3, 4)], {"axis": 2}),
    ("Expand", [(3, 1), np.array([2, 3, 4])], {}),
    ("Tile", [(2, 3), np.array([2, 1])], {}),
    ("Pad", [(3, 4), np.array([1, 0, 0, 2])], {"mode": "constant"}),
    ("Slice", [(5, 6), np.array([0, -3]), np.array([4, 99]), np.array([0, 1]), np.array([2, 1])], {}),
    ("Split", [(4, 6), np.array([2, 4])], {"axis": 1}),
    ("Gather", [(5, 3), np.array([[0, 4], [-1, 2]])], {"axis": 0}),
    ("GatherElements", [(3, 3), np.array([[0, 2, 1]])], {"axis": 0}),
    ("GatherND", [(3, 3, 2), np.array([[0, 2], [1, 1]])], {"batch_dims": 0}),
    ("ScatterElements", [(3, 3), np.array([[0, 2, 1]]), (1, 3)], {"axis": 0, "reduction": "add"}),
    ("ScatterND", [(4, 3), np.array([[1], [3]]), (2, 3)], {"reduction": "none"}),
    ("OneHot", [np.array([0, 2]), np.array(4), np.array([0, 1], np.float32)], {"axis": -1}),
    ("TopK", [(3, 6), np.array([2])], {"axis": -1, "largest": 1}),
    ("ReduceSum", [(2, 3, 4), np.array([1])], {"keepdims": 0}),
    ("ReduceLogSumExp", [(2, 3, 4)], {"keepdims": 1}),
    ("ArgMax", [(2, 3, 4)], {"axis": 1, "keepdims": 0, "select_last_index": 1}),
    ("CumSum", [(3, 4), np.array(1)], {"exclusive": 1, "reverse": 0}),
    ("Clip", [(3, 4), np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}),
    ("LeakyRelu", [(3, 4)], {"alpha": 0.2}),
    ("Cast", [(3, 4)], {"to": 7}),
    ("ConstantOfShape", [np.array([2, 3])], {"value": numpy_helper.from_array(np.array([3.0], np.float32))}),
    ("Range", [np.array(0), np.array(10), np.array(3)], {}),
    ("Resize", [(1, 2, 4, 4), None, np.array([1, 1, 2, 1.5], np.float32)], {"mode": "linear"}),
    ("DepthToSpace", [(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [(1, 2, 4, 6)], {"blocksize": 2}),
    ("Trilu", [(4, 4), np.array(1)], {"upper": 0}),
    ("QuantizeLinear", [(3, 4), np.array(0.1, np.float32), np.array(3, np.uint8)], {"axis": 1}),
    ("LSTM", [(3, 2, 4), np.full((1, 12, 4), 0.1, np.float32), np.full((1, 12, 3), 0.1, np.float32)],
     {"hidden_size": 3, "direction": "forward"}),
    ("GRU", [(3, 2, 4), np.full((1, 9, 4), 0.1, np.float32), np.full((1, 9, 3), 0.1, np.float32)],
     {"hidden_size": 3, "linear_before_reset": 1}),
    ("InstanceNormalization", [(1, 3, 4, 4), np.ones(3, np.float32), np.zeros(3, np.float32)], {"epsilon": 1e-3}),
    ("NonZero", [(3, 4)], {}),
    ("Where", [np.array([True, False, True]), (2, 3), (3,)], {}),
    ("Mod", [np.array([5, -7, 9]), np.array([3, 3, -4])], {"fmod": 0}),
)  # fmt: skip
"""One-node models: the operator, its inputs (a shape: fed from outside; an array: an initializer), attributes."""


def sound_model(rng: random.Random) -> ModelProto:
    """Return one of the built models, or a one-node model."""
    if rng.random() < 0.4:
        model = ModelProto()
        model.CopyFrom(MODELS[rng.choice(sorted(MODELS))]()[0])
        return model
    return single(*rng.choice(SINGLE))


def single(op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> ModelProto:
    """Return a model of one node, followed by a Neg where that has a meaning."""
    names, fed, given = [], [], []
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"i{i}")
        if isinstance(value, tuple):
            fed.append(helper.make_tensor_value_info(f"i{i}", TensorProto.FLOAT, value))
        elif value is not None:
            given.append(numpy_helper.from_array(value, f"i{i}"))
    count = 2 if op in ("TopK", "Split") else 1
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(op, names, outputs, name=f"the_{op}", **attributes)
    declared = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "single", fed, declared, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def mutated_model(rng: random.Random) -> ModelProto:
    """Return a model with one to three faults at the level of its meaning."""
    model = sound_model(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(MUTATIONS)(rng, model)
    return model


def mutated_bytes(rng: random.Random) -> bytes:
    """Return a serialized model with damaged bytes."""
    return damaged(rng, sound_model(rng).SerializeToString())


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return bytes that are flipped, cut, moved, filled or inserted at one to four places."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(result) or 1)
        size = rng.choice((1, 2, 8, 64, 1000))
        match rng.randrange(6):
            case 0 | 1 if result:
                result[at] ^= 1 << rng.randrange(8)
            case 2:
                del result[at:]
            case 3:
                block = result[at : at + size]
                del result[at : at + size]
                place = rng.randrange(len(result) + 1)
                result[place:place] = block
            case 4:
                result[at : at + size] = bytes(rng.choice((0, 255)) for _ in result[at : at + size])
            case _:
                result[at:at] = rng.randbytes(size)
    return bytes(result)


def _nodes(model: ModelProto) -> list[NodeProto]:
    found = list(model.graph.node)
    for node in model.graph.node:
        for attribute in node.attribute:
            found.extend(attribute.g.node)
    return found


def _change_attribute(rng: random.Random, model: ModelProto) -> None:
    attributes = [a for n in _nodes(model) for a in n.attribute if not a.HasField("g")]
    if not attributes:
        return
    attribute = rng.choice(attributes)
    name, kind = attribute.name, attribute.type
    if rng.random() < 0.15:
        kind = rng.choice((AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING, AttributeProto.INTS))
    if kind == AttributeProto.INTS and attribute.ints and rng.random() < 0.7:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        return
    values: dict[int, Callable[[], Any]] = {
        AttributeProto.INT: lambda: rng.choice(NUMBERS),
        AttributeProto.FLOAT: lambda: rng.choice(REALS),
        AttributeProto.STRING: lambda: rng.choice(WORDS),
        AttributeProto.INTS: lambda: [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 5))],
        AttributeProto.FLOATS: lambda: [rng.choice(REALS) for _ in range(rng.randrange(1, 5))],
    }
    if kind in values:
        attribute.CopyFrom(helper.make_attribute(name, values[kind]()))


def _drop_attribute(rng: random.Random, model: ModelProto) -> None:
    owners = [n for n in _nodes(model) if n.attribute]
    if owners:
        node = rng.choice(owners)
        del node.attribute[rng.randrange(len(node.attribute))]


def _change_initializer(rng: random.Random, model: ModelProto) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    match rng.randrange(5):
        case 0:
            tensor.data_type = rng.choice(ELEMENTS)
        case 1 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 2:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case _:
            try:
                array = numpy_helper.to_array(tensor)
            except (ValueError, TypeError, KeyError):
                return  # damaged before
            if array.size and array.dtype.kind in "if":
                changed = array.copy()
                pool = NUMBERS[:10] if rng.random() < 0.6 or array.dtype != np.int64 else NUMBERS
                changed.flat[rng.randrange(array.size)] = np.array(rng.choice(pool)).astype(array.dtype)
                tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))


def _change_input(rng: random.Random, model: ModelProto) -> None:
    if not model.graph.input:
        return
    declared = rng.choice(model.graph.input).type.tensor_type
    match rng.randrange(5):
        case 0:
            declared.elem_type = rng.choice(ELEMENTS)
        case 1 if declared.shape.dim:
            del declared.shape.dim[rng.randrange(len(declared.shape.dim))]
        case 2:
            declared.shape.dim.add(dim_value=rng.choice(NUMBERS))
        case 3 if declared.shape.dim:
            declared.shape.dim[rng.randrange(len(declared.shape.dim))].dim_value = rng.choice(NUMBERS)
        case _ if declared.shape.dim:
            declared.shape.dim[rng.randrange(len(declared.shape.dim))].dim_param = rng.choice(("N", "a+b", "2", ""))


def _rewire(rng: random.Random, model: ModelProto) -> None:
    nodes = [n for n in _nodes(model) if n.input]
    if not nodes:
        return
    names = [n for node in nodes for n in (*node.input, *node.output)] + ["", "nowhere"]
    node = rng.choice(nodes)
    match rng.randrange(4):
        case 0:
            del node.input[rng.randrange(len(node.input))]
        case 1:
            node.input.append(rng.choice(names))
        case 2 if node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        case _:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _change_nodes(rng: random.Random, model: ModelProto) -> None:
    nodes = model.graph.node
    if not nodes:
        return
    at = rng.randrange(len(nodes))
    match rng.randrange(4):
        case 0:
            del nodes[at]
        case 1:
            nodes[at].op_type = rng.choice(SINGLE)[0]
        case 2:
            nodes[at].domain = rng.choice(("com.microsoft", "ai.onnx.ml", "my.own"))
        case _:
            first = NodeProto()
            first.CopyFrom(nodes[at])
            nodes.add().CopyFrom(first)
            del nodes[at]


def _change_header(rng: random.Random, model: ModelProto) -> None:
    match rng.randrange(3):
        case 0:
            model.opset_import[0].version = rng.choice((1, 6, 7, 9, 11, 13, 17, 22, 24, 99))
        case 1:
            model.graph.output.add(name=rng.choice(("nowhere", *(n.output[0] for n in model.graph.node if n.output))))
        case _:
            if model.graph.initializer:
                del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


MUTATIONS: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    _change_attribute, _change_attribute, _change_attribute, _drop_attribute, _change_initializer, _change_initializer,
    _change_input, _change_input, _rewire, _change_nodes, _change_header,
)  # fmt: skip


def mutated_manifest(rng: random.Random, artifact: Artifact) -> bytes:
    """Return an artifact whose manifest lies in one to three places, under a seal that is right."""
    manifest = json.loads(bytes(artifact.member("manifest.json")))
    members = {name: artifact.member(name) for name in artifact.manifest.files}
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.1 and len(members) > 1:
            _swap_members(rng, manifest, members)
        else:
            _edit(rng, manifest)
    try:
        text = json.dumps(manifest, sort_keys=True).encode()
    except ValueError:
        text = b"{}"
    stream = io.BytesIO()
    write_zip(stream, {**members, "manifest.json": memoryview(text)})
    return stream.getvalue()


def _swap_members(rng: random.Random, manifest: Any, members: dict[str, Any]) -> None:
    """Exchange two members and what the manifest says of them: each is sound, in the wrong place."""
    first, second = rng.sample(sorted(members), 2)
    members[first], members[second] = members[second], members[first]
    files = manifest.get("files")
    if isinstance(files, dict) and first in files and second in files:
        files[first], files[second] = files[second], files[first]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside of a JSON value, the digests of members apart."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key in ("files", "summary") and isinstance(inner, dict) and "sha256" in str(inner)[:400]:
            continue
        found.append((value, key))
        found.extend(_places(inner))
    return found


def _edit(rng: random.Random, manifest: Any) -> None:
    places = _places(manifest)
    if not places:
        return
    container, key = rng.choice(places)
    others = [c[k] for c, k in rng.sample(places, min(4, len(places)))]
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, json.loads(json.dumps(rng.choice(others))))
        case 2 if isinstance(container[key], int) and not isinstance(container[key], bool):
            container[key] = container[key] + rng.choice((-1, 1, 2, 64, 1 << 40))
        case 3 if isinstance(container[key], list):
            rng.shuffle(container[key])
        case 4:
            container[key] = rng.choice((None, -1, 0, 1 << 70, 1.5, "", "N", "N*M", [], {}, True, [[]], "x" * 3000))
        case _:
            container[key] = json.loads(json.dumps(rng.choice(others)))
