"""ai.onnx.ml: the table of its operators, and the converters of those that prepare features."""

from __future__ import annotations

import math

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.math_common import like
from hcomp.capture.onnx_ops.ml_labels import ML_LABELS
from hcomp.capture.onnx_ops.ml_linear import ML_LINEAR
from hcomp.capture.onnx_ops.ml_trees import ML_TREES
from hcomp.dims import DimLike
from hcomp.errors import CaptureError


def _check_rank(c: NodeContext) -> None:
    """Refuse what is neither one row nor rows."""
    if c.rank(0) not in (1, 2):
        raise c.refuse(f"its input has rank {c.rank(0)}, and the operator is defined for 1 and 2")


def _scaler(c: NodeContext) -> str:
    """(x - offset) * scale, each for all features or one for each; in float64 where x is."""
    _check_rank(c)
    dtype = "float64" if c.dtype(0) == "float64" else "float32"
    y = c.cast(0, dtype)
    for op, name in (("subtract", "offset"), ("multiply", "scale")):
        values = c.attr(name, ())
        features = c.shape(0)[-1]
        if len(values) > 1 and isinstance(features, int) and len(values) != features:
            raise c.refuse(f"its attribute {name!r} has {len(values)} values for {features} features")
        if values:
            y = c.emit(op, y, c.cast(c.tensor(values, "float32"), dtype))
    return c.cast(y, "float32")


def _normalizer(c: NodeContext) -> str:
    """Divide x by its row's maximum, sum of magnitudes or Euclidean length; unchanged where that is zero."""
    _check_rank(c)
    x, norm = c.cast(0, "float32"), str(c.attr("norm", "MAX"))
    if norm == "MAX":
        # NaN is no maximum.
        seen = c.emit("where", c.emit("isnan", x), c.scalar(-math.inf, "float32"), x)
        length = c.emit("max", seen, axis=(-1,), keepdims=True)
    elif norm == "L1":
        length = c.emit("sum", c.emit("abs", x), axis=(-1,), keepdims=True)
    elif norm == "L2":
        length = c.emit("sqrt", c.emit("sum", c.emit("square", x), axis=(-1,), keepdims=True))
    else:
        raise c.refuse(f"its attribute 'norm' is {norm!r}; MAX, L1 and L2 exist")
    zero = c.scalar(0, "float32")
    return c.emit("where", c.emit("equal", length, zero), x, c.emit("divide", x, length))


def _binarizer(c: NodeContext) -> str:
    """1 where x is above the threshold, else 0, in x's own type."""
    threshold = c.scalar(float(c.attr("threshold", 0.0)), "float32")
    return c.cast(c.emit("greater", c.cast(0, "float32"), threshold), c.dtype(0))


def _imputer(c: NodeContext) -> str:
    """Put a value, one for all features or one for each, where x is the value to replace (NaN is NaN)."""
    whole = "int" in c.dtype(0)
    name, replaced = ("imputed_value_int64s", "int64") if whole else ("imputed_value_floats", "float")
    values, old = c.attr(name) or (), c.attr(f"replaced_value_{replaced}")
    other = c.attr("imputed_value_floats" if whole else "imputed_value_int64s")
    c.ignore("replaced_value_float", "replaced_value_int64")  # that of the other kind
    features = c.shape(0)[-1] if c.rank(0) else None
    if not values or other or old is None or c.rank(0) not in (1, 2):
        raise c.refuse(f"it must give {name!r} and 'replaced_value_{replaced}' for an input of {c.type(0)}")
    if len(values) > 1 and not isinstance(features, int):
        raise c.refuse(f"it has {len(values)} values for {features} features")
    new = c.tensor(values if len(values) == features else values[:1], "int64" if whole else "float32")
    found = c.emit("isnan", 0) if isinstance(old, float) and math.isnan(old) else c.emit("equal", 0, like(c, old, 0))
    return c.emit("where", found, c.cast(new, c.dtype(0)), 0)


def _feature_extractor(c: NodeContext) -> str:
    """Columns of the last axis; from one row [F], a matrix of one row."""
    shape, indices = c.shape(0), c.shape(1)
    if not shape:
        raise c.refuse("its input has no dimensions")
    count: DimLike = 1
    for size in indices:
        count = count * size
    x = c.input(0) if len(shape) > 1 else c.reshape(0, (1, *shape))
    return c.emit("take", x, c.reshape(1, (count,)), axis=-1)


def _feature_vectorizer(c: NodeContext) -> str:
    """All inputs side by side as float32, each cut or filled with zeros to its number of columns."""
    widths = c.attr("inputdimensions") or ()
    if len(widths) != len(c.inputs) or any(w < 0 for w in widths):
        # ONNX Runtime does not check them, and ends the process.
        raise CaptureError(f"it has {len(c.inputs)} inputs and 'inputdimensions' {list(widths)[:8]}")
    parts = []
    for index, width in enumerate(widths):
        shape = c.shape(index)
        if len(shape) not in (1, 2) or not isinstance(shape[-1], int):
            raise c.refuse(f"its input {index} of type {c.type(index)} is no matrix of a known width")
        part = c.reshape(c.cast(index, "float32"), shape if len(shape) == 2 else (1, *shape))
        if shape[-1] != width:
            part = c.emit("pad", part, padding=(0, 0, 0, width - shape[-1]))
        parts.append(part)
    return parts[0] if len(parts) == 1 else c.emit("concat", *parts, axis=1)


ML: dict[str, Converter] = {
    **ML_LABELS,
    **ML_LINEAR,
    **ML_TREES,
    "ArrayFeatureExtractor": _feature_extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "Normalizer": _normalizer,
    "Scaler": _scaler,
}
