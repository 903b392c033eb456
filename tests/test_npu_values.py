"""What each operation computes, on views of any kind, against the specification written a second time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from hcomp.errors import RunError
from hcomp.targets.npu.builder import Builder
from hcomp.targets.npu.device import functions
from hcomp.targets.npu.device.isa import FLOATS, OPS, packed_bytes
from hcomp.targets.npu.device.machine import load_machine
from hcomp.targets.npu.device.program import Buffer
from hcomp.targets.npu.device.values import run_program
from hcomp.targets.npu.tensor import Tensor
from tests import npu_reference as reference
from tests.npu_programs import gemm_requantize

Array = NDArray[Any]
EDGE = load_machine("edge")
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38, 0.5, 1.5, 2.5, 127.5, -128.5, 65520.0])
EXAMPLES = settings(max_examples=30)


def stored(array: Array) -> tuple[Array, str]:
    """Return an array as the machine stores it, and the type's name."""
    bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return bits, array.dtype.name


def make(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], *, special: bool = True) -> Array:
    """Return numbers of a type, small ones and special ones."""
    if "float" not in dtype:
        info = np.iinfo(dtype)
        wide = rng.integers(info.min, info.max, shape, endpoint=True)
        return np.where(rng.random(shape) < 0.5, wide, wide % 7).astype(dtype)
    values = rng.standard_normal(shape) * rng.choice([0.1, 1.0, 30.0])
    if special:
        values = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), values)
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(reference.NUMPY[dtype])


class Bench:
    """A program of one operation whose operands are views: parts of larger tensors, turned, flipped, repeated."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder("bench", EDGE)

    def operand(
        self, dtype: str, shape: tuple[int, ...], *, repeat: bool = True, special: bool = True, whole: int = 0
    ) -> tuple[Tensor, Array]:
        """Return a source in a scratchpad and its numbers; the last `whole` axes are never repeated."""
        rng, n = self.rng, len(shape)
        repeated = [repeat and i < n - whole and rng.random() < 0.25 for i in range(n)]
        order = rng.permutation(n)
        steps = [int(rng.integers(1, 3)) for _ in order]
        extra = [int(rng.integers(0, 2)) for _ in order]
        inner = [1 if repeated[axis] else shape[axis] for axis in order]
        array = make(rng, dtype, tuple(m * s + e for m, s, e in zip(inner, steps, extra, strict=True)), special=special)
        tensor = self.place(array)
        index = tuple(slice(e, e + m * s, s) for m, s, e in zip(inner, steps, extra, strict=True))
        back = tuple(int(i) for i in np.argsort(order))
        flips = tuple(slice(None, None, -1 if rng.random() < 0.2 else 1) for _ in shape)
        # A negative step over a whole axis: numpy's slices and the tensor's are the same.
        part, numbers = tensor[index].transpose(*back)[flips], array[index].transpose(back)[flips]
        return part.broadcast_to(shape), np.broadcast_to(numbers, shape)

    def place(self, array: Array) -> Tensor:
        """Return an array in some scratchpad."""
        bits, dtype = stored(array)
        tensor = self.builder.alloc(str(self.rng.choice(["act", "wgt", "acc"])), dtype, array.shape)
        self.builder.load(tensor, self.builder.constant(f"c{len(self.builder.buffers)}", bits, dtype))
        return tensor

    def target(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """Return a destination: every second element of a larger place, its axes turned."""
        order = self.rng.permutation(len(shape))
        tensor = self.builder.alloc("act", dtype, tuple(shape[i] * 2 for i in order))
        index = tuple(slice(int(self.rng.integers(0, 2)), None, 2) for _ in order)
        return tensor[index].transpose(*(int(i) for i in np.argsort(order)))

    def result(self, tensor: Tensor) -> Array:
        """Return what the program leaves in a tensor."""
        self.builder.store(self.builder.output("y", tensor.dtype, tensor.shape), tensor)
        return run_program(self.builder.finish(), {})["y"].view(reference.NUMPY[tensor.dtype])


def assert_same(found: Array, expected: Array) -> None:
    """Check equality to the last bit; any NaN is one, and so is any zero."""
    assert found.dtype == expected.dtype
    wide = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(*wide)


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**32)
ELEMENTWISE = [name for name, op in OPS.items() if op.form in ("map", "select")]
NUMBERS = {"slope": 0.25, "offset": 0.5, "low": -1.5, "high": 2.25}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    op = OPS[name]

    @EXAMPLES
    @given(SHAPES, SEEDS, st.data())
    def check(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
        bench = Bench(seed)
        dtype = data.draw(st.sampled_from(op.d))
        sources, numbers = [], []
        for source in op.sources:
            if source in op.same:
                tensor, array = bench.operand(dtype, shape)
            else:
                tensor, array = bench.operand(data.draw(st.sampled_from(getattr(op, source))), shape)
            sources.append(tensor)
            numbers.append(array)
        imm = {key: NUMBERS[key] for key, kind in op.imm if kind == "f"}
        if op.imm and op.imm[0][0] == "zero":
            imm = {"zero": 3, "low": 0, "high": 100}
        target = bench.target(dtype, shape)
        bench.builder.vector(name, target, *sources, **imm)
        with np.errstate(all="ignore"):
            expected = reference.elementwise(name, dtype, numbers, list(imm.values()))
        assert_same(bench.result(target), expected)

    check()


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.form == "reduce"])
def test_reductions(name: str) -> None:
    op = OPS[name]

    @EXAMPLES
    @given(SHAPES, SEEDS, st.data())
    def check(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
        bench = Bench(seed)
        axes = data.draw(st.integers(1, len(shape)))
        types = [data.draw(st.sampled_from(getattr(op, source))) for source in op.sources]
        operands = [bench.operand(kind, shape, special=False) for kind in types]
        kept = shape[: len(shape) - axes]
        dtype = data.draw(st.sampled_from(op.d))
        target = bench.target(dtype, kept) if kept else bench.builder.alloc("act", dtype, ())
        imm = {"scale": 0.3} if len(op.imm) == 2 else {}
        bench.builder.vector(name, target, *(tensor for tensor, _ in operands), **imm)
        expected = np.empty(kept, reference.NUMPY[dtype])
        with np.errstate(all="ignore"):
            for index in np.ndindex(kept):
                parts = [array[index].reshape(-1) for _, array in operands]
                if name == "idot":
                    total = sum(int(a) * int(b) for a, b in zip(*parts, strict=True))
                    expected[index] = reference.hold(reference.wrap(total), dtype)
                else:
                    row = [math.prod(map(np.float32, values)) for values in zip(*parts, strict=True)]
                    expected[index] = reference.store_float(reference.reduce(name, row, 0.3), dtype)
        assert_same(bench.result(target), expected)

    check()


@pytest.mark.parametrize(("name", "number"), [("softmax", "scale"), ("layer_norm", "epsilon"), ("rms_norm", "epsilon")])
def test_rows(name: str, number: str) -> None:
    @EXAMPLES
    @given(SHAPES, st.integers(1, 21), SEEDS, st.data())
    def check(outer: tuple[int, ...], size: int, seed: int, data: st.DataObject) -> None:
        bench, shape = Bench(seed), (*outer[:3], size)
        operands = [bench.operand(data.draw(st.sampled_from(FLOATS)), shape, special=False) for _ in OPS[name].sources]
        dtype = data.draw(st.sampled_from(FLOATS))
        target = bench.target(dtype, shape)
        bench.builder.vector(name, target, *(tensor for tensor, _ in operands), **{number: 0.125})
        x, *rest = (array.astype(np.float32) for _, array in operands)
        expected = np.empty(shape, reference.NUMPY[dtype])
        for index in np.ndindex(shape[:-1]):
            expected[index] = reference.row(name, x[index], [r[index] for r in rest], [0.125])
        assert_same(bench.result(target), expected)

    check()


@EXAMPLES
@given(SHAPES, st.integers(1, 9), st.booleans(), SEEDS, st.sampled_from(FLOATS))
def test_rope(outer: tuple[int, ...], half: int, interleaved: bool, seed: int, dtype: str) -> None:
    bench, shape = Bench(seed), (*outer[:3], 2 * half)
    x, numbers = bench.operand(dtype, shape, special=False)
    tables = [bench.operand("float32", (*shape[:-1], half), special=False) for _ in range(2)]
    target = bench.target(dtype, shape)
    bench.builder.vector("rope", target, x, *(tensor for tensor, _ in tables), interleaved=int(interleaved))
    expected = np.empty(shape, reference.NUMPY[dtype])
    wide = numbers.astype(np.float32)
    for *index, i in np.ndindex((*shape[:-1], half)):
        one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        p, q = wide[(*index, one)], wide[(*index, two)]
        c, s = (array[(*index, i)] for _, array in tables)
        expected[(*index, one)] = p * c - q * s
        expected[(*index, two)] = q * c + p * s
    assert_same(bench.result(target), expected)


@EXAMPLES
@given(SHAPES, st.integers(1, 40), st.sampled_from([4, 8]), st.sampled_from([2, 8, 32]), SEEDS, st.sampled_from(FLOATS))
def test_compress_and_expand(outer: tuple[int, ...], size: int, bits: int, block: int, seed: int, dtype: str) -> None:
    shape, width = (*outer[:2], size), packed_bytes(size, bits, block)
    most = 2 ** (bits - 1) - 1
    bench = Bench(seed)
    x, numbers = bench.operand(dtype, shape, special=False)
    packed = bench.builder.alloc("wgt", "uint8", (*shape[:-1], width))
    bench.builder.vector("compress", packed, x, bits=bits, block=block)
    expected = np.zeros((*shape[:-1], width), np.uint8)
    values = np.zeros(shape, np.float32)
    for index in np.ndindex(shape[:-1]):
        for start in range(0, size, block):
            part = np.zeros(block, np.float32)
            part[: size - start] = numbers[index].astype(np.float32)[start : start + block]
            scale = np.float16(np.abs(part).max() / np.float32(most))
            levels = [round(float(v / np.float32(scale))) if scale else 0 for v in part]
            levels = [min(max(level, -most), most) for level in levels]
            data = scale.tobytes()
            if bits == 8:
                data += bytes(level & 255 for level in levels)
            else:
                data += bytes(low & 15 | (high & 15) << 4 for low, high in zip(levels[::2], levels[1::2], strict=True))
            place = start // block * len(data)
            expected[index][place : place + len(data)] = np.frombuffer(data, np.uint8)
            wide = np.array(levels, np.float32) * np.float32(scale)
            values[index][start : start + block] = wide[: size - start]
    assert_same(bench.result(packed), expected)
    bench = Bench(seed)
    target = bench.target(dtype, shape)
    bench.builder.vector("expand", target, bench.place(expected), bits=bits, block=block)
    assert_same(bench.result(target), values.astype(reference.NUMPY[dtype]))


GEMM_TYPES = st.sampled_from(
    [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("float16",) * 2, ("bfloat16",) * 2]
)
DIMS = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60)
@given(DIMS, DIMS, st.integers(1, 9), GEMM_TYPES, st.booleans(), st.integers(0, 1), SEEDS)
def test_gemm(
    m: tuple[int, ...], k: tuple[int, ...], n: int, types: tuple[str, str], accumulate: bool, flow: int, seed: int
) -> None:
    bench = Bench(seed)
    integer = "int" in types[0]
    rows, depth = math.prod(m), math.prod(k)
    left, right = (
        make(bench.rng, types[0], (*k, *m), special=False),
        make(bench.rng, types[1], (n, depth), special=False),
    )
    b = bench.builder
    places = []
    for space, array in (("act", left), ("wgt", right)):
        bits, dtype = stored(array)
        places.append(b.alloc(space, dtype, array.shape))
        b.load(places[-1], b.constant(space, bits, dtype))
    zeros = [int(bench.rng.integers(np.iinfo(t).min, np.iinfo(t).max)) if integer else 0 for t in types]
    start = make(bench.rng, "int32" if integer else "float32", (rows, n), special=False)
    acc = b.alloc("acc", start.dtype.name, start.shape)
    b.load(acc, b.constant("start", start))
    axes = (*range(len(k), len(k) + len(m)), *range(len(k)))
    a = places[0].transpose(*axes)
    b.gemm(
        acc, a, places[1].transpose(), inner=len(k), accumulate=accumulate, flow=flow, a_zero=zeros[0], b_zero=zeros[1]
    )
    x, w = left.transpose(axes).reshape(rows, depth), right.T
    kind: Any = np.int64 if integer else np.float64
    sums = (x.astype(kind) - zeros[0]) @ (w.astype(kind) - zeros[1])
    sums = sums.astype(start.dtype)
    assert_same(bench.result(acc), sums + start if accumulate else sums)


@pytest.mark.parametrize(("size", "value"), [(1, 1), (255, 127), (2001, 127), (66051, 127)])
def test_sums_of_integers_are_exact_however_long(size: int, value: int) -> None:
    """From 2^24 on float32 has no odd numbers; from 2^31 on int32 wraps round."""
    b = Builder("long", EDGE)
    x, w, acc = b.alloc("act", "uint8", (1, size)), b.alloc("wgt", "int8", (size, 1)), b.alloc("acc", "int32", (1, 1))
    b.load(x, b.constant("x", np.full((1, size), 255, np.uint8)))
    b.load(w, b.constant("w", np.full((size, 1), value, np.int8)))
    b.gemm(acc, x, w, b_zero=-128)
    b.store(b.output("y", "int32", (1, 1)), acc)
    assert run_program(b.finish(), {})["y"][0, 0] == reference.wrap(255 * (value + 128) * size)


# -- against ONNX Runtime -------------------------------------------------------------------------


def ort_node(op: str, arrays: dict[str, Array], opset: int = 21) -> Array:
    """Return what ONNX Runtime computes."""
    import onnxruntime
    from onnx import helper, numpy_helper

    node = helper.make_node(op, list(arrays), ["y"])
    given = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    output = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", [], [output], given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {})
    return np.asarray(found)


def elementwise_result(op: str, dtype: str, arrays: tuple[Array, ...], **imm: float) -> Array:
    bench = Bench(0)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    target = bench.builder.alloc("act", dtype, shape)
    bench.builder.vector(op, target, *(bench.place(array) for array in arrays), **imm)
    return bench.result(target)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_levels_are_those_of_onnx_runtime(dtype: str) -> None:
    rng = np.random.default_rng(1)
    # Halves are between two levels: they go to the even one.
    x = np.concatenate([np.arange(-300, 300) / 4, rng.standard_normal(1000) * 50]).astype(np.float32)
    scale, zero = np.array(0.5, np.float32), np.array(7, dtype)
    levels = ort_node("QuantizeLinear", {"x": x, "s": scale, "z": zero})
    assert_same(elementwise_result("quantize", dtype, (x, scale, zero)), levels)
    numbers = ort_node("DequantizeLinear", {"x": levels, "s": scale, "z": zero})
    assert_same(elementwise_result("dequantize", "float32", (levels, scale, zero)), numbers)


def test_requantized_products_are_those_of_onnx_runtime() -> None:
    rng = np.random.default_rng(2)
    m, k, n = 37, 64, 29
    # Of two uint8: with int8 weights, ONNX Runtime saturates sums of two products on some processors.
    x, w = (rng.integers(0, 256, shape, np.uint8) for shape in ((m, k), (k, n)))
    a_scale, y_scale = np.float32(0.02), np.float32(0.31)
    b_scale = rng.uniform(0.002, 0.02, n).astype(np.float32)
    arrays = {
        "a": x, "as": np.array(a_scale), "az": np.array(121, np.uint8), "b": w, "bs": b_scale,
        "bz": np.full(n, 126, np.uint8), "ys": np.array(y_scale), "yz": np.array(130, np.uint8),
    }  # fmt: skip
    expected = ort_node("QLinearMatMul", arrays)
    sums = ((x.astype(np.int64) - 121) @ (w.astype(np.int64) - 126)).astype(np.int32)
    scale = (a_scale * b_scale / y_scale).astype(np.float32)
    found = elementwise_result("requantize", "uint8", (sums, scale), zero=130)
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.999
    # Halves, which random numbers do not meet.
    ties = np.arange(-9, 10, dtype=np.int32)
    found = elementwise_result("requantize", "int8", (ties, np.array([0.5], np.float32)))
    assert_same(found, np.array([round(int(v) / 2) for v in ties], np.int8))


@EXAMPLES
@given(SHAPES, SEEDS, st.sampled_from(["int8", "uint8", "int32", *FLOATS]), st.data())
def test_loads_with_padding(shape: tuple[int, ...], seed: int, dtype: str, data: st.DataObject) -> None:
    bench = Bench(seed)
    pad = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape]
    fill = data.draw(st.sampled_from([0.0, 3.0, 100.0] if dtype in ("int8", "uint8") else [0.0, -7.0, 100.0]))
    array = make(bench.rng, dtype, tuple(reversed(shape)))
    bits, name = stored(array)
    source = bench.builder.constant("x", bits, name).transpose()
    target = bench.builder.alloc("act", dtype, tuple(n + b + a for n, (b, a) in zip(shape, pad, strict=True)))
    bench.builder.load(target, source, pad=pad, fill=fill)
    value = np.array(fill, reference.NUMPY[dtype])
    expected = np.full(target.shape, value, reference.NUMPY[dtype])
    expected[tuple(slice(b, b + n) for n, (b, _) in zip(shape, pad, strict=True))] = array.T
    assert_same(bench.result(target), expected)


ACCURATE: dict[str, Callable[[float], float]] = {
    "exp": math.exp, "log": math.log, "tanh": math.tanh, "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x)),
}  # fmt: skip
RANGES = {
    "exp": (-87.0, 88.0),
    "log": (1e-30, 1e30),
    "tanh": (-10.0, 10.0),
    "erf": (-5.0, 5.0),
    "sigmoid": (-80.0, 80.0),
}

UNITS = {"exp": 1.0, "log": 0.9, "tanh": 1.3, "erf": 1.3, "sigmoid": 2.0}
"""Of the last place; as README.md says."""


@pytest.mark.parametrize("name", ACCURATE)
def test_functions_are_accurate(name: str) -> None:
    rng = np.random.default_rng(0)
    low, high = RANGES[name]
    x = np.exp(rng.uniform(math.log(low), math.log(high), 20000)) if low > 0 else rng.uniform(low, high, 20000)
    x = np.concatenate([x, rng.uniform(0.5, 2, 20000)]).astype(np.float32)
    exact = np.array([ACCURATE[name](float(v)) for v in x])
    found = getattr(functions, name)(x).astype(np.float64)
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(found - exact) / unit).max() <= UNITS[name]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "the input 'x' of uint8[20, 30] is missing"),
        ({"x": np.zeros((20, 30), np.uint8), "z": np.zeros(1)}, "no input is called 'z': there are x"),
        ({"x": np.zeros((20, 30), np.int8)}, "expected uint8[20, 30], found int8[20, 30]"),
        ({"x": np.zeros((20, 31), np.uint8)}, "expected uint8[20, 30], found uint8[20, 31]"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, Array], message: str) -> None:
    with pytest.raises(RunError) as caught:
        run_program(gemm_requantize(20, 10, 30).program, inputs)
    assert message in str(caught.value)


def test_a_program_that_needs_more_memory_than_there_is_takes_none() -> None:
    program = gemm_requantize(20, 10, 30).program
    huge = replace(program, buffers=(*program.buffers, Buffer("huge", "scratch", "int8", (1 << 43,), 1 << 20)))
    with pytest.raises(RunError, match="this computer has"):
        run_program(huge, {})
