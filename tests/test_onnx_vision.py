"""ONNX warping, regions, spectra, suppression: hcomp's converters against ONNX Runtime."""

import numpy as np
import pytest

from hcomp.testing import random_array
from tests.onnx_case import Case, case, check, params_of


def f32(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return random_array("float32", shape, "vision", low=low, high=high)


IMAGE = f32(2, 3, 5, 7)
GRID = f32(2, 4, 6, 2, low=-1.3, high=1.3)
ROIS = np.array([[0, 0, 4, 3], [1, 1, 6.5, 4.2], [2, 0.5, 3, 1]], np.float32)
BATCH = np.array([0, 1, 1])

CASES: list[Case] = [
    *(
        case("GridSample", IMAGE, GRID, mode=mode, padding_mode=padding, align_corners=corners, opset=16)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (0, 1)
    ),
    case("GridSample", f32(1, 2, 3, 4, 5), f32(1, 2, 3, 4, 3), mode="linear", opset=20),
    *(
        case("RoiAlign", f32(2, 3, 6, 8), ROIS, BATCH, mode=mode, output_height=2, output_width=3,
             sampling_ratio=ratio, spatial_scale=0.8, opset=16, coordinate_transformation_mode=shift)
        for mode in ("avg", "max")
        for ratio in (0, 2)
        for shift in ("half_pixel", "output_half_pixel")
    ),
    case("RoiAlign", f32(2, 3, 6, 8), ROIS, BATCH, output_height=2, output_width=2, opset=10),
    case("MaxRoiPool", f32(2, 3, 8, 8), np.array([[0, 1, 1, 5, 6], [1, 0, 0, 3, 7]], np.float32),
         pooled_shape=[2, 3], opset=13),
    case("DFT", f32(2, 6, 1), axis=1, opset=17),
    case("DFT", f32(2, 6, 1), np.array(8), axis=1, onesided=1, opset=17, params=[1]),
    case("DFT", f32(2, 6, 2), None, np.array(-2), inverse=1, opset=20, params=[2], forms=("static", "late")),
    case("STFT", f32(1, 32, 1), np.array(4), None, np.array(8), opset=17, params=[1, 3]),
    case("STFT", f32(2, 32, 1), np.array(4), f32(8), None, opset=17, params=[1], onesided=1),
    *(case(op, np.array(9), opset=17, params=[0], periodic=p)
      for op in ("HannWindow", "HammingWindow", "BlackmanWindow") for p in (0, 1)),
    case("NonMaxSuppression", f32(1, 6, 4, low=0, high=4), f32(1, 2, 6, low=0), np.array([3]),
         np.array([0.5], np.float32), np.array([0.1], np.float32), opset=11, params=[2, 3, 4]),
]  # fmt: skip


@pytest.mark.parametrize(**params_of(CASES))
def test_agrees_with_onnxruntime(case: Case, form: str) -> None:
    check(case, form)
