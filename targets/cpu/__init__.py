"""The processor that hcomp runs on: kernels by TVM and LLVM with our schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hcomp.ir.graph import Graph
from hcomp.targets.base import EmittedRegion, Options, Progress, Sizes, Target
from hcomp.targets.cpu.cost import cost
from hcomp.targets.cpu.support import RULES, trial
from hcomp.tuning import Tuning


def _emit(graph: Graph, name: str, options: Options) -> EmittedRegion:
    from hcomp.targets.cpu.codegen import emit  # late: it loads TVM

    return emit(graph, name, options)


def _tune(parts: Sequence[Graph], sizes: Sizes, tuning: Tuning, seconds: float, progress: Progress) -> None:
    from hcomp.targets.cpu.tune import processor_key, tune

    own = tuning.processors.setdefault(processor_key(), {})
    own.update(tune(parts, sizes, own, seconds, progress))


def _options(tuning: Tuning) -> Options:
    from hcomp.targets.cpu.tune import processor_key

    return {"tuning": tuning.choices(processor_key())}


def _state() -> tuple[str, str]:
    from hcomp.targets.cpu.features import CpuFeatures

    host = CpuFeatures.host()
    return "real", f"{host.mcpu}, {host.cores} core(s), {8 * host.vector_bytes}-bit vectors"


def _requirements() -> Mapping[str, Any]:
    from hcomp.targets.cpu.codegen import requirements

    return requirements()


CPU = Target(
    name="cpu", kind="cpu", memory="host", rules=RULES, cost=cost, emit=_emit, trial=trial,
    executor="vm", state=_state, requirements=_requirements, tune=_tune, tuned_options=_options,
)  # fmt: skip
