"""ONNX operators whose shape parameters come at run time: the raw ONNX forms, on the host.

Where the parameters are known when compiling, capture uses the plain operators (reshape,
strided_slice, pad ...) with symbolic sizes instead. `rank` is the result's rank, None if unknown.
"""

from hcomp.ir.ops.core import REQUIRED, Infer, Op, same
from hcomp.ir.types import TensorType, Type

LATE = "its shape parameters are known only at run time"


class LateOp(Op):
    """An operator whose result has the rank in its attribute `rank` and sizes of its own."""

    def infer(self, context: Infer) -> tuple[Type, ...]:
        """Return one type with a fresh symbol for each dimension."""
        rank = context.attrs["rank"]
        shape = None if rank is None else tuple(context.fresh("late") for _ in range(rank))
        return (TensorType(self.dtypes(context), shape),)


def _late(name: str, **attrs: object) -> Op:
    return LateOp(name, same, lambda c: (), {"rank": None, **attrs}, "host", LATE)


HOST_ONNX: tuple[Op, ...] = (
    # (x, shape): 0 keeps a size (unless allowzero), -1 is what is left.
    _late("onnx_reshape", allowzero=False),
    # (x, shape): both broadcast together.
    _late("onnx_expand"),
    # (x, axes or ""): no axes means all of size 1.
    _late("onnx_squeeze"),
    # (x, starts, ends, axes or "", steps or "").
    _late("onnx_slice"),
    # (x, pads, value or "", axes or "").
    _late("onnx_pad", mode="constant"),
    # (x, sizes): cropped and padded about the centre along `axes`.
    _late("onnx_center_crop_pad", axes=REQUIRED),
    # (columns, image shape, block shape): overlapping blocks added up.
    _late("onnx_col2im", strides=REQUIRED, dilation=REQUIRED, padding=REQUIRED),
    # (start, limit, delta), all 0-D or of one element.
    _late("onnx_range"),
    # (x): int64 sizes of a tensor whose rank is unknown; `start` and `end` as in a slice.
    LateOp("onnx_shape", lambda c: "int64", lambda c: (),
           {"rank": 1, "start": 0, "end": None}, "host", "the rank of its input is unknown"),
    # Strings [C] or [1, C] without the stop words, in another case ("", "lower" or "upper"); one "" if none is left.
    Op("string_normalize", same, lambda c: (*c.shape(0)[:-1], c.fresh("words")),
       {"case": "", "case_sensitive": False, "stopwords": ()}, "host", "it works on text"),
    LateOp("onnx_size", lambda c: "int64", lambda c: (),
           {"rank": 0}, "host", "the rank of its input is unknown"),
)  # fmt: skip
