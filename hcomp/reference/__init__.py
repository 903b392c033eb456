"""The meaning of every operator: one numpy function each, by name in REFERENCE.

`REFERENCE[op](*inputs, **attrs)` takes arrays (None: an absent input or an empty optional; a
list: a sequence) and attributes as plain numbers, and returns an array of exactly the dtype that
the operator's typing rule says, or a tuple of arrays. A result may be a view of an input.
Used by tests, by the `null` device, by constant folding, and for host nodes at run time:
it imports no IR.
"""

from __future__ import annotations

from hcomp.reference import (
    attention,
    elementwise,
    host,
    index,
    linear,
    ml,
    onnx_host,
    pool,
    recurrent,
    reduce,
    resize,
    sequence,
    shape,
    signal,
    vision,
)
from hcomp.reference.numeric import Function, quiet

_FIXED: dict[str, Function] = {
    **elementwise.TABLE,
    **shape.TABLE,
    **reduce.TABLE,
    **index.TABLE,
    **linear.TABLE,
    **attention.TABLE,
    **ml.TABLE,
    **pool.TABLE,
    **recurrent.TABLE,
    **host.TABLE,
    **onnx_host.TABLE,
    **resize.TABLE,
    **sequence.TABLE,
    **signal.TABLE,
    **vision.TABLE,
}

REFERENCE: dict[str, Function] = {**_FIXED, "dynamic": quiet(host.dynamic_for(_FIXED))}

__all__ = ["REFERENCE"]
