"""Running passes: order checked before anything runs, invariants after every pass, observers told.

Passes know nothing of this. What watches them (dumps, times) is an observer: a function that gets
the pass, its number, the graph before and after, and the seconds it took.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from hcomp.errors import HcompError, InvariantError, PassError
from hcomp.ir.graph import Graph
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.printer import print_graph
from hcomp.ir.verifier import Invariant, verify
from hcomp.passes.base import Pass

Observer: TypeAlias = Callable[[int, Pass, Graph, Graph, float], None]
"""Called as observer(number, pass, before, after, seconds), numbers counting from 1."""

_log = logging.getLogger(__name__)


def run_pipeline(graph: Graph, passes: Sequence[Pass], observers: Sequence[Observer] = ()) -> Graph:
    """Return `graph` after all `passes`.

    Every invariant that holds is verified before the first pass and after each: WELL_FORMED
    always, what passes establish from then on.

    Raises:
        PassError: the order of the passes cannot work, or a pass failed; names the pass.
        InvariantError: a pass broke the graph; names the pass and shows the place.
    """
    check_order(passes)
    holding: tuple[Invariant, ...] = WELL_FORMED
    verify(graph, holding, "before the first pass")
    for number, step in enumerate(passes, start=1):
        started = time.perf_counter()
        after = _run(step, graph)
        seconds = time.perf_counter() - started
        for observer in observers:
            observer(number, step, graph, after, seconds)
        kept = (i for i in holding if i not in step.breaks)
        holding = tuple(dict.fromkeys((*kept, *step.establishes)))
        # The same object holds what it held.
        checked = holding if after is not graph else step.establishes
        verify(after, checked, f"after {step.name}")
        graph = after
    return graph


def check_order(passes: Sequence[Pass]) -> None:
    """Check that each pass finds established what it requires.

    Raises:
        PassError: one does not; says which pass could come before it.
    """
    holding: set[Invariant] = set(WELL_FORMED)
    for position, step in enumerate(passes):
        for invariant in step.requires:
            if invariant not in holding:
                givers = [p.name for p in passes if invariant in p.establishes]
                hint = f"; {' or '.join(givers)} does" if givers else ""
                raise PassError(
                    f"{step.name} requires {invariant.name}, which none of the {position} passes "
                    f"before it establishes and keeps{hint}"
                )
        holding = (holding - set(step.breaks)) | set(step.establishes)


def _run(step: Pass, graph: Graph) -> Graph:
    try:
        return step.run(graph)
    except InvariantError:
        raise
    except HcompError as error:
        raise PassError(f"{step.name}: {error}") from error


class Dumps:
    """An observer that writes the graph after each pass to `NNNN.<pass>.<changed|same>.hir`.

    The input stands in `0000.input.hir`; of passes that change nothing the file is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int, step: Pass, before: Graph, after: Graph, seconds: float) -> None:
        """Write one file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if number == 1:
            (self.folder / "0000.input.hir").write_text(print_graph(before), encoding="utf-8")
        changed = after is not before and after != before
        name = re.sub(r"[^\w-]", "_", step.name)
        path = self.folder / f"{number:04}.{name}.{'changed' if changed else 'same'}.hir"
        path.write_text(print_graph(after) if changed else "", encoding="utf-8")


class Times:
    """An observer that keeps the seconds of each pass, in order, in `seconds`."""

    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []

    def __call__(self, number: int, step: Pass, before: Graph, after: Graph, seconds: float) -> None:
        """Note one time."""
        self.seconds.append((step.name, seconds))
        _log.debug("%s: %.3f s, %d nodes", step.name, seconds, len(after.nodes))
