"""Operators of classical models: tree ensembles, and on the host what works on labels and maps."""

from hcomp.ir.ops.core import REQUIRED, Infer, Op, first_shape, nonnegative
from hcomp.ir.types import OpaqueType, SequenceType, Shape, Type

LABELS = "it works on text, or on labels from too wide a range for a table"
MAPS = "its result is a sequence of maps, which only the host holds"


def _tree_dtypes(context: Infer) -> object:
    dtype = context.dtype(0)
    if dtype not in ("float32", "float64"):
        raise context.error(f"the data must be float32 or float64, found {dtype}")
    return (dtype, "bool") if context.attrs["reached"] else dtype


def _tree_shapes(context: Infer) -> list[Shape]:
    """Data [N, features] -> [N, targets], and where `reached` a second output of that shape."""
    x, attrs, dtype = context.shape(0), context.attrs, context.dtype(0)
    for index, (kind, rank) in enumerate(((dtype, 2), ("int32", 2), (dtype, 1), *[("int32", 1)] * 3, (dtype, 1))):
        if context.dtype(index) != kind or len(context.shape(index)) != rank:
            raise context.error(f"input {index} must be {kind} of rank {rank}, found {context.tensor(index)}")
    if attrs["combine"] != "sum" and not attrs["reached"]:
        raise context.error(f"combining by {attrs['combine']} needs the mask of what was reached")
    needed = attrs["features"]
    nonnegative(context, x[1] - needed, f"its trees read {needed} features, the data has {{{x[1]}}}")
    out = (x[0], attrs["targets"])
    return [out, out] if attrs["reached"] else [out]


class MapOp(Op):
    """An operator that gives one map for each row."""

    def infer(self, context: Infer) -> tuple[Type, ...]:
        """Return a sequence of maps, spelled as ONNX Runtime does."""
        x, keys = context.tensor(0), context.attrs["keys"]
        if x.shape is not None and len(x.shape) not in (1, 2):
            raise context.error(f"its input must have rank 1 or 2, found {len(x.shape)}")
        if x.shape and isinstance(x.shape[-1], int) and x.shape[-1] != len(keys):
            raise context.error(f"there are {len(keys)} keys for {x.shape[-1]} columns")
        kind = "string" if keys and isinstance(keys[0], str) else "int64"
        return (SequenceType(OpaqueType(f"map({kind},tensor(float))")),)


ML: tuple[Op, ...] = (
    # The sum (or `combine`: min, max) of what the leaves that each row reaches give to each target.
    # Inputs: data [N, F]; nodes int32 [K, 2]; thresholds [K] of the data's type; roots int32 [trees];
    # starts int32 [leaves + 1]; entries' targets int32 [E]; entries' weights [E] of the data's type.
    # A row of nodes is (feature, child): the walk goes on at `child` where data[feature] <= threshold,
    # else at child + 1. A negative feature is -1 - feature, and sends NaN to `child` (`missing` says
    # whether there are any). A negative child makes a leaf: number -1 - child, whose entries are
    # starts[number] to starts[number + 1]. `features` is how many the trees read, at least 1; `depth` how
    # long the longest walk is, for the cost. `reached`: a second output, bool, says which targets got anything;
    # others are 0. Combining by min and max needs it.
    Op("tree_ensemble", _tree_dtypes, _tree_shapes,
       {"features": REQUIRED, "targets": REQUIRED, "combine": "sum", "missing": False, "reached": False,
        "depth": REQUIRED}, "tree"),
    # values[k] where x is keys[k], else `default`; NaN is NaN where `nan_is_key`. Of equal keys the first counts.
    Op("map_labels", lambda c: c.attrs["dtype"], first_shape,
       {"keys": REQUIRED, "values": REQUIRED, "default": REQUIRED, "dtype": REQUIRED, "nan_is_key": False},
       "host", LABELS),
    # [N, keys] or [keys] -> one map a row, from key (all texts or all numbers) to number.
    MapOp("zip_map", lambda c: (), lambda c: (), {"keys": REQUIRED}, "host", MAPS),
)  # fmt: skip
