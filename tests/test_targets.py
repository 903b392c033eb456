"""Every operator that a target compiles computes what the reference says, on real kernels."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hcomp.dims import parse_dim
from hcomp.dtypes import dtype_name
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.ops import OPS
from hcomp.ir.types import TensorType
from hcomp.reference import REFERENCE
from hcomp.runtime.values import aligned_empty, to_tensor
from hcomp.targets import TARGETS, find_target
from tests.target_cases import FAMILIES as COMMON
from tests.target_cases import SIZES, Case, array, settle
from tests.target_cases_trees import TREES

FAMILIES = {**COMMON, "trees": TREES}

BATCH = 40
"""Nodes of one region: enough to share the cost of a build, few enough to find a fault."""

THIN = ("float64", "float16", "int32", "int8", "uint8")
"""Types of which a third of the cases runs: they share their code with float32, bfloat16, int64."""

# How far a result may be from the reference, relatively: the reference adds up in float64, we in
# float32, and both round once.
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def _batches() -> Iterator[Any]:
    for family, cases in FAMILIES.items():
        for dtype in dict.fromkeys(t for case in cases for t in case.dtypes):
            chosen = [case for case in cases if dtype in case.dtypes]
            if dtype in THIN:
                chosen = chosen[zlib.crc32(dtype.encode()) % 3 :: 3]
            for start in range(0, len(chosen), BATCH):
                # Symbolic shapes are the harder ones: the rest of the types runs with them only.
                for symbolic in (False, True) if dtype == "float32" else (True,):
                    name = f"{family}-{dtype}-{start}-{'symbolic' if symbolic else 'static'}"
                    yield pytest.param(chosen[start : start + BATCH], dtype, symbolic, id=name)


class Batch:
    """One region of many nodes, its inputs, and what the reference makes of them."""

    def __init__(self, cases: list[Case], dtype: str, symbolic: bool) -> None:
        self.builder = GraphBuilder("batch")
        self.symbolic = symbolic
        self.inputs: list[NDArray[Any]] = []
        self.expected: list[tuple[Case, NDArray[Any]]] = []
        self.outputs: list[str] = []
        # Every symbol is the size of some input, as in a real model.
        for name, size in SIZES.items():
            self._input(np.zeros(size, np.float32), (name,))
        for case in cases:
            self._add(case, dtype)
        self.graph: Graph = self.builder.finish(self.outputs)

    def _input(self, value: NDArray[Any], dims: tuple[Any, ...]) -> str:
        shape = tuple(parse_dim(d) if isinstance(d, str) else d for d in dims)
        if not self.symbolic:
            shape = value.shape
        self.inputs.append(value)
        return self.builder.input("x", TensorType(dtype_name(value.dtype), shape))

    def _add(self, case: Case, dtype: str) -> None:
        rng = np.random.default_rng(zlib.crc32(repr((case.op, case.attrs)).encode()))
        names, values = [], []
        for operand in case.inputs:
            value = None if operand is None else array(operand, dtype, rng)
            values.append(value)
            if operand is None or value is None:
                names.append("")
            elif operand.constant:
                names.append(self.builder.constant(value))
            else:
                names.append(self._input(value, operand.dims()))
        attrs = case.attrs if self.symbolic else {k: settle(v) for k, v in case.attrs.items()}
        found = REFERENCE[case.op](*values, **OPS[case.op].complete({k: settle(v) for k, v in case.attrs.items()}))
        self.outputs += self.builder.emit_many(case.op, names, attrs)
        for part in found if isinstance(found, tuple) else (found,):
            self.expected.append((case, part))


def one_element_off(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that starts one element after a multiple of 64: kernels take arrays from anywhere."""
    room = aligned_empty((array.size + 1,), array.dtype)
    copy = room[1:].reshape(array.shape)
    copy[...] = array
    return copy


def run_on_cpu(graph: Graph, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Build a region with the real schedules and run it in this process."""
    import tvm

    from hcomp.runtime.vm import vm_region
    from hcomp.targets.cpu.codegen import build

    built = build(graph, "test")
    constants = [tvm.runtime.tensor(np.ascontiguousarray(array)) for _, array in built.constants]
    region = vm_region(built.program, built.objects, constants)
    arguments = [to_tensor(one_element_off(v)) for v in inputs]
    found = region.call(arguments, [SIZES[s] for s in built.symbols] if built.symbols else None)
    parts = [found] if len(graph.outputs) == 1 else list(found)
    return [part.numpy() for part in parts]


def check(case: Case, found: NDArray[Any], expected: NDArray[Any]) -> str:
    """Return what differs between two results, or ""."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    name = expected.dtype.name
    if name not in TOLERANCE:
        return "" if np.array_equal(found, expected) else f"{found} instead of {expected}"
    wide, right = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(wide[~finite], right[~finite], equal_nan=True):
        return f"special values {wide[~finite]} instead of {right[~finite]}"
    # Elementwise, a small result must be as good as a large one; a sum's error is that of its terms.
    summed = OPS[case.op].cost != "elementwise" or case.op in ("gelu", "gelu_tanh")
    floor = 1.0 if summed else 1e-4
    wide, right = wide[finite], right[finite]
    error = np.abs(wide - right) / np.maximum(floor, np.abs(right))
    worst = float(error.max(initial=0.0))
    return "" if worst <= TOLERANCE[name] * case.tolerance else f"error {worst:.2e}"


@pytest.mark.parametrize(("cases", "dtype", "symbolic"), list(_batches()))
def test_cpu_kernels_match_the_reference(cases: list[Case], dtype: str, symbolic: bool) -> None:
    batch = Batch(cases, dtype, symbolic)
    found = run_on_cpu(batch.graph, batch.inputs)
    wrong = [
        f"{case.op} {case.inputs} {case.attrs}: {problem}"
        for (case, expected), result in zip(batch.expected, found, strict=True)
        if (problem := check(case, result, expected))
    ]
    assert wrong == []


def test_every_compiled_operator_has_a_case() -> None:
    covered = {case.op for cases in FAMILIES.values() for case in cases}
    wanted = {name for name, op in OPS.items() if not op.host_only}
    assert wanted - covered == set()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_target_answers_for_every_operator(name: str) -> None:
    target = find_target(name)
    assert target.name == name
    batch = Batch(FAMILIES["reductions"], "float32", True)
    for node in batch.graph.nodes:
        assert target.why_not(batch.graph, node) == ""
        assert target.cost(batch.graph, [node], SIZES) > 0
