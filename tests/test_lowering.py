"""Regions as Relax modules: parameters, views, guards, and what is refused with which sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hcomp.dims import floordiv, symbol
from hcomp.errors import CodegenError
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType

N, M, K = symbol("N"), symbol("M"), symbol("K")
F32 = "float32"


class Region:
    """A region under construction and, once built, its executable."""

    def __init__(self) -> None:
        self.build = GraphBuilder("region")

    def input(self, *shape: Any, dtype: str = F32) -> str:
        return self.build.input("x", TensorType(dtype, shape))

    def finish(self, *outputs: str) -> Graph:
        return self.build.finish(outputs)


def lower(graph: Graph) -> Any:
    from hcomp.codegen.relax_module import lower_region

    return lower_region(graph)


def runner(graph: Graph, sizes: dict[str, int] | None = None) -> Any:
    """Build for the processor and return a function from arrays to arrays."""
    import tvm

    from hcomp.runtime.vm import vm_region
    from hcomp.targets.cpu.codegen import build

    built = build(graph, "region")
    constants = [tvm.runtime.tensor(np.ascontiguousarray(a)) for _, a in built.constants]
    region = vm_region(built.program, built.objects, constants)
    symbols = [(sizes or {})[s] for s in built.symbols] if built.symbols else None

    def run(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
        found = region.call([tvm.runtime.tensor(np.array(a, order="C")) for a in arrays], symbols)
        parts = [found] if len(graph.outputs) == 1 else list(found)
        return [part.numpy() for part in parts]

    return run


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def test_large_constants_are_parameters_small_and_unused_ones_are_not() -> None:
    region = Region()
    x = region.input(N, 512)
    large = region.build.constant(np.zeros(512, np.float32), "large")
    small = region.build.constant(np.ones(256, np.float32)[:1].repeat(200), "small")
    del small
    y = region.build.emit("add", x, large)
    z = region.build.emit("multiply", y, region.build.constant(np.float32(2)))
    lowered = lower(region.finish(z))
    assert [name for name, _ in lowered.constants] == ["large"]
    assert len(lowered.module["main"].params) == 2


def test_one_kernel_serves_equal_nodes() -> None:
    region = Region()
    x = region.input(N, 8)
    for _ in range(5):
        x = region.build.emit("exp", x)
    functions = lower(region.finish(x)).module.functions
    assert len(functions) == 2


def test_views_of_inputs_and_of_other_outputs_are_not_fresh() -> None:
    region = Region()
    x = region.input(N, 4)
    view = region.build.emit("reshape", x, shape=(4 * N,))
    own = region.build.emit("exp", x)
    again = region.build.emit("expand_dims", own, axis=(0,))
    lowered = lower(region.finish(view, own, again, x))
    assert lowered.fresh_outputs == (False, True, False, False)


def test_symbols_that_no_input_binds_come_as_one_shape() -> None:
    region = Region()
    x = region.input(2 * N + 1, 3)
    y = region.build.emit("broadcast_to", x, shape=(M, 2 * N + 1, 3))
    z = region.build.emit("full", shape=(floordiv(N, 2) + M,), value=7, dtype=F32)
    graph = region.finish(y, z)
    assert lower(graph).symbols == ("M", "N")
    found = runner(graph, {"M": 2, "N": 5})(ones(11, 3))
    assert [f.shape for f in found] == [(2, 11, 3), (4,)]


def test_computed_sizes_are_plain_symbols_inside_of_kernels() -> None:
    region = Region()
    x = region.input(1, 2, N, 8)
    weight = region.build.constant(np.ones((3, 2, 3, 3), np.float32))
    window = {"strides": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    y = region.build.emit("relu", region.build.emit("conv", x, weight, **window))
    graph = region.finish(region.build.emit("max_pool", y, pool_size=(2, 2), **window))
    lowered = lower(graph)
    assert lowered.symbols == ()
    assert len(lowered.module["main"].params) == len(graph.inputs) + len(lowered.constants)
    (found,) = runner(graph)(ones(1, 2, 9, 8))
    assert found.shape == (1, 3, 3, 3)
    assert found.max() == 18


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_outside_stops_the_region_and_names_the_node(index: int) -> None:
    region = Region()
    x, indices = region.input(4, N), region.input(K, dtype="int64")
    y = region.build.emit("take", x, indices, axis=0, hint="picked")
    run = runner(region.finish(y))
    assert run(ones(4, 2), np.array([3, -4]))[0].shape == (2, 2)
    with pytest.raises(IndexError, match="picked: an index is outside an axis of size 4"):
        run(ones(4, 2), np.array([0, index]))
    assert run(ones(4, 2), np.zeros(0, np.int64))[0].shape == (0, 2)


def test_a_scatter_outside_stops_the_region() -> None:
    region = Region()
    x, indices, updates = region.input(4), region.input(K, dtype="int64"), region.input(K)
    run = runner(region.finish(region.build.emit("scatter_elements", x, indices, updates)))
    with pytest.raises(IndexError, match="outside an axis of size 4"):
        run(ones(4), np.array([9]), ones(1))


def test_constant_indices_that_fit_are_not_checked_again() -> None:
    region = Region()
    x = region.input(4, N)
    indices = region.build.constant(np.array([1, -1]))
    lowered = lower(region.finish(region.build.emit("take", x, indices, axis=0)))
    assert "guard" not in {str(v.name_hint) for v in lowered.module.functions}


def test_sizes_that_do_not_broadcast_stop_the_region() -> None:
    region = Region()
    a, b = region.input(N), region.input(M)
    run = runner(region.finish(region.build.emit("add", a, b, hint="sum")))
    assert run(ones(1), ones(3))[0].shape == (3,)
    assert run(ones(3), ones(3))[0].shape == (3,)
    with pytest.raises(IndexError, match=r"sum: a size \w does not broadcast to"):
        run(ones(3), ones(4))


def test_sizes_that_differ_stop_the_region() -> None:
    region = Region()
    a, b = region.input(N, 3), region.input(M, 3)
    weight = region.build.constant(np.ones((5, 4), np.float32))
    joined = region.build.emit("concat", a, b, axis=1)
    c = region.input(2, K)
    product = region.build.emit("matmul", c, weight)
    run = runner(region.finish(joined, product))
    assert run(ones(2, 3), ones(2, 3), ones(2, 5))[1][0, 0] == 5
    with pytest.raises(IndexError, match="sizes M and N differ"):
        run(ones(2, 3), ones(1, 3), ones(2, 5))
    with pytest.raises(IndexError, match="K elements on an axis where the weight has 5"):
        run(ones(2, 3), ones(2, 3), ones(2, 6))


def test_a_slice_outside_stops_the_region() -> None:
    region = Region()
    x = region.input(N, 2)
    y = region.build.emit("strided_slice", x, axes=(0,), begin=(2,), size=(1,), strides=(1,))
    run = runner(region.finish(y))
    assert run(ones(3, 2))[0].shape == (1, 2)
    with pytest.raises(IndexError, match="outside an axis of size N"):
        run(ones(2, 2))


def test_a_check_of_computed_sizes_spells_them_out() -> None:
    region = Region()
    x = region.input(N, 2)
    y = region.build.emit("strided_slice", x, axes=(0,), begin=(N - 3,), size=(2,), strides=(1,), hint="tail")
    run = runner(region.finish(y))
    assert run(ones(3, 2))[0].shape == (2, 2)
    with pytest.raises(IndexError, match=r"tail: elements N - 3 to .* are outside an axis of size N"):
        run(ones(2, 2))


def test_integer_division_cannot_trap() -> None:
    region = Region()
    a, b = region.input(N, dtype="int32"), region.input(N, dtype="int32")
    run = runner(region.finish(region.build.emit("divide", a, b), region.build.emit("floor_mod", a, b)))
    low = np.iinfo(np.int32).min
    quotient, rest = run(np.array([7, low, -7], np.int32), np.array([0, -1, 2], np.int32))
    assert quotient.tolist() == [0, low, -3]
    assert rest.tolist() == [0, 0, 1]


def test_reductions_over_nothing_give_their_neutral_element() -> None:
    region = Region()
    x = region.input(3, N)
    names = [region.build.emit(op, x, axis=1) for op in ("sum", "prod", "max", "min", "mean")]
    found = runner(region.finish(*names))(np.zeros((3, 0), np.float32))
    assert [float(f[0]) for f in found[:4]] == [0, 1, -np.inf, np.inf]
    assert np.isnan(found[4]).all()


def test_small_numbers_keep_their_digits() -> None:
    region = Region()
    x = region.input(N)
    names = [region.build.emit(op, x) for op in ("tanh", "log1p", "expm1", "sinh", "asinh")]
    small = np.array([1e-8, -3e-5], np.float32)
    for found in runner(region.finish(*names))(small):
        np.testing.assert_allclose(found, small, rtol=1e-4)


def test_ties_of_topk_go_to_the_lower_index() -> None:
    region = Region()
    x = region.input(N, 6)
    values, indices = region.build.emit_many("topk", (x,), {"k": 3})
    run = runner(region.finish(values, indices))
    found = run(np.array([[1, 2, 2, 0, 2, 2]], np.float32))
    assert found[1].tolist() == [[1, 2, 4]]


def test_a_tied_weight_is_packed_once() -> None:
    region = Region()
    x = region.input(N, 64)
    weight = region.build.constant(np.eye(64, dtype=np.float32), "weight")
    y = region.build.emit("matmul", region.build.emit("matmul", x, weight), weight)
    from hcomp.targets.cpu.codegen import build

    built = build(region.finish(y), "region")
    assert len(built.constants) == 1


def test_a_region_without_a_lowering_is_refused_by_name() -> None:
    region = Region()
    x = region.input(N, 4)
    y = region.build.emit("nonzero", x, hint="where_true")
    with pytest.raises(CodegenError, match="where_true: nonzero has no lowering"):
        lower(region.finish(y))


@pytest.mark.parametrize(
    ("dtype", "op", "attrs", "sentence"),
    [
        ("float8_e4m3fn", "add", {}, "the element type must be one of"),
        ("complex64", "add", {}, "the element type must be one of"),
        (F32, "nonzero", {}, "the size of its result depends on the values"),
        (F32, "pad", {"padding": (0, 1), "mode": "mirror"}, "the pad mode 'mirror' is not known"),
    ],
)
def test_the_processor_says_why_not(dtype: str, op: str, attrs: dict[str, Any], sentence: str) -> None:
    from hcomp.targets import find_target
    from hcomp.targets.cpu.support import placement_kind

    region = Region()
    x = region.input(N, dtype=dtype)
    region.build.emit_many(op, (x, x) if op == "add" else (x,), attrs)
    graph = region.build.finish([])
    assert sentence in find_target("cpu").why_not(graph, graph.nodes[0])
    assert placement_kind(graph, graph.nodes[0]) == "host"


def test_an_unknown_rank_is_left_to_the_host() -> None:
    from hcomp.targets import find_target

    build = GraphBuilder("region")
    x = build.input("x", TensorType(F32, None))
    build.emit("exp", x)
    graph = build.finish([])
    assert find_target("cpu").why_not(graph, graph.nodes[0]) == "its rank is known only at run time"


def test_work_counts_what_leaves_a_group_only() -> None:
    from hcomp.targets.work import work_of

    region = Region()
    x = region.input(4, 8)
    weight = region.build.constant(np.ones((8, 16), np.float32))
    y = region.build.emit("matmul", x, weight)
    z = region.build.emit("relu", y)
    graph = region.finish(z)
    work = work_of(graph, graph.nodes, {})
    assert work.flops["matmul"] == 2 * 4 * 8 * 16
    assert work.read == 4 * (4 * 8 + 8 * 16)
    assert work.written == 4 * 4 * 16
    assert work.kernels == 1


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_maximum_along_vectors_keeps_nan_wherever_it_is(name: str, dtype: str) -> None:
    region = Region()
    x = region.input(N, 75, dtype=dtype)
    rng = np.random.default_rng(3)
    array = rng.standard_normal((80, 75)).astype(dtype)
    array[range(75), range(75)] = np.nan  # one in every place: of the vectors, and of what they leave
    array[77] = -np.inf
    array[78] = np.inf
    (found,) = runner(region.finish(region.build.emit(name, x, axis=(1,), keepdims=False)))(array)
    np.testing.assert_array_equal(found, getattr(np, name)(array, axis=1))


def test_a_softmax_of_nan_or_nothing_is_nan_in_its_row_alone() -> None:
    region = Region()
    x = region.input(4, 70)
    array = np.random.default_rng(3).standard_normal((4, 70)).astype(np.float32)
    array[1, 66], array[2] = np.nan, -np.inf
    array[3, 5:] = -np.inf
    (found,) = runner(region.finish(region.build.emit("softmax", x, axis=-1)))(array)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
    assert (found[3, 5:] == 0).all()
    powers = np.exp(array[[0, 3]].astype(np.float64))
    np.testing.assert_allclose(found[[0, 3]], powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)
