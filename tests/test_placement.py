"""The placement core against enumeration and an evaluation of its own."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcomp.errors import UsageError
from hcomp.placement.answer import Answer, Deadline
from hcomp.placement.latency import solve_latency
from hcomp.placement.packing import packing_bound
from hcomp.placement.problem import Problem, read_problem
from hcomp.placement.throughput import solve_throughput

CORES = 1


@st.composite
def problems(draw: st.DrawFn, nodes: int = 6) -> Problem:
    """Draw a random graph with whole numbers, so that sums are exact."""
    count = draw(st.integers(1, nodes))
    numbers = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    edges = [(u, v) for u in range(count) for v in range(u + 1, count) if draw(st.integers(0, 2)) == 0]
    memory = draw(st.sampled_from([0, 4, 9, 100]))
    return Problem(
        names=tuple(range(10, 10 + count)),
        cpu=tuple(float(4 * t) for t in draw(numbers)),
        accelerator=tuple(map(float, draw(numbers))),
        supported=tuple(draw(st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count))),
        size=tuple(map(float, draw(numbers))),
        colour=tuple(draw(st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=count, max_size=count))),
        cost=tuple(map(float, draw(numbers))),
        succ=tuple(tuple(v for w, v in edges if w == u) for u in range(count)),
        accelerators=draw(st.integers(0, 2)),
        cores=CORES,
        memory=float(memory),
    )


def places(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield every placement that keeps to the rules."""
    chips = problem.accelerators
    for place in itertools.product(range(chips + CORES), repeat=len(problem.names)):
        held = [sum(s for s, d in zip(problem.size, place, strict=True) if d == chip) for chip in range(chips)]
        supported = all(s or d >= chips for s, d in zip(problem.supported, place, strict=True))
        colours = {(c, d) for c, d in zip(problem.colour, place, strict=True) if c >= 0}
        if supported and all(h <= problem.memory for h in held) and len(colours) == len({c for c, _ in colours}):
            yield place


def load(problem: Problem, nodes: set[int]) -> float:
    """Return an accelerator's load as the published rules word it."""
    total = sum(problem.accelerator[v] for v in nodes)
    for u, readers in enumerate(problem.succ):
        inside = [r for r in readers if r in nodes]
        if (u in nodes and len(inside) < len(readers)) or (u not in nodes and inside):
            total += problem.cost[u]
    return total


def largest_load(problem: Problem, place: Sequence[int]) -> float:
    """Return the objective of throughput."""
    loads = []
    for device in set(place):
        nodes = {v for v, d in enumerate(place) if d == device}
        loads.append(load(problem, nodes) if device < problem.accelerators else sum(problem.cpu[v] for v in nodes))
    return max(loads)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_nothing_is_better_than_the_exact_throughput(problem: Problem) -> None:
    answer = solve_throughput(problem, Deadline(20))
    assert answer is not None
    assert tuple(answer.place) in set(places(problem))
    assert largest_load(problem, answer.place) == pytest.approx(answer.objective)
    best = min(largest_load(problem, place) for place in places(problem))
    assert answer.objective == pytest.approx(best)
    assert answer.bound <= best * (1 + 1e-9)
    assert answer.gap < 1e-3


def ends(problem: Problem, place: Sequence[int], calls: Sequence[Sequence[int]]) -> float:
    """Return when a schedule ends by stepping through events; infinite if it never does."""
    done: dict[int, float] = {}
    waiting = list(calls) + [[v] for v, d in enumerate(place) if d >= problem.accelerators]
    free = [0.0] * problem.accelerators
    while waiting:
        for piece in waiting:
            inside = set(piece)
            needs = {u for u, readers in enumerate(problem.succ) if inside & set(readers)} - inside
            device = place[piece[0]]
            chip = device < problem.accelerators
            first = next((p for p in waiting if place[p[0]] == device), piece) if chip else piece
            if needs <= done.keys() and first is piece:
                start = max([free[device] if chip else 0.0, *(done[u] for u in needs)])
                end = start + (load(problem, inside) if chip else problem.cpu[piece[0]])
                done.update(dict.fromkeys(piece, end))
                if chip:
                    free[device] = end
                waiting.remove(piece)
                break
        else:
            return math.inf
    return max(done.values())


def partitions(nodes: list[int]) -> Iterator[list[list[int]]]:
    """Yield all ways to divide nodes into calls."""
    if not nodes:
        yield []
        return
    for rest in partitions(nodes[1:]):
        yield [[nodes[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [nodes[0], *rest[i]], *rest[i + 1 :]]


@settings(max_examples=25, deadline=None)
@given(problems(nodes=4))
def test_latency_is_valid_and_its_bound_is_below_every_schedule(problem: Problem) -> None:
    answer = solve_latency(problem, Deadline(1.2))
    assert answer is not None
    assert tuple(answer.place) in set(places(problem))
    calls = [call.nodes for call in answer.calls]
    assert sorted(v for call in calls for v in call) == [
        v for v, d in enumerate(answer.place) if d < problem.accelerators
    ]
    assert ends(problem, answer.place, calls) == pytest.approx(answer.objective)
    for place in places(problem):
        chips = [v for v, d in enumerate(place) if d < problem.accelerators]
        for divided in partitions(chips):
            if all(len({place[v] for v in call}) == 1 for call in divided):
                for order in itertools.permutations(divided):
                    assert answer.bound <= ends(problem, place, order) * (1 + 1e-9)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 3))
def test_packing_is_exact(times: list[int], bins: int) -> None:
    best = min(
        max(sum(t for t, b in zip(times, where, strict=True) if b == each) for each in range(bins))
        for where in itertools.product(range(bins), repeat=len(times))
    )
    found = packing_bound([float(t) for t in times], bins, 0.0, float(sum(times)))
    assert found <= best * (1 + 1e-6)
    assert found >= best * (1 - 1e-5) or len(times) <= bins


def _file(**changes: object) -> str:
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": 1.0, "size": 1.0, "colorClass": None}
        for i in (7, 3)
    ]
    edges = [{"sourceId": 7, "destId": 3, "cost": 0.5}]
    return json.dumps({"nodes": nodes, "edges": edges, "maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 10.0, **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not readable JSON"),
        ("[]", "expected an object"),
        (_file(nodes=[]), "nodes: expected 1 to"),
        (_file(maxFPGAs=-1), "maxFPGAs: expected a number"),
        (_file(edges=[{"sourceId": 7, "destId": 4, "cost": 1}]), "there is no node 4"),
        (_file(edges=[{"sourceId": a, "destId": b, "cost": 1} for a, b in ((7, 3), (3, 7))]), "cycle"),
        (
            _file(nodes=[{"id": 7, "cpuLatency": "x", "fpgaLatency": 1}], edges=[]),
            "node 7: cpuLatency: expected a number",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_problem(text)


def test_the_command_answers_in_the_published_form(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(_file())
    command = [sys.executable, "-m", "hcomp", "plan-problem", str(path), "--objective", "latency", "--seconds", "3"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["objective"] == pytest.approx(2.0)
    assert answer["assignment"]["3"] == answer["assignment"]["7"] == answer["calls"][0]["device"]
    assert answer["calls"][0]["nodes"] == [7, 3]
    assert answer["bound"] == pytest.approx(2.0, rel=1e-4)


@pytest.mark.skipif("HCOMP_PLACEMENT_PROBLEMS" not in os.environ, reason="the published problems are not here")
def test_published_problems_are_solved() -> None:
    for path in sorted(Path(os.environ["HCOMP_PLACEMENT_PROBLEMS"]).glob("*/bert24_layers.json")):
        problem = read_problem(path.read_text())
        solve = solve_throughput if path.parent.name == "throughput" else solve_latency
        answer: Answer | None = solve(problem, Deadline(15))
        assert answer is not None
        assert answer.gap < 0.01
