"""Computes when compiling what is known when compiling.

Three things are known: the results of nodes whose inputs are all constants, shape arithmetic whose
result is a number, and shape arithmetic that is an expression of sizes (it becomes one `dims`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import Dim, symbols_of
from hcomp.dtypes import is_float, item_bytes, numpy_dtype
from hcomp.errors import RunError
from hcomp.ir.factors import folded_factors
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import OPS, UNTYPED
from hcomp.ir.rewrite import Editor, rewrite
from hcomp.ir.symbolic import MAX_KNOWN, evaluate_known, is_whole
from hcomp.ir.types import TensorType
from hcomp.passes.base import Pass
from hcomp.passes.merge_duplicates import RANDOM
from hcomp.reference import REFERENCE

SMALL = 64 * 1024
"""Results of at most so many bytes are always folded."""
GROWTH = 10
"""Larger results may have so many times the bytes of their inputs (unpacked 4-bit weights have 8)."""
LARGEST = 64 * 1024 * 1024
"""Results that are larger than their inputs and than this stay computed at run time."""
LARGEST_WEIGHT = 256 * 1024 * 1024
"""The same for the weights of matrix products and convolutions."""


def fold_constants(graph: Graph) -> Graph:
    """Return `graph` with everything evaluated that does not depend on its inputs' contents.

    Values are computed by the reference (`hcomp.reference`). A node that fails on its constants
    (an index outside) stays, and fails when it runs.
    """
    return rewrite(graph, _Folder().rule)


class _Folder:
    """The rule, and the values that are known to be sizes, by graph and name."""

    def __init__(self) -> None:
        self._known: dict[Editor, dict[str, NDArray[Any]]] = {}

    def rule(self, node: Node, edit: Editor) -> Sequence[str] | None:
        if node.op in UNTYPED or node.op in RANDOM or node.attrs.get("op") in RANDOM:
            return None
        sizes = self._sizes(node, edit)
        if sizes is not None:
            return sizes
        return _evaluated(node, edit)

    def _sizes(self, node: Node, edit: Editor) -> Sequence[str] | None:
        """Return the value where it is shape arithmetic, as a constant or as one `dims`."""
        if len(node.outputs) != 1 or not isinstance(node.outputs[0].type, TensorType):
            return None
        inputs = [self._of(name, edit) if name else None for name in node.inputs]
        value = evaluate_known(node.op, inputs, node.attrs, node.outputs[0].type)
        if value is None:
            return None
        kind = node.outputs[0].type
        if is_float(kind.dtype):
            # Sizes pass through floats on their way to integers. The floats themselves stay: what
            # is known of them forgets the sign of zero.
            self._remember(node.output, value, edit)
            return None
        if not any(isinstance(item, Dim) for item in value.ravel()):
            if not _in_range(value, kind.dtype):
                return None  # it wraps, as the reference computes it
            array = value.astype(numpy_dtype(kind.dtype))
            return (self._remember(edit.constant(array, node.output), value, edit),)
        self._remember(node.output, value, edit)
        if node.op == "dims" or kind.dtype != "int64" or value.ndim > 1:
            return None
        values = tuple(value.ravel().tolist())
        name = edit.emit("dims", hint=node.output, values=values, scalar=value.ndim == 0)
        return (self._remember(name, value, edit),)

    def _remember(self, name: str, value: NDArray[Any], edit: Editor) -> str:
        self._known.setdefault(edit, {})[name] = value
        return name

    def _of(self, name: str, edit: Editor) -> NDArray[Any] | None:
        known = self._known.setdefault(edit, {})
        if name not in known:
            array = edit.constant_value(name)
            if array is None or array.size > MAX_KNOWN or not is_whole(array):
                return None
            items = np.array([int(v) for v in array.ravel()], dtype=object)
            known[name] = items.reshape(array.shape)
        return known[name]


def _evaluated(node: Node, edit: Editor) -> tuple[str, ...] | None:
    """Return a node's outputs as constants where all inputs are and the result is not too large."""
    arrays = [edit.constant_value(name) if name else None for name in node.inputs]
    if any(a is None for a, name in zip(arrays, node.inputs, strict=True) if name):
        return None
    if symbols_of(tuple(node.attrs.values())) or not _fits(node, edit):
        return None
    try:
        result = REFERENCE[node.op](*arrays, **node.attrs)
    except (RunError, ValueError, IndexError, ArithmeticError):
        return None  # what numpy raises on values that do not fit
    found = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(array, np.ndarray) for array in found):
        return None
    known = [edit.factors(name) if name else None for name in node.inputs]
    factors = folded_factors(node.op, node.attrs, arrays, known)
    return tuple(edit.constant(_own(a), v.name, factors) for a, v in zip(found, node.outputs, strict=True))


def _in_range(value: NDArray[Any], dtype: str) -> bool:
    if dtype == "bool":
        return True
    info = np.iinfo(numpy_dtype(dtype))
    return all(info.min <= item <= info.max for item in value.ravel())


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, not a view: a view keeps what it looks at in memory."""
    return array if array.base is None else np.array(array, order="C")


def _fits(node: Node, edit: Editor) -> bool:
    """Say whether the outputs are small enough to be stored instead of computed."""
    taken = sum(_bytes(edit.types[name]) or 0 for name in dict.fromkeys(node.used_inputs))
    made = 0
    for value in node.outputs:
        size = _bytes(value.type)
        if size is None:
            # The size depends on the contents (nonzero): at most about that of the input.
            size = GROWTH * taken
        made += size
    if made <= max(SMALL, taken) or made <= min(GROWTH * taken, LARGEST):
        return True
    # A weight has to be a constant to be packed: models without their weights have `full` there.
    return made <= LARGEST_WEIGHT and any(
        reader.op in OPS and OPS[reader.op].cost in ("matmul", "conv")
        for value in node.outputs
        for reader in edit.before.users.get(value.name, ())
    )


def _bytes(kind: object) -> int | None:
    elements = kind.elements() if isinstance(kind, TensorType) else None
    if not isinstance(kind, TensorType) or not isinstance(elements, int):
        return None
    return elements * item_bytes(kind.dtype)


FOLD_CONSTANTS = Pass("fold_constants", fold_constants)
