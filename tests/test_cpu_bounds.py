"""Chains of quantising and bounds are one expression, and NaN passes through them as through single operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from hcomp.codegen.relax_table.scalar import clip
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.schedule.bounds import is_bound, named_bounds
from hcomp.targets.cpu.schedule.inline import inlined
from hcomp.targets.cpu.schedule.stages import stages
from hcomp.testing import interpret
from tests.test_lowering import runner


def chain(steps: int) -> Graph:
    """Return quantising with the numbers kept as floats, and relu, `steps` times."""
    b = GraphBuilder("g")
    y = b.input("x", TensorType("float32", (4, 33)))
    for step in range(steps):
        scale = b.constant(np.float32(0.1 + step))
        whole = b.emit("round", b.emit("divide", y, scale))
        y = b.emit("multiply", b.emit("clip", whole, min=-20.0, max=30.0), scale)
        y = b.emit("relu", b.emit("add", y, b.constant(np.float32(0.7))))
    return b.finish([y])


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_chains_keep_nan(steps: int) -> None:
    graph = chain(steps)
    x = np.random.default_rng(steps).normal(0, 3, (4, 33)).astype(np.float32)
    x[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    (wanted,) = interpret(graph, {"x": x}).values()
    (found,) = runner(graph)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert np.isnan(found[0, 0])


def test_long_chains_become_one_stage() -> None:
    def applied(x: te.Tensor, function: Callable[[Any], Any]) -> te.Tensor:
        return te.compute((64,), lambda i: function(x[i].asobject()))

    first = last = te.placeholder((64,), "float32", "x")
    for _ in range(4):
        last = applied(last, lambda x: tirx.nearbyint(x * 3.0))
        # Without names each bound would double what is below it.
        last = applied(last, lambda x: clip({"min": -20.0, "max": 30.0}, x))
    func = te.create_prim_func([first, last])
    assert len(stages(inlined(func).mod["main"])) == 1


def test_only_bounds_are_named() -> None:
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
    low = tirx.const(0.5, "float32")
    out = tirx.decl_buffer((8,), "float32")
    values = [
        tirx.Select(tirx.LT(x, low), low, x),
        tirx.Select(tirx.GT(x, low), low, x),
        tirx.Select(tirx.LT(low, x), low, x),
        tirx.Select(tirx.GT(low, x), low, x),
        tirx.Select(tirx.LT(y, low), low, x),
        tirx.Select(tirx.LT(x, low), x, low),
        tirx.Select(tirx.LT(x, low), tirx.const(0.25, "float32"), x),
    ]
    stores = [tirx.BufferStore(out, value, [i]) for i, value in enumerate(values)]
    named = named_bounds(tirx.PrimFunc([x, y, out], tirx.SeqStmt(stores)))
    calls: list[bool] = []
    tvm_ffi.structural_walk(named.body, (tvm.ir.Call, lambda call: calls.append(is_bound(call))))
    assert calls == [True] * 4
