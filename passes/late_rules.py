"""Operators whose parameters came at run time, and are known after all: they become plain ones.

Folding, inlining and sinking make constants of what was a tensor when the model was captured; an
input whose rank was unknown can turn out to have one. The plain operator is compiled, the late one
runs on the host. A rule gives up (None) where the answer still depends on sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hcomp.dims import DimLike, bcast
from hcomp.ir.graph import Node
from hcomp.ir.ops import OPS, TypeRuleError
from hcomp.ir.rewrite import Editor
from hcomp.ir.types import Shape

Rule = Callable[[Node, Editor], "Sequence[str] | None"]


def _sizes(name: str, edit: Editor) -> tuple[DimLike, ...] | None:
    """Return the contents of an integer tensor as dimensions: of a constant, or of `dims`."""
    value = edit.constant_value(name)
    if value is not None:
        return tuple(int(v) for v in value.ravel())
    maker = edit.producer(name)
    if maker is None or maker.op != "dims":
        return None
    sizes: Any = maker.attrs["values"]
    return tuple(sizes)


def _numbers(node: Node, index: int, edit: Editor) -> tuple[int, ...] | None:
    """Return the integers in a constant input; () where the input is absent."""
    if index >= len(node.inputs) or not node.inputs[index]:
        return ()
    value = edit.constant_value(node.inputs[index])
    return None if value is None else tuple(int(v) for v in value.ravel())


def _shape(node: Node, edit: Editor) -> Shape | None:
    """Return the shape of the first input, if its rank is known."""
    kind = edit.tensor(node.inputs[0])
    return None if kind is None else kind.shape


def _dynamic(node: Node, edit: Editor) -> Sequence[str] | None:
    """`dynamic` with all bound inputs constant is the operator that it names."""
    attrs: Mapping[str, Any] = node.attrs
    bind, op = attrs["bind"], attrs["op"]
    first = len(node.inputs) - len(bind)
    if op not in OPS or any(edit.tensor(n) is None for n in node.inputs[:first] if n):
        return None
    found = dict(attrs["static"])
    for name, source in zip(bind, node.inputs[first:], strict=True):
        if source:
            value = edit.constant_value(source)
            if value is None:
                return None
            found[name] = value.item() if value.ndim == 0 else tuple(value.ravel().tolist())
    try:
        return edit.emit_many(op, node.inputs[:first], found, [v.name for v in node.outputs])
    except TypeRuleError:
        return None  # the host says what is wrong, when it runs


def _reshape(node: Node, edit: Editor) -> Sequence[str] | None:
    old, wanted = _shape(node, edit), _sizes(node.inputs[1], edit)
    if old is None or wanted is None or 0 in wanted[len(old) :]:
        return None
    keeps = not node.attrs["allowzero"]  # a size of 0 stands for the old one
    sizes = [old[i] if d == 0 and keeps else d for i, d in enumerate(wanted)]
    if sizes.count(-1) > 1 or any(isinstance(d, int) and d < -1 for d in sizes):
        return None
    if -1 in sizes:
        rest = _product([d for d in sizes if d != -1])
        if rest == 0:
            return None
        left = _product(old) // rest
        if left * rest != _product(old):
            return None  # whether it fits, only the sizes tell
        sizes[sizes.index(-1)] = left
    elif _product(sizes) != _product(old):
        return None
    return _emit(edit, node, "reshape", shape=tuple(sizes))


def _product(dims: Sequence[DimLike]) -> DimLike:
    total: DimLike = 1
    for dim in dims:
        total = total * dim
    return total


def _expand(node: Node, edit: Editor) -> Sequence[str] | None:
    old, wanted = _shape(node, edit), _sizes(node.inputs[1], edit)
    if old is None or wanted is None:
        return None
    rank = max(len(old), len(wanted))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in (old, wanted)]
    return _emit(edit, node, "broadcast_to", shape=tuple(bcast(a, b) for a, b in zip(*padded, strict=True)))


def _squeeze(node: Node, edit: Editor) -> Sequence[str] | None:
    shape, axes = _shape(node, edit), _numbers(node, 1, edit)
    if shape is None or axes is None:
        return None
    if len(node.inputs) < 2 or not node.inputs[1]:
        if not all(isinstance(d, int) for d in shape):
            return None
        axes = tuple(i for i, d in enumerate(shape) if d == 1)
    return _emit(edit, node, "squeeze", axis=axes)


def _slice(node: Node, edit: Editor) -> Sequence[str] | None:
    shape = _shape(node, edit)
    starts, ends, axes, steps = (_numbers(node, i, edit) for i in range(1, 5))
    if shape is None or starts is None or ends is None or axes is None or steps is None:
        return None
    axes = tuple(a % len(shape) for a in axes) or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    begin, size = [], []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        extent = shape[axis]
        if not isinstance(extent, int) or step == 0:
            return None
        stop = None if step < 0 and end < -extent else end
        picked = range(extent)[slice(start, stop, step)]
        begin.append(picked.start if len(picked) else 0)
        size.append(len(picked))
    return _emit(
        edit, node, "strided_slice",
        axes=axes, begin=tuple(begin), size=tuple(size), strides=steps,
    )  # fmt: skip


def _pad(node: Node, edit: Editor) -> Sequence[str] | None:
    shape, pads, axes = _shape(node, edit), _numbers(node, 1, edit), _numbers(node, 3, edit)
    if shape is None or pads is None or axes is None:
        return None
    value: Any = 0
    if len(node.inputs) > 2 and node.inputs[2]:
        given = edit.constant_value(node.inputs[2])
        if given is None or given.dtype.kind not in "iubf":
            return None
        value = given.ravel()[0].item()
    axes = axes or tuple(range(len(shape)))
    padding = [0] * (2 * len(shape))
    for i, axis in enumerate(a % len(shape) for a in axes):
        padding[axis], padding[axis + len(shape)] = pads[i], pads[i + len(pads) // 2]
    return _emit(edit, node, "pad", padding=tuple(padding), mode=node.attrs["mode"], value=value)


def _shape_of(node: Node, edit: Editor) -> Sequence[str] | None:
    shape = _shape(node, edit)
    if shape is None:
        return None
    attrs: Mapping[str, Any] = node.attrs
    values = tuple(shape[attrs["start"] : attrs["end"]])
    return (edit.emit("dims", hint=node.output, values=values),)


def _size_of(node: Node, edit: Editor) -> Sequence[str] | None:
    shape = _shape(node, edit)
    if shape is None:
        return None
    return (edit.emit("dims", hint=node.output, values=(_product(shape),), scalar=True),)


def _emit(edit: Editor, node: Node, op: str, **attrs: Any) -> Sequence[str] | None:
    try:
        return (edit.emit(op, node.inputs[0], hint=node.output, **attrs),)
    except TypeRuleError:
        return None  # the host says what is wrong, when it runs


LATE_RULES: Mapping[str, Rule] = {
    "dynamic": _dynamic,
    "onnx_reshape": _reshape,
    "onnx_expand": _expand,
    "onnx_squeeze": _squeeze,
    "onnx_slice": _slice,
    "onnx_pad": _pad,
    "onnx_shape": _shape_of,
    "onnx_size": _size_of,
}
