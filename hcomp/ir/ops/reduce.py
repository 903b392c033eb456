"""Operators along axes: reductions, scans, softmax, normalisations, top-k."""

from hcomp.ir.ops.core import REQUIRED, Infer, Op, first_shape, fixed, normal_axes, same
from hcomp.ir.types import Shape


def _reduced(context: Infer) -> Shape:
    shape = context.shape(0)
    axes = normal_axes(context, len(shape))
    if context.attrs["keepdims"]:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _topk(context: Infer) -> list[Shape]:
    shape = context.shape(0)
    axis = context.axis(context.attrs["axis"], len(shape))
    out = (*shape[:axis], context.attrs["k"], *shape[axis + 1 :])
    return [out, out]


_AXES = {"axis": None, "keepdims": False}

REDUCE: tuple[Op, ...] = (
    # axis: an int, a tuple, or None for all; an empty tuple reduces nothing.
    *(Op(name, same, _reduced, _AXES, "reduce") for name in ("sum", "mean", "prod", "max", "min")),
    # NaN beats everything; without `nan_wins` it beats nothing, and only the very first element may be one.
    *(
        Op(name, fixed("int64"), _reduced,
           {"axis": REQUIRED, "keepdims": False, "select_last": False, "nan_wins": True}, "reduce")
        for name in ("argmax", "argmin")
    ),
    *(
        Op(name, same, first_shape, {"axis": REQUIRED, "exclusive": False, "reverse": False}, "scan")
        for name in ("cumsum", "cumprod")
    ),
    Op("softmax", same, first_shape, {"axis": -1}, "softmax"),
    Op("log_softmax", same, first_shape, {"axis": -1}, "softmax"),
    # (x - mean) / sqrt(variance + epsilon) * gamma + beta over the trailing axes from `axis` on;
    # either may be absent.
    Op("layer_norm", same, first_shape, {"axis": -1, "epsilon": 1e-5}, "norm"),
    Op("rms_norm", same, first_shape, {"axis": -1, "epsilon": 1e-5}, "norm"),
    # Ties go to the lower index; the second output is int64 indices.
    Op("topk", lambda c: (c.dtype(0), "int64"), _topk,
       {"k": REQUIRED, "axis": -1, "largest": True, "sorted": True}, "sort"),
)  # fmt: skip
