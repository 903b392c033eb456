"""Checking the JSON form of a plan that anybody may have edited: every field that reports read."""

from __future__ import annotations

from hcomp.artifact.fields import Fields
from hcomp.errors import ArtifactError
from hcomp.partition.plan import EXECUTORS
from hcomp.partition.plan_json import VERSION

MAX_DEPTH = 32
KINDS = ("region", "copy", "control")


def check_plan(plan: object) -> None:
    """Check a plan and those of its bodies.

    Raises:
        ArtifactError: a field is missing or of another type, or a step names a device that the
            plan does not have; names the field.
    """
    if not isinstance(plan, dict):
        raise ArtifactError(f"expected an object with a list of steps, found {type(plan).__name__}")
    _check(Fields(plan, "plan:"), 0)


def _check(plan: Fields, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ArtifactError(f"{plan.path}: plans are nested deeper than {MAX_DEPTH}")
    if plan.integer("version") != VERSION:
        raise ArtifactError(f"{plan.at('version')}: expected {VERSION}, found {plan.integer('version')}")
    _texts(plan, "graph", "objective")
    _numbers(plan, "predicted_us")
    _numbers(plan.object("single_device_us"), *plan.object("single_device_us").values)
    for name in plan.object("sizes").values:
        plan.object("sizes").integer(name)
    if "values" in plan.values:
        _texts(plan.object("values"), *plan.object("values").values)
    for device in plan.objects("devices"):
        _texts(device, "name", "kind", "memory")
    names = {device.text("name") for device in plan.objects("devices")}
    for step in plan.objects("steps"):
        _check_step(step, names, depth)
    for node in plan.objects("nodes"):
        _check_node(node)
    for edge in plan.objects("edges"):
        _texts(edge, "from", "to", "value", "type")
        if "bytes" in edge.values:
            _numbers(edge, "bytes", "copy_us")


def _check_step(step: Fields, devices: set[str], depth: int) -> None:
    kind = step.text("kind")
    _numbers(step, "start_us", "end_us")
    match kind:
        case "region":
            _texts(step, "name", "executor")
            step.integer("nodes")
            if step.text("device") not in devices:
                raise ArtifactError(f"{step.at('device')}: {step.text('device')!r} is no device of the plan")
        case "copy":
            _texts(step, "value", "from", "to")
            _numbers(step, "bytes")
        case "control":
            _texts(step, "name", "node")
        case _:
            raise ArtifactError(f"{step.at('kind')}: expected one of {', '.join(KINDS)}, found {kind!r}")
    if "device" in step.values:
        step.text("device")
    if "bodies" in step.values:
        for _, body in step.object("bodies").children():
            _check(body, depth + 1)


def _check_node(node: Fields) -> None:
    _texts(node, "name", "operator", "domain", "op", "device", "region", "reason")
    if node.text("runs_as") not in EXECUTORS.values():
        known = ", ".join(EXECUTORS.values())
        raise ArtifactError(f"{node.at('runs_as')}: expected one of {known}, found {node.text('runs_as')!r}")
    _numbers(node, "us")
    _texts(node.object("outputs"), *node.object("outputs").values)
    for other in node.objects("alternatives"):
        _texts(other, "device", "refusal")
        if not other.text("refusal"):
            _numbers(other, "us")


def _texts(fields: Fields, *keys: str) -> None:
    for key in keys:
        fields.text(key)


def _numbers(fields: Fields, *keys: str) -> None:
    for key in keys:
        fields.raw(key)
        if fields.number(key) is None:
            raise ArtifactError(f"{fields.at(key)}: expected a number of 0 or more, found null")
