"""Object code of a region: groups that are built side by side, the same bytes each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hcomp.codegen import machine_code as code
from hcomp.dims import symbol
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType
from hcomp.runtime.vm import vm_region
from hcomp.targets.cpu.codegen import build

OPS = ("exp", "relu", "tanh", "sigmoid", "abs", "negative", "sqrt")


def separate(count: int) -> Graph:
    """Return a region of one kernel a node: sums over different axes are not fused."""
    build = GraphBuilder("g")
    x = build.input("x", TensorType("float32", (symbol("n"), 8)))
    found = []
    for number in range(count):
        y = build.emit(OPS[number % len(OPS)], x)
        found.append(build.emit("sum", y, axis=(number // len(OPS) % 2,)))
    return build.finish(tuple(found))


@pytest.mark.parametrize("threads", [1, 3])
def test_groups_are_built_side_by_side_and_call_each_other(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    monkeypatch.setattr(code, "usable_cores", lambda: threads)
    graph = separate(14)
    built = build(graph, "g")
    assert built.kernels > 12
    assert len(built.objects) == 1 + (built.kernels + 1) // code.KERNELS_AN_OBJECT  # and a shape function
    x = np.linspace(0.1, 2, 24, dtype=np.float32).reshape(3, 8)
    region = vm_region(built.program, built.objects, [])
    found: Any = region.call([tvm.runtime.tensor(x)], None)
    np.testing.assert_allclose(found[0].numpy(), np.exp(x).sum(0), rtol=1e-5)
    np.testing.assert_allclose(found[13].numpy(), np.sqrt(x).sum(1), rtol=1e-5)


def test_bytes_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(code, "usable_cores", lambda threads=threads: threads)
        found.append(build(separate(14), "g").objects)
    assert found[0] == found[1]


def test_a_small_region_is_one_object() -> None:
    assert len(build(separate(2), "g").objects) == 1


def test_many_kernels_share_a_limited_number_of_objects() -> None:
    from tvm.ir import GlobalVar

    functions = {GlobalVar(name): None for name in ("__vmtir__main", *(f"k{number}" for number in range(100)))}
    groups = code._groups(functions)
    assert len(groups) == code.MOST_OBJECTS
    assert sorted(str(v.name_hint) for group in groups for v in group) == sorted(str(v.name_hint) for v in functions)


def test_only_what_comes_from_outside_is_checked_and_each_shape_is_made_once() -> None:
    import tvm

    from hcomp.codegen import kernels
    from hcomp.codegen.relax_module import lower_region
    from hcomp.codegen.vm_calls import without_idle_calls

    graph_of = GraphBuilder("g")
    n = symbol("n")
    x = graph_of.input("x", TensorType("float32", (n, 512)))
    for number in range(3):
        large = graph_of.constant(np.full(512, number, np.float32), f"c{number}")
        x = graph_of.emit("softmax", graph_of.emit("add", x, large), axis=-1)
    lowered = lower_region(graph_of.finish((graph_of.emit("concat", x, x, axis=0),)))
    assert len(lowered.constants) == 3
    module = tvm.transform.Sequential(kernels._lower_passes())(kernels._fuse(lowered)[0])
    before = module.script()
    text = without_idle_calls(module, len(lowered.constants)).script()
    assert before.count("vm.builtin.check_tensor_info") == 4
    assert text.count("vm.builtin.check_tensor_info") == text.count("vm.builtin.match_shape") == 1
    shapes = [line.partition("make_shape")[2] for line in text.splitlines() if "vm.builtin.make_shape" in line]
    assert len(shapes) == len(set(shapes)) < before.count("vm.builtin.make_shape")
