"""ONNX Resize and Upsample: hcomp's converters against ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ValueInfoProto, helper

from hcomp.capture import capture_model
from hcomp.testing import assert_close, interpret, random_array
from tests.onnx_case import Case, captured, case, check, params_of
from tests.ort_node import run_node

IMAGE = random_array("float32", (1, 2, 6, 7), "resize")
TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
SCALES = ([1, 1, 2, 2], [1, 1, 0.5, 0.6], [1, 1, 1.5, 2.3])
SIZES = ([1, 2, 5, 9], [1, 2, 3, 4], [1, 2, 1, 1])


def by_scales(scales: Any, x: np.ndarray = IMAGE, *, opset: int = 19, **attrs: Any) -> Case:
    roi = np.zeros(0, np.float32) if opset == 11 else None
    params = [0 for _ in ()] + ([1, 2] if opset == 11 else [2])
    return case("Resize", x, roi, np.array(scales, np.float32), params=params, opset=opset, **attrs)


def by_sizes(sizes: Any, x: np.ndarray = IMAGE, *, opset: int = 19, **attrs: Any) -> Case:
    return case("Resize", x, None, None, np.array(sizes, np.int64), params=[3], opset=opset, **attrs)


def mode(name: str, transform: str, **attrs: Any) -> dict[str, Any]:
    return {"mode": name, "coordinate_transformation_mode": transform, **attrs}


NEAREST = [
    *(
        by_sizes(s, **mode("nearest", t, nearest_mode=n))
        for s in SIZES
        for t in (*TRANSFORMS, "half_pixel_symmetric")
        for n in ("round_prefer_floor", "floor", "ceil")
    ),
    *(by_scales(s, **mode("nearest", t), opset=o) for s in SCALES[:1] for t in TRANSFORMS for o in (11, 13, 18)),
    by_scales([1, 1, 2, 3], **mode("nearest", "tf_half_pixel_for_nn"), opset=11),
    by_scales([1, 1, 2, 3], **mode("nearest", "half_pixel", nearest_mode="round_prefer_ceil")),
    *(by_scales(SCALES[2], IMAGE.astype(d), mode="nearest") for d in ("float16", "uint8", "int32")),
]

LINEAR = [
    *(by_sizes(s, **mode("linear", t)) for s in SIZES for t in (*TRANSFORMS, "half_pixel_symmetric")),
    *(by_scales(s, **mode("linear", t), opset=13) for s in SCALES for t in TRANSFORMS if t != "align_corners"),
    by_scales(SCALES[0], **mode("linear", "align_corners")),
    *(by_scales(s, mode="linear", antialias=1) for s in SCALES),
    by_scales(SCALES[2], IMAGE.astype("float16"), mode="linear"),
    by_scales(SCALES[2], (np.abs(IMAGE) * 50).astype("uint8"), mode="linear"),
]

CUBIC = [
    *(by_sizes(s, **mode("cubic", t, cubic_coeff_a=-0.6)) for s in SIZES for t in TRANSFORMS),
    *(by_scales(s, mode="cubic", exclude_outside=e) for s in SCALES for e in (0, 1)),
    *(by_scales(s, mode="cubic", antialias=1, exclude_outside=e) for s in SCALES for e in (0, 1)),
]

RANKS = [
    *(
        by_scales(s, random_array("float32", shape, "ranks"), mode=m, opset=13)
        for shape, s in (((2, 5), [2, 0.6]), ((2, 3, 5), [1, 2, 1.5]), ((1, 2, 3, 4, 5), [1, 1, 2, 1.5, 0.7]))
        for m in ("nearest", "linear")
    ),
    by_scales([2.0], np.arange(7, dtype=np.float32), mode="nearest"),
]

AXES = [
    *(by_scales([2, 0.5], mode=m, axes=[3, 2]) for m in ("nearest", "linear", "cubic")),
    *(
        by_sizes([9, 5], mode=m, axes=[2, 3], keep_aspect_ratio_policy=p)
        for m in ("nearest", "linear", "cubic")
        for p in ("not_larger", "not_smaller", "stretch")
    ),
]


def crop(name: str) -> Case:
    region = np.array([0, 0, 0.1, -0.2, 1, 1, 0.9, 1.3], np.float32)
    return case(
        "Resize", IMAGE, region, None, np.array([1, 2, 9, 3]), params=[1, 3], opset=13,
        mode=name, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0,
    )  # fmt: skip


CROPS = [crop(m) for m in ("nearest", "linear", "cubic")]

OLD = [
    *(
        case(op, IMAGE, np.array(s, np.float32), params=[1], opset=o, mode=m)
        for op, o, scales in (("Resize", 10, SCALES), ("Upsample", 9, (SCALES[0], SCALES[2])))
        for s in scales
        for m in ("nearest", "linear")
    ),
]


@pytest.mark.parametrize(**params_of([*NEAREST, *LINEAR, *CUBIC]))
def test_a_mode_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of([*RANKS, *AXES, *CROPS, *OLD]))
def test_ranks_axes_regions_and_old_versions_agree_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


def test_upsample_7_has_its_scales_as_an_attribute() -> None:
    expected = [np.repeat(np.repeat(IMAGE, 2, 2), 3, 3)]
    check(case("Upsample", IMAGE, opset=7, expected=expected, scales=[1.0, 1.0, 2.0, 3.0]), "symbolic")


def test_align_corners_with_a_fraction_follows_the_standard() -> None:
    """The standard's output length is 3 * 0.6 with its fraction; ONNX Runtime takes the whole number."""
    x = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
    expected = [np.array([[[[1.0, 3.142857], [9.571428, 11.714286]]]], np.float32)]
    attrs = mode("linear", "align_corners")
    check(by_scales([1, 1, 0.6, 0.6], x, **attrs, expected=expected), "static")


def test_a_whole_scale_of_a_symbolic_image_stays_symbolic() -> None:
    graph = captured(by_scales([1, 1, 2, 2], mode="nearest"), "symbolic")
    assert str(graph.types[graph.outputs[0]]) == "float32[d0_0, d0_1, 2*d0_2, 2*d0_3]"


def test_sizes_computed_from_another_image_need_no_host() -> None:
    """The pattern of a feature pyramid: resize to the size of another tensor."""
    nodes = [
        helper.make_node("Shape", ["other"], ["dims"]),
        helper.make_node("Resize", ["x", "", "", "dims"], ["y"], mode="linear"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", 1, ["n", "c", "h", "w"]),
         helper.make_tensor_value_info("other", 1, ["n", "c", "u", "v"])],
        [ValueInfoProto(name="y")],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    graph = capture_model(model).graph
    assert {"dynamic", "extern"}.isdisjoint(n.op for n in graph.walk())
    other = np.zeros((1, 2, 11, 4), np.float32)
    found = interpret(graph, {"x": IMAGE, "other": other})
    sizes = np.array(other.shape)
    expected = run_node("Resize", [IMAGE, None, None, sizes], opset=18, mode="linear")
    assert_close(next(iter(found.values())), expected[0], terms=8)
