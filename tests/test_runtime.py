"""Sessions over hand-made artifacts: inputs in every form, memory, threads, control flow, errors."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from tvm import relax

from hcomp.artifact import Artifact
from hcomp.artifact.texts import texts_member
from hcomp.errors import ArtifactError, RunError, UsageError
from hcomp.runtime import Session, load
from hcomp.runtime.resources import Resources
from hcomp.runtime.values import aligned_empty
from tests.vm_artifact import Maker, four_operators, four_operators_numpy, kernels

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return (RNG.random(shape, np.float32) - 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def four() -> Session:
    """y = exp(relu(x @ w + x)) of 8x8 matrices."""
    return Session(four_operators())


@pytest.fixture(scope="module")
def dynamic() -> Session:
    """y = x + z, of shape [N, M]."""
    maker = Maker()
    types: Any = {"x": ("float32", ["N", "M"]), "z": ("float32", ["N", "M"])}
    maker.vm("r0", ["x", "z"], ["y"], kernels(list(types.values()), relax.op.add))
    return Session(maker.artifact(types, {"y": ("float32", ["N", "M"])}))


def single(dtype: str, body: Any, shape: Any = (4, 4), out: Any = None, **fields: object) -> Session:
    """Return y = body(x)."""
    maker = Maker()
    maker.vm("r0", ["x"], ["y"], kernels([(dtype, shape)], body), **fields)
    return Session(maker.artifact({"x": (dtype, shape)}, {"y": out or (dtype, shape)}))


# Inputs in every form


@pytest.mark.parametrize("offset", [0, 4, 16, 32, 60])
def test_any_alignment(four: Session, offset: int) -> None:
    raw = aligned_empty((256 + 64,), np.dtype(np.uint8))
    x = raw[offset : offset + 256].view(np.float32).reshape(8, 8)
    x[...] = random(8, 8)
    w = random(8, 8)
    for _ in range(3):
        got = four.run({"x": x, "w": w})["y"]
        np.testing.assert_allclose(got, four_operators_numpy(x, w), rtol=1e-5)


def forms(x: np.ndarray) -> Mapping[str, Any]:
    """Return the same values in every form that an array can have."""
    wide = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
    wide[:, ::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return {
        "unpickled": pickle.loads(pickle.dumps(x)),
        "strided": wide[:, ::2],
        "reversed": x[::-1].copy()[::-1],
        "fortran": np.asfortranarray(x),
        "transposed": x.T.copy().T,
        "big-endian": x.astype(">f4"),
        "read-only": frozen,
        "subclass": x.view(type("Sub", (np.ndarray,), {})),
        "list": x.tolist(),
        "torch": torch.from_numpy(x),
        "torch strided": torch.from_numpy(wide)[:, ::2],
        "torch gradient": torch.from_numpy(x).requires_grad_(),
        "dlpack": OnlyDlpack(x),
    }


class OnlyDlpack:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("form", sorted(forms(np.zeros((2, 2), np.float32))))
@pytest.mark.parametrize("session", ["four", "dynamic"])
def test_any_form(form: str, session: str, request: pytest.FixtureRequest) -> None:
    chosen: Session = request.getfixturevalue(session)
    x, other = random(8, 8), random(8, 8)
    names = [spec.name for spec in chosen.inputs]
    want = four_operators_numpy(x, other) if session == "four" else x + other
    for _ in range(2):
        (got,) = chosen.run({names[0]: forms(x)[form], names[1]: other}).values()
        assert isinstance(got, torch.Tensor if form.startswith("torch") else np.ndarray)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


def test_zero_sizes_and_no_dimensions(dynamic: Session) -> None:
    whole = aligned_empty((4, 16), np.dtype(np.float32))
    for shape in [(0, 3), (3, 0), (0, 0), (1, 1), (1, 3)]:
        x = whole[: shape[0], : shape[1]]
        x[...] = 1
        got = dynamic.run({"x": x, "z": x})["y"]
        assert got.shape == shape
        assert dynamic.run({"x": torch.zeros(shape), "z": x})["y"].shape == shape
    scalar = single("float32", lambda x: relax.op.add(x, x), ())
    assert scalar.run({"x": np.float32(3)})["y"] == 6
    assert scalar.run({"x": 3})["y"] == 6
    assert scalar.run({"x": np.array(2, np.float32)})["y"].shape == ()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "int32", "int64", "bool"])
def test_plain_types(dtype: str) -> None:
    op = relax.op.logical_not if dtype == "bool" else (lambda x: relax.op.add(x, x))
    x = RNG.integers(0, 2, (4, 4)).astype(dtype)
    got = single(dtype, op).run({"x": x})["y"]
    want = ~x if dtype == "bool" else x + x
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, want)
    tensor = single(dtype, op).run({"x": torch.from_numpy(x)})["y"]
    np.testing.assert_array_equal(tensor.numpy(), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks(dtype: str) -> None:
    session = single(
        dtype,
        lambda x: relax.op.astype(relax.op.astype(x, "float32") * relax.const(2.0, "float32"), dtype),
    )
    x = np.arange(1, 17).reshape(4, 4).astype(getattr(ml_dtypes, dtype))
    for form in (x, np.asfortranarray(x)):
        got = session.run({"x": form})["y"]
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got.astype(np.float32), 2 * x.astype(np.float32))
    tensor = torch.arange(1, 17).reshape(4, 4).to(getattr(torch, dtype))
    out = session.run({"x": tensor})["y"]
    assert out.dtype == tensor.dtype
    assert torch.equal(out.float(), 2 * tensor.float())


def test_four_bits_pass_kernels_as_bytes() -> None:
    maker = Maker()
    types: Any = {"x": ("int4", [6])}
    files = kernels([("int8", [6])], relax.op.negative)
    maker.vm("r0", ["x"], ["y"], files, types={"y": {"dtype": "int4", "shape": [6]}})
    x = np.array([-7, -3, 0, 1, 5, 7], ml_dtypes.int4)
    got = Session(maker.artifact(types, {"y": ("int4", [6])})).run({"x": x})["y"]
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype(int), -x.astype(int))


def test_calls_by_position_and_name(four: Session) -> None:
    x, w = random(8, 8), random(8, 8)
    want = four.run({"x": x, "w": w})["y"]
    np.testing.assert_array_equal(four(x, w), want)
    np.testing.assert_array_equal(four(x, w=w), want)
    with pytest.raises(RunError, match="the model has 2 inputs, got 3"):
        four(x, w, x)
    with pytest.raises(RunError, match="input 'x' is given twice"):
        four(x, x=w)


# Inputs that do not fit


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.zeros((8, 8))}, r"input 'x': expected float32\[8,8\], got float64\[8,8\]"),
        ({"x": np.zeros((8, 9), np.float32)}, r"got float32\[8,9\]: axis 1 is 9, not 8"),
        ({"x": np.zeros(8, np.float32)}, r"got float32\[8\]: 1 dimensions, not 2"),
        ({"x": np.zeros((8, 8), complex)}, "got complex128"),
        ({"x": torch.zeros(8, 8, dtype=torch.int64)}, r"got int64\[8,8\]"),
        ({"x": torch.zeros(8, 8, device="meta")}, "a tensor on meta: move it to the cpu"),
        ({"x": None}, "got None"),
        ({"x": "text"}, "got str 'text'"),
        ({"x": [[1.0], [1.0, 2.0]]}, "list of uneven lengths"),
        ({"x": object()}, "got object"),
        ({"x": np.zeros((8, 8), "M8[s]")}, r"got datetime64\[s\]"),
        ({"x": {}}, "got dict"),
    ],
)
def test_wrong_inputs_are_named(four: Session, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message) as found:
        four.run({**inputs, "w": np.zeros((8, 8), np.float32)})
    assert "\n" not in str(found.value)
    assert found.value.exit_status == 2


def test_missing_and_unknown_inputs_are_named(four: Session) -> None:
    x = random(8, 8)
    with pytest.raises(RunError, match=r"input 'w' is missing; the model's inputs are x: float32"):
        four.run({"x": x})
    with pytest.raises(RunError, match="there is no input 'z'"):
        four.run({"x": x, "w": x, "z": x})
    with pytest.raises(RunError, match="input 'w' is missing, there is no input 'z'"):
        four.run({"x": x, "z": x})


def test_a_symbol_has_one_size(dynamic: Session) -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(
        RunError,
        match=r"input 'z': expected float32\[N,M\], got float32\[2,4\]: M is 3 in input 'x' and 4 here",
    ):
        dynamic.run({"x": x, "z": np.zeros((2, 4), np.float32)})
    with pytest.raises(RunError, match="3 dimensions, not 2"):
        dynamic.run({"x": np.zeros((2, 3, 1), np.float32), "z": x})
    np.testing.assert_array_equal(dynamic.run({"x": x, "z": x})["y"], x)


def test_dimensions_that_are_expressions_are_checked() -> None:
    maker = Maker()
    types: Any = {"x": ("float32", ["N"]), "z": ("float32", ["2*N"])}
    maker.vm("r0", ["x", "z"], ["y"], kernels([("float32", ["A"]), ("float32", ["B"])], lambda x, z: z))
    session = Session(maker.artifact(types, {"y": ("float32", ["2*N"])}))
    assert session.run({"x": random(3), "z": random(6)})["y"].shape == (6,)
    with pytest.raises(RunError, match=r"axis 0 is 7, not 2\*N = 6"):
        session.run({"x": random(3), "z": random(7)})


def test_python_numbers_must_fit_the_type() -> None:
    session = single("int8", lambda x: relax.op.add(x, x), (2,))
    np.testing.assert_array_equal(session.run({"x": [1, 2]})["y"], [2, 4])
    for value in ([1.5, 2], [True, False], [300, 1], [2**70, 1], "ab"):
        with pytest.raises(RunError, match="input 'x': expected int8"):
            session.run({"x": value})


# Memory


def test_outputs_share_no_memory(four: Session) -> None:
    x, w = random(8, 8), random(8, 8)
    first = four.run({"x": x, "w": w})["y"]
    kept = first.copy()
    second = four.run({"x": w, "w": x})["y"]
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)
    first[...] = 0  # outputs are the caller's own, writable
    np.testing.assert_array_equal(four.run({"x": x, "w": w})["y"], kept)


@pytest.mark.parametrize("honest", [True, False])
def test_views_of_inputs_are_copied(honest: bool) -> None:
    session = single(
        "float32",
        lambda x: relax.op.reshape(x, (2, 8)),
        out=("float32", [2, 8]),
        fresh_outputs=[not honest],
    )
    x = aligned_empty((4, 4), np.dtype(np.float32))
    x[...] = random(4, 4)
    got = session.run({"x": x})["y"]
    assert not np.shares_memory(got, x)
    np.testing.assert_array_equal(got, x.reshape(2, 8))
    tensor = torch.from_numpy(x)
    out = session.run({"x": tensor})["y"]
    assert out.data_ptr() != tensor.data_ptr()


def test_inputs_constants_and_doubles_as_outputs_are_copied() -> None:
    maker = Maker()
    maker.constant("c", np.arange(16, dtype=np.float32))
    maker.vm("r0", ["x"], ["y"], kernels([("float32", [16])], lambda x: relax.op.add(x, x)))
    types: Any = {name: ("float32", [16]) for name in ("a", "b", "c", "d")}
    values = ["x", "c", "y", "y"]
    session = Session(maker.artifact({"x": ("float32", [16])}, types, values))
    x = aligned_empty((16,), np.dtype(np.float32))
    x[...] = random(16)
    arrays = [*session.run({"x": x}).values(), *session.run({"x": x}).values(), x]
    for i, a in enumerate(arrays):
        for b in arrays[:i]:
            assert not np.shares_memory(a, b)
    arrays[1][...] = 7
    np.testing.assert_array_equal(session.run({"x": x})["b"], np.arange(16))


def test_outputs_stay_when_session_and_artifact_are_gone(tmp_path: Path) -> None:
    four_operators().save(tmp_path / "m.hcomp")
    session = load(tmp_path / "m.hcomp")
    x, w = random(8, 8), random(8, 8)
    got = session.run({"x": x, "w": w})["y"]
    del session
    (tmp_path / "m.hcomp").unlink()
    np.testing.assert_allclose(got, four_operators_numpy(x, w), rtol=1e-5)


def test_numpy_and_torch_outputs_are_not_copied(four: Session) -> None:
    """Outputs of kernels are handed over as they are."""
    x, w = random(8, 8), random(8, 8)
    got = four.run({"x": x, "w": w})["y"]
    assert got.flags.writeable
    assert not got.flags.owndata
    assert got.ctypes.data % 64 == 0
    assert four.run({"x": torch.from_numpy(x), "w": w})["y"].data_ptr() % 64 == 0


# Constants, symbols, several regions


@pytest.mark.parametrize("stored", [False, True])
def test_constants_of_all_kinds(stored: bool, tmp_path: Path) -> None:
    maker = Maker()
    half = np.arange(4).astype(ml_dtypes.bfloat16)
    maker.constant("c", np.arange(4, dtype=np.float32))
    maker.constant("h", half)
    maker.constant("i", np.array([1, -2, 3, -4], ml_dtypes.int4))
    maker.constant("e", np.zeros((0, 4), np.float32))
    types: Any = [("float32", [4]), ("float32", [4]), ("bfloat16", [4]), ("int8", [4])]

    def body(x: Any, c: Any, h: Any, i: Any, e: Any) -> Any:
        return x + c + relax.op.astype(h, "float32") + relax.op.astype(i, "float32") + relax.op.sum(e, [0])

    files = kernels([*types, ("float32", [0, 4])], body)
    maker.vm("r0", ["x"], ["y"], files, constants=["c", "h", "i", "e"])
    artifact = maker.artifact({"x": ("float32", [4])}, {"y": ("float32", [4])})
    if stored:
        artifact.save(tmp_path / "m.hcomp")
        artifact = Artifact.open(tmp_path / "m.hcomp")
    x = random(4)
    want = x + np.arange(4) * 2 + np.array([1, -2, 3, -4])
    # Terms of up to 9 may cancel, in float32.
    np.testing.assert_allclose(Session(artifact).run({"x": x})["y"], want, rtol=1e-6, atol=1e-6)


def texts_session(member: bytes) -> Session:
    maker = Maker()
    maker.constant("t", np.frombuffer(member, np.uint8), "string")
    maker.constants["t"]["shape"] = [2, 1]
    return Session(maker.artifact({}, {"t": ("string", [2, 1])}))


def test_constants_of_texts() -> None:
    texts = ["é, \n", "\ud800"]
    session = texts_session(texts_member(texts))
    assert session.run({})["t"].tolist() == [[t] for t in texts]
    session.run({})["t"][0, 0] = "the caller's own"
    assert session.run({})["t"].tolist() == [[t] for t in texts]
    for member in (b"no json", b'["a"]  ', b"[1, 2]", b"[" * 99_999, b'{"a": 1}', "['é']".encode()):
        with pytest.raises(ArtifactError, match="a constant of texts is no "):
            texts_session(member)


def test_constants_are_mapped_not_copied(tmp_path: Path) -> None:
    maker = Maker()
    maker.constant("c", np.arange(5, dtype=np.float32))
    maker.constant("d", np.arange(7, dtype=np.int64))
    maker.artifact({}, {"c": ("float32", [5])}).save(tmp_path / "m.hcomp")
    artifact = Artifact.open(tmp_path / "m.hcomp")
    resources = Resources(artifact, 1)
    for spec in artifact.manifest.program.constants.values():
        mapped = np.frombuffer(artifact.member(spec.file), np.uint8)
        assert resources.constant_tensor(spec).data_ptr() == mapped.ctypes.data
        assert not resources.constant_array(spec).flags.writeable


def test_symbols_are_handed_to_the_region() -> None:
    """The region takes a size that none of its own inputs has."""
    maker = Maker()
    files = kernels(
        [("float32", [1])],
        lambda x, n: relax.op.broadcast_to(x, relax.ShapeExpr([n])),
        symbols=["N"],
    )
    maker.vm("r0", ["x"], ["y"], files, symbols=[["z", 0]])
    types: Any = {"x": ("float32", [1]), "z": ("int64", ["N"])}
    session = Session(maker.artifact(types, {"y": ("float32", ["N"])}))
    for n in (1, 5, 0):
        got = session.run({"x": np.ones(1, np.float32), "z": np.zeros(n, np.int64)})["y"]
        np.testing.assert_array_equal(got, np.ones(n))


def test_several_outputs_and_regions() -> None:
    maker = Maker()
    four_by: Any = ("float32", [4])
    maker.vm("r0", ["x"], ["a", "b"], kernels([four_by], lambda x: (x + x, x * x)))
    maker.vm("r1", ["a", "b"], ["y"], kernels([four_by, four_by], relax.op.subtract), free=["b"])
    session = Session(maker.artifact({"x": four_by}, {"y": four_by, "a": four_by}))
    x = random(4)
    out = session.run({"x": x})
    assert list(out) == ["y", "a"]
    np.testing.assert_allclose(out["y"], x + x - x * x, rtol=1e-6)
    np.testing.assert_allclose(out["a"], x + x, rtol=1e-6)


def reference(maker: Maker, region: str, inputs: list[str], outputs: list[str], op: str, payload: bytes = b"") -> None:
    """Add a region that numpy interprets: one operator, or an ONNX model as "extern"."""
    program = {
        "inputs": [{"name": n, "dtype": "float32", "shape": [4]} for n in inputs],
        "constants": [],
        "symbols": [],
        "nodes": [
            {
                "op": op,
                "label": f"/{op}",
                "inputs": inputs,
                "outputs": [{"name": n, "dtype": "float32", "shape": [4]} for n in outputs],
                "attrs": {},
                "graphs": {},
                "payload": base64.b64encode(payload).decode(),
            }
        ],
        "outputs": outputs,
    }
    path = f"regions/{region}/program.json"
    maker.members[path] = json.dumps(program).encode()
    step = {"kind": "launch", "region": region, "device": "null", "executor": "reference"}
    maker.steps.append({**step, "inputs": inputs, "outputs": outputs, "files": {"program": path}})


def test_a_second_device_with_copies() -> None:
    maker = Maker()
    vector: Any = ("float32", [4])
    maker.vm("r0", ["x"], ["a"], kernels([vector], lambda x: x + x), predicted_us=3.0)
    maker.steps.append({"kind": "copy", "value": "a", "to": "a@null", "from": "cpu", "to_device": "null"})
    reference(maker, "r1", ["a@null"], ["b@null"], "exp")
    maker.steps.append({"kind": "copy", "value": "b@null", "to": "b", "from": "null", "to_device": "cpu"})
    maker.vm("r2", ["b"], ["y"], kernels([vector], lambda x: x + x))
    session = Session(maker.artifact({"x": vector}, {"y": vector}))
    x = random(4)
    np.testing.assert_allclose(session.run({"x": x})["y"], 2 * np.exp(2 * x), rtol=1e-6)

    profile = session.profile({"x": x}, runs=3)
    assert [step.kind for step in profile.steps] == ["launch", "copy", "launch", "copy", "launch"]
    assert profile.steps[0].predicted_us == 3.0
    assert profile.steps[1].bytes == 16
    assert profile.steps[1].simulated_us == pytest.approx(5 + 16 / 2000)
    assert all(step.measured_us > 0 for step in profile.steps)
    assert "copy a cpu->null" in profile.to_text()
    events = [e for e in profile.chrome_trace()["traceEvents"] if e["ph"] == "X"]  # type: ignore[attr-defined]
    assert len(events) == 5
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in pairwise(events))
    json.dumps(profile.to_json())
    with pytest.raises(UsageError, match="runs must be an integer of at least 1"):
        session.profile({"x": x}, runs=0)


def onnx_model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def extern(maker: Maker, model: bytes, inputs: list[str], outputs: list[str]) -> None:
    maker.members["regions/e/model.onnx"] = model
    step = {"kind": "launch", "region": "e", "device": "cpu", "executor": "onnxruntime"}
    files = {"model": "regions/e/model.onnx"}
    maker.steps.append({**step, "inputs": inputs, "outputs": outputs, "files": files})


def test_onnx_runtime_regions_with_texts_and_sequences() -> None:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("StringConcat", ["s", "s"], ["u"]),
        helper.make_node("SplitToSequence", ["x"], ["q"]),
    ]
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    model = onnx_model(
        nodes,
        [value("s", TensorProto.STRING, ["K"]), value("x", TensorProto.FLOAT, [2, 3])],
        [value("u", TensorProto.STRING, ["K"]), sequence],
    )
    maker = Maker()
    extern(maker, model, ["s", "x"], ["u", "q"])
    outputs = {"u": ("string", ["K"]), "q": {"sequence": {"dtype": "float32", "shape": None}}}
    session = Session(maker.artifact({"s": ("string", ["K"]), "x": ("float32", [2, 3])}, outputs))
    x = random(2, 3)
    out = session.run({"s": np.array(["ab", "c"]), "x": x})
    assert out["u"].tolist() == ["abab", "cc"]
    assert [a.shape for a in out["q"]] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(np.concatenate(out["q"]), x)
    assert session.run({"s": ["ab"], "x": x})["u"].tolist() == ["abab"]
    with pytest.raises(RunError, match=r"input 's': expected string\[K\], got float32"):
        session.run({"s": x, "x": x})


def test_a_reference_region_that_fails_names_the_node() -> None:
    maker = Maker()
    reference(maker, "r1", ["x"], ["y"], "exp")
    session = Session(maker.artifact({"x": ("float32", ["N"])}, {"y": ("float32", ["N"])}))
    x = random(4)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.exp(x), rtol=1e-6)
    with pytest.raises(RunError, match=r"region r1 failed on null: input 'x': expected \[4\]"):
        session.run({"x": random(5)})


def test_an_onnx_runtime_region_that_fails_is_named() -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    inputs = [value("x", TensorProto.FLOAT, ["N"]), value("s", TensorProto.INT64, [1])]
    maker = Maker()
    extern(maker, onnx_model([node], inputs, [value("y", TensorProto.FLOAT, ["M"])]), ["x", "s"], ["y"])
    types: Any = {"x": ("float32", ["N"]), "s": ("int64", [1])}
    session = Session(maker.artifact(types, {"y": ("float32", ["M"])}))
    with pytest.raises(RunError, match=r"region e failed on cpu: .*Reshape") as found:
        session.run({"x": random(4), "s": [3]})
    assert "\n" not in str(found.value)


def test_extern_nodes_inside_of_a_reference_region() -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Neg", ["x"], ["y"])
    ends = [[value(n, TensorProto.FLOAT, [4])] for n in "xy"]
    maker = Maker()
    reference(maker, "r1", ["x"], ["y"], "extern", onnx_model([node], *ends))
    session = Session(maker.artifact({"x": ("float32", [4])}, {"y": ("float32", [4])}))
    x = random(4)
    np.testing.assert_array_equal(session.run({"x": x})["y"], -x)
    np.testing.assert_array_equal(session.run({"x": x})["y"], -x)


def test_a_model_that_onnx_runtime_refuses_is_an_artifact_error() -> None:
    maker = Maker()
    extern(maker, b"junk", ["x"], ["y"])
    with pytest.raises(ArtifactError, match="region e: ONNX Runtime refuses the model"):
        Session(maker.artifact({"x": ("float32", [1])}, {"y": ("float32", [1])}))


def test_onnx_runtime_regions_with_bfloat16() -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)]
    nodes += [helper.make_node("Cast", ["h"], ["z"], to=TensorProto.FLOAT)]
    model = onnx_model(
        nodes,
        [value("x", TensorProto.FLOAT, [3]), value("h", TensorProto.BFLOAT16, [3])],
        [value("y", TensorProto.BFLOAT16, [3]), value("z", TensorProto.FLOAT, [3])],
    )
    maker = Maker()
    extern(maker, model, ["x", "h"], ["y", "z"])
    inputs: Any = {"x": ("float32", [3]), "h": ("bfloat16", [3])}
    session = Session(maker.artifact(inputs, {"y": ("bfloat16", [3]), "z": ("float32", [3])}))
    h = np.array([1, 2, 3], ml_dtypes.bfloat16)
    out = session.run({"x": np.array([1, 2, 3.5], np.float32), "h": h})
    assert out["y"].tolist() == [1, 2, 3.5]
    assert out["z"].tolist() == [1, 2, 3]


# Control flow


def branch(maker: Maker, region: str, body: Any) -> dict[str, object]:
    """Return the program o = body(i) of one region, whose files go to `maker`."""
    inner = Maker()
    inner.vm(region, ["i"], ["o"], kernels([("float32", [4])], body))
    maker.members.update(inner.members)
    return inner.program(["i"], ["o"])


def test_if_runs_one_branch() -> None:
    maker = Maker()
    then, other = branch(maker, "a", lambda x: x + x), branch(maker, "b", lambda x: x * x)
    step: dict[str, object] = {"kind": "if", "inputs": ["c", "x"], "outputs": ["y"], "then": then, "else": other}
    maker.steps.append(step)
    types: Any = {"c": ("bool", []), "x": ("float32", [4])}
    session = Session(maker.artifact(types, {"y": ("float32", [4])}))
    x = random(4)
    np.testing.assert_allclose(session.run({"c": True, "x": x})["y"], x + x)
    np.testing.assert_allclose(session.run({"c": np.array(False), "x": x})["y"], x * x)


@cache
def loop(bounded: bool, conditional: bool) -> Session:
    """Return a loop: state s and scan of s; s += k each time, going on while s[0] < 10."""
    body = Maker()
    vector: Any = ("float32", [2])

    def step(i: Any, s: Any, k: Any) -> Any:
        following = s + k
        first = relax.op.take(following, relax.const(0, "int64"), axis=0, mode="clip")
        return relax.op.less(first, relax.const(10.0, "float32")), following, s * s

    files = kernels([("int64", []), vector, vector], step)
    body.vm("body", ["i", "s", "k"], ["going", "next", "square"], files)
    maker = Maker()
    maker.members.update(body.members)
    maker.steps.append(
        {
            "kind": "loop",
            "inputs": ["n" if bounded else "", "go" if conditional else "", "s", "k"],
            "outputs": ["final", "squares"],
            "carried": 1,
            "scans": 1,
            "types": {"squares": {"dtype": "float32", "shape": ["T", 2]}},
            "body": body.program(["i", "c", "s", "k"], ["going", "next", "square"]),
        }
    )
    inputs: Any = {"n": ("int64", []), "go": ("bool", []), "s": vector, "k": vector}
    return Session(maker.artifact(inputs, {"final": vector, "squares": ("float32", ["T", 2])}))


def loop_numpy(n: int | None, go: bool, s: np.ndarray, k: np.ndarray) -> tuple[Any, Any]:
    squares, done = [], 0
    while go and (n is None or done < n):
        squares.append(s * s)
        s = s + k
        go = bool(s[0] < 10)
        done += 1
    return s, np.array(squares, np.float32).reshape(-1, 2)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize(("n", "go"), [(3, True), (0, True), (3, False), (100, True), (-1, True)])
def test_loops(bounded: bool, conditional: bool, n: int, go: bool) -> None:
    session = loop(bounded, conditional)
    s, k = np.array([1, 2], np.float32), np.array([1.5, 1], np.float32)
    out = session.run({"n": n, "go": go, "s": s, "k": k})
    final, squares = loop_numpy(n if bounded else None, go if conditional else True, s, k)
    np.testing.assert_allclose(out["final"], final)
    assert out["squares"].shape == squares.shape
    np.testing.assert_allclose(out["squares"], squares)
    assert not np.shares_memory(out["final"], s)


# Threads


def test_many_threads_share_a_session(four: Session, dynamic: Session) -> None:
    x, w = random(8, 8), random(8, 8)
    want = four_operators_numpy(x, w)
    wrong: list[str] = []
    start = threading.Barrier(32)

    def work(index: int) -> None:
        mine = (x + index).astype(np.float32)
        want_sum = mine + w
        want_four = want if index % 2 else four_operators_numpy(mine, w)
        start.wait()
        for _ in range(50):
            got = four.run({"x": x if index % 2 else mine, "w": w})["y"]
            if not np.allclose(got, want_four, rtol=1e-4):
                wrong.append(f"four {index}")
            if not np.array_equal(dynamic.run({"x": mine[: index % 8], "z": w[: index % 8]})["y"],
                                  want_sum[: index % 8]):  # fmt: skip
                wrong.append(f"dynamic {index}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_number_of_threads_is_checked() -> None:
    artifact = four_operators()
    x, w = random(8, 8), random(8, 8)
    for threads in (1, 2, 3, None):
        session = Session(artifact, threads=threads)
        assert session.threads == (threads or session.threads)
        np.testing.assert_allclose(session(x, w), four_operators_numpy(x, w), rtol=1e-5)
    for bad in (0, -1, 5000, 1.5, True):
        with pytest.raises(UsageError, match="threads must be an integer"):
            Session(artifact, threads=bad)  # type: ignore[arg-type]


# Failures


def test_a_region_that_fails_is_named_and_the_session_goes_on() -> None:
    """The region was compiled for [4, 4] and the manifest promises any size."""
    maker = Maker()
    files = kernels([("float32", [4, 4])], lambda x: x + x)
    maker.vm("r0", ["x"], ["y"], files, nodes=["/a (Add)", "/b (Mul)", "/c (Exp)", "/d (Exp)"])
    session = Session(maker.artifact({"x": ("float32", ["N", 4])}, {"y": ("float32", ["N", 4])}))
    x = random(4, 4)
    for _ in range(3):
        with pytest.raises(RunError, match=r"region r0 \(/a \(Add\), .*, \.\.\.\) failed on cpu: ") as e:
            session.run({"x": random(5, 4)})
        assert "\n" not in str(e.value)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x + x)


def test_damaged_code_is_an_artifact_error() -> None:
    good = four_operators()
    for damage, member in (
        (b"", "program"), (b"junk" * 99, "program"), (b"", "object0"), (b"junk" * 99, "object0"),
    ):  # fmt: skip
        fields = {k: v for k, v in good.manifest.json.items() if k not in ("files", "format", "version")}
        members = {name: good.member(name) for name in good.manifest.files}
        members[f"regions/r0/{member}"] = memoryview(damage)
        with pytest.raises(ArtifactError, match="region r0: the kernels cannot be loaded"):
            Session(Artifact.build(fields, members))


@pytest.mark.parametrize(
    ("cpu", "message"),
    [
        ({"triple": "riscv64-linux-gnu"}, "compiled for riscv64"),
        ({"triple": "x86_64-linux-gnu", "features": ["+avx2", "+amx-fp8", "+sse4.2"]}, ""),
        ({"triple": "x86_64-linux-gnu", "features": ["+amx-int8", "-avx2"]}, "amx-int8"),
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="about x86")
def test_the_processor_is_checked(cpu: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = frozenset({"avx2", "sse4_2"})
    monkeypatch.setattr("hcomp.runtime.cpu.host_flags", lambda: flags)
    good = four_operators()
    fields = {k: v for k, v in good.manifest.json.items() if k not in ("files", "format", "version")}
    artifact = Artifact.build({**fields, "cpu": cpu}, {name: good.member(name) for name in good.manifest.files})
    if not message:
        Session(artifact)
        return
    with pytest.raises(ArtifactError, match=message):
        Session(artifact)


# Fresh processes


def run_python(code: str, **env: str) -> str:
    whole = {**os.environ, "PYTHONPATH": str(ROOT), "TVM_NUM_THREADS": "1", **env}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=whole, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RUN = """
import sys, numpy as np
{first}
from hcomp.runtime import load
session = load({path!r})
x = np.ones((8, 8), np.float32)
y = session.run({{"x": x, "w": x}})["y"]
assert abs(y - np.exp(9)).max() < 1e-2
print(*(name in sys.modules for name in ("tvm", "onnxruntime", "torch", "ml_dtypes")))
{then}
"""


def test_the_light_start_keeps_torch_and_ml_dtypes_out_and_importable(tmp_path: Path) -> None:
    path = str(tmp_path / "m.hcomp")
    four_operators().save(path)
    first = "from hcomp.runtime.startup import import_runtime; import_runtime()"
    then = "import torch, ml_dtypes; print(session.run({'x': torch.ones(8, 8), 'w': x})['y'].dtype)"
    out = run_python(RUN.format(first=first, path=path, then=then)).split()
    assert out == ["False", "False", "False", "False", "torch.float32"]


def test_the_library_changes_nothing_for_its_host(tmp_path: Path) -> None:
    """Neither imports, nor the affinity of the calling thread; `import tvm` still works after."""
    path = str(tmp_path / "m.hcomp")
    four_operators().save(path)
    first = "import os; before = os.sched_getaffinity(0)"
    then = "import torch, ml_dtypes, tvm; print(before == os.sched_getaffinity(0), None in sys.modules.values())"
    out = run_python(RUN.format(first=first, path=path, then=then), TVM_NUM_THREADS="2").split()
    assert out[:2] == ["False", "False"]
    assert out[-2:] == ["True", "False"]
