"""Damage models and artifacts at random and see that hcomp refuses them well, or runs them right.

    python scripts/fuzz.py --models 500 --bytes 500 --artifacts 500 --manifests 500 --seed 0

Four kinds of cases: models with faults in their meaning, .onnx files with damaged bytes, artifacts with
damaged bytes, and artifacts whose manifest lies under a right seal. Each runs in a worker process with a
memory limit and a time limit. Findings: a crash, a hang, an exception that is no HcompError, an
error of more than one line, memory taken beyond the limit, and outputs that differ from ONNX Runtime's where
both run. A case is its kind and its number, so that `--only models:123` repeats it.

Exit status 1 where there are findings.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import random
import resource
import selectors
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("models", "bytes", "artifacts", "manifests")
MEMORY = 6 << 30
GROWTH_KB = 1 << 20
"""More memory than this is taken by no sound case."""
START = 120.0
"""Seconds more for the first case of a process."""
MAX_FEED = 1 << 24
"""Elements of all inputs together, beyond which a model is compiled but not run."""
RTOL = 2e-3
ARTIFACT_BASES = ("mlp", "if_branch", "loop", "dynamic_shape")


def main() -> int:
    """Run the cases that the options ask for and print the findings."""
    parser = argparse.ArgumentParser(prog="fuzz.py", description=str(__doc__).splitlines()[0])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N", help=f"how many cases of {kind}")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case (default: 0)")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one case, with its traceback")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default: 1)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one case (default: 60)")
    parser.add_argument("--full", type=int, default=10, metavar="K", help="build kernels in each K-th model case")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return _serve()
    if options.only:
        kind, _, number = options.only.partition(":")
        print(json.dumps(run_case(kind, int(number), options.full, print), indent=1))
        return 0
    cases = [(k, n) for k in KINDS for n in range(options.seed, options.seed + getattr(options, k))]
    return summary(fuzz(cases, options.jobs, options.timeout, options.full))


def summary(results: list[dict[str, Any]]) -> int:
    """Print the findings and one line of counts; return the exit status."""
    findings = [r for r in results if r["finding"]]
    for found in findings:
        print(f"{found['kind']}:{found['number']}: {found['finding']}")
    for kind in KINDS:
        counts = collections.Counter(r["outcome"] for r in results if r["kind"] == kind)
        if counts:
            print(f"{kind}: {sum(counts.values())} cases: " + ", ".join(f"{n} {o}" for o, n in counts.most_common()))
    print(f"{len(findings)} finding(s) in {len(results)} cases")
    return 1 if findings else 0


# -- the parent: workers, time limits -------------------------------------------------------------


def fuzz(cases: list[tuple[str, int]], jobs: int, timeout: float, full: int) -> list[dict[str, Any]]:
    """Return the result of every case, run in `jobs` worker processes."""
    waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    results: list[dict[str, Any]] = []

    def drive() -> None:
        worker = Worker()
        while True:
            try:
                kind, number = waiting.get_nowait()
            except queue.Empty:
                break
            results.append(worker.ask(kind, number, full, timeout))
        worker.stop()

    threads = [threading.Thread(target=drive) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Worker:
    """A process that runs cases one by one; it is started again when one kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._cases = 0

    def ask(self, kind: str, number: int, full: int, timeout: float) -> dict[str, Any]:
        """Return the result of a case."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(f"{kind} {number} {full}\n".encode())
        process.stdin.flush()
        stage = "start"
        self._cases += 1
        # The first case also pays for the imports, which a loaded machine makes slow.
        timeout = timeout if self._cases > 1 else timeout + START
        for message in self._messages(process, time.monotonic() + timeout):
            if "stage" in message:
                stage = message["stage"]
            else:
                return message
        self._process = None
        ended = process.poll()
        process.kill()
        _close(process)
        what = "hang" if ended is None else f"crash (status {ended})"
        # What happens inside of the engine that we compare with is no finding about us.
        foreign = stage == "reference"
        finding = "" if foreign else f"{what} in stage {stage!r}"
        return {"kind": kind, "number": number, "outcome": f"{stage}: {what}", "finding": finding}

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            _close(self._process)
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__)), "--worker"]
        self._cases = 0
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )

    def _messages(self, process: subprocess.Popen[bytes], end: float) -> Iterator[dict[str, Any]]:
        """Yield what the process says until the time `end` or its death."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            pending = b""
            while (left := end - time.monotonic()) > 0:
                if not selector.select(left):
                    return
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    process.wait()
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    yield json.loads(line)


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close a process's pipes, which ends it, and wait for it."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    process.wait()


# -- the worker -----------------------------------------------------------------------------------


def _serve() -> int:
    """Run the cases that come in, a line each, and answer with a line of JSON each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import tvm  # noqa: F401  # before the limit: it maps much

    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + MEMORY, _mapped() + MEMORY))

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    for line in sys.stdin:
        kind, number, full = line.split()
        say(run_case(kind, int(number), int(full), lambda stage: say({"stage": stage})))
    return 0


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def run_case(kind: str, number: int, full: int, stage: Any) -> dict[str, Any]:
    """Run one case in this process; `stage` is called with what is being done."""
    from hcomp.errors import HcompError

    rng = random.Random(f"{kind} {number}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runner = {"models": _model, "bytes": _bytes, "artifacts": _artifact, "manifests": _manifest}[kind]
    finding = ""
    try:
        outcome, finding = runner(rng, number % full == 0, stage)
    except HcompError as error:
        outcome = f"{type(error).__name__}"
        finding = _bad_text(error)
    except MemoryError:
        outcome, finding = "MemoryError", "MemoryError"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome = "exception"
        finding = f"{type(error).__name__}: {' '.join(str(error).split())[:300]} at {where.filename}:{where.lineno}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > GROWTH_KB and not finding:
        finding = f"{grown >> 10} MB of memory were taken"
    return {"kind": kind, "number": number, "outcome": outcome, "finding": finding}


def _bad_text(error: Exception) -> str:
    """Return what is wrong with an error that a user would see."""
    text = str(error)
    if error.exit_status == 1:  # type: ignore[attr-defined]
        return f"{type(error).__name__} blames hcomp for bad input: {' '.join(text.split())[:300]}"
    if "\n" in text.strip():
        return f"{type(error).__name__} of several lines: {text[:200]!r}"
    return f"{type(error).__name__} of {len(text)} characters" if len(text) > 2000 else ""


def _model(rng: random.Random, full: bool, stage: Any) -> tuple[str, str]:
    from scripts.fuzz_mutate import mutated_model

    return _compile_and_compare(mutated_model(rng), full, stage)


def _bytes(rng: random.Random, full: bool, stage: Any) -> tuple[str, str]:
    import tempfile

    from hcomp.capture.load import load_model
    from scripts.fuzz_mutate import mutated_bytes

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(mutated_bytes(rng))
        file.flush()
        stage("load")
        return _compile_and_compare(load_model(file.name), full, stage)


def _compile_and_compare(model: Any, full: bool, stage: Any) -> tuple[str, str]:
    import numpy as np

    import hcomp
    from hcomp.cli.feeds import random_inputs
    from hcomp.dims import evaluate, symbols_of
    from hcomp.errors import HcompError
    from hcomp.verify import compare, onnxruntime_session

    stage("compile")
    program = hcomp.compile(model, devices=["cpu" if full else "null"])
    shapes = [shape for spec in program.session.inputs if (shape := getattr(spec.type, "shape", None)) is not None]
    if len(shapes) < len(program.session.inputs):
        return "compiled", ""
    sizes = {name: 3 for s in shapes for name in symbols_of(s)}
    if sum(prod(evaluate(d, sizes) for d in s) for s in shapes) > MAX_FEED:
        return "compiled (large)", ""
    feeds = random_inputs(program.session.inputs, sizes, {}) if shapes else {}
    if program.summary()["extern_nodes"]:
        # Its kernels may crash on what they did not check; that is not ours.
        return "compiled with extern nodes", ""
    stage("run")
    try:
        got = program.run(feeds)
    except HcompError as error:
        return "refused when run", _bad_text(error)
    stage("reference")
    try:
        reference = onnxruntime_session(model.SerializeToString())
        want = dict(zip([o.name for o in reference.get_outputs()], reference.run(None, feeds), strict=True))
    except Exception:
        return "ran, ONNX Runtime refuses", ""
    if _is_wild(model) or not all(np.isfinite(v).all() for v in want.values() if getattr(v, "dtype", None) == "f4"):
        return "ran, not finite", ""
    wrong = [c.text() for c in (compare(n, want[n], got.get(n), RTOL) for n in want) if not c.equal]
    return ("different", f"differs from ONNX Runtime: {wrong[0]}") if wrong else ("equal", "")


def _is_wild(model: Any) -> bool:
    """Say whether weights overflow or are no numbers: engines differ in what becomes of those."""
    import numpy as np
    from onnx import numpy_helper

    arrays = [numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type in (1, 10, 11)]
    return any(not (np.abs(a.astype(np.float64)) < 1e15).all() for a in arrays)


@cache
def _base(name: str) -> Any:
    import hcomp
    from models import MODELS

    model, feeds = MODELS[name]()
    return hcomp.compile(model).artifact, feeds


def _artifact(rng: random.Random, full: bool, stage: Any) -> tuple[str, str]:
    from hcomp.artifact import Artifact
    from scripts.fuzz_mutate import damaged

    artifact, _ = _base(rng.choice(ARTIFACT_BASES))
    sound = artifact.to_bytes()
    data = damaged(rng, sound)
    stage("open")
    Artifact.from_bytes(data)
    if data == sound:
        return "not changed", ""
    return "accepted", "an artifact with damaged bytes is accepted"


def _manifest(rng: random.Random, full: bool, stage: Any) -> tuple[str, str]:
    from hcomp.artifact import Artifact
    from hcomp.runtime import Session
    from scripts.fuzz_mutate import mutated_manifest

    artifact, feeds = _base(rng.choice(ARTIFACT_BASES))
    data = mutated_manifest(rng, artifact)
    stage("open")
    opened = Artifact.from_bytes(data)
    stage("session")
    session = Session(opened, threads=1)
    stage("run")
    session.run(feeds)
    return "ran", ""


if __name__ == "__main__":
    sys.exit(main())
