"""A small seeded sample of what scripts/fuzz.py does at length, and that it finds what there is to find."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import fuzz, fuzz_mutate

ROOT = Path(__file__).resolve().parents[1]
FULL = 1_000_000
"""No kernels are built here: they have tests of their own."""


def ignore(stage: str) -> None:
    """Take no notice of the stages."""


@pytest.mark.parametrize(("kind", "count"), [("models", 50), ("bytes", 60), ("artifacts", 40)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_sample_has_no_findings(kind: str, count: int) -> None:
    results = [fuzz.run_case(kind, number, FULL, ignore) for number in range(1, count + 1)]
    assert [r for r in results if r["finding"]] == []
    outcomes = {r["outcome"] for r in results}
    assert ("ArtifactError" if kind == "artifacts" else "CaptureError") in outcomes
    if kind == "models":
        assert "equal" in outcomes, "no damaged model was sound enough to be compared"


def test_lying_manifests_do_not_crash(capfd: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, as what they say is run."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--manifests", "40", "--seed", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "0 finding(s) in 40 cases" in done.stdout


def test_every_one_node_model_is_sound() -> None:
    """What is not damaged compiles and equals ONNX Runtime: otherwise the damage is not what is tested."""
    for op, inputs, attributes in fuzz_mutate.SINGLE:
        outcome, finding = fuzz._compile_and_compare(fuzz_mutate.single(op, inputs, attributes), False, ignore)
        assert (outcome, finding) == ("equal", ""), op


def test_cases_repeat() -> None:
    for kind in (fuzz_mutate.mutated_model, fuzz_mutate.mutated_bytes):
        first, again = (kind(random.Random("same")) for _ in range(2))
        assert first == again


def test_crashes_and_hangs_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies or sleeps is noticed, and the next case gets a new one."""
    monkeypatch.setattr(fuzz, "START", 0.0)
    scripts = {
        "crash": 'import os; print(\'{"stage": "run"}\', flush=True); os.abort()',
        "hang": 'import time; print(\'{"stage": "compile"}\', flush=True); time.sleep(60)',
        "foreign": 'import os; print(\'{"stage": "reference"}\', flush=True); os.abort()',
    }
    found = {}
    for name, code in scripts.items():

        def start(code: str = code) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        worker = fuzz.Worker()
        monkeypatch.setattr(worker, "_start", start)
        found[name] = worker.ask("models", 1, FULL, 5.0)["finding"]
    assert found["crash"].startswith("crash (status -6) in stage 'run'")
    assert found["hang"] == "hang in stage 'compile'"
    assert found["foreign"] == ""
