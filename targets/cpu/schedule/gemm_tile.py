"""The register tile of a contraction: how many rows and vectors, and whether `b` is copied first."""

from __future__ import annotations

from dataclasses import dataclass

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.schedule.contraction import Contraction, static_rows
from hcomp.targets.cpu.schedule.nest import as_int

_DTYPE_BYTES = {"float32": 4, "float64": 8, "int32": 4}


@dataclass(frozen=True)
class Tile:
    """The register tile of one variant.

    Attributes:
        rows: rows of the tile.
        vectors: vectors along the columns.
        lanes: elements of one vector.
        copied: whether a panel of `b` is copied into a contiguous buffer first.
    """

    rows: int
    vectors: int
    lanes: int
    copied: bool

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


def _budget(cpu: CpuFeatures) -> int:
    """Return the registers that may hold sums."""
    return cpu.registers * 3 // 4


def row_choices(cpu: CpuFeatures) -> range:
    """Return the rows that a tile of two vectors may have.

    Down to two thirds of the registers still hide the latency of the multiply-add.
    """
    most = max(1, _budget(cpu) // 2)
    return range(max(1, most * 2 // 3), most + 1)


def tile_work(rows: int) -> int:
    """Return what a tile of `rows` costs beside one of other rows: each row, and about half a row for the tile."""
    return 2 * rows + 1


def best_rows(rows: int, cpu: CpuFeatures) -> int:
    """Return the rows of a tile that waste least on the last one, which starts early and does some twice."""
    return min(rows, min(row_choices(cpu), key=lambda r: (-(-rows // r) * tile_work(r), -r)))


def tile_of(found: Contraction, rows: int, cpu: CpuFeatures) -> Tile:
    """Return a tile of `rows` with its columns, and whether `b` has to be copied."""
    lanes, budget = cpu.lanes(_DTYPE_BYTES[found.accumulator]), _budget(cpu)
    vectors = max(2, budget // rows // 2 * 2) if rows * 4 <= budget else 2
    vectors = min(vectors, 8)
    columns = as_int(found.extent(found.column))
    if found.packed is not None:
        assert columns is not None
        panels = -(-columns // found.packed)
        in_panel = found.packed // lanes
        return Tile(rows, in_panel * min(max(1, vectors // in_panel), panels), lanes, copied=False)
    if len(found.inner) > 1:
        return Tile(rows, *_narrow(columns, vectors, lanes), copied=False)
    known = static_rows(found)
    few_rows = rows == 1 or (known is not None and known <= 2 * rows)
    fits = columns is not None and columns >= lanes
    if found.unit and few_rows and fits:
        return Tile(rows, *_narrow(columns, vectors, lanes), copied=False)
    return Tile(rows, 2, lanes, copied=True)


def _narrow(columns: int | None, vectors: int, lanes: int) -> tuple[int, int]:
    """Return (vectors, lanes) no wider than a known number of columns."""
    if columns is None:
        return vectors, lanes
    if columns < lanes:
        return 1, columns
    return min(vectors, columns // lanes), lanes
