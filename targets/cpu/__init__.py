"""The processor that hcomp runs on: kernels by TVM and LLVM with our schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hcomp.ir.graph import Graph
from hcomp.targets.base import EmittedRegion, Options, Target
from hcomp.targets.cpu.cost import cost
from hcomp.targets.cpu.support import RULES, trial


def _emit(graph: Graph, name: str, options: Options) -> EmittedRegion:
    from hcomp.targets.cpu.codegen import emit  # late: it loads TVM

    return emit(graph, name, options)


def _state() -> tuple[str, str]:
    from hcomp.targets.cpu.features import CpuFeatures

    host = CpuFeatures.host()
    return "real", f"{host.mcpu}, {host.cores} core(s), {8 * host.vector_bytes}-bit vectors"


def _requirements() -> Mapping[str, Any]:
    from hcomp.targets.cpu.codegen import requirements

    return requirements()


CPU = Target(
    name="cpu", kind="cpu", memory="host", rules=RULES, cost=cost, emit=_emit, trial=trial,
    executor="vm", state=_state, requirements=_requirements,
)  # fmt: skip
