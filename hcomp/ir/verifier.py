"""Checking graphs: an invariant is a value with a name and a check; `verify` runs them.

What each level of the compiler guarantees is a set of invariants. `WELL_FORMED` (in
`hcomp.ir.invariants`) holds for every graph between any two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hcomp.errors import InvariantError
from hcomp.ir.graph import Graph
from hcomp.ir.printer import Line, Subject, graph_lines, name_text

SHOWN_WHOLE = 60
"""Graphs of more lines are shown around the violations only."""
CONTEXT = 3
"""So many lines are shown before and after a violation."""


@dataclass(frozen=True, eq=False)
class Violation:
    """One place where an invariant does not hold.

    `subject` is the input, constant, node or graph to blame; `name` the value on its line that
    the caret points at, "" for the line as a whole.
    """

    message: str
    subject: Subject
    name: str = ""


Check: TypeAlias = Callable[[Graph], list[Violation]]


@dataclass(frozen=True)
class Invariant:
    """A named condition on graphs; `check` looks into subgraphs itself."""

    name: str
    check: Check


def verify(graph: Graph, invariants: Iterable[Invariant], stage: str = "") -> None:
    """Check that all `invariants` hold.

    Args:
        graph: The graph to check; it may be broken in any way that its classes allow.
        invariants: What to check.
        stage: Where in the compiler this is, such as "after fold_constants"; begins the message.

    Raises:
        InvariantError: with the graph's text, each message under the line it is about.
    """
    found = [(i.name, violation) for i in invariants for violation in i.check(graph)]
    if found:
        count = f"{len(found)} violation" + ("s" if len(found) > 1 else "")
        start = f"{stage}: " if stage else ""
        raise InvariantError(f"{start}{count} in the graph\n{annotated(graph, found)}")


def annotated(graph: Graph, found: Sequence[tuple[str, Violation]]) -> str:
    """Return the text of `graph` with each violation under its line; long graphs are cut."""
    lines = list(graph_lines(graph))
    notes: dict[int, list[str]] = {}
    for invariant, violation in found:
        index = _line_of(violation, lines)
        column = _column(violation, lines[index].text)
        if column < 0:
            column = len(lines[index].text) - len(lines[index].text.lstrip())
        note = f"{' ' * column}^ error: {violation.message} [{invariant}]"
        notes.setdefault(index, []).append(note)
    shown = _shown(len(lines), notes)
    text: list[str] = []
    for i, line in enumerate(lines):
        if i in shown:
            text += [line.text, *notes.get(i, ())]
        elif i - 1 in shown:
            text.append("  ...")
    return "\n".join(text)


def _shown(count: int, notes: Iterable[int]) -> set[int]:
    if count <= SHOWN_WHOLE:
        return set(range(count))
    near = (range(i - CONTEXT, i + CONTEXT + 1) for i in notes)
    return {0, *(i for span in near for i in span)}


def _line_of(violation: Violation, lines: Sequence[Line]) -> int:
    """Return the subject's line: the first that shows the name, else the first."""
    own = [i for i, line in enumerate(lines) if any(s is violation.subject for s in line.subjects)]
    for i in own:
        if violation.name and _column(violation, lines[i].text) >= 0:
            return i
    return own[0] if own else 0


def _column(violation: Violation, line: str) -> int:
    """Return where the name stands in its line, -1 for nowhere."""
    if not violation.name:
        return -1
    wanted = name_text(violation.name)
    at = line.find(wanted)
    while at >= 0 and line[at + len(wanted) : at + len(wanted) + 1].strip(" ,:)({\n"):
        at = line.find(wanted, at + 1)
    return at
