"""Comparing a program with ONNX Runtime, output by output and, where they differ, node by node."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hcomp.errors import CaptureError

if TYPE_CHECKING:
    import onnx

    from hcomp.artifact import Artifact


@dataclass
class Comparison:
    """One output: whether it is equal, and the largest error relative to its largest value."""

    name: str
    equal: bool
    error: float
    note: str

    def text(self) -> str:
        """Return the line that reports print."""
        verdict = "equal" if self.equal else "DIFFERENT"
        return f"{self.name}: {verdict}, largest error {self.error:.2g} of the largest value{self.note}"


def compare(name: str, want: Any, got: Any, rtol: float) -> Comparison:
    """Return how `got` differs from `want`; floats within rtol of the largest value, others exactly."""
    if not isinstance(want, np.ndarray):
        same = _same_object(want, got, rtol)
        return Comparison(name, same, 0.0 if same else math.inf, "")
    if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype.kind != want.dtype.kind:
        found = f"{got.dtype}{list(got.shape)}" if isinstance(got, np.ndarray) else type(got).__name__
        return Comparison(name, False, math.inf, f": expected {want.dtype}{list(want.shape)}, got {found}")
    if want.dtype.kind not in "fc":
        share = float((want != got).mean()) if want.size else 0.0
        return Comparison(name, share == 0.0, share, "")
    if not np.array_equal(np.isnan(want), np.isnan(got)):
        return Comparison(name, False, math.inf, ": NaN in other places")
    return _compare_floats(name, want.astype(np.float64), got.astype(np.float64), rtol)


def _compare_floats(name: str, want: Any, got: Any, rtol: float) -> Comparison:
    finite = np.isfinite(want)
    if not np.array_equal(want[~finite], got[~finite], equal_nan=True):
        return Comparison(name, False, math.inf, ": infinities in other places")
    if not finite.any():
        return Comparison(name, True, 0.0, "")
    scale = max(float(np.abs(want[finite]).max()), 1e-6)
    error = float(np.abs(want[finite] - got[finite]).max()) / scale
    return Comparison(name, error <= rtol, error, "")


def _same_object(want: Any, got: Any, rtol: float) -> bool:
    if isinstance(want, list):
        pairs = zip(want, got, strict=True) if isinstance(got, list) and len(got) == len(want) else None
        return pairs is not None and all(_same_object(a, b, rtol) for a, b in pairs)
    if isinstance(want, dict):
        return want.keys() == got.keys() and all(_same_object(want[k], got[k], rtol) for k in want)
    if isinstance(want, np.ndarray):
        return compare("", want, got, rtol).equal
    return bool(want == got) if isinstance(want, str | type(None)) else math.isclose(want, got, rel_tol=rtol)


def onnxruntime_session(model: Path | str | bytes) -> Any:
    """Return an ONNX Runtime session on the CPU for a model, without its graph optimisations.

    They change numbers: a QDQ model becomes an integer one, off by quantization steps.

    Raises:
        CaptureError: ONNX Runtime refuses the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it raises kinds of its own, all meaning that it refuses the model
        lines = str(error).strip().splitlines()
        raise CaptureError(f"ONNX Runtime refuses the model: {lines[0] if lines else error}") from None


def run_reference(session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of an ONNX Runtime session by name.

    Raises:
        CaptureError: the run fails there.
    """
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(None, dict(feeds)), strict=True))
    except Exception as error:  # of many kinds, as above
        lines = str(error).strip().splitlines()
        raise CaptureError(f"ONNX Runtime fails on these inputs: {lines[0] if lines else error}") from None


def first_difference(path: Path, artifact: Artifact, feeds: Mapping[str, Any], rtol: float) -> str:
    """Return a sentence that names the first node that differs from ONNX Runtime.

    The model is compiled again. Where the artifact's graph is another one, the first node that is
    not the same is named: the artifact comes from another model. Else every intermediate value
    becomes an output and is compared; that changes what is fused, so a fault of fusion alone can
    vanish, and then the sentence says so.
    """
    other = first_other_node(bytes(artifact.member("graph.hir")).decode(), path)
    if other:
        return f"{other}: the artifact was compiled from another model, or by another hcomp"
    return _first_wrong_value(path, feeds, rtol)


def first_other_node(text: str, path: Path) -> str:
    """Return the first node of a model that is not as in the graph text of an artifact; "" if none."""
    from hcomp.compiler import captured_graph
    from hcomp.ir.printer import print_graph

    ours, theirs = text.splitlines(), print_graph(captured_graph(path)).splitlines()
    # `--shape` changes the inputs' types in the first line, and with them every line below.
    if ours == theirs or ours[0] != theirs[0]:
        return ""
    known = set(ours)
    changed = [line for line in theirs if line not in known]
    nodes = [line for line in theirs if ' from "' in line]
    for line in changed:
        if line.lstrip().startswith("const "):
            name = line.split()[1]
            line = next((n for n in nodes if name in n.replace(",", " ").replace(")", " ").split()), line)
        found = re.search(r' from "((?:[^"\\]|\\.)*)"(?: "([^"]*)")?', line)
        if found:
            return f"node {found[1]!r} ({found[2] or 'constant'})"
    return f"the graph after its {len(theirs) - len(changed)} equal lines"


def _first_wrong_value(path: Path, feeds: Mapping[str, Any], rtol: float) -> str:
    import hcomp
    from hcomp.capture.load import load_model

    model = load_model(path)
    exposed = expose_values(model)
    reference = onnxruntime_session(exposed.SerializeToString())
    want = run_reference(reference, feeds)
    got = hcomp.compile(exposed).run(feeds)
    for node in model.graph.node:
        for name in node.output:
            if name in want and name in got:
                found = compare(name, want[name], got[name], rtol)
                if not found.equal:
                    return f"node {node.name or name!r} ({node.op_type}): {found.text()}"
    return "none node by node: the difference comes from fused kernels"


def expose_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with every node's outputs as outputs of the graph."""
    import onnx

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    present = {o.name for o in exposed.graph.output}
    for node in exposed.graph.node:
        for name in node.output:
            if name and name not in present:
                exposed.graph.output.append(onnx.ValueInfoProto(name=name))
                present.add(name)
    return exposed
