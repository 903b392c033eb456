"""What free sizes cost: each model as it is, against the same one compiled for the sizes of its inputs.

    python scripts/bench_dynamic.py MODELS INPUTS

MODELS is a folder of ONNX files, INPUTS one of arrays: MODELS/a/b.onnx runs with INPUTS/a/b.npz, which
has an array an input. Models without such a file, or without free sizes, are left out. Both programs run
in turns in one process, with one thread. Prints the best times in microseconds, the median of the pairs'
ratios, and whether both give the same; the limit is 1.10.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hcomp
from hcomp.errors import HcompError
from hcomp.program import Program
from hcomp.testing import assert_close

LIMIT = 1.10
PAIRS = 15
ROUND_SECONDS = 0.01

Arrays = dict[str, np.ndarray]


def exact_shapes(program: Program, arrays: Arrays) -> dict[str, list[int]]:
    """Return the arrays' shapes for the inputs that have free sizes."""
    found = {}
    for spec in program.session.inputs:
        shape = getattr(spec.type, "shape", None)
        if spec.name in arrays and shape is not None and not all(isinstance(d, int) for d in shape):
            found[spec.name] = list(arrays[spec.name].shape)
    return found


def measure(programs: tuple[Program, Program], arrays: Arrays) -> tuple[float, float, float]:
    """Return the best time of each program, in microseconds, and the median ratio of the pairs."""
    start = time.perf_counter()
    programs[0].run(arrays)
    count = max(1, int(ROUND_SECONDS / (time.perf_counter() - start)))
    pairs = []
    for _ in range(PAIRS):
        pair = []
        for program in programs:
            start = time.perf_counter()
            for _ in range(count):
                program.run(arrays)
            pair.append((time.perf_counter() - start) / count * 1e6)
        pairs.append(pair)
    ratio = statistics.median(a / b for a, b in pairs)
    return min(a for a, _ in pairs), min(b for _, b in pairs), ratio


def is_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Say whether two programs gave the same; sequences and texts are not compared."""
    try:
        for name in a:
            if isinstance(a[name], np.ndarray) and a[name].dtype.kind in "biuf":
                assert_close(a[name], b[name], terms=4096)
    except AssertionError:
        return False
    return True


def compare(model: Path, arrays: Arrays, most_ms: float) -> str:
    """Return what is printed of a model after its name; nothing for one without free sizes."""
    free = hcomp.compile(model, threads=1, cache=False)
    shapes = exact_shapes(free, arrays)
    if not shapes:
        return ""
    free.run(arrays)
    start = time.perf_counter()
    free.run(arrays)
    if (took := 1e3 * (time.perf_counter() - start)) > most_ms:
        return f"left out: {took:.0f} ms a run"
    fixed = hcomp.compile(model, threads=1, cache=False, shapes=shapes)
    same = is_same(free.run(arrays), fixed.run(arrays))
    free_us, fixed_us, ratio = measure((free, fixed), arrays)
    marks = ("" if ratio <= LIMIT else "  above the limit") + ("" if same else "  DIFFERENT RESULTS")
    return f"{free_us:10.1f} {fixed_us:10.1f} {ratio:6.2f}{marks}"


def main() -> None:
    """Compare all models of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--only", default="", help="models whose path contains this")
    parser.add_argument("--max-ms", type=float, default=300, help="leave out models that take longer a run")
    options = parser.parse_args()
    print(f"{'model':60} {'free us':>10} {'fixed us':>10} {'ratio':>6}")
    for model in sorted(options.models.rglob("*.onnx")):
        name = model.relative_to(options.models)
        stored = options.inputs / name.with_suffix(".npz")
        if options.only not in str(name) or not stored.exists():
            continue
        with np.load(stored) as file:  # never pickled objects
            arrays = dict(file)
        try:
            line = compare(model, arrays, options.max_ms)
        except HcompError as error:
            line = f"fails: {error}"
        if line:
            print(f"{str(name)[-60:]:60} {line}", flush=True)


if __name__ == "__main__":
    main()
