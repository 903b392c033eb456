"""Matrix product with a constant weight: the weight is packed at compile time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax, te

from hcomp.targets.cpu.choices import Choices, Space, first_of
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.kernel import call_kernel, shape_of
from hcomp.targets.cpu.schedule.contraction import PACKED, TILE_ROWS
from hcomp.targets.cpu.schedule.gemm_tile import row_choices
from hcomp.targets.cpu.schedule.nest import as_int, imm, simple
from hcomp.targets.cpu.schedule.nest import product as product_of

Pack = Callable[[str, np.ndarray], relax.Expr]


def emit_matmul(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    weight: np.ndarray,
    pack: Pack,
    cpu: CpuFeatures,
    choices: Choices | None = None,
) -> relax.Expr:
    """Return `x @ weight` with the weight in panels of columns.

    Args:
        bb: builder of the function that the product belongs to.
        x: [..., M, K] with any symbolic leading sizes, or [K].
        weight: [K, N].
        pack: registers a constant under a hint and returns the expression that stands for it.
        cpu: the processor; its vector width gives the width of a panel.
        choices: measured blocks; without it they are the analytic ones.

    Returns:
        [..., M, N], of the dtype of `x`. Weights that are not float32, and vectors (N = 1), are
        given to the ordinary matrix product.
    """
    if weight.dtype != np.float32 or weight.shape[1] == 1 or 0 in weight.shape:
        return bb.emit(relax.op.matmul(x, pack("weight", weight)))
    columns, rows = panel_columns(weight.shape[1], cpu), 0
    if choices is not None:
        known = as_int(simple(product_of(shape_of(x)[:-1])))
        picked = choices.pick(matmul_signature(known, weight), matmul_space(known, columns, cpu))
        columns, rows = picked["columns"], picked.get("rows", 0)
    packed = pack("panels", pack_panels(weight, columns))
    depth, width = weight.shape

    def product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((imm(0), imm(depth)), "k")
        return te.compute(
            (*a.shape[:-1], imm(width)),
            lambda *i: te.sum(a(*i[:-1], k) * b(i[-1] // columns, k, i[-1] % columns), axis=k),
            name="packed_matmul",
            attrs={PACKED: columns, TILE_ROWS: rows},
        )

    sizes = [*shape_of(x)[:-1], width]
    return call_kernel(bb, "packed_matmul", [x, packed], product, sizes)


def matmul_signature(rows: int | None, weight: np.ndarray) -> str:
    """Return what a product's choice is kept under; a number of rows that is not known is a question mark."""
    return f"matmul float32 {'?' if rows is None else rows} x {weight.shape[0]} x {weight.shape[1]}"


def matmul_space(rows: int | None, columns: int, cpu: CpuFeatures) -> Space:
    """Return what may be chosen for a product: columns of a panel, and rows of a tile where there are many."""
    lanes = cpu.lanes()
    space: dict[str, Sequence[int]] = {"columns": first_of(columns, [lanes, 2 * lanes])}
    if rows is not None and rows > row_choices(cpu)[0]:
        space["rows"] = (0, *row_choices(cpu))
    return space


def panel_columns(width: int, cpu: CpuFeatures) -> int:
    """Return the columns of one packed panel for a weight of `width` columns."""
    lanes = cpu.lanes()
    return lanes if width <= lanes else 2 * lanes


def pack_panels(weight: np.ndarray, columns: int) -> np.ndarray:
    """Return [K, N] as [ceil(N / columns)][K][columns], padded with zeros."""
    depth, width = weight.shape
    panels = -(-width // columns)
    padded = np.zeros((depth, panels * columns), weight.dtype)
    padded[:, :width] = weight
    return np.ascontiguousarray(padded.reshape(depth, panels, columns).transpose(1, 0, 2))
