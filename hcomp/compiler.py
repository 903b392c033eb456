"""THE PAGE: how a model becomes a program, stage by stage."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcomp import __version__
from hcomp.assemble import assemble
from hcomp.cache import cache_key, find, keep
from hcomp.capture import capture_model
from hcomp.errors import PolicyError
from hcomp.ir.graph import Graph
from hcomp.ir.printer import print_graph
from hcomp.options import CompileOptions, compile_options
from hcomp.partition.pins import parse_pin
from hcomp.partition.plan import Plan
from hcomp.partition.plan_json import plan_to_json
from hcomp.partition.planner import Options, make_plan
from hcomp.partition.regions import planned_graphs
from hcomp.partition.report import PlanReport
from hcomp.passes import PIPELINE
from hcomp.pipeline import run_pipeline
from hcomp.program import Program
from hcomp.stopwatch import Stopwatch
from hcomp.targets import load_targets
from hcomp.targets.base import Progress
from hcomp.tuning import default_file, read_tuning, write_tuning

if TYPE_CHECKING:
    from onnx import ModelProto

    from hcomp.artifact.store import Artifact

LOG = logging.getLogger(__name__)


def compile_model(model: str | os.PathLike[str] | ModelProto, **options: Any) -> Program:
    """Return the program that runs `model`, a path to an ONNX file or a ModelProto.

    Options are those of `hcomp.options.compile_options`: devices, objective, pins, shapes, sizes,
    strict, threads, cache, tune, tuning.

    Raises:
        HcompError: the model, an option or the plan is refused; the class names the stage.
    """
    chosen = compile_options(**options)
    load_targets(chosen.devices)
    source = Path(model) if isinstance(model, str | os.PathLike) else None
    clock = Stopwatch()
    if chosen.tune:
        with clock.stage("tune"):
            chosen = tune_model(model, chosen)
    with clock.stage("cache"):
        key = cache_key(source, chosen) if source and chosen.cache else None
        artifact = find(key) if key else None
    cached = artifact is not None
    if artifact is None:
        artifact = _compile(model, chosen, clock)
        with clock.stage("cache"):
            # The files may have changed while they were compiled.
            if source and key and cache_key(source, chosen) == key:
                keep(key, artifact)
    return Program(artifact, chosen.threads, source, cached, clock.seconds)


def _compile(model: str | os.PathLike[str] | ModelProto, chosen: CompileOptions, clock: Stopwatch) -> Artifact:
    """Return the artifact of a model: the stages in order."""
    targets = load_targets(chosen.devices)
    with clock.stage("capture"):
        captured = capture_model(model, chosen.shapes)
    with clock.stage("passes"):
        graph = run_pipeline(captured.graph, PIPELINE)
    if chosen.strict:
        refuse_extern(graph)
    with clock.stage("load compilers"):
        for target in targets.values():
            target.requirements()
    with clock.stage("plan"):
        plan = make_plan(graph, targets, planner_options(chosen))
        extra = {"graph.hir": graph_text(graph), "plan.json": plan_text(plan, captured.values)}
    return assemble(
        plan, targets, name=captured.name, inputs=captured.inputs, outputs=captured.outputs,
        version=__version__, extra=extra, clock=clock,
        tuning=read_tuning(chosen.tuning) if chosen.tuning else None,
    )  # fmt: skip


def tune_model(
    model: str | os.PathLike[str] | ModelProto, chosen: CompileOptions, progress: Progress = LOG.info
) -> CompileOptions:
    """Measure blocks for a model's kernels, add them to the tuning file, and return options that use it.

    Raises:
        HcompError: as `compile_model`; or the tuning file is none, or cannot be written.
    """
    path = chosen.tuning or str(default_file())
    tuning = read_tuning(path, missing=True)
    targets = load_targets(chosen.devices)
    graph = run_pipeline(capture_model(model, chosen.shapes).graph, PIPELINE)
    plan = make_plan(graph, targets, planner_options(chosen))
    for name, target in targets.items():
        if target.tune is not None:
            target.tune(planned_graphs(plan, name, target.executor), chosen.sizes, tuning, chosen.tune, progress)
    write_tuning(tuning, path)
    return replace(chosen, tuning=path)


def captured_graph(model: str | os.PathLike[str] | ModelProto, **options: Any) -> Graph:
    """Return a model's graph after the passes, without planning or building anything."""
    return run_pipeline(capture_model(model, compile_options(**options).shapes).graph, PIPELINE)


def plan_model(model: str | os.PathLike[str] | ModelProto, **options: Any) -> PlanReport:
    """Return the plan of a model without building kernels: a dry run."""
    chosen = compile_options(**options)
    captured = capture_model(model, chosen.shapes)
    graph = run_pipeline(captured.graph, PIPELINE)
    plan = make_plan(graph, load_targets(chosen.devices), planner_options(chosen))
    return PlanReport(plan_to_json(plan, captured.values))


def planner_options(options: CompileOptions) -> Options:
    """Return what the planner needs of the options."""
    pins = tuple(parse_pin(text, options.devices) for text in options.pins)
    return Options(options.devices, options.objective, pins, options.sizes)


def refuse_extern(graph: Graph) -> None:
    """Refuse a graph with extern nodes, as `--strict` asks.

    Raises:
        PolicyError: there is one; names the first few with their reasons.
    """
    extern = [node for node in graph.walk() if node.op == "extern"]
    if extern:
        shown = "; ".join(f"{n.origin}: {n.attrs['reason']}" for n in extern[:3])
        raise PolicyError(f"strict: {len(extern)} node(s) would run in ONNX Runtime instead of compiled code: {shown}")


def graph_text(graph: Graph) -> bytes:
    """Return the graph's text form as a member of the artifact."""
    return print_graph(graph).encode()


def plan_text(plan: Plan, values: Mapping[str, str]) -> bytes:
    """Return the plan's JSON form as a member of the artifact."""
    import json

    return (json.dumps(plan_to_json(plan, values), indent=1, sort_keys=True) + "\n").encode()
