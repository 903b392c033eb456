"""Sizes that come too small at run time: refused by name, alike on every device, before any kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import hcomp
from hcomp.artifact.program import Need
from hcomp.dims import parse_dim
from hcomp.errors import ArtifactError, RunError
from hcomp.runtime.sizes import size_check

DEVICES = ("cpu", "null")


def model(op: str, shape: list[Any], *, given: Any = (), outputs: int = 1, then: str = "", **attrs: Any) -> ModelProto:
    """One node `the node` on x, with constants behind it, and maybe one operator on its first result."""
    constants = [numpy_helper.from_array(np.asarray(a), f"c{i}") for i, a in enumerate(given)]
    names = [f"y{i}" for i in range(outputs)]
    nodes = [helper.make_node(op, ["x", *(c.name for c in constants)], names, name="the node", **attrs)]
    if then:
        nodes.append(helper.make_node(then, ["y0"], ["z"]))
        names = ["z"]
    f32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", f32, shape)],
        [helper.make_tensor_value_info(n, f32, None) for n in names], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def weight(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


IMAGE, ROW = [1, 1, "h", "w"], ["h"]
# The model; the smallest size along h that works and the result's size there; what the error says of one less.
TABLE: dict[str, tuple[ModelProto, int, int, str]] = {
    "conv": (model("Conv", IMAGE, given=[weight(1, 1, 3, 1)]), 3, 1, "a window of 3 does not fit into axis 2"),
    "conv of strides": (
        model("Conv", IMAGE, given=[weight(1, 1, 3, 1)], strides=[3, 1]), 3, 1, "has 2 with its padding (with h = 2)"),
    "conv dilated": (model("Conv", IMAGE, given=[weight(1, 1, 3, 1)], dilations=[2, 1]), 5, 1, "a window of 5"),
    "conv padded": (
        model("Conv", IMAGE, given=[weight(1, 1, 5, 1)], pads=[1, 0, 1, 0]), 3, 1, "has 4 with its padding (with h"),
    "conv transposed": (
        model("ConvTranspose", IMAGE, given=[weight(1, 1, 1, 1)], pads=[1, 0, 1, 0]), 2, 0,
        "the padding [1, 1] cuts more off axis 2 of 1 than there is"),
    "max pool": (model("MaxPool", IMAGE, kernel_shape=[4, 1], strides=[2, 1]), 4, 1, "a window of 4"),
    "average pool": (model("AveragePool", IMAGE, kernel_shape=[4, 1]), 4, 1, "a window of 4"),
    "norm pool": (model("LpPool", IMAGE, kernel_shape=[3, 1]), 3, 1, "a window of 3"),
    "pad that crops": (model("Pad", ROW, given=[np.array([-2, -1])]), 3, 0, "[-2, -1] cuts more off axis 0 of 2"),
    "pad from inside": (
        model("Pad", ROW, given=[np.array([2, 1])], mode="edge"), 1, 4, "axis 0 of 0 has nothing to repeat"),
    "split": (
        model("Split", ROW, outputs=4, num_outputs=4), 2 * 4 - 2, 2, "axis 0 of 5 cannot be split into pieces of [2,"),
}  # fmt: skip


def sized(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def fed(name: str, size: int) -> dict[str, np.ndarray]:
    return {"x": sized((size,) if name.startswith(("pad", "split")) else (1, 1, size, 2))}


@pytest.mark.parametrize("name", TABLE)
def test_a_size_below_the_smallest_is_refused_by_name_on_all_devices(name: str) -> None:
    built, smallest, result, problem = TABLE[name]
    answers = []
    for device in DEVICES:
        program = hcomp.compile(built, devices=[device])
        for _ in range(2):  # the second call may take the short way
            with pytest.raises(RunError) as refused:
                program.run(fed(name, smallest - 1))
            assert str(refused.value).startswith("node 'the node': ")
            assert problem in str(refused.value)
            assert "\n" not in str(refused.value)
        answers.append(next(iter(program.run(fed(name, smallest)).values())))
        with pytest.raises(RunError):
            program.run(fed(name, smallest - 1))
    axis = 0 if answers[0].ndim == 1 else 2
    assert answers[0].shape[axis] == result
    np.testing.assert_array_equal(answers[0], answers[1])


@pytest.mark.parametrize("op", ["GlobalAveragePool", "ReduceSum", "ReduceMax"])
def test_a_reduction_behind_a_window_that_does_not_fit_gives_no_number(op: str) -> None:
    program = hcomp.compile(model("Conv", ["n", 1, "h", "w"], given=[weight(2, 1, 5, 5)], then=op))
    for size in (0, 1, 2, 4):
        with pytest.raises(RunError, match=f"axis 2, which has {size} .*h = {size}"):
            program.run({"x": sized((1, 1, size, 9))})
        with pytest.raises(RunError, match=f"axis 3, which has {size} .*w = {size}"):
            program.run({"x": sized((1, 1, 9, size))})
    assert program.run({"x": sized((1, 1, 5, 5))})["z"].ravel()[0] == (650 if op == "ReduceSum" else 325)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("size", "windows"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_windows_that_may_hang_over_the_end_can_be_none(device: str, size: int, windows: int) -> None:
    built = model("MaxPool", IMAGE, kernel_shape=[4, 1], strides=[2, 1], ceil_mode=1)
    found = hcomp.compile(built, devices=[device]).run({"x": sized((1, 1, size, 2))})["y0"]
    assert found.shape == (1, 1, windows, 2)


def test_sizes_that_are_always_enough_need_no_check() -> None:
    for shape in ([1, 1, 6, 6], IMAGE):
        program = hcomp.compile(model("Conv", shape, given=[weight(1, 1, 1, 1)], pads=[1, 1, 1, 1]))
        needs = [need for launch in program.session.manifest.program.launches() for need in launch.needs]
        assert all("more than any memory holds" in need.problem for need in needs)
        assert not (needs and shape != IMAGE)


def test_a_need_of_a_size_that_nothing_gives_is_a_damaged_artifact() -> None:
    from hcomp.artifact.fields import Fields
    from hcomp.artifact.program import _read_needs

    needs = [{"dim": "h - 5", "node": "cv", "problem": "{h} is too small"}]
    read, sizes = _read_needs(Fields({"needs": needs, "sizes": {"h": ["x", 2]}}, "step"))
    assert (str(read[0].dim), sizes) == ("h - 5", {"h": ("x", 2)})
    with pytest.raises(ArtifactError, match="nothing gives the size h"):
        _read_needs(Fields({"needs": needs}, "step"))
    with pytest.raises(ArtifactError, match="not a dimension"):
        _read_needs(Fields({"needs": [{**needs[0], "dim": "h -"}], "sizes": {"h": ["x", 2]}}, "step"))


@pytest.mark.parametrize(
    "empty",
    [
        model("LayerNormalization", [0, 3], given=[weight(3)]),
        model("BatchNormalization", [0, 3, 2], given=[weight(3)] * 4),
        model("InstanceNormalization", [0, 3, 4], given=[weight(3)] * 2),
        model("ConvTranspose", [0, 3, 8, 8], given=[weight(3, 4, 3, 3)]),
        model("Conv", [0, 3, 8, 8], given=[weight(4, 3, 3, 3)]),
        model("AveragePool", [0, 3, 8, 8], kernel_shape=[2, 2]),
        model("Softmax", [2, 0]),
    ],
    ids=lambda m: m.graph.node[0].op_type,
)
def test_data_without_elements_gives_what_onnx_runtime_gives(empty: ModelProto) -> None:
    sizes = [d.dim_value for d in empty.graph.input[0].type.tensor_type.shape.dim]
    x = np.zeros(sizes, np.float32)
    session = onnxruntime.InferenceSession(empty.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (found,) = hcomp.compile(empty).run({"x": x}).values()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize(
    ("shape", "real", "op", "attributes"),
    [
        (["N", "M"], (1 << 59, 0), "Pad", {"pads": [0, 1, 0, 1]}),
        (["N", 0], (1 << 60, 0), "ReduceSum", {"axes": [1], "keepdims": 1}),
    ],
)
def test_sizes_whose_bytes_wrap_around(
    shape: list[Any], real: tuple[int, ...], op: str, attributes: dict[str, Any]
) -> None:
    """Beside an axis of zero any size is possible, and results of 2^64 bytes would be taken for small ones."""
    make = helper.make_tensor_value_info
    inputs, nodes = ["x"], []
    if op == "Pad":
        nodes.append(helper.make_node("Constant", [], ["p"], value_ints=attributes.pop("pads")))
        inputs.append("p")
    nodes.append(helper.make_node(op, inputs, ["y"], name="big", **attributes))
    graph = helper.make_graph(nodes, "g", [make("x", TensorProto.FLOAT, shape)], [make("y", TensorProto.FLOAT, None)])
    program = hcomp.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)]))
    with pytest.raises(RunError, match="more than any memory holds"):
        program.run({"x": np.zeros(real, np.float32)})
    assert program.run({"x": np.zeros((3, 0), np.float32)})["y"].size


@pytest.mark.parametrize("value", [np.zeros((2, 3)), [1, 2]])
def test_a_manifest_that_asks_for_an_axis_that_is_not_there(value: Any) -> None:
    check = size_check([Need(parse_dim("h - 5"), "cv", "{h} is too small")], {"h": (0, 2)})
    assert check is not None
    with pytest.raises(RunError, match="asks for a size on an axis that a value does not have"):
        check([value])
