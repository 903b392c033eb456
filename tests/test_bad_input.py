"""Bad input of every kind: one clear line that names what and where, the right class, exit status 2, no memory."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import hcomp
import hcomp.program
from hcomp.artifact import Artifact
from hcomp.artifact.layout import read_zip, write_zip
from hcomp.cli import main
from hcomp.errors import ArtifactError, CaptureError, HcompError, RunError
from models import MODELS

FLOAT, INT64, BOOL, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
MEMORY_KB = 200_000
"""No refusal takes more; the libraries that load on the way are loaded before."""


def node(op: str, inputs: str = "x", outputs: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"/a/{op}", **attributes)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def ones(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def model(
    *nodes: NodeProto,
    x: tuple[Any, ...] = (2, 3),
    dtype: int = FLOAT,
    given: tuple[TensorProto, ...] = (),
    outputs: str = "y",
    opset: int = 17,
) -> ModelProto:
    made = [onnx.ValueInfoProto(name=name) for name in outputs.split()]
    graph = helper.make_graph(list(nodes), "g", [helper.make_tensor_value_info("x", dtype, x)], made, list(given))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def body(*nodes: NodeProto, outputs: str = "z") -> GraphProto:
    return helper.make_graph(list(nodes), "body", [], [onnx.ValueInfoProto(name=n) for n in outputs.split()])


def refused(source: ModelProto | bytes | Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Compile on the command line; check that it ends with status 2 and one line, and return the line."""
    if isinstance(source, Path):
        path = source
    else:
        path = tmp_path / "m.onnx"
        path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = main(["compile", str(path), "-o", str(tmp_path / "m.hcomp")])
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    shown = capsys.readouterr()
    assert status == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("hcomp: ")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    assert len(shown.err) < 700
    assert taken < MEMORY_KB
    assert not (tmp_path / "m.hcomp").exists()
    return shown.err


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load what compiling loads, so that its memory is not taken for a model's."""
    hcomp.compile(model(node("Relu"))).run({"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(CaptureError):
        hcomp.compile(model(node("Quux")))


def without(op: str, name: str) -> ModelProto:
    """Return a model whose node refers to an attribute of a function that is not there."""
    made = model(node(op))
    made.graph.node[0].attribute.append(AttributeProto(name=name, ref_attr_name="other", type=AttributeProto.INT))
    return made


X4 = (1, 4, 8, 8)
W4 = ones("w", 4, 4, 3, 3)


def conv(**attributes: Any) -> ModelProto:
    return model(node("Conv", "x w", **attributes), x=X4, given=(W4,))


MALFORMED: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "cycle": (
        lambda: model(node("Add", "x b", "a"), node("Neg", "a", "b"), node("Relu", "b")),
        r"the nodes form a cycle: /a/Neg -> /a/Add -> /a/Neg",
    ),
    "cycle through a subgraph": (
        lambda: model(
            node("Cast", "x", "c", to=BOOL),
            node("If", "c", "y", then_branch=body(node("Neg", "b", "z")), else_branch=body(node("Neg", "x", "z"))),
            node("Relu", "y", "b"),
        ),
        "form a cycle: /a/Relu -> /a/If",
    ),
    "missing initializer": (lambda: model(node("Add", "x w")), r"node /a/Add \(Add\): the value 'w' is read before"),
    "output that nobody makes": (lambda: model(node("Neg", "x", "a")), "the value 'y' is read before"),
    "value defined twice": (lambda: model(node("Neg"), node("Relu")), "'y' is defined twice, again by node '/a/Relu'"),
    "output listed twice": (lambda: model(node("Neg"), outputs="y y"), "the output 'y' is listed twice"),
    "mixed element types": (lambda: model(node("Add", "x i"), given=(ints("i", 1),)), "input B is of int64, but A of"),
    "text in numbers' place": (lambda: model(node("Neg"), dtype=TEXT), r"\(Neg\): its input 0 \(X\) cannot be of stri"),
    "too few inputs": (lambda: model(node("Add")), "it has 1 inputs, its operator takes 2"),
    "too many inputs": (lambda: model(node("Neg", "x x")), "it has 2 inputs, its operator takes 1"),
    "too many outputs": (lambda: model(node("Neg", "x", "y z")), "it has 2 outputs, its operator takes 1"),
    "floats for an int": (lambda: model(node("Softmax", axis=[1.0])), "'axis' must be of the kind INT, found FLOATS"),
    "text for an int": (lambda: model(node("Softmax", axis="one")), "'axis' must be of the kind INT, found STRING"),
    "int for ints": (lambda: model(node("Transpose", perm=1)), "'perm' must be of the kind INTS, found INT"),
    "floats for ints": (lambda: conv(strides=[1.0, 1.0]), "'strides' must be of the kind INTS, found FLOATS"),
    "unknown attribute": (lambda: model(node("Softmax", foo=1)), "its attribute 'foo' has no lowering, and ONNX Runt"),
    "missing attribute": (lambda: model(node("MaxPool"), x=X4), "its attribute 'kernel_shape' is missing"),
    "attribute of no function": (lambda: without("Softmax", "axis"), "'axis' refers to one of a function"),
    "axis of 99": (lambda: model(node("Softmax", axis=99)), "its axis 99 is outside a tensor of rank 2"),
    "axis of -9": (lambda: model(node("Concat", "x x", axis=-9)), "its axis -9 is outside a tensor of rank 2"),
    "permutation with a repeat": (lambda: model(node("Transpose", perm=[0, 0])), r"axes \(0, 0\) are no permutation"),
    "stride of 0": (lambda: conv(strides=[0, 1]), r"node /a/Conv \(Conv\): .*'strides' must be at least 1, found \[0"),
    "group of 0": (lambda: conv(group=0), "'group' must be at least 1"),
    "dilation of 0": (lambda: conv(dilations=[1, 0]), "'dilations' must be at least 1"),
    "pads below the size": (lambda: conv(pads=[-9] * 4), "a window of 3 does not fit into axis 2, which has -10"),
    "kernel unlike the weight": (lambda: conv(kernel_shape=[5, 5]), r"kernel_shape is \[5,5\], but its weight has \[3"),
    "three strides for two axes": (lambda: conv(strides=[1, 1, 1]), "do not fit 2 spatial axes"),
    "unknown padding": (lambda: conv(auto_pad="FOO"), "its auto_pad 'FOO' is not one of the standard's"),
    "flag of 2": (lambda: model(node("ReduceMax", keepdims=2)), "'keepdims' must be 0 or 1, found 2"),
    "block of 0": (lambda: model(node("DepthToSpace", blocksize=0), x=X4), "'blocksize' must be at least 1"),
    "two sizes of -1": (lambda: model(node("Reshape", "x i"), given=(ints("i", -1, -1),)), "two entries of -1"),
    "reshape beyond any number": (
        lambda: model(node("Reshape", "x i"), given=(ints("i", 1 << 62, 1 << 62),)),
        "6 elements do not fill the shape",
    ),
    "pads that do not fit": (lambda: model(node("Pad", "x i"), given=(ints("i", 1, 2, 3),)), "3 pads for 2 axes"),
    "repeats below zero": (lambda: model(node("Tile", "x i"), given=(ints("i", -1, 1),)), "below zero"),
    "inner sizes that differ": (lambda: model(node("MatMul", "x x")), "the inner sizes 3 and 2 differ"),
    "sizes that do not broadcast": (lambda: model(node("Add", "x w"), given=(ones("w", 5, 7),)), "do not broadcast"),
    "unreadable equation": (lambda: model(node("Einsum", equation="ij,jk->q")), "has 2 operands for 1 inputs"),
    "step of 0": (lambda: model(node("Slice", "x a a a a"), given=(ints("a", 0),)), "its step is 0"),
    "cast to nothing": (lambda: model(node("Cast", to=999)), r"node /a/Cast \(Cast\): element type 999"),
    "unknown element type": (lambda: model(node("Neg"), dtype=99), "the input 'x': element type 99"),
    "unknown operator": (lambda: model(node("Quux")), "node '/a/Quux': no engine runs the operator 'Quux'"),
    "unknown domain": (
        lambda: model(helper.make_node("Quux", ["x"], ["y"], name="/a/Q", domain="my.own")),
        r"'/a/Q': no engine runs the operator 'Quux' of the domain 'my\.own'",
    ),
    "opset of the future": (lambda: model(node("Neg"), opset=99), "the model asks for opset 99; this hcomp reads 1 to"),
    "opset 0": (lambda: model(node("Neg"), opset=0), "asks for opset 0"),
    "branches that differ": (
        lambda: model(
            node("Cast", "x", "c", to=BOOL),
            node("If", "c", then_branch=body(node("Neg", "x", "z")), else_branch=body(outputs="")),
            x=(),
        ),
        r"node /a/If \(If\)",
    ),
    "100 dimensions": (lambda: model(node("Neg"), x=(1,) * 100), "a tensor has 100 dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_models_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, message = MALFORMED[name]
    line = refused(make(), tmp_path, capsys)
    assert re.search(message, line), line


HUGE: dict[str, Callable[[], ModelProto]] = {
    "input": lambda: model(node("Neg"), x=(1 << 40, 1 << 20)),
    "input beyond 64 bits": lambda: model(node("Neg"), x=(1 << 62, 1 << 62, 1 << 62)),
    "ConstantOfShape": lambda: model(node("ConstantOfShape", "i"), given=(ints("i", 1 << 40),)),
    "Tile": lambda: model(node("Tile", "x i"), given=(ints("i", 1 << 30, 1 << 20),)),
    "Tile of a constant": lambda: model(node("Tile", "w i"), given=(ones("w", 2, 3), ints("i", 1 << 20, 1 << 20))),
    "Expand": lambda: model(node("Expand", "x i"), given=(ints("i", 1 << 40, 2, 3),)),
    "Expand of a constant": lambda: model(node("Expand", "j i"), given=(ints("j", 1), ints("i", 1 << 38))),
    "Range": lambda: model(
        node("Range", "a b c"),
        given=tuple(numpy_helper.from_array(np.array(v), n) for n, v in (("a", 0), ("b", 1 << 40), ("c", 1))),
    ),
    "OneHot": lambda: model(
        node("OneHot", "i d v"),
        given=(ints("i", 1), ints("d", 1 << 40), numpy_helper.from_array(np.zeros(2, np.float32), "v")),
    ),
    "Pad": lambda: model(node("Pad", "x i"), given=(ints("i", 1 << 40, 0, 1 << 40, 0),)),
    "Resize": lambda: model(
        helper.make_node("Resize", ["x", "", "", "s"], ["y"], name="/a/Resize"), x=X4,
        given=(ints("s", 1, 4, 1 << 20, 1 << 20),),
    ),
    "HannWindow": lambda: model(
        node("HannWindow", "n"), given=(numpy_helper.from_array(np.array(1 << 40), "n"),)
    ),
    "RandomNormal": lambda: model(node("RandomNormal", "", shape=[1 << 40])),
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_huge_sizes_take_no_memory(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(HUGE[name](), tmp_path, capsys)
    assert "is larger than any memory" in line
    assert "'x'" in line if name.startswith("input") else f"node /a/{name.split()[0]}" in line


LARGE = {
    "ConstantOfShape": lambda: model(node("ConstantOfShape", "i"), given=(ints("i", 1 << 34),)),
    "Range": lambda: model(
        node("Range", "a b c"),
        given=tuple(numpy_helper.from_array(np.array(v), n) for n, v in (("a", 0), ("b", 1 << 34), ("c", 1))),
    ),
    "Expand of integers": lambda: model(
        node("Expand", "j i", "z"), node("Neg", "z"), given=(ints("j", 1), ints("i", 1 << 30))
    ),
    "product of vectors": lambda: model(node("MatMul", "w v"), given=(ones("w", 1 << 17, 1), ones("v", 1, 1 << 17))),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_constants_are_not_computed_when_compiling(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    hcomp.compile(LARGE[name]())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KB


def test_strides_beyond_the_input_take_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = hcomp.compile(conv(strides=[1 << 40, 99])).run({"x": np.ones(X4, np.float32)}).values()
    assert found.shape == (1, 4, 1, 1)
    assert (found == 36).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KB


WRONG_WHEN_RUN = {
    "channels that do not fit": lambda: conv(group=3),
    "weight of other channels": lambda: model(node("Conv", "x w"), x=X4, given=(ones("w", 4, 5, 3, 3),)),
    "kernel beyond the input": lambda: model(node("Conv", "x w"), x=X4, given=(ones("w", 4, 4, 30, 30),)),
    "reshape that does not fit": lambda: model(node("Reshape", "x i"), given=(ints("i", 4, 2),)),
    "split that does not sum": lambda: model(
        node("Split", "x i", "y z", axis=1), given=(ints("i", 1, 1),), outputs="y z"
    ),
    "blocks that do not fit": lambda: model(node("SpaceToDepth", blocksize=3), x=X4),
    "index outside": lambda: model(node("Gather", "x i"), given=(ints("i", 7),)),
    "k beyond the axis": lambda: model(node("TopK", "x i", "y k"), given=(ints("i", 99),)),
}


@pytest.mark.parametrize("name", WRONG_WHEN_RUN)
def test_what_only_shows_in_a_run_is_an_error_there(name: str) -> None:
    """ONNX Runtime loads these, so hcomp may too; the run, at the latest, names the node."""
    source = WRONG_WHEN_RUN[name]()
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    with pytest.raises(HcompError, match=f"/a/{source.graph.node[0].op_type}") as found:
        hcomp.compile(source).run({"x": np.zeros(shape, np.float32)})
    assert found.value.exit_status == 2
    assert "\n" not in str(found.value)


AT_RUN: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "k": (lambda: model(node("TopK", "x i", "y k"), x=(3, "N"), given=(ints("i", 4),)), "k is 4"),
    "pieces": (
        lambda: model(node("Split", "x i", "y z", axis=1), x=(3, "N"), given=(ints("i", 1, 3),), outputs="y z"),
        "sizes 4 and N differ",
    ),
    "shape": (lambda: model(node("Reshape", "x i"), x=(3, "N"), given=(ints("i", 4, -1),)), "sizes .* differ"),
    "squeezed": (lambda: model(node("Squeeze", "x i"), x=(3, "N"), given=(ints("i", 1),)), "sizes .* differ"),
    "index": (lambda: model(node("Gather", "x i", axis=1), x=(3, "N"), given=(ints("i", 2),)), "index .* outside"),
    "negative index": (
        lambda: model(node("GatherElements", "x i", axis=1), x=(3, "N"), given=(
            numpy_helper.from_array(np.full((1, 1), -3), "i"),)),
        "index .* outside",
    ),
    "scattered": (
        lambda: model(node("ScatterND", "x i w"), x=(3, "N"), given=(
            numpy_helper.from_array(np.array([[2, 2]]), "i"), ones("w", 1))),
        "index .* outside",
    ),
    "broadcast": (lambda: model(node("Add", "x w"), x=(3, "N"), given=(ones("w", 3, 5),)), "broadcast"),
    "inner size": (lambda: model(node("MatMul", "x x"), x=("M", "N")), "N"),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("name", AT_RUN)
def test_sizes_and_indices_that_only_a_run_knows(name: str, device: str) -> None:
    """Nothing is read outside of its memory: the run stops and names the node."""
    make, message = AT_RUN[name]
    source = make()
    program = hcomp.compile(source, devices=[device])
    with pytest.raises(RunError, match=f"/a/{source.graph.node[0].op_type}") as found:
        program.run({"x": np.zeros((3, 2), np.float32)})
    if device == "cpu":
        found.match(message)
    assert "\n" not in str(found.value)
    assert found.value.exit_status == 2


def test_a_program_goes_on_after_a_failed_run() -> None:
    program = hcomp.compile(model(node("Reshape", "x i"), x=(3, "N"), given=(ints("i", 6, -1),)))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for _ in range(3):
        with pytest.raises(RunError, match="differ"):
            program.run({"x": x[:, :3]})
        np.testing.assert_array_equal(program.run({"x": x})["y"], x.reshape(6, 2))


def test_huge_sizes_at_run_time() -> None:
    for op, extra in (("Expand", "x"), ("ConstantOfShape", "")):
        made = model(node(op, f"{extra} i".strip()), x=(3, 1))
        made.graph.input.append(helper.make_tensor_value_info("i", INT64, [2]))
        with pytest.raises(RunError, match=r"memory|too big|Unable to allocate"):
            hcomp.compile(made).run({"x": np.zeros((3, 1), np.float32), "i": np.array([3, 1 << 42])})


CONTENTS = {
    "empty": (b"", "the file is empty"),
    "text": (b"This is no model.\n" * 20, "not an ONNX model"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not an ONNX model"),
    "random": (np.random.default_rng(0).bytes(5000), "not an ONNX model"),
    "zeros": (bytes(5000), "not an ONNX model"),
    "artifact": (b"PK\3\4" + bytes(100), "not an ONNX model"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_that_are_no_models(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = CONTENTS[name]
    line = refused(content, tmp_path, capsys)
    assert f"m.onnx: {message}" in line


def test_truncated_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = MODELS["mlp"]()[0].SerializeToString()
    for size in np.linspace(1, len(data) - 1, 12).astype(int):
        refused(data[:size], tmp_path, capsys)


def test_folders_and_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read: expected a regular file, found a folder" in refused(tmp_path, tmp_path, capsys)
    assert "none.onnx: cannot be read: No such file" in refused(tmp_path / "none.onnx", tmp_path, capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "locked.onnx"
    path.write_bytes(b"x")
    path.chmod(0)
    assert "Permission denied" in refused(path, tmp_path, capsys)


def test_ir_version_of_the_future(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(node("Neg"))
    made.ir_version = 99
    assert "IR version 99" in refused(made, tmp_path, capsys)


def edited(change: Callable[[TensorProto], None]) -> ModelProto:
    made = model(node("Add", "x w"), given=(ones("w", 2, 3),))
    change(made.graph.initializer[0])
    return made


def test_initializers_whose_bytes_do_not_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes: list[tuple[Callable[[TensorProto], object], str]] = [
        (lambda t: setattr(t, "raw_data", t.raw_data[:-1]), "'w' has 23 bytes, its shape .2, 3. needs 24"),
        (lambda t: t.dims.append(1 << 40), "'w' of shape .2, 3, 1099511627776. is larger than any memory"),
        (lambda t: t.dims.append(-1), "'w' has a negative size"),
        (lambda t: setattr(t, "data_type", 99), "'w' has the unknown element type 99"),
        (lambda t: setattr(t, "data_type", TEXT), "'w' holds 0 texts, its shape 6"),
        (lambda t: (t.ClearField("raw_data"), t.float_data.extend([1.0])), "'w' has 1 entries"),
    ]
    for change, message in changes:
        line = refused(edited(lambda t, c=change: c(t)), tmp_path, capsys)  # type: ignore[misc]
        assert re.search(message, line), line


def external(tmp_path: Path, **info: str) -> ModelProto:
    """Return a model whose weight lies in a file beside it; the file is there."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "w.bin").write_bytes(np.ones(6, np.float32).tobytes())
    (tmp_path / "outside.bin").write_bytes(bytes(24))
    if not (folder / "link.bin").exists():
        (folder / "link.bin").symlink_to(tmp_path / "outside.bin")

    def change(tensor: TensorProto) -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in info.items():
            tensor.external_data.add(key=key, value=value)

    return edited(change)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"location": "../outside.bin"}, "outside the model's own folder"),
        ({"location": "sub/../../outside.bin"}, "outside the model's own folder"),
        ({"location": "/etc/passwd"}, "outside the model's own folder"),
        ({"location": "link.bin"}, "outside the model's own folder"),
        ({"location": ""}, "outside the model's own folder"),
        ({}, "outside the model's own folder"),
        ({"location": "none.bin"}, "'none.bin' cannot be read: No such file"),
        ({"location": "."}, "cannot be read: it is no regular file"),
        ({"location": "w.bin\0x"}, "no file name"),
        ({"location": "w.bin", "offset": "8"}, "needs 24 bytes at 8 of 'w.bin', which is shorter"),
        ({"location": "w.bin", "offset": "-4"}, "declares 24 bytes at -4"),
        ({"location": "w.bin", "offset": "four"}, "no number"),
        ({"location": "w.bin", "length": "23"}, "declares 23 bytes"),
        ({"location": "w.bin", "length": str(1 << 70)}, "declares"),
    ],
)
def test_external_data(info: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model" / "m.onnx"
    made = external(tmp_path, **info)
    path.write_bytes(made.SerializeToString())
    line = refused(path, tmp_path, capsys)
    assert message in line
    assert "the tensor 'w'" in line


def test_external_data_in_the_folder_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model" / "m.onnx"
    made = external(tmp_path, location="w.bin")
    path.write_bytes(made.SerializeToString())
    (found,) = hcomp.compile(path).run({"x": np.zeros((2, 3), np.float32)}).values()
    assert (found == 1).all()
    with pytest.raises(CaptureError, match="the model was not read from a folder"):
        hcomp.compile(made)


def test_devices_are_no_external_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A named pipe would block the reader for ever."""
    path = tmp_path / "model" / "m.onnx"
    made = external(tmp_path, location="pipe")
    os.mkfifo(path.parent / "pipe")
    path.write_bytes(made.SerializeToString())
    assert "the tensor 'w': 'pipe' cannot be read: it is no regular file" in refused(path, tmp_path, capsys)


def test_functions_that_call_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    calls = {"f": "g", "g": "f"}
    functions = [
        helper.make_function(
            "own", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="own")], imports
        )
        for name, other in calls.items()
    ]  # fmt: skip
    graph = model(helper.make_node("f", ["x"], ["y"], domain="own")).graph
    made = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)
    assert "the function own::f calls itself" in refused(made, tmp_path, capsys)


@pytest.mark.parametrize("depth", [60, 2000])
def test_graphs_nested_deeply(depth: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    condition = numpy_helper.from_array(np.array(True), "c")
    graph = body(node("Neg", "x", "z"))
    data = graph.SerializeToString()
    for _ in range(depth):
        # Written by hand: building it through protobuf copies it at every level.
        attributes = b"".join(
            _field(5, _field(1, name) + _field(6, data) + b"\xa0\x01\x05") for name in (b"then_branch",)
        )
        inner = _field(1, b"c") + _field(2, b"z") + _field(4, b"If") + attributes
        data = _field(1, inner) + _field(2, b"body") + _field(12, _field(1, b"z"))
    outer = model(given=(condition,), outputs="z")
    head = outer.SerializeToString()
    line = refused(head + _field(7, data), tmp_path, capsys)
    assert "nested deeper" in line or "not an ONNX model" in line


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field of protobuf."""

    def varint(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    return varint(number << 3 | 2) + varint(len(data)) + data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_attributes_that_are_no_numbers_mean_what_they_say(value: float) -> None:
    program = hcomp.compile(model(node("LeakyRelu", alpha=value)))
    x = np.array([[1, -1, 2], [-2, 0.5, -0.5]], np.float32)
    (found,) = program.run({"x": x}).values()
    np.testing.assert_array_equal(found, np.where(x < 0, np.float32(value) * x, x))


def test_nodes_in_any_order() -> None:
    """ONNX Runtime takes them so."""
    branch = body(node("Neg", "b", "z"))
    made = model(
        node("If", "c", "y", then_branch=branch, else_branch=body(node("Relu", "b", "z"))),
        node("Neg", "a", "b"),
        node("Exp", "x", "a"),
        given=(numpy_helper.from_array(np.array(True), "c"),),
    )
    x = np.ones((2, 3), np.float32)
    (found,) = hcomp.compile(made).run({"x": x}).values()
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-6)


def test_a_chain_of_3000_nodes() -> None:
    """Nothing recurses along the graph."""
    nodes = [node("Neg" if i % 2 else "Abs", f"v{i}" if i else "x", f"v{i + 1}") for i in range(3000)]
    made = model(*nodes, outputs="v3000")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = hcomp.compile(made, devices=["null"]).run({"x": x}).values()
    np.testing.assert_array_equal(found, -x)


# -- inputs of a run ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adder() -> hcomp.program.Program:
    """Return a program of two inputs that share the symbol N: x [N, 3] + v [N, 1]."""
    made = model(node("Add", "x v"), x=("N", 3))
    made.graph.input.append(helper.make_tensor_value_info("v", FLOAT, ["N", 1]))
    return hcomp.compile(made)


ZEROS = np.zeros((2, 3), np.float32)
COLUMN = np.zeros((2, 1), np.float32)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"input 'x' is missing, input 'v' is missing; the model's inputs are x: float32\[N,3\], v: float32"),
        ({"x": ZEROS}, "input 'v' is missing"),
        ({"x": ZEROS, "v": COLUMN, "w": COLUMN}, "there is no input 'w'"),
        ({"x": ZEROS, "w": COLUMN}, "input 'v' is missing, there is no input 'w'"),
        ({"x": ZEROS.astype(np.float64), "v": COLUMN}, r"input 'x': expected float32\[N,3\], got float64\[2,3\]"),
        ({"x": ZEROS.astype(np.int32), "v": COLUMN}, "got int32"),
        ({"x": ZEROS[0], "v": COLUMN}, "1 dimensions, not 2"),
        ({"x": np.zeros((2, 4), np.float32), "v": COLUMN}, "axis 1 is 4, not 3"),
        ({"x": ZEROS, "v": np.zeros((5, 1), np.float32)}, "N is 2 in input 'x' and 5 here"),
        ({"x": None, "v": COLUMN}, "got None"),
        ({"x": "text", "v": COLUMN}, "got str 'text'"),
        ({"x": [[1, 2, 3], [4]], "v": COLUMN}, "list of uneven lengths"),
        ({"x": np.array([["a"] * 3] * 2), "v": COLUMN}, "input 'x': expected float32"),
        ({"x": np.array([[{}] * 3] * 2), "v": COLUMN}, "input 'x': expected float32"),
    ],
)
def test_inputs_that_do_not_fit(adder: Any, feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message) as found:
        adder.run(feeds)
    assert found.value.exit_status == 2
    assert "\n" not in str(found.value)


def test_inputs_in_any_form(adder: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    v = np.arange(4, dtype=np.float32).reshape(4, 1)
    want = x + v
    read_only = x.copy()
    read_only.setflags(write=False)
    forms = {
        "transposed": np.asfortranarray(x),
        "strided": np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
        "reversed": x[::-1].copy()[::-1],
        "big-endian": x.astype(">f4"),
        "read-only": read_only,
        "misaligned": np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 3),
        "broadcast": np.broadcast_to(x, (4, 3)),
        "list": x.tolist(),
    }
    for name, form in forms.items():
        np.testing.assert_array_equal(adder.run({"x": form, "v": v})["y"], want, err_msg=name)
    spread = np.broadcast_to(np.float32(7), (4, 1))
    np.testing.assert_array_equal(adder.run({"x": x, "v": spread})["y"], x + 7)


def test_inputs_without_elements(adder: Any) -> None:
    empty = {"x": np.zeros((0, 3), np.float32), "v": np.zeros((0, 1), np.float32)}
    assert adder.run(empty)["y"].shape == (0, 3)
    assert adder.run({"x": empty["x"][:, ::-1], "v": empty["v"].astype(">f4")})["y"].shape == (0, 3)


def test_indices_that_come_at_run_time() -> None:
    made = model(node("Gather", "x i"), x=(5, 2))
    made.graph.input.append(helper.make_tensor_value_info("i", INT64, ["K"]))
    program = hcomp.compile(made)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(program.run({"x": x, "i": np.array([4, -5])})["y"], x[[4, -5]])
    for index in (5, -6, 1 << 40, -(1 << 63), (1 << 63) - 1):
        with pytest.raises(RunError, match=r"/a/Gather.*index .* outside"):
            program.run({"x": x, "i": np.array([0, index])})


# -- artifacts ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    source = model(node("MatMul", "x w", "a"), node("Relu", "a"), x=("N", 8), given=(ones("w", 8, 40),))
    return hcomp.compile(source).artifact


def opened(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a damaged artifact on the command line; check status and message; return the line."""
    path = tmp_path / "bad.hcomp"
    path.write_bytes(data)
    assert main(["run", str(path), "--random"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("hcomp: ")
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 700
    return shown.err


def test_artifacts_damaged_in_every_part(artifact: Artifact) -> None:
    """Each member, header, padding, directory, end record, comment."""
    data = artifact.to_bytes()
    spans = read_zip(memoryview(data))
    places = {0, 2, 30, len(data) - 1, len(data) - 50, len(data) - 90, len(data) - 100, len(data) - 130}
    for span in spans.values():
        places |= {span.offset - 1, span.offset - 20, span.offset, span.offset + span.size // 2}
        places.add(span.offset + span.size - 1)
    for at in sorted(p for p in places if 0 <= p < len(data)):
        for bit in (0, 7):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(ArtifactError, match=r"^artifact: [^\n]{1,600}$"):
                Artifact.from_bytes(bytes(broken))
    for size in {*np.linspace(0, len(data) - 1, 40).astype(int).tolist(), len(data) - 1}:
        with pytest.raises(ArtifactError):
            Artifact.from_bytes(data[:size])


def test_damaged_and_foreign_artifacts_on_the_command_line(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = artifact.to_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    assert "bad.hcomp: damaged" in opened(bytes(flipped), tmp_path, capsys)
    assert "truncated" in opened(data[:-7], tmp_path, capsys)
    assert "not an hcomp artifact" in opened(b"", tmp_path, capsys)
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": "hcomp"}))
    assert "not an hcomp artifact" in opened((tmp_path / "foreign.zip").read_bytes(), tmp_path, capsys)


def lying(artifact: Artifact, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the artifact with another manifest, under a seal that is right."""
    manifest = json.loads(bytes(artifact.member("manifest.json")))
    change(manifest)
    stream = io.BytesIO()
    members = {name: artifact.member(name) for name in artifact.manifest.files}
    write_zip(stream, {**members, "manifest.json": memoryview(json.dumps(manifest).encode())})
    return stream.getvalue()


def launch(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in manifest["program"]["steps"] if s["kind"] == "launch")
    return found


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "processor": (lambda m: m["cpu"].update(triple="aarch64-linux-gnu"), "compiled for aarch64"),
    "instructions": (lambda m: m["cpu"]["features"].append("+avx512fp16"), "avx512fp16|amx"),
    "version": (lambda m: m.update(version=99), "format version 99"),
    "rank": (lambda m: m["inputs"][0]["type"].update(shape=[8]), "region r0"),
    "size": (lambda m: m["inputs"][0]["type"].update(shape=["N", 9]), "region r0"),
    "element type": (lambda m: m["inputs"][0]["type"].update(dtype="float64"), "region r0"),
    "wrong member": (
        lambda m: launch(m)["files"].update(program=launch(m)["files"]["object0"]), "region r0: .*"
    ),
    "missing member": (lambda m: launch(m)["files"].update(program="nowhere"), "no member 'nowhere'"),
    "no constants": (lambda m: launch(m).update(constants=[]), "region r0"),
    "executor": (lambda m: launch(m).update(executor="reference"), "region r0: the reference program"),
    "model": (lambda m: launch(m).update(executor="onnxruntime"), "region r0"),
    "output": (lambda m: m["program"].update(outputs=["nothing"]), "'nothing' is not there"),
    "unknown device": (lambda m: launch(m).update(device="gpu"), "'gpu' is not among"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_manifests_that_lie(name: str, artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = LIES[name]
    if name == "instructions" and "avx512_fp16" in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has it")
    line = opened(lying(artifact, change), tmp_path, capsys)
    assert re.search(message, line), line
