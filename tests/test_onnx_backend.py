"""The backend interface of ONNX."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hcomp.onnx_backend as backend
from hcomp import HcompError
from models import MODELS


def test_prepare_and_run_in_order_and_by_name() -> None:
    model, feeds = MODELS["mlp"]()
    rep = backend.prepare(model, "CPU")
    (by_order,) = rep.run(list(feeds.values()))
    (by_name,) = rep.run(feeds)
    np.testing.assert_array_equal(by_order, by_name)
    (again,) = backend.run_model(model, list(feeds.values()))
    np.testing.assert_array_equal(by_order, again)


def test_run_node() -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    (total,) = backend.run_node(node, [np.float32([1, 2]), np.float32([3, 4])])
    np.testing.assert_array_equal(total, np.float32([4, 6]))


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(HcompError, match="CUDA"):
        backend.prepare(MODELS["mlp"]()[0], "CUDA")
