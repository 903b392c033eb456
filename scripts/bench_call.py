"""What one call costs beside its arithmetic: four operators on 8x8 matrices, against ONNX Runtime.

Prints the best and the median of many short rounds, in microseconds a call. The limit for
hcomp is 3 us, numpy in and numpy out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

import hcomp

SIZE = 8
ROUND = 500


def four_operators() -> onnx.ModelProto:
    """Return y = exp(relu(x @ w + x))."""
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [SIZE, SIZE]) for n in "xwy"}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Exp", ["c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "four", [values["x"], values["w"]], [values["y"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def measure(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the best and the median time of a call, in microseconds."""
    for _ in range(ROUND):
        call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(ROUND):
            call()
        times.append((time.perf_counter() - start) / ROUND * 1e6)
    return min(times), statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds

    import onnxruntime

    model = four_operators()
    program = hcomp.compile(model, threads=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).random((SIZE, SIZE), np.float32)
    inputs = {"x": x, "w": x.copy()}
    np.testing.assert_allclose(program.run(inputs)["y"], reference.run(None, inputs)[0], rtol=1e-5)
    rows: dict[str, Callable[[], object]] = {
        "hcomp": lambda: program.run(inputs),
        "ONNX Runtime": lambda: reference.run(None, inputs),
    }
    print(f"{'us a call':16}{'best':>8}{'median':>8}")
    for name, call in rows.items():
        best, median = measure(call, rounds)
        print(f"{name:16}{best:8.2f}{median:8.2f}")


if __name__ == "__main__":
    main()
