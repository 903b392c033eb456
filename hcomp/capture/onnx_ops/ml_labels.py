"""Labels and maps of ai.onnx.ml: LabelEncoder, CategoryMapper, OneHotEncoder, ZipMap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_ops.ml_scores import class_labels
from hcomp.capture.onnx_types import to_array
from hcomp.dtypes import dtype_name, is_float

TABLE_SPAN = 1 << 16
"""The widest range of integer keys for which a table is made."""

_KINDS = {"strings": "string", "int64s": "int64", "floats": "float32"}
_DEFAULTS = {
    "strings": ("default_string", "_Unused"),
    "int64s": ("default_int64", -1),
    "floats": ("default_float", -0.0),
}


def _listed(c: NodeContext, side: str) -> tuple[list[Any], str, str]:
    """Return the keys or values of a LabelEncoder, their element type, and which attribute they are from."""
    found = [kind for kind in _KINDS if c.attr(f"{side}_{kind}") is not None]
    tensor: TensorProto | None = c.attr(f"{side}_tensor")
    if len(found) + (tensor is not None) != 1:
        raise c.refuse(f"it must have its {side} in one attribute, found {len(found) + (tensor is not None)}")
    if tensor is not None:
        array = to_array(tensor)
        return array.ravel().tolist(), "string" if array.dtype.kind in "OUS" else dtype_name(array.dtype), "tensor"
    return list(c.attr(f"{side}_{found[0]}")), _KINDS[found[0]], found[0]


def _label_encoder(c: NodeContext) -> str:
    if c.opset < 2:
        return _numbered(c, c.required("classes_strings"), None)
    keys, key_type, _ = _listed(c, "keys")
    values, value_type, source = _listed(c, "values")
    if len(keys) != len(values):
        raise c.refuse(f"it has {len(keys)} keys and {len(values)} values")
    if key_type != c.dtype(0):
        raise c.refuse(f"its keys are {key_type}, its input {c.dtype(0)}")
    defaults = {kind: c.attr(name, value) for kind, (name, value) in _DEFAULTS.items()}
    given: TensorProto | None = c.attr("default_tensor")
    if given is not None:
        defaults_given = to_array(given).ravel().tolist()
        if len(defaults_given) != 1:
            raise c.refuse(f"its attribute 'default_tensor' has {len(defaults_given)} values, expected 1")
        (default,) = defaults_given
    else:
        of_type = "strings" if value_type == "string" else "floats" if is_float(value_type) else "int64s"
        default = defaults[source if source in _DEFAULTS else of_type]
    return mapped(c, 0, keys, values, default, value_type, nan_is_key=c.opset >= 4)


def _category_mapper(c: NodeContext) -> str:
    return _numbered(c, c.required("cats_strings"), c.required("cats_int64s"))


def _numbered(c: NodeContext, texts: Sequence[str], numbers: Sequence[int] | None) -> str:
    """Map texts to numbers or numbers to texts, whichever the input is; without numbers, to their places."""
    order = list(range(len(texts))) if numbers is None else list(numbers)
    if len(order) != len(texts):
        raise c.refuse(f"it has {len(texts)} texts and {len(order)} numbers")
    word, number = c.attr("default_string", "_Unused"), c.attr("default_int64", -1)
    # Of equal keys the last one counts here.
    texts, order = list(texts)[::-1], order[::-1]
    if c.dtype(0) == "string":
        return mapped(c, 0, texts, order, number, "int64")
    return mapped(c, 0, order, texts, word, "string")


def mapped(
    c: NodeContext,
    x: int | str,
    keys: Sequence[Any],
    values: Sequence[Any],
    default: Any,
    dtype: str,
    *,
    nan_is_key: bool = False,
) -> str:
    """Return values[k] where x is keys[k], else `default`: by a table of all integers between, else by the host."""
    whole = c.dtype(x) in ("int64", "int32", "int16", "int8", "uint8") and dtype not in ("string", "bool")
    if whole and keys and max(keys) - min(keys) < TABLE_SPAN:
        return _by_table(c, c.cast(x, "int64"), keys, values, default, dtype)
    return c.emit(
        "map_labels", x, keys=tuple(keys), values=tuple(values), default=default, dtype=dtype, nan_is_key=nan_is_key
    )


def _by_table(c: NodeContext, x: str, keys: Sequence[int], values: Sequence[Any], default: Any, dtype: str) -> str:
    low, high = int(min(keys)), int(max(keys))
    table = [default] * (high - low + 2)  # the last one is for all that is outside
    for key, value in zip(reversed(keys), reversed(values), strict=True):
        table[int(key) - low] = value
    first, last = c.scalar(low, "int64"), c.scalar(high, "int64")
    inside = c.emit("logical_and", c.emit("greater_equal", x, first), c.emit("less_equal", x, last))
    index = c.emit("where", inside, c.emit("subtract", x, first), c.scalar(high - low + 1, "int64"))
    return c.emit("take", c.tensor(table, dtype), index)


def _one_hot(c: NodeContext) -> str:
    """[..., categories] float32: 1 at the category, all 0 where there is none of them."""
    if not c.attr("zeros", 1):
        raise c.refuse("with zeros = 0 an unknown category is an error at run time")
    numbers, texts = c.attr("cats_int64s") or (), c.attr("cats_strings") or ()
    if bool(numbers) == bool(texts) or bool(texts) != (c.dtype(0) == "string"):
        raise c.refuse(f"its categories do not fit an input of {c.dtype(0)}")
    shape = c.shape(0)
    cats = list(texts or numbers)
    # Of equal categories the last one counts.
    last = {cat: place for place, cat in enumerate(cats)}
    if texts:
        x = mapped(c, 0, list(last), list(last.values()), -1, "int64")
        own = np.array([place if last[cat] == place else -2 for place, cat in enumerate(cats)], np.int64)
    else:
        x = c.cast(0, "int64")
        own = np.array(cats, np.int64)
    hot = c.emit("equal", c.reshape(x, (*shape, 1)), c.tensor(own, "int64"))
    kept = [last[cat] == place for place, cat in enumerate(cats)]
    if not all(kept):
        hot = c.emit("logical_and", hot, c.tensor(kept, "bool"))
    return c.cast(hot, "float32")


def _zip_map(c: NodeContext) -> str:
    """A map a row, its keys in order; of equal keys the last one counts."""
    keys = class_labels(c, "classlabels_strings", "classlabels_int64s")
    last = {key: place for place, key in enumerate(keys)}
    # ONNX Runtime orders texts by their bytes.
    ordered = sorted(last, key=lambda k: k.encode("utf-8", "surrogateescape") if isinstance(k, str) else k)
    places = [last[key] for key in ordered]
    x = c.name(0)
    width = c.shape(0)[-1] if c.ranked(0) and c.rank(0) else None
    if places != list(range(len(keys))):
        if width != len(keys):
            raise c.refuse(f"its {len(keys)} keys are out of order for rows of {width} numbers")
        x = c.emit("take", x, c.tensor(places, "int64"), axis=-1)
    return c.emit("zip_map", x, keys=tuple(ordered))


ML_LABELS: dict[str, Converter] = {
    "CategoryMapper": _category_mapper,
    "LabelEncoder": _label_encoder,
    "OneHotEncoder": _one_hot,
    "ZipMap": _zip_map,
}
