"""Text in, text out: every file under tests/cases is one claim about the text form or the passes.

The first line says what to run: names of passes, `pipeline`, `clusters` (shows each node's
cluster as its placement), or nothing (reads, verifies, prints). Below `// ----` stands what comes
out, an error included. `pytest --bless` rewrites that part: look at the diff before you commit it.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hcomp.errors import HcompError
from hcomp.ir.graph import Graph
from hcomp.ir.invariants import WELL_FORMED
from hcomp.ir.parser import parse_graph
from hcomp.ir.printer import print_graph
from hcomp.ir.verifier import verify
from hcomp.passes import PASSES, PIPELINE, Pass
from hcomp.passes.clusters import clusters
from hcomp.pipeline import run_pipeline

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.rglob("*.hir"))
RULE = "// ----\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CASES).with_suffix("")))
def test_case(path: Path, bless: bool) -> None:
    source, _, expected = path.read_text(encoding="utf-8").partition(RULE)
    found = _run(source)
    if bless:
        path.write_text(source + RULE + found, encoding="utf-8")
        return
    assert found == expected


def _run(source: str) -> str:
    """Return the text that a case's source gives; a graph in it reads back to the same text."""
    steps = _steps(source)
    try:
        graph = parse_graph(source)
        graph = run_pipeline(graph, [p for s in steps for p in _passes(s)])
    except HcompError as error:
        return f"{type(error).__name__}: {error}\n"
    text = print_graph(graph)
    assert print_graph(parse_graph(text, _data(graph))) == text
    verify(parse_graph(text, _data(graph)), WELL_FORMED)
    if "clusters" in steps:
        return print_graph(graph, _cluster_names(graph))
    return text


def _steps(source: str) -> list[str]:
    first = source.split("\n", 1)[0]
    assert first.startswith("// run:"), "the first line must say what to run"
    return [s.strip() for s in first.removeprefix("// run:").split(",") if s.strip()]


def _passes(step: str) -> tuple[Pass, ...]:
    if step == "pipeline":
        return PIPELINE
    return () if step == "clusters" else (PASSES[step],)


def _cluster_names(graph: Graph) -> dict[str, str]:
    return {
        graph.nodes[i].output: f"c{number}" for number, cluster in enumerate(clusters(graph)) for i in cluster.nodes
    }


def _data(graph: Graph) -> dict[str, NDArray[np.generic]]:
    bodies = [g for node in graph.walk() for g in node.graphs.values()]
    return {c.digest: c.array for g in (graph, *bodies) for c in g.constants}
