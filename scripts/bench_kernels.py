#!/usr/bin/env python3
"""Time products and convolutions of known networks, one thread: share of the peak, ratio to ONNX Runtime.

    python scripts/bench_kernels.py [--only bert] [--rounds 25] [--json]

Each row is a model of one operator with random weights. GFLOP/s and the ratio are of the operator's own
kernel, beside that of ONNX Runtime (by its profiler) and the peak of independent multiply-adds that is
measured right before; Winograd's filtering can exceed it. Inside of a network no layout changes between
kernels; in a call of so small a model both ends do, and the ratio of calls has that in it. Below 1, hcomp
is faster. All times are the best of their rounds. Results are compared with ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import hcomp
from hcomp.measure.machine import peak_gflop_s

GOAL = 0.9
MOST_ERROR = 2e-4
"""Of a result beside ONNX Runtime's, relative to the largest: sums of thousands, and Winograd's filtering."""
LAP_SECONDS = 0.002
"""Of a lap: shorter than the turn that a busy system gives a process."""


@dataclass(frozen=True)
class Case:
    """One operator: a product of `x` with a constant or a second input, or a convolution."""

    network: str
    text: str
    operations: int
    inputs: Mapping[str, tuple[int, ...]]
    weight: tuple[int, ...] | None
    node: Callable[[], onnx.NodeProto]


def gemm(network: str, m: int, k: int, n: int) -> Case:
    """Return `[m, k] @ [k, n]` with a constant right side."""
    node = lambda: helper.make_node("MatMul", ["x", "w"], ["y"])  # noqa: E731
    return Case(network, f"gemm {m} x {k} x {n}", 2 * m * k * n, {"x": (m, k)}, (k, n), node)


def attention(network: str, heads: int, m: int, k: int, n: int) -> Case:
    """Return a batch of products of two inputs, as in attention."""
    node = lambda: helper.make_node("MatMul", ["x", "w"], ["y"])  # noqa: E731
    shapes = {"x": (heads, m, k), "w": (heads, k, n)}
    return Case(network, f"batch {heads} of {m} x {k} x {n}", 2 * heads * m * k * n, shapes, None, node)


def conv(
    network: str, inputs: int, size: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, axes: int = 2
) -> Case:
    """Return a convolution with "same" padding over `axes` axes of `size`."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    attrs: dict[str, Any] = {"strides": [stride] * axes, "pads": [pad] * 2 * axes, "group": groups}
    weight = (outputs, inputs // groups, *[kernel] * axes)
    kind = "depthwise" if groups > 1 else f"conv{axes}d"
    return Case(
        network,
        f"{kind} {inputs} -> {outputs} at {size}, kernel {kernel}, stride {stride}",
        2 * math.prod(weight) * out**axes,
        {"x": (1, inputs, *[size] * axes)},
        weight,
        lambda: helper.make_node("Conv", ["x", "w"], ["y"], **attrs),
    )


def cases() -> Iterator[Case]:
    """Return the operators, each different one of a network once."""
    name = "resnet-50"
    yield conv(name, 3, 224, 64, 7, 2)
    for size, width, deep in ((56, 64, 256), (28, 128, 512), (14, 256, 1024), (7, 512, 2048)):
        if size == 56:
            yield conv(name, width, size, width, 1)
        else:
            yield conv(name, deep // 2, 2 * size, width, 1)
            yield conv(name, width, 2 * size, width, 3, 2)
            yield conv(name, deep // 2, 2 * size, deep, 1, 2)
        yield conv(name, width, size, width, 3)
        yield conv(name, width, size, deep, 1)
        yield conv(name, deep, size, width, 1)
    yield gemm(name, 1, 2048, 1000)
    name = "mobilenet-v2"
    yield conv(name, 3, 224, 32, 3, 2)
    yield conv(name, 32, 112, 32, 3, 1, 32)
    yield conv(name, 32, 112, 16, 1)
    stages = ((16, 24, 112, 2), (24, 32, 56, 2), (32, 64, 28, 2), (64, 96, 14, 1), (96, 160, 14, 2), (160, 320, 7, 1))
    for inputs, outputs, size, stride in stages:
        wide, after = 6 * inputs, size // stride
        yield conv(name, inputs, size, wide, 1)
        yield conv(name, wide, size, wide, 3, stride, wide)
        yield conv(name, wide, after, outputs, 1)
    yield conv(name, 320, 7, 1280, 1)
    yield gemm(name, 1, 1280, 1000)
    name = "bert-base"
    for k, n in ((768, 768), (768, 3072), (3072, 768)):
        yield gemm(name, 128, k, n)
    yield attention(name, 12, 128, 64, 128)
    yield attention(name, 12, 128, 128, 64)
    name = "whisper-tiny"
    yield conv(name, 80, 3000, 384, 3, 1, axes=1)
    yield conv(name, 384, 3000, 384, 3, 2, axes=1)
    for k, n in ((384, 384), (384, 1536), (1536, 384)):
        yield gemm(name, 1500, k, n)
    yield attention(name, 6, 1500, 64, 1500)
    yield attention(name, 6, 1500, 1500, 64)
    yield gemm(name, 1, 384, 1536)
    yield gemm(name, 1, 384, 51865)
    name = "yolov8n"
    for inputs, size, outputs, kernel, stride in (
        (3, 640, 16, 3, 2), (16, 320, 32, 3, 2), (32, 160, 32, 1, 1), (16, 160, 16, 3, 1), (48, 160, 32, 1, 1),
        (32, 160, 64, 3, 2), (64, 80, 64, 1, 1), (32, 80, 32, 3, 1), (128, 80, 64, 1, 1), (64, 80, 128, 3, 2),
        (128, 40, 128, 1, 1), (64, 40, 64, 3, 1), (256, 40, 128, 1, 1), (128, 40, 256, 3, 2), (256, 20, 256, 1, 1),
        (128, 20, 128, 3, 1), (384, 20, 256, 1, 1), (512, 20, 256, 1, 1), (192, 80, 64, 1, 1), (64, 80, 64, 3, 1),
        (64, 80, 80, 3, 1), (80, 80, 80, 3, 1), (80, 80, 80, 1, 1), (256, 20, 64, 3, 1), (256, 20, 80, 3, 1),
    ):  # fmt: skip
        yield conv(name, inputs, size, outputs, kernel, stride)


def model_of(case: Case) -> onnx.ModelProto:
    """Return the model of one operator."""
    generator = np.random.default_rng(0)
    weights = []
    if case.weight is not None:
        depth = math.prod(case.weight[1:]) if len(case.weight) > 2 else case.weight[0]
        values = generator.standard_normal(case.weight).astype(np.float32) / math.sqrt(depth)
        weights.append(numpy_helper.from_array(values, "w"))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in case.inputs.items()]
    graph = helper.make_graph(
        [case.node()], "one", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@dataclass(frozen=True)
class Row:
    """What one case reached."""

    network: str
    case: str
    gflop_s: float
    peak_share: float
    ratio: float
    call_ratio: float
    call_us: float


RESOLUTION_US = 0.05
"""A kernel that is shorter cannot be told from the measuring itself, which is taken off."""


def measure(case: Case, rounds: int) -> Row:
    """Time one case.

    Raises:
        SystemExit: the results differ.
    """
    import onnxruntime

    model = model_of(case)
    program = hcomp.compile(model, threads=1)
    reference = session_of(model, onnxruntime.SessionOptions())
    generator = np.random.default_rng(1)
    feeds = {n: generator.standard_normal(shape).astype(np.float32) for n, shape in case.inputs.items()}
    expected = reference.run(None, feeds)[0]
    error = float(np.abs(program.run(feeds)["y"] - expected).max() / np.abs(expected).max())
    if not error <= MOST_ERROR:
        raise SystemExit(f"{case.network} {case.text}: the results differ by {error:.1e}")
    ours, theirs = lap_of(lambda: program.run(feeds)), lap_of(lambda: reference.run(None, feeds))
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    peak = peak_gflop_s()
    runs = max(10, int(0.1 / min(a for a, _ in pairs)))
    other = reference_us(model, feeds, runs)
    profile = program.session.profile_kernels(feeds, runs)
    kernel = max(profile.kernels, key=lambda k: k.operations or 0)
    took_us = max(kernel.best_us, RESOLUTION_US)
    reached = case.operations / took_us / 1e3
    call, other_call = min(a for a, _ in pairs), min(b for _, b in pairs)
    ratio = took_us / other
    return Row(case.network, case.text, reached, reached / peak, ratio, call / other_call, 1e6 * call)


def session_of(model: onnx.ModelProto, settings: Any) -> Any:
    """Return a session of ONNX Runtime with one thread."""
    import onnxruntime

    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def reference_us(model: onnx.ModelProto, feeds: dict[str, np.ndarray], runs: int) -> float:
    """Return the least time of ONNX Runtime's own kernel in microseconds, as its profiler says."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        settings = onnxruntime.SessionOptions()
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(folder, "profile"))
        session = session_of(model, settings)
        for _ in range(runs):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    heavy = {node.op_type for node in model.graph.node} | {"FusedMatMul", "Gemm"}
    times = [e["dur"] for e in events if e["name"].endswith("_kernel_time") and e["args"].get("op_name") in heavy]
    return max(1.0, float(min(times)))


def lap_of(call: Callable[[], object]) -> Callable[[], float]:
    """Return a function that times one lap of calls and returns the seconds of one."""
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    count = max(1, int(LAP_SECONDS / (time.perf_counter() - start)))

    def lap() -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    return lap


def summary(rows: list[Row]) -> list[str]:
    """Return a line for each network."""
    by_network: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_network[row.network].append(row)
    lines = []
    for name, found in [*by_network.items(), ("all", rows)]:
        reached = sum(row.peak_share >= GOAL for row in found)
        ratio, calls = (statistics.geometric_mean(r) for r in ([f.ratio for f in found], [f.call_ratio for f in found]))
        lines.append(
            f"{name:14} median {100 * statistics.median(r.peak_share for r in found):4.0f} % of the peak,"
            f" {reached} of {len(found)} at {100 * GOAL:.0f} % or more; ratio {ratio:.2f} (geometric mean),"
            f" above 1.03: {sum(row.ratio > 1.03 for row in found)}; of calls {calls:.2f}"
        )
    return lines


def main() -> None:
    """Print a line for each case as it is measured, then the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose network or text has it")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen: list[Any] = [c for c in cases() if options.only in f"{c.network} {c.text}"]
    rows = []
    for case in chosen:
        row = measure(case, options.rounds)
        rows.append(row)
        if not options.json:
            print(
                f"{row.network:14}{row.case:58}{row.gflop_s:7.1f} GFLOP/s {100 * row.peak_share:4.0f} %"
                f"  ratio {row.ratio:5.2f}"
                f"  call {row.call_us:9.1f} us, ratio {row.call_ratio:5.2f}",
                flush=True,
            )
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    elif rows:
        print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
