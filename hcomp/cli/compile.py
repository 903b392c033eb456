"""Compile an ONNX file to an artifact."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from hcomp.cli.files import check_output, files_of
from hcomp.cli.options import add_compile_options, add_json, compile_arguments, progress, report
from hcomp.errors import UsageError
from hcomp.files import why_unreadable
from hcomp.partition.plan_text import bytes_text, sizes_text, time_text
from hcomp.runtime.startup import one_blas_thread, without_optional_imports


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("-o", "--output", help="the artifact to write (default: the model's name with .hcomp)")
    add_compile_options(parser)
    parser.add_argument("--verbose", action="store_true", help="say how long each stage took")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Compile, save, and print one paragraph about the result."""
    one_blas_thread()
    import hcomp

    if reason := why_unreadable(options.model):
        raise UsageError(f"{options.model or repr(options.model)}: cannot be read: {reason}")
    output = str(Path(options.model).with_suffix(".hcomp")) if options.output is None else options.output
    check_output(output, files_of(options.model))
    start = time.perf_counter()
    progress(f"compiling {options.model} ...")
    # This process compiles and ends: it has no use for torch, which tvm_ffi would take 1.5 s to import.
    with without_optional_imports(("torch",)):
        program = hcomp.compile(options.model, **compile_arguments(options))
    program.save(output)
    progress("")
    summary = program.summary()
    data = {
        "output": output,
        "seconds": time.perf_counter() - start,
        "cached": program.cached,
        "stages": program.seconds,
        "bytes": Path(output).stat().st_size,
        **summary,
    }
    if options.tune:
        data["tuning"] = _tuned(options.tuning)
    report(options, data, _text(data) + (_stages_text(data["stages"]) if options.verbose else ""))
    print_fallbacks(summary)
    return 0


def _tuned(path: str) -> dict[str, Any]:
    """Return the tuning file and how many kernels it has, and how many of them not by the analytic choice."""
    from hcomp.tuning import default_file, read_tuning

    found = path or str(default_file())
    kernels = [m for own in read_tuning(found).processors.values() for m in own.values()]
    return {"file": found, "kernels": len(kernels), "faster": sum(m.us < m.analytic_us for m in kernels)}


def _text(data: dict[str, Any]) -> str:
    made = "taken from the cache" if data["cached"] else "compiled"
    return (
        f"{data['output']}: {bytes_text(data['bytes'])}, {made} in {data['seconds']:.1f} s;"
        f" {data['nodes']} nodes in {data['regions']} region(s) on {', '.join(data['devices'])},"
        f" {data['copies']} copies, predicted {time_text(data['predicted_us'])}{sizes_text(data)}"
    ) + _tuned_text(data.get("tuning"))


def _tuned_text(tuned: dict[str, Any] | None) -> str:
    if tuned is None:
        return ""
    return f"\n{tuned['file']}: {tuned['kernels']} kernels measured, {tuned['faster']} of them with faster blocks"


def _stages_text(seconds: dict[str, float]) -> str:
    return "\n" + ", ".join(f"{stage} {taken:.2f} s" for stage, taken in seconds.items())


def print_fallbacks(summary: dict[str, Any]) -> None:
    """Say on standard error, a line each, what does not run as compiled code."""
    for key, what in (("extern", "run in ONNX Runtime"), ("host", "run in numpy on the host")):
        nodes = summary[f"{key}_nodes"]
        if nodes:
            kinds = sorted({n["operator"] for n in nodes})
            shown = ", ".join(kinds[:6]) + (", ..." if len(kinds) > 6 else "")
            share = 100 * summary[f"{key}_share"]
            print(
                f"{len(nodes)} node(s) {what}: {shown} ({share:.0f} % of the predicted time)",
                file=sys.stderr,
            )
