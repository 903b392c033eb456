"""Operators whose result depends on values, not only on sizes: the runtime runs them with numpy.

They have no compiled form: either the output's size depends on the data (nonzero), or the value
is no tensor (sequences). Each row says so in `host_only`, which is what `explain` prints.
"""

from collections.abc import Callable
from typing import Any

from hcomp.dims import DimLike
from hcomp.ir.ops.core import REQUIRED, Infer, Op, from_attr, same
from hcomp.ir.types import OptionalType, SequenceType, Shape, TensorType, Type

DATA = "the size of its result depends on the values of its input"
LIST = "it works on a sequence or an optional, which only the host holds"
RANDOM = "it draws random numbers, which the host's generator does"
RARE = "it has a numpy kernel only"


def _unique(context: Infer) -> list[Shape]:
    """Outputs: values, first indices, inverse, counts."""
    x, axis = context.shape(0), context.attrs["axis"]
    n = context.fresh("unique")
    if axis is None:
        total: DimLike = 1
        for dim in x:
            total = total * dim
        return [(n,), (n,), (total,), (n,)]
    axis = context.axis(axis, len(x))
    return [(*x[:axis], n, *x[axis + 1 :]), (n,), (x[axis],), (n,)]


def _region_shape(context: Infer) -> Shape | None:
    rank = context.attrs["rank"]
    return None if rank is None else tuple(context.fresh("dyn") for _ in range(rank))


class DynamicOp(Op):
    """`dynamic`: another operator with attributes bound to run-time tensors.

    `op` names it, `static` holds its fixed attributes as (name, value) pairs, `bind` names the
    attributes that the trailing inputs fill (a 0-D tensor gives a number, a 1-D one a tuple; ""
    as an input keeps the default). `rank` is the result's rank, or None; `dtypes` the result's types.
    """

    def infer(self, context: Infer) -> tuple[Type, ...]:
        """Return one fresh-sized tensor type for each entry of `dtypes`."""
        return tuple(TensorType(d, _region_shape(context)) for d in context.attrs["dtypes"])


class ListOp(Op):
    """An operator on sequences or optionals; `rule` gives its output types."""

    def infer(self, context: Infer) -> tuple[Type, ...]:
        """Return the output types by the rule in LIST_RULES."""
        return (LIST_RULES[self.name](context),)


def _element(context: Infer) -> Type:
    held = context.types[0]
    if not isinstance(held, SequenceType | OptionalType):
        raise context.error(f"input 0 must be a sequence or an optional, found {held}")
    return held.element


def _present(context: Infer) -> Type:
    held = context.types[0]
    if held is None:
        raise context.error("input 0 is missing")
    return held


def _loose(value: Type | None) -> Type:
    """Return `value` with its shape forgotten: elements of a sequence differ in shape."""
    if isinstance(value, TensorType):
        return TensorType(value.dtype, None)
    if value is None:
        return TensorType("float32", None)
    return value


LIST_RULES: dict[str, Callable[[Infer], Any]] = {
    "sequence_empty": lambda c: SequenceType(TensorType(c.attrs["dtype"], None)),
    "sequence_construct": lambda c: SequenceType(_loose(c.types[0])),
    "sequence_insert": lambda c: SequenceType(_loose(_element(c))),
    "sequence_erase": lambda c: c.types[0],
    "sequence_at": _element,
    "sequence_length": lambda c: TensorType("int64", ()),
    "sequence_concat": lambda c: _loose(_element(c)),
    "split_to_sequence": lambda c: SequenceType(_loose(c.types[0])),
    "optional": lambda c: OptionalType(_present(c)),
    "optional_empty": lambda c: OptionalType(SequenceType(TensorType(c.attrs["dtype"], None))
                                             if c.attrs["sequence"] else TensorType(c.attrs["dtype"], None)),
    "optional_get": lambda c: _element(c) if isinstance(c.types[0], OptionalType) else c.types[0],
    "optional_has": lambda c: TensorType("bool", ()),
}  # fmt: skip

_LIST_ATTRS = {
    "sequence_empty": {"dtype": "float32"},
    "sequence_concat": {"axis": REQUIRED, "new_axis": False},
    "split_to_sequence": {"axis": 0, "keepdims": True},
    "optional_empty": {"dtype": "float32", "sequence": False},
}
_RANDOM = {"shape": REQUIRED, "dtype": "float32", "seed": None}

HOST: tuple[Op, ...] = (
    DynamicOp("dynamic", same, _region_shape,
              {"op": REQUIRED, "static": (), "bind": REQUIRED, "dtypes": REQUIRED, "rank": None},
              "host", "a parameter of it is known only at run time"),
    # Row i holds the indices of axis i; int64 [rank, n].
    Op("nonzero", lambda c: "int64", lambda c: (len(c.shape(0)), c.fresh("nonzero")), {}, "host", DATA),
    Op("unique", lambda c: (c.dtype(0), "int64", "int64", "int64"), _unique,
       {"axis": None, "sorted": True}, "host", DATA),
    # (x, condition bool 1-D): the slices of axis (None: of the flattened tensor) where it holds.
    Op("compress", same, lambda c: (c.fresh("kept"),) if c.attrs["axis"] is None else tuple(
        c.fresh("kept") if i == c.axis(c.attrs["axis"], len(c.shape(0))) else d
        for i, d in enumerate(c.shape(0))), {"axis": None}, "host", DATA),
    # boxes [B, N, 4], scores [B, C, N], max_output int64, iou, score thresholds (0-D or 1-element, "" = default).
    # Rows (batch, class, box) int64 [n, 3].
    Op("non_max_suppression", lambda c: "int64", lambda c: (c.fresh("nms"), 3),
       {"center_point_box": 0}, "host", DATA),
    Op("random_normal", from_attr, lambda c: tuple(c.attrs["shape"]),
       {**_RANDOM, "mean": 0.0, "scale": 1.0}, "host", RANDOM),
    Op("random_uniform", from_attr, lambda c: tuple(c.attrs["shape"]),
       {**_RANDOM, "low": 0.0, "high": 1.0}, "host", RANDOM),
    # x holds probabilities; result is 0 or 1 in `dtype`.
    Op("bernoulli", from_attr, lambda c: c.shape(0), {"dtype": REQUIRED, "seed": None}, "host", RANDOM),
    # x [B, classes] unnormalised log probabilities; int [B, samples].
    Op("multinomial", from_attr, lambda c: (c.shape(0)[0], c.attrs["samples"]),
       {"samples": REQUIRED, "dtype": "int32", "seed": None}, "host", RANDOM),
    Op("det", same, lambda c: c.shape(0)[:-2], {}, "host", RARE),
    *(ListOp(name, same, _region_shape, _LIST_ATTRS.get(name, {}), "host", LIST) for name in LIST_RULES),
)  # fmt: skip
