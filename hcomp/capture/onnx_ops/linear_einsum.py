"""Einsum: sums of products by index letters, as diagonals, transposes, sums and matrix products."""

from __future__ import annotations

from dataclasses import dataclass

from hcomp.capture.context import NodeContext
from hcomp.capture.onnx_ops.reduce_scan import product
from hcomp.capture.onnx_ops.shape import expand_to
from hcomp.dims import DimLike, bcast

ELLIPSIS_LABELS = "αβγδεζηθ"
"""The dimensions under "..." get labels that no equation can hold, the last one first."""


@dataclass(frozen=True)
class Term:
    """An operand and the label of each of its axes; no label stands twice."""

    value: str
    labels: str


def einsum(c: NodeContext) -> str:
    """Einsum over any number of operands, contracted from left to right."""
    equation = c.required("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    written = left.split(",")
    if len(written) != len(c.inputs):
        raise c.refuse(f"its equation has {len(written)} operands for {len(c.inputs)} inputs")
    spelled = [_spelled(c, text, value) for text, value in zip(written, c.inputs, strict=True)]
    covered = max((s for s, _ in spelled), default=0)
    operands = [labels for _, labels in spelled]
    dots = "".join(reversed(ELLIPSIS_LABELS[:covered]))
    if arrow:
        wanted = right.replace("...", dots)
    else:
        # Without an arrow: the letters that stand once, in order, behind the ellipsis.
        letters = "".join(operands)
        wanted = dots + "".join(sorted(x for x in set(letters) if letters.count(x) == 1 and x not in dots))
    terms = [_without_repeats(c, value, labels) for value, labels in zip(c.inputs, operands, strict=True)]
    total = terms[0]
    for position, term in enumerate(terms[1:], start=1):
        later = wanted + "".join(t.labels for t in terms[position + 1 :])
        total = _joined(c, total, term, later)
    total = _summed(c, total, wanted)
    if sorted(total.labels) != sorted(wanted):
        raise c.refuse(f"its result {right!r} has a letter that no operand has")
    return _ordered(c, total, wanted)


def _spelled(c: NodeContext, text: str, value: str) -> tuple[int, str]:
    """Return how many axes the ellipsis covers, and the labels with it spelled out."""
    rank = c.rank(value)
    covered = rank - len(text.replace("...", "")) if "..." in text else 0
    labels = text.replace("...", "".join(reversed(ELLIPSIS_LABELS[: max(covered, 0)])))
    if covered < 0 or covered > len(ELLIPSIS_LABELS) or len(labels) != rank:
        raise c.refuse(f"its operand {text!r} does not fit a tensor of rank {rank}")
    return covered, labels


def _without_repeats(c: NodeContext, value: str, labels: str) -> Term:
    """Return the diagonal where a label stands twice in one operand."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            value = _diagonal(c, value, i, j)
            labels = label + "".join(x for k, x in enumerate(labels) if k not in (i, j))
    return Term(value, labels)


def _diagonal(c: NodeContext, value: str, i: int, j: int) -> str:
    """Return the diagonal of axes i and j as the first axis, the others behind it."""
    shape = c.shape(value)
    size = shape[i]
    rest = [k for k in range(len(shape)) if k not in (i, j)]
    moved = c.emit("permute_dims", value, axes=(i, j, *rest))
    flat = c.reshape(moved, (size * size, *(shape[k] for k in rest)))
    if not isinstance(size, int):
        raise c.refuse("it takes the diagonal of axes whose size is not a number")
    return c.emit("strided_slice", flat, axes=(0,), begin=(0,), size=(size,), strides=(size + 1,))


def _summed(c: NodeContext, term: Term, needed: str) -> Term:
    """Return the term summed over the labels that nothing needs any more."""
    axes = tuple(i for i, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    kept = "".join(label for label in term.labels if label in needed)
    return Term(c.emit("sum", term.value, axis=axes), kept)


def _ordered(c: NodeContext, term: Term, labels: str) -> str:
    if term.labels == labels:
        return term.value
    return c.emit("permute_dims", term.value, axes=tuple(term.labels.index(x) for x in labels))


def _joined(c: NodeContext, a: Term, b: Term, later: str) -> Term:
    """Return the product of two terms, summed over the labels that only they have."""
    a, b = _summed(c, a, b.labels + later), _summed(c, b, a.labels + later)
    sizes: dict[str, DimLike] = {}
    for term in (a, b):
        for label, size in zip(term.labels, c.shape(term.value), strict=True):
            sizes[label] = bcast(sizes[label], size) if label in sizes else size
    shared = [x for x in a.labels if x in b.labels]
    batch = "".join(x for x in shared if x in later)
    summed = "".join(x for x in shared if x not in later)
    only_a = "".join(x for x in a.labels if x not in b.labels)
    only_b = "".join(x for x in b.labels if x not in a.labels)
    left = _matrix(c, a, (batch, only_a, summed), sizes)
    right = _matrix(c, b, (batch, summed, only_b), sizes)
    y = c.emit("matmul", left, right)
    labels = batch + only_a + only_b
    return Term(c.reshape(y, tuple(sizes[x] for x in labels)), labels)


def _matrix(c: NodeContext, term: Term, groups: tuple[str, str, str], sizes: dict[str, DimLike]) -> str:
    """Return the term as [batch, rows, columns], each a group of labels run together."""
    labels = "".join(groups)
    value = _ordered(c, term, labels)
    value = expand_to(c, value, [sizes[x] for x in labels])
    return c.reshape(value, tuple(product([sizes[x] for x in group]) for group in groups))
