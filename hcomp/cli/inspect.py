"""Show what is in an artifact or how a model would be placed."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from hcomp.cli.files import (
    STANDARD_OUTPUT,
    check_output,
    files_of,
    is_artifact,
    is_plan,
    open_artifact,
    read_plan,
    write_text,
)
from hcomp.cli.options import add_json, table
from hcomp.errors import UsageError
from hcomp.partition.plan_text import bytes_text, time_text

MAX_ROWS = 12
"""Operators that the table shows."""
SHOWN_FEATURES = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "amx-int8",
)


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", help="an artifact, a plan.json or an ONNX file")
    parser.add_argument("--text", action="store_true", help="print the graph's text instead of the plan")
    parser.add_argument("--dot", metavar="FILE", help="write the plan for Graphviz ('-': standard output)")
    parser.add_argument("--svg", metavar="FILE", help="write the plan as a picture ('-': standard output)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print or write the forms that were asked for; without any, the plan as text."""
    _check_outputs(options)
    if options.text:
        print(_graph_text(options.file), end="")
        return 0
    plan = read_plan(options.file)
    if options.dot is not None:
        write_text(options.dot, plan.to_dot())
    if options.svg is not None:
        write_text(options.svg, plan.to_svg())
    if options.json:
        print(json.dumps({"plan": plan.to_json(), "summary": plan.summary()}, indent=1))
    elif options.dot is None and options.svg is None:
        parts = [_about(options.file), plan.to_text(), _operators(plan)]
        print("\n".join(part for part in parts if part))
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse what cannot be done together, and files that must not be written."""
    written = [path for path in (options.dot, options.svg) if path is not None]
    printed = [path for path in written if path == STANDARD_OUTPUT]
    if options.text and (written or options.json):
        raise UsageError("--text prints the graph: give it without --json, --dot and --svg")
    if len(printed) + options.json > 1 or len(set(written)) < len(written):
        raise UsageError("two forms cannot be written to one place: name another file")
    for path in written:
        if path != STANDARD_OUTPUT:
            check_output(path, files_of(options.file))


def _about(path: str) -> str:
    """Return what an artifact is: inputs, outputs, what it needs, what takes its bytes; else ""."""
    if not is_artifact(path):
        return _about_model(path)
    artifact = open_artifact(path)
    manifest = artifact.manifest
    sizes: Counter[str] = Counter()
    for name, file in manifest.files.items():
        sizes["constants" if name.startswith("constants/") else "kernels" if "regions/" in name else "texts"] += (
            file.size
        )
    kept = ", ".join(f"{what} {bytes_text(sizes[what])}" for what in ("constants", "kernels", "texts"))
    cpu = manifest.cpu
    rows = [
        [
            f"{path}:",
            f"artifact of {manifest.name!r} by hcomp {manifest.hcomp}, {bytes_text(Path(path).stat().st_size)}",
        ]
    ]
    rows += [["input", f"{spec.name}: {spec.type}"] for spec in manifest.inputs]
    rows += [["output", f"{spec.name}: {spec.type}"] for spec in manifest.outputs]
    rows += [["devices", ", ".join(d.name for d in manifest.devices)], ["holds", kept]]
    if cpu is not None:
        shown = " ".join(f.lstrip("+") for f in cpu.features if f.lstrip("+") in SHOWN_FEATURES)
        rows.append(["needs", f"{cpu.triple.partition('-')[0]} {shown}".rstrip()])
    return "\n".join([rows[0][0] + " " + rows[0][1], *(f"  {key:8}{value}" for key, value in rows[1:])])


def _about_model(path: str) -> str:
    if is_plan(path):
        return ""
    import onnx

    from hcomp.capture.load import load_model

    graph = load_model(path).graph
    given = {tensor.name for tensor in graph.initializer}
    lines = [f"{path}: ONNX model {graph.name!r}, {len(graph.node)} nodes"]
    for what, infos in (("input", graph.input), ("output", graph.output)):
        lines += [f"  {what:8}{i.name}: {_declared(onnx, i)}" for i in infos if i.name not in given]
    return "\n".join(lines)


def _declared(onnx: Any, info: Any) -> str:
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type":
        return info.type.WhichOneof("value") or "of no declared type"
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    name = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    if not tensor.HasField("shape"):
        return f"{name}[...]"
    sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return f"{name}[{','.join(sizes)}]"


def _operators(plan: Any) -> str:
    """Return a table of the operators by their share of the predicted time."""
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for node in plan.nodes():
        times[node["operator"] or node["op"]] += node["us"]
        counts[node["operator"] or node["op"]] += 1
    total = sum(times.values()) or 1.0
    rows = [["operator", "nodes", "predicted", "share"]]
    for name, us in times.most_common(MAX_ROWS):
        rows.append([name, str(counts[name]), time_text(us), f"{100 * us / total:.0f} %"])
    text = table(rows) if len(rows) > 1 else ""
    rest = len(times) - MAX_ROWS
    return f"{text}\n... and {rest} more" if rest > 0 else text


def _graph_text(path: str) -> str:
    if is_artifact(path):
        return bytes(open_artifact(path).member("graph.hir")).decode()
    if is_plan(path):
        raise UsageError(f"{path}: a plan holds no graph; give the artifact or the model")
    from hcomp.compiler import captured_graph
    from hcomp.ir.printer import print_graph

    return print_graph(captured_graph(path))
