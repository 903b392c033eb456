"""Time an artifact, alone or in turns with ONNX Runtime, each in a process of its own."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hcomp.cli.files import open_artifact
from hcomp.cli.options import add_json, read_sizes, report
from hcomp.errors import CaptureError, RunError, UsageError
from hcomp.files import why_unreadable
from hcomp.options import checked_threads
from hcomp.partition.plan_text import time_text

SETTLED = 0.1
"""Seconds between laps of several threads: idle threads of ONNX Runtime keep their cores busy for 40 ms."""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("artifact", help="what `hcomp compile` wrote")
    parser.add_argument("--vs", choices=["onnxruntime"], help="time this engine too, in turns, and print the ratio")
    parser.add_argument("--model", help="the ONNX file for --vs (default: the artifact's name with .onnx)")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input; others are made up"
    )
    parser.add_argument("--size", action="append", default=[], metavar="SYMBOL=N", help="a symbol's size")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of at least 5 ms each (default: 15)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each engine (default: 1)")
    parser.add_argument("--worker", choices=["hcomp", "onnxruntime"], help=argparse.SUPPRESS)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Time in rounds A B A B and print medians and the median of the ratios."""
    if options.worker:
        return _work(options)
    if options.rounds < 1:
        raise UsageError(f"rounds must be at least 1, found {options.rounds}")
    _check(options)
    engines = ["hcomp"] + ([options.vs] if options.vs else [])
    laps = _race(options, engines)
    data: dict[str, Any] = {f"{e}_us": statistics.median(laps[e]) for e in engines}
    data |= {"rounds": options.rounds, "threads": options.threads}
    lines = [f"{e}: {time_text(data[f'{e}_us'])}" for e in engines]
    if options.vs:
        ratios = [a / b for a, b in zip(laps["hcomp"], laps[options.vs], strict=True)]
        data["ratio"] = statistics.median(ratios)
        lines.append(f"hcomp / {options.vs}: {data['ratio']:.2f} (below 1 is faster)")
    report(options, data, "\n".join(lines))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse here what a worker would refuse: its message would be one of two."""
    from hcomp.cli.feeds import checked_sizes, input_files, read_inputs

    checked_threads(options.threads)
    artifact = open_artifact(options.artifact)
    checked_sizes(artifact.manifest.inputs, read_sizes(options.size))
    read_inputs(input_files(options.input))
    if options.model is not None and options.vs is None:
        raise UsageError("--model is the ONNX file that --vs onnxruntime times: give --vs too")
    if options.vs:
        model = _model(options)
        if reason := why_unreadable(model):
            raise UsageError(f"--vs needs the ONNX file; {model!r}: {reason}; name it with --model FILE")


def _model(options: argparse.Namespace) -> str:
    return options.model if options.model is not None else str(Path(options.artifact).with_suffix(".onnx"))


def _race(options: argparse.Namespace, engines: list[str]) -> dict[str, list[float]]:
    laps: dict[str, list[float]] = {engine: [] for engine in engines}
    pause = 0.01 if options.threads == 1 else SETTLED
    with ExitStack() as stack:  # closes the workers' pipes, which ends them, and waits for them
        workers = {engine: stack.enter_context(_process(options, engine)) for engine in engines}
        for engine, worker in workers.items():
            _read(worker, engine)
        for _ in range(options.rounds):
            for engine, worker in workers.items():
                time.sleep(pause)
                laps[engine].append(_ask(worker, engine))
    return laps


def _process(options: argparse.Namespace, engine: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "hcomp", "bench", options.artifact, "--worker", engine,
        "--threads", str(options.threads), *(f"--size={s}" for s in options.size),
        *(f"--input={i}" for i in options.input),
    ]  # fmt: skip
    if engine != "hcomp":
        command += ["--model", _model(options)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(worker: subprocess.Popen[str], engine: str) -> float:
    assert worker.stdin is not None
    try:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    except BrokenPipeError:
        raise RunError(f"the process that times {engine} has ended") from None
    return _read(worker, engine)


def _read(worker: subprocess.Popen[str], engine: str) -> float:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RunError(f"the process that times {engine} has ended; its message is above")
    return float(json.loads(line))


def _work(options: argparse.Namespace) -> int:
    """One lap is the mean of a burst of at least 5 ms, in microseconds."""
    from hcomp.cli.feeds import advising

    call, advice = _engine(options)
    with advising(advice):
        for _ in range(3):
            call()
    start = time.perf_counter()
    call()
    burst = max(1, min(1000, int(0.005 / max(time.perf_counter() - start, 1e-7))))
    print(0.0, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(burst):
            call()
        print(1e6 * (time.perf_counter() - start) / burst, flush=True)
    return 0


def _engine(options: argparse.Namespace) -> tuple[Callable[[], Any], str]:
    """Return what one lap calls, and what to say if the first call fails."""
    from hcomp.runtime.startup import import_runtime

    import_runtime()  # before anything else imports tvm_ffi: torch would cost seconds
    from hcomp.cli.feeds import advise_sizes, advising, checked_sizes, input_files, random_inputs, read_inputs
    from hcomp.runtime import load
    from hcomp.verify import run_reference

    session = load(options.artifact, threads=options.threads)
    sizes = read_sizes(options.size)
    feeds = random_inputs(session.inputs, sizes, read_inputs(input_files(options.input)))
    advice = advise_sizes(checked_sizes(session.inputs, sizes), sizes)
    if options.worker == "hcomp":
        return lambda: session.run(feeds), advice
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = options.threads
    try:
        reference = onnxruntime.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # it raises kinds of its own, all meaning that it refuses the model
        raise CaptureError(f"{options.model}: ONNX Runtime refuses the model: {error}") from None
    with advising(advice):
        run_reference(reference, feeds)  # says what is wrong with the inputs, if anything is
    return lambda: reference.run(None, feeds), advice
