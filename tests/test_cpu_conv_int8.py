"""Integer convolutions of bytes are exact, at every edge of their tiles, groups and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import hcomp
from hcomp.reference import REFERENCE
from hcomp.targets.cpu.codegen import processor
from hcomp.targets.cpu.heavy.conv_int8 import takes_conv_int8

RNG = np.random.default_rng(11)
TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

CASES: dict[str, Case] = {
    "3x3": ((1, 16, 9, 9), (8, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "runs that fill no group": ((2, 3, 20, 17), (10, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "1x1, columns that fill no panel": ((1, 64, 7, 7), (41, 64, 1, 1), {}),
    "1x1 of odd channels with strides": ((1, 5, 8, 8), (7, 5, 1, 1), {"strides": [2, 2]}),
    "one position": ((3, 8, 1, 1), (8, 8, 1, 1), {}),
    "depthwise": ((1, 8, 9, 9), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    "groups": ((1, 12, 9, 9), (8, 6, 3, 3), {"group": 2}),
    "groups of few channels": ((1, 4, 9, 9), (6, 2, 3, 3), {"group": 2}),
    "one axis, dilated": ((1, 12, 30), (9, 12, 5), {"dilations": [2], "pads": [3, 1]}),
    "three axes": ((1, 4, 5, 6, 7), (6, 4, 3, 3, 3), {"pads": [1] * 6}),
    "blocks of runs": ((1, 700, 5, 5), (16, 700, 3, 3), {"pads": [1] * 4}),
    "blocks of a run": ((1, 3001, 2, 2), (9, 3001, 1, 1), {}),
}


def of_bytes(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return bytes of the whole range, the largest ones among them: their sums must not saturate."""
    info = np.iinfo(dtype)
    return RNG.choice([info.min, info.max, *range(info.min, info.max, 5)], shape).astype(dtype)


def conv_integer(x: Any, w: Any, zero: int, attrs: dict[str, Any], *, free: bool) -> ModelProto:
    sizes = [f"d{i}" if free and i != 1 else n for i, n in enumerate(x.shape)]
    graph = helper.make_graph(
        [helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], name="c", **attrs)], "g",
        [helper.make_tensor_value_info("x", TYPES[str(x.dtype)], sizes)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(zero, x.dtype), "zero")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(x: Any, w: Any, zero: int, attrs: dict[str, Any]) -> np.ndarray:
    """Return the sums in float64, where all of them are exact."""
    rank = x.ndim - 2
    pads = attrs.get("pads", [0] * 2 * rank)
    around = [(0, 0), (0, 0), *((pads[i], pads[rank + i]) for i in range(rank))]
    wide = np.pad(x.astype(np.float64) - zero, around)
    return REFERENCE["conv"](
        wide, w.astype(np.float64), strides=attrs.get("strides", [1] * rank), padding=[0] * 2 * rank,
        dilation=attrs.get("dilations", [1] * rank), groups=attrs.get("group", 1), out_dtype="", channels_last=False,
    ).astype(np.int32)  # fmt: skip


@pytest.mark.parametrize("free", [False, True], ids=["fixed", "free"])
@pytest.mark.parametrize(("data", "weights"), [("uint8", "int8"), ("int8", "uint8")])
@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact(name: str, data: str, weights: str, free: bool) -> None:
    shape, kernel, attrs = CASES[name]
    x, w = of_bytes(data, shape), of_bytes(weights, kernel)
    for zero in (0, 77):
        program = hcomp.compile(conv_integer(x, w, zero, attrs, free=free), devices=["cpu"], threads=1, cache=False)
        np.testing.assert_array_equal(program.run({"x": x})["y"], expected(x, w, zero, attrs))
        if free:  # the same program at other sizes
            more = np.concatenate([x, x[:, :, ::-1]])
            np.testing.assert_array_equal(program.run({"x": more})["y"], expected(more, w, zero, attrs))


def test_two_threads_give_the_same() -> None:
    x, w = of_bytes("uint8", (2, 64, 28, 28)), of_bytes("int8", (72, 64, 3, 3))
    attrs = {"pads": [1, 1, 1, 1]}
    program = hcomp.compile(conv_integer(x, w, 9, attrs, free=False), devices=["cpu"], threads=2, cache=False)
    np.testing.assert_array_equal(program.run({"x": x})["y"], expected(x, w, 9, attrs))


def test_the_kernel_is_a_convolution_with_what_follows_fused() -> None:
    x, w = of_bytes("uint8", (1, 16, 12, 12)), of_bytes("int8", (16, 16, 3, 3))
    model = conv_integer(x, w, 0, {}, free=False)
    model.graph.node.append(helper.make_node("Cast", ["y"], ["f"], to=TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("Relu", ["f"], ["z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    session = hcomp.compile(model, devices=["cpu"], threads=1, cache=False).session
    np.testing.assert_array_equal(session.run({"x": x})["z"], np.maximum(expected(x, w, 0, {}), 0))
    heavy = [k for k in session.profile_kernels({"x": x}, runs=1).kernels if k.rule == "convolution"]
    assert len(heavy) == 1
    assert len(heavy[0].nodes) > 1


def test_sums_that_float32_does_not_have_are_not_computed_in_it() -> None:
    """Few channels a group go through float32, unless their sums are too large for it."""
    processor_ = processor()[0]
    few, deep = np.full((4, 2, 3, 3), 127, np.int8), np.full((4, 2, 100, 99), 127, np.int8)
    assert takes_conv_int8(few, {"groups": 2}, processor_)
    assert not takes_conv_int8(deep, {"groups": 2}, processor_)
    x = np.full((1, 4, 100, 99), 255, np.uint8)
    model = conv_integer(x, deep, 0, {"group": 2}, free=False)
    program = hcomp.compile(model, devices=["cpu"], threads=1, cache=False)
    assert program.run({"x": x})["y"].ravel().tolist() == [2 * 100 * 99 * 127 * 255] * 4
