"""ai.onnx.ml: the operators that are plain arithmetic. Trees, labels and texts stay extern nodes."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext


def _rows(c: NodeContext) -> str:
    """Return the input as float32; these operators are defined on one row or on rows only."""
    if c.rank(0) not in (1, 2):
        raise c.refuse(f"its input has rank {c.rank(0)}, and the operator is defined for 1 and 2")
    return c.cast(0, "float32")


def _scaler(c: NodeContext) -> str:
    """(x - offset) * scale, each for all features or one for each."""
    y = _rows(c)
    for op, name in (("subtract", "offset"), ("multiply", "scale")):
        values = c.attr(name, ())
        features = c.shape(0)[-1]
        if len(values) > 1 and isinstance(features, int) and len(values) != features:
            raise c.refuse(f"its attribute {name!r} has {len(values)} values for {features} features")
        if values:
            y = c.emit(op, y, c.tensor(values, "float32"))
    return y


def _normalizer(c: NodeContext) -> str:
    """Divide x by its row's maximum, sum of magnitudes or Euclidean length; unchanged where that is zero."""
    x, norm = _rows(c), str(c.attr("norm", "MAX"))
    if norm == "MAX":
        length = c.emit("max", x, axis=(-1,), keepdims=True)
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


ML: dict[str, Converter] = {
    "Binarizer": _binarizer,
    "Normalizer": _normalizer,
    "Scaler": _scaler,
}
