"""ONNX operators that address elements: gather, scatter, one-hot, compress, non-zero, unique."""

import numpy as np
import pytest

from hcomp.errors import RunError
from hcomp.testing import interpret, random_array
from tests.onnx_case import Case, captured, case, check, params_of


def f32(*shape: int) -> np.ndarray:
    return random_array("float32", shape, "index")


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = f32(3, 4, 5)
GRID = np.array([[0, 2, 1], [1, -1, 0]], np.int64)

GATHERS = [
    *(case("Gather", X, GRID[:, :a], axis=b) for a, b in ((3, 0), (2, 1), (3, -1))),
    case("Gather", X, np.int32(1)),
    case("Gather", X, np.int64(-1), axis=1, params=[1]),
    case("Gather", np.array([5, 6, 7], np.int8), GRID),
    case("Gather", X > 0, i64(2, 0), axis=2),
    case("GatherElements", f32(3, 4), np.array([[0, -1], [2, 1]], np.int64)),
    case("GatherElements", f32(3, 4), np.array([[0, -1], [2, 1]], np.int32), axis=1),
    case("GatherND", X, np.array([[0, 1], [2, -1]], np.int64), params=[1]),
    case("GatherND", X, np.array([[0, 1, 2]], np.int64), params=[1]),
    case("GatherND", X, np.array([[[1], [0]], [[3], [2]], [[0], [0]]], np.int64), batch_dims=1, params=[1]),
]

SCATTERS = [
    *(
        case("ScatterElements", f32(3, 4), np.array([[0, 1], [2, -1]], np.int64), f32(2, 2), axis=a, opset=v)
        for a in (0, 1)
        for v in (11, 18)
    ),
    *(
        case("ScatterElements", f32(4), i64(1, 1, 3), f32(3), reduction=r, opset=18)
        for r in ("add", "mul", "max", "min")
    ),
    case("Scatter", f32(3, 4), np.array([[0, 1], [2, 0]], np.int64), f32(2, 2), opset=9),
    case("ScatterND", X, np.array([[0], [2]], np.int64), f32(2, 4, 5), params=[1]),
    case("ScatterND", X, np.array([[0, 1], [2, -1]], np.int64), f32(2, 5), opset=11, params=[1]),
    *(
        case("ScatterND", X, np.array([[0, 1], [0, 1]], np.int64), f32(2, 5), reduction=r, params=[1])
        for r in ("add", "mul", "max", "min")
    ),
]

PICKS = [
    *(
        case("OneHot", i64(0, 2, -1, 7), depth, np.float32([0.5, 2]), params=[1], axis=a)
        for a in (-1, 0, 1)
        for depth in (np.int64(3), i64(3))
    ),
    case("OneHot", np.array([[0, 1], [1, 1]], np.int64), np.int64(2), i64(0, 1), params=[1, 2], axis=1),
    case("OneHot", np.float32([0, 1, 2]), np.float32(3), np.float32([0, 1]), params=[1], forms=["static", "late"]),
    case("Compress", X, np.array([True, False, True]), axis=0),
    case("Compress", X, np.array([False, True]), axis=-1),
    case("Compress", X, np.array([True, False, True, True])),
    case("NonZero", np.float32([[1, 0, 2], [0, 0, 3]])),
    case("NonZero", np.array([True, False, True])),
    case("NonZero", np.zeros((2, 2), np.int64)),
    case("Unique", np.float32([2, 1, 1, 3, 4, 3]), outputs=4),
    case("Unique", np.float32([2, 1, 1, 3, 4, 3]), outputs=4, sorted=0),
    case("Unique", np.float32([[1, 0, 0], [1, 0, 0], [2, 3, 4]]), outputs=4, axis=0),
    case("Unique", i64(3, 1, 3), outputs=1),
    case("ReverseSequence", f32(4, 3, 2), i64(1, 4, 2), time_axis=0, batch_axis=1),
    case("ReverseSequence", f32(3, 4), i64(1, 4, 2), time_axis=1, batch_axis=0),
]


@pytest.mark.parametrize(**params_of([*GATHERS, *SCATTERS, *PICKS]))
def test_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("index", [3, -4, 2**40])
def test_an_index_outside_is_an_error(index: int) -> None:
    graph = captured(case("Gather", X, i64(index)), "static")
    with pytest.raises(RunError, match=f"index {index} is outside axis 0 of size 3"):
        interpret(graph, {"i0": X, "i1": i64(index)})


@pytest.mark.parametrize(("mode", "start"), [("linear", 1), ("circular", 3)])
@pytest.mark.parametrize("form", ["static", "symbolic"])
def test_tensor_scatter_writes_from_each_batch_index_on(mode: str, start: int, form: str) -> None:
    cache, update = f32(2, 3, 4, 5), f32(2, 3, 2, 5)
    begins = i64(start, 0)
    expected = cache.copy()
    for b in range(2):
        for i in range(2):
            expected[b, :, (begins[b] + i) % 4] = update[b, :, i]
    check(case("TensorScatter", cache, update, begins, mode=mode, opset=24, expected=[expected]), form)


def test_tensor_scatter_starts_at_the_front_without_indices() -> None:
    cache, update = f32(2, 4, 5), f32(2, 3, 5)
    expected = np.concatenate([update, cache[:, 3:]], axis=1)
    check(case("TensorScatter", cache, update, opset=24, expected=[expected]), "static")


def test_the_positions_of_a_scalar_have_no_rows() -> None:
    check(case("NonZero", np.float32(3), expected=[np.zeros((0, 1), np.int64)]), "static")
