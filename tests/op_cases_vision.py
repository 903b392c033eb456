"""Cases of operators of detection, warping and spectra."""

from tests.op_case import Case, M, N, case, t, v

_IMAGE = t("float32", N, 4, 5, 6)
_ROIS = t("float32", M, 4, low=0, high=5)
_WINDOW = {"strides": (1, 2), "padding": (1, 0, 1, 1), "dilation": (1, 1)}

VISION: dict[str, list[Case]] = {
    "grid_sample": [
        case(_IMAGE, t("float32", N, 3, M, 2, low=-1, high=1)),
        case(_IMAGE, t("float32", N, 3, 2, 2, low=-2, high=2), mode="cubic", padding="reflection"),
        case(t("float64", 2, 1, 3, 4, 2), t("float64", 2, 2, N, 3, 3), mode="nearest", padding="border"),
    ],
    "roi_align": [
        case(_IMAGE, _ROIS, t("int64", M, low=0, high=0), size=(2, 3)),
        case(_IMAGE, _ROIS, t("int64", M, low=0, high=0), size=(1, 1), mode="max", sampling_ratio=2,
             scale=0.5, half_pixel=False),
    ],
    "max_roi_pool": [
        case(_IMAGE, v([[0, 1, 1, 4, 3]], "float32"), size=(2, 2)),
        case(_IMAGE, v([[0, 0, 0, 8, 9]], "float32"), size=(1, 3), scale=0.5),
    ],
    "deform_conv": [
        case(_IMAGE, t("float32", 2, 4, 2, 3), t("float32", N, 12, 6, 3, low=-1, high=1), None, **_WINDOW),
        case(_IMAGE, t("float32", 2, 2, 2, 3), t("float32", N, 24, 6, 3, low=-1, high=1),
             t("float32", N, 12, 6, 3), groups=2, offset_groups=2, **_WINDOW),
    ],
    "dft": [
        case(t("float32", N, 8, 1), axis=1),
        case(t("float32", N, 8, 1), axis=1, onesided=True, length=6),
        case(t("float64", N, 5, 2), axis=1, inverse=True, onesided=True),
        case(t("float32", 4, N, 2), axis=0, inverse=True),
    ],
    "stft": [
        case(t("float32", N, 32, 1), t("float32", 8), length=8, step=4),
        case(t("float64", N, 20, 2), None, length=5, step=3, onesided=False),
    ],
    "mel_weights": [
        case(v(4, "int32"), v(16, "int32"), v(8000, "int32"), v(0.0, "float32"), v(4000.0, "float32"),
             dtype="float32"),
        case(v(8), v(32), v(8000), v(100.0, "float32"), v(3000.0, "float32"), dtype="float64"),
    ],
    "affine_grid": [
        case(t("float32", N, 2, 3), v([2, 1, 4, 5])),
        case(t("float64", N, 3, 4), v([2, 1, 4, 5, 1]), align_corners=True),
    ],
}  # fmt: skip
