"""What a user reads when kernels cannot be built: the node; and Ctrl-C stays Ctrl-C."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm

from hcomp.assemble import _naming_node
from hcomp.codegen.kernels import build_region
from hcomp.codegen.relax_module import lower_region
from hcomp.errors import CodegenError
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.graph import Graph, Origin
from hcomp.ir.types import TensorType
from hcomp.targets import load_targets


def small() -> Graph:
    build = GraphBuilder("g")
    x = build.input("x", TensorType("float32", (4,)))
    with build.at(Origin("first", "Exp")):
        y = build.emit("exp", x)
    with build.at(Origin("second", "Tanh")):
        z = build.emit("tanh", y)
    return build.finish((z,))


def test_the_node_that_fails_alone_is_named() -> None:
    def emit(graph: Graph, name: str, options: Any) -> Any:
        if any(node.op == "tanh" for node in graph.nodes):
            raise CodegenError("rule 'row-wise' failed on kernel 'fused': (not rendered)")

    target = replace(load_targets(("cpu",))["cpu"], emit=emit)
    found = _naming_node(CodegenError("rule failed: (not rendered)"), small(), target)
    assert str(found) == "node 'second' (tanh): rule failed: TVM gives no reason"
    together = _naming_node(CodegenError("too much"), small(), replace(target, emit=lambda *_: None))
    assert str(together) == "region g (first, second): too much"
    assert str(_naming_node(CodegenError("second: no"), small(), target)) == "second: no"


def test_an_interrupt_while_tvm_runs_surfaces_as_one() -> None:
    @tvm.ir.transform.module_pass(opt_level=0)
    def interrupted(module: Any, context: Any) -> Any:
        raise KeyboardInterrupt

    lowered = lower_region(small())
    with pytest.raises(KeyboardInterrupt):
        build_region(lowered, tvm.target.Target("llvm"), interrupted)
