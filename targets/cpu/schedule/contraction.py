"""Recognise a contraction: `out[batch, rows, column] += a[batch, rows, k] * b[batch, k, column]`.

Matrix products of every form (packed weight, batched, transposed, broadcast) and convolutions that
were not packed are contractions; they differ only in the index expressions of `a` and `b`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import detect_linear_equation

from hcomp.targets.cpu.schedule.nest import Expr, as_int, imm, loads, product, used_vars
from hcomp.targets.cpu.schedule.stages import Stage

PACKED = "hcomp.packed_columns"
"""Block annotation: `b` is a constant packed as [columns / n][k][n]; the value is n."""

TILE_ROWS = "hcomp.tile_rows"
"""Block annotation: rows of the register tile, where they were measured; 0 or none: the analytic choice."""

_HALF = {"float16", "bfloat16"}
_SUPPORTED = {"float32", "float64", "int32"} | _HALF
_FEW_ROWS = 4


@dataclass(frozen=True)
class Contraction:
    """One recognised stage.

    Attributes:
        stage: the stage it came from.
        batch: variables of neither matrix dimension (in both factors, or outer ones of `b`).
        rows: variables of `a` only; flattened they are the rows.
        column: the variable of `b` only along which vectors run.
        inner: the reduction variables.
        a: scalar factor, broadcast over a vector.
        b: factor that is loaded as a vector along `column`.
        accumulator: dtype of the sums.
        packed: columns of one packed panel of a constant `b`, or None.
        unit: whether `b` is contiguous along `column`.
        tile_rows: rows of the register tile as they were measured, or 0.
    """

    stage: Stage
    batch: tuple[Any, ...]
    rows: tuple[Any, ...]
    column: Any
    inner: tuple[Any, ...]
    a: Expr
    b: Expr
    accumulator: str
    packed: int | None
    unit: bool
    tile_rows: int = 0

    def extent(self, variable: Any) -> Expr:
        """Return the extent of a block variable."""
        return self.stage.extents[variable]

    @property
    def row_count(self) -> Expr:
        """The number of rows, possibly symbolic."""
        return product([self.extent(v) for v in self.rows if as_int(self.extent(v)) != 1])

    @property
    def operations(self) -> int:
        """About how many floating-point operations it takes (a guess for symbolic sizes)."""
        return 2 * self.stage.iterations


def match_contraction(stage: Stage) -> Contraction | None:
    """Return the contraction that `stage` computes, or None."""
    factors = _factors(stage)
    if factors is None:
        return None
    a, b = factors
    spatial, reduced = stage.spatial, stage.reduced
    in_a, in_b = used_vars(a, spatial), used_vars(b, spatial)
    empty = any(as_int(e) == 0 for e in stage.extents.values())
    if not spatial or not reduced or empty:
        return None
    packed = _packed(stage)
    column = spatial[-1] if packed else _column(spatial, stage, in_a, in_b)
    if column is None:
        return None
    if column in in_a:
        a, b, in_a, in_b = b, a, in_b, in_a
    rows = tuple(v for v in spatial if v in in_a and v not in in_b and as_int(stage.extents[v]) != 1)
    batch = tuple(v for v in spatial if v is not column and v not in rows)
    dtype = str(stage.store.buffer.dtype)
    found = Contraction(
        stage=stage,
        batch=batch,
        rows=rows,
        column=column,
        inner=tuple(reduced),
        a=a,
        b=b,
        accumulator="float32" if dtype in _HALF else dtype,
        packed=packed,
        unit=stride_of(b, column) == 1,
        tile_rows=int(stage.annotations.get(TILE_ROWS, 0)),
    )
    if not _worth_tiles(found):
        return None
    return replace(found, a=_widened(a, found), b=_widened(b, found))


def _factors(stage: Stage) -> tuple[Expr, Expr] | None:
    if not stage.is_reduction or str(stage.store.buffer.dtype) not in _SUPPORTED:
        return None
    value, out = stage.store.value, stage.store.buffer
    if not isinstance(value, tvm.ir.prim.expr.Add):
        return None
    for old, new in ((value.a, value.b), (value.b, value.a)):
        is_sum = isinstance(old, tvm.ir.TensorLoad) and old.source.same_as(out)
        if is_sum and isinstance(new, tvm.ir.prim.expr.Mul):
            if any(item.source.same_as(out) for item in loads(new)):
                return None
            return new.a, new.b
    return None


def _column(spatial: list[Any], stage: Stage, in_a: set[Any], in_b: set[Any]) -> Any | None:
    """Return the last wide variable of the output, if exactly one factor has it."""
    wide = [v for v in spatial if as_int(stage.extents[v]) != 1]
    last = wide[-1] if wide else spatial[-1]
    return last if (last in in_a) != (last in in_b) else None


def _worth_tiles(found: Contraction) -> bool:
    """Few rows against a `b` that is contiguous along the sum is a dot product, not a tile."""
    if found.packed is not None or found.unit or len(found.inner) != 1:
        return True
    rows = static_rows(found)
    return rows is None or rows >= _FEW_ROWS or stride_of(found.b, found.inner[0]) != 1


def _packed(stage: Stage) -> int | None:
    value = stage.annotations.get(PACKED)
    return None if value is None else int(value)


def _widened(factor: Expr, found: Contraction) -> Expr:
    dtype = found.accumulator
    return factor if str(factor.ty.dtype) == dtype else tirx.Cast(dtype, factor)


def stride_of(factor: Expr, variable: Any) -> int | None:
    """Return the constant step of `factor`'s single load in its last axis along `variable`.

    Returns 0 when the load does not depend on `variable`, None when it is in another axis, not
    affine, or when `factor` is not a (converted) load.
    """
    found = loads(factor)
    if len(found) != 1:
        return None
    *outer, last = found[0].indices
    if any(used_vars(index, [variable]) for index in outer):
        return None
    if not used_vars(last, [variable]):
        return 0
    coefficients = detect_linear_equation(last, [variable])
    return as_int(coefficients[0]) if len(coefficients) == 2 else None


def static_rows(found: Contraction) -> int | None:
    """Return the number of rows when it is known at compile time."""
    total = 1
    for variable in found.rows:
        known = as_int(found.extent(variable))
        if known is None:
            return None
        total *= known
    return total


def batch_count(found: Contraction) -> Expr:
    """Return the number of independent products."""
    return product([found.extent(v) for v in found.batch] or [imm(1)])
