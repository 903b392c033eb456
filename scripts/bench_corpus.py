#!/usr/bin/env python3
"""Time models against ONNX Runtime: a line for each, and a table by kind of model.

    python scripts/fetch_models.py models-folder        # the published ones, if you have none
    python scripts/bench_corpus.py PATH ... [--only NAME ...] [--threads 1] [--rounds 15] [--readme]

Every model is compiled and timed by `hcomp bench --vs onnxruntime`: two processes in turns, a ratio of each
pair, and of these the median; below 1, hcomp is faster. A PATH is a model or a folder of
them. Free sizes are those of models/published.json for its models, which are known by their content, else
16. `--readme` writes the table between the markers in README.md. A model that ONNX Runtime or hcomp cannot
run is named and not in the table. Status: 0 all measured, 1 some not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "models" / "published.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- made by scripts/bench_corpus.py -->", "<!-- end -->"
EVEN = 1.03
"""A ratio up to here counts as even: medians of the same program differ by as much."""
SECONDS = 900

_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinear")
_RECURRENT = ("LSTM", "GRU", "RNN", "Loop", "Scan", "DynamicQuantizeLSTM")
_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
KINDS = ("convolutional", "attention", "recurrent", "quantised", "other")


@dataclass(frozen=True)
class Row:
    """One model: its kind and what `hcomp bench` found."""

    name: str
    kind: str
    hcomp_us: float
    onnxruntime_us: float
    ratio: float


class NotMeasuredError(Exception):
    """A model could not be compiled or timed; the text says why."""


def kind_of(path: Path) -> str:
    """Return what kind of model a file is, by its operators: the first of quantised, recurrent, attention ... ."""
    found = {node.op_type for node in _nodes(onnx.load(path, load_external_data=False).graph)}
    if any(name.startswith(_QUANTISED) for name in found):
        return "quantised"
    if found & set(_RECURRENT):
        return "recurrent"
    normalised = found & {"LayerNormalization", "SkipLayerNormalization", "ReduceMean", "RMSNormalization"}
    if found & set(_ATTENTION) or (normalised and {"Softmax", "MatMul"} <= found):
        return "attention"
    return "convolutional" if "Conv" in found else "other"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def measure(path: Path, name: str, published: dict[str, Any], options: argparse.Namespace) -> Row:
    """Compile a model and time it in turns with ONNX Runtime.

    Raises:
        NotMeasuredError: one of the two engines refuses it, or the time is up.
    """
    with tempfile.TemporaryDirectory() as folder:
        artifact = str(Path(folder, "model.hcomp"))
        _command("compile", str(path), "-o", artifact)
        given = [f"--size={symbol}={size}" for symbol, size in published.get("sizes", {}).items()]
        for number, (key, value) in enumerate(published.get("values", {}).items()):
            file = Path(folder, f"{number}.npy")
            np.save(file, np.array(value))
            given.append(f"--input={key}={file}")
        text = _command(
            "bench", artifact, "--vs", "onnxruntime", "--model", str(path), "--json",
            "--threads", str(options.threads), "--rounds", str(options.rounds), *given,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(text)
    return Row(name, kind_of(path), found["hcomp_us"], found["onnxruntime_us"], found["ratio"])


def _command(*arguments: str) -> str:
    command = [sys.executable, "-m", "hcomp", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"hcomp {arguments[0]} did not finish in {SECONDS} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise NotMeasuredError(lines[0])  # of a worker, where one failed: the last line only says that it ended
    return done.stdout


def models_of(paths: list[Path]) -> dict[Path, str]:
    """Return the named models and those in the named folders, each once, with their names for the table.

    Raises:
        SystemExit: a path is not there, or a folder has none.
    """
    found: dict[Path, str] = {}
    for path in paths:
        inside = sorted(path.rglob("*.onnx")) if path.is_dir() else [path] if path.is_file() else []
        if not inside:
            raise SystemExit(f"{path}: no model (*.onnx) is there")
        for file in inside:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            found.setdefault(file.resolve(), name)
    return found


def published() -> dict[str, dict[str, Any]]:
    """Return the rows of the published models by sha256: sizes and single values as their makers use them."""
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["models"]
    return {row["sha256"]: row for row in rows}


def content_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table(rows: list[Row], threads: int) -> str:
    """Return the table by kind as Markdown."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_kind[row.kind].append(row)
    lines = [
        f"Time of hcomp / time of ONNX Runtime, {threads} thread(s): below 1, hcomp is faster.",
        "",
        "| kind | models | geometric mean | best | worst | slower |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    groups = [(kind, by_kind[kind]) for kind in KINDS if by_kind[kind]]
    for kind, found in [*groups, ("all", rows)]:
        ratios = [row.ratio for row in found]
        mean, slower = statistics.geometric_mean(ratios), sum(r > EVEN for r in ratios)
        lines.append(f"| {kind} | {len(found)} | {mean:.2f} | {min(ratios):.2f} | {max(ratios):.2f} | {slower} |")
    return "\n".join(lines)


def write_readme(text: str, path: Path = README) -> None:
    """Put the table between the markers.

    Raises:
        SystemExit: there are none.
    """
    whole = path.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: the markers {BEGIN} and {END} are not there")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Print a line for each model as it is measured, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a model, or a folder of them at any depth")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names, or parts of them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print all rows as JSON at the end, and no table")
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = parser.parse_args()
    names = models_of(options.paths)
    chosen = {p: n for p, n in names.items() if not options.only or any(part in n for part in options.only)}
    if not chosen:
        parser.error("no model of such a name")
    known = published()
    rows, failed = [], 0
    for path, name in chosen.items():
        try:
            row = measure(path, name, known.get(content_of(path), {}), options)
        except NotMeasuredError as error:
            failed += 1
            print(f"not measured: {name}: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(row)
        shown = f"{row.hcomp_us:12.1f} us {row.onnxruntime_us:12.1f} us  ratio {row.ratio:5.2f}"
        print(f"{name:72} {row.kind:14}{shown}", file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    elif rows:
        print(f"\n{table(rows, options.threads)}")
    if options.readme and rows:
        write_readme(table(rows, options.threads))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
