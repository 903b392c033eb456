"""Writing programs: tensors against numpy, places, waits on random programs, and the order of a program."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from hcomp.errors import CodegenError
from hcomp.targets.npu.allocator import ALIGNMENT, Allocator
from hcomp.targets.npu.builder import Builder
from hcomp.targets.npu.device.hazards import find_races, legal_order
from hcomp.targets.npu.device.isa import OPS
from hcomp.targets.npu.device.machine import load_machine
from hcomp.targets.npu.device.program import Program, write_program
from hcomp.targets.npu.device.report import time_program
from hcomp.targets.npu.device.values import State
from hcomp.targets.npu.tensor import Tensor, merge_axes
from tests.npu_programs import random_program

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def array_of(tensor: Tensor) -> Any:
    """Return the addresses of a tensor's elements."""
    found = np.full(tensor.shape, tensor.address)
    for axis, (n, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
        found += (np.arange(n) * stride).reshape([-1 if i == axis else 1 for i in range(len(tensor.shape))])
    return found


def dense(shape: tuple[int, ...]) -> tuple[Tensor, Any]:
    return Tensor.dense("act", "int8", 100, shape), np.arange(100, 100 + math.prod(shape)).reshape(shape)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice", "new", "all"]))
        if kind == "new":
            found.append(None)
        if kind == "int":
            found.append(draw(st.integers(-n, n - 1)))
        else:
            found.append(draw(st.slices(n)) if kind == "slice" else slice(None))
    if draw(st.booleans()):
        found.append(...)
    return tuple(found)


@settings(max_examples=200)
@given(st.data(), SHAPES)
def test_a_tensor_is_indexed_and_turned_as_numpy_does(data: st.DataObject, shape: tuple[int, ...]) -> None:
    tensor, array = dense(shape)
    index = data.draw(indices(shape))
    part, expected = tensor[index], array[index]
    assert part.shape == expected.shape
    np.testing.assert_array_equal(array_of(part), expected)
    axes = data.draw(st.permutations(range(len(part.shape))))
    if axes:
        np.testing.assert_array_equal(array_of(part.transpose(*axes)), expected.transpose(axes))
    wide = (2, *part.shape)
    np.testing.assert_array_equal(array_of(part.broadcast_to(wide)), np.broadcast_to(expected, wide))


@settings(max_examples=200)
@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4).map(tuple))
def test_a_reshape_is_numpys_or_refused(data: st.DataObject, shape: tuple[int, ...]) -> None:
    tensor, array = dense(shape)
    axes = data.draw(st.permutations(range(len(shape))))
    tensor, array = tensor.transpose(*axes), array.transpose(axes)
    factors = [f for n in array.shape for f in ((2, 2) if n == 4 else (n,))]
    target: list[int] = []
    for factor in factors:
        if target and data.draw(st.booleans()):
            target[-1] *= factor
        else:
            target.append(factor)
    try:
        found = tensor.reshape(*target)
    except CodegenError:
        # numpy needs a copy too: it refuses to set the shape in place.
        with pytest.raises((AttributeError, ValueError)):
            array.reshape(target, copy=False)
    else:
        np.testing.assert_array_equal(array_of(found), array.reshape(target))


def test_wrong_tensors_are_refused() -> None:
    tensor, _ = dense((4, 6))
    for wrong in (
        lambda: tensor[4], lambda: tensor[0, 0, 0], lambda: tensor.transpose(0, 0), lambda: tensor.reshape(5, 5),
        lambda: tensor.broadcast_to((3, 6)), lambda: tensor.broadcast_to((6,)),
        lambda: tensor.transpose().reshape(24), lambda: tensor.windows((0,), (5,), (1,), (1,)),
    ):  # fmt: skip
        with pytest.raises(CodegenError):
            wrong()


@settings(max_examples=200)
@given(st.data(), SHAPES)
def test_merged_axes_walk_the_same_places(data: st.DataObject, shape: tuple[int, ...]) -> None:
    one = dense(shape)[0].transpose(*data.draw(st.permutations(range(len(shape)))))
    other = Tensor.dense("act", "int8", 0, one.shape)
    sizes, strides = merge_axes(one.shape, (one.strides, other.strides))
    for tensor, merged in zip((one, other), strides, strict=True):
        walked = array_of(replace(tensor, shape=sizes, strides=merged)).reshape(-1)
        np.testing.assert_array_equal(walked, array_of(tensor).reshape(-1))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 500)), max_size=60))
def test_places_never_overlap_and_a_free_machine_is_whole_again(steps: list[tuple[bool, int]]) -> None:
    allocator = Allocator("act", 2048)
    live: dict[int, int] = {}
    for take, number in steps:
        if take or not live:
            if allocator.largest() < max(number, 1):
                with pytest.raises(CodegenError, match="use smaller tiles"):
                    allocator.take(number)
                continue
            place = allocator.take(number)
            assert place % ALIGNMENT == 0
            assert place + number <= 2048
            assert all(place >= start + size or place + max(number, 1) <= start for start, size in live.items())
            live[place] = max(number, 1)
        else:
            place = sorted(live)[number % len(live)]
            allocator.give_back(place)
            del live[place]
    for place in live:
        allocator.give_back(place)
    assert allocator.largest() == 2048
    with pytest.raises(CodegenError, match="no block at 64 to free"):
        allocator.give_back(64)


def test_places_go_round() -> None:
    allocator = Allocator("act", 256)
    assert [allocator.take(64) for _ in range(4)] == [0, 64, 128, 192]
    allocator.give_back(0)
    allocator.give_back(128)
    # Behind the last one given, then from the start again.
    assert allocator.take(1) == 0
    assert allocator.take(1) == 128


# -- waits ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_random_programs_have_no_race_and_one_result(seed: int) -> None:
    program = random_program(seed)
    assert find_races(program) == []
    feeds = {"x": np.random.default_rng(seed).standard_normal((24, 40)).astype(np.float16)}
    results = []
    for order in (program.instructions, legal_order(program, seed), legal_order(program, seed + 1)):
        state = State(program, feeds)
        state.run(order)
        results.append(state.outputs()["y"].tobytes())
    assert len(set(results)) == 1


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_a_race_is_found_before_values_can_differ(seed: int, choice: int) -> None:
    """Whatever token is taken away: if some legal order gives another result, the search has found a race."""
    program = random_program(seed)
    tokens = [(i, e) for i, one in enumerate(program.instructions) for e, n in enumerate(one.wait) if n]
    assume(tokens)
    index, engine = tokens[choice % len(tokens)]
    changed = list(program.instructions)
    wait = tuple(0 if e == engine else n for e, n in enumerate(changed[index].wait))
    changed[index] = changed[index]._replace(wait=wait)
    loose = replace(program, instructions=changed)
    feeds = {"x": np.random.default_rng(seed).standard_normal((24, 40)).astype(np.float16)}
    results = set()
    for order_seed in range(4):
        state = State(loose, feeds)
        state.run(legal_order(loose, order_seed))
        results.add(b"".join(pad.tobytes() for pad in state.pads.values()) + state.outputs()["y"].tobytes())
    assert len(results) == 1 or find_races(loose, limit=1)


def tiled(count: int, *, reorder: bool) -> Program:
    """Return a program written tile by tile that no engine but one is busy in if its order stays as it is."""
    b = Builder("tiled", load_machine("edge"))
    x, w = b.input("x", "int8", (count, 64, 64)), b.input("w", "int8", (count, 64, 64))
    y = b.output("y", "int32", (count, 64, 64))
    for i in range(count):
        a, k, acc = (
            b.alloc("act", "int8", (64, 64)),
            b.alloc("wgt", "int8", (64, 64)),
            b.alloc("acc", "int32", (64, 64)),
        )
        b.load(a, x[i])
        b.load(k, w[i])
        b.gemm(acc, a, k)
        b.store(y[i], acc)
        b.free(a, k, acc)
    return b.finish(reorder=reorder)


def test_the_order_overlaps_loads_with_work() -> None:
    written, ordered = (time_program(tiled(12, reorder=reorder)).timeline for reorder in (False, True))
    assert ordered.cycles < 0.9 * written.cycles
    assert ordered.port_busy / ordered.cycles > 0.95
    first, second = (tiled(12, reorder=reorder) for reorder in (False, True))
    for engine in range(5):
        queues = [[one for one in p.instructions if OPS[one.op].engine == engine] for p in (first, second)]
        assert queues[0] == queues[1]
    assert write_program(tiled(12, reorder=True)) == write_program(second)


def test_writing_a_program_takes_time_in_proportion_to_it() -> None:
    """No step looks at all that came before: dependencies, places and order alike."""
    import time

    def seconds(count: int) -> float:
        start = time.process_time()
        tiled(count, reorder=True)
        return time.process_time() - start

    seconds(5)
    assert min(seconds(480) for _ in range(2)) < 16 * min(seconds(60) for _ in range(3))


def test_wrong_operations_are_refused() -> None:
    b = Builder("wrong", load_machine("edge"))
    t, u = b.alloc("act", "float32", (4, 8)), b.alloc("act", "float32", (4, 6))
    for wrong, message in (
        (lambda: b.vector("add", t, u, 1.0), r"\[4, 6\] does not broadcast to \[4, 8\]"),
        (lambda: b.vector("clip", t, t, low=0.0), "clip: the number 'high' is missing"),
        (lambda: b.vector("exp", t, t, slope=1.0), "exp has no number 'slope'"),
        (lambda: b.vector("sum", t, u), "sum: expected sources whose leading axes are"),
        (lambda: b.gemm(t, u, u), "gemm: "),
        # As many elements as it should have, of another shape.
        (lambda: b.gemm(t, u.reshape(6, 4), t[:, None][:3, 0]), r"gemm: \[6, 4\] x \[3, 8\] is no \[4, 8\]"),
        (lambda: b.vector("gemm", t, t, t), "expected an operation of the vector unit"),
        (lambda: b.vector("expp", t, t), "found expp of 1"),
        (lambda: b.vector("exp", t), "found exp of 0"),
        (lambda: b.vector("compress", t, t), "compress: the number 'bits' is missing"),
        (lambda: b.alloc("wgt", "int8", (1 << 20,)), "wgt has no block of 1048576 bytes: 131072 of 131072 are free"),
        (lambda: b.vector("compress", t, t, bits=4, block=32), "a row of 8 numbers takes 18 bytes, found 8"),
    ):
        with pytest.raises(CodegenError, match=message):
            wrong()
    seven = Tensor.dense("act", "float32", 0, (2,) * 7)
    odd = replace(seven, strides=tuple(3**i for i in range(7)))
    with pytest.raises(CodegenError, match=r"\(copy\): expected 1 to 6 sizes, found 7"):
        b.vector("copy", seven, odd)
    with pytest.raises(CodegenError, match=r"wrong: instruction 0 \(copy\): operand a: bytes .* are not inside act"):
        b.vector("copy", t, Tensor.dense("act", "float32", 1 << 30, (4, 8)))
