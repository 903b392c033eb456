"""From a plan to an artifact: every region's code, every constant once, and the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.artifact.store import Artifact
from hcomp.artifact.texts import texts_member
from hcomp.codegen.reference_region import emit_reference
from hcomp.dims import is_symbol, symbols_of
from hcomp.dtypes import dtype_name
from hcomp.errors import CodegenError
from hcomp.ir.graph import Graph, array_digest
from hcomp.ir.needs import size_needs
from hcomp.ir.types import OptionalType, SequenceType, TensorType, Type
from hcomp.partition.assign import HOST_DEVICE
from hcomp.partition.plan import EXTERN, HOST, Control, Plan, Region, Transfer, located
from hcomp.partition.regions import boundary, node_readers, region_graph
from hcomp.stopwatch import Stopwatch
from hcomp.targets.base import EmittedRegion, Target
from hcomp.tuning import Tuning

Json = dict[str, Any]


def assemble(
    plan: Plan, targets: Mapping[str, Target], *, name: str, inputs: Sequence[str], outputs: Sequence[str],
    version: str, extra: Mapping[str, bytes], clock: Stopwatch, tuning: Tuning | None = None,
) -> Artifact:  # fmt: skip
    """Return the artifact of a plan.

    Args:
        inputs, outputs: the model's own names of the graph's inputs and outputs, in order.
        extra: further members (the graph's text, the plan).
        clock: counts the stages of making code.
        tuning: measured choices of kernels.
    """
    parts = _Parts(targets, clock, tuning)
    program = parts.program(plan, "")
    graph = plan.graph
    fields: Json = {
        "hcomp": version,
        "name": name,
        "inputs": [{"name": own, "type": type_json(v.type)} for own, v in zip(inputs, graph.inputs, strict=True)],
        "outputs": [
            {"name": own, "type": type_json(graph.types[v])} for own, v in zip(outputs, graph.outputs, strict=True)
        ],
        "devices": [{"name": d.name, "kind": d.kind, **_link(targets.get(d.name))} for d in plan.devices],
        "cpu": parts.cpu,
        "program": program,
        "summary": {},
    }
    return Artifact.build(fields, {**parts.members, **extra})


def _link(target: Target | None) -> Json:
    if target is None or not target.link.bandwidth_gb_s:
        return {}
    return {"latency_us": target.link.latency_us, "bandwidth_gb_s": target.link.bandwidth_gb_s}


def type_json(value: Type) -> Json:
    """Return a type as the manifest writes it."""
    match value:
        case TensorType(dtype=dtype, shape=shape):
            dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
            return {"dtype": dtype, "shape": dims}
        case SequenceType(element=element):
            return {"sequence": type_json(element)}
        case OptionalType(element=element):
            return {"optional": type_json(element)}
    return {"opaque": value.text}


class _Parts:
    """The members of an artifact while its programs are written."""

    def __init__(self, targets: Mapping[str, Target], clock: Stopwatch, tuning: Tuning | None) -> None:
        self.targets = targets
        self.tuning = tuning
        self.clock = clock
        self.members: dict[str, Any] = {}
        self.cpu: Json = {}

    def program(self, plan: Plan, prefix: str) -> Json:
        """Return the program of one plan; `prefix` keeps region names of bodies apart."""
        graph = plan.graph
        constants: Json = {}
        steps = [self._step(plan, step, prefix, constants) for step in plan.steps]
        outputs = [self._operand(graph, name, constants) for name in graph.outputs]
        _mark_dead(steps, outputs)
        return {
            "inputs": [v.name for v in graph.inputs],
            "outputs": outputs,
            "constants": constants,
            "steps": steps,
        }

    def _step(self, plan: Plan, step: Region | Transfer | Control, prefix: str, constants: Json) -> Json:
        match step:
            case Transfer():
                return {
                    "kind": "copy", "value": located(step.value, step.source), "to": step.copied,
                    "from": self._device(step.source), "to_device": self._device(step.target),
                    "predicted_us": 1e6 * (step.end - step.start),
                }  # fmt: skip
            case Control():
                return self._control(plan, step, prefix, constants)
        return self._launch(plan, step, prefix, constants)

    def _device(self, memory: str) -> str:
        """Return a device that works in `memory`; the host is always there as cpu."""
        return next((n for n, t in self.targets.items() if t.memory == memory), HOST_DEVICE)

    def _control(self, plan: Plan, step: Control, prefix: str, constants: Json) -> Json:
        node = plan.graph.nodes[step.node]
        bodies = {name: self.program(body, f"{prefix}{step.name}.{name}.") for name, body in step.bodies.items()}
        common = {
            "kind": node.op,
            "inputs": [self._operand(plan.graph, i, constants) if i else "" for i in node.inputs],
            "outputs": [v.name for v in node.outputs],
        }
        if node.op == "if":
            return {**common, **bodies}
        carried = node.attrs["carried"]
        assert isinstance(carried, int)
        scans = node.outputs[carried:]
        types = {v.name: type_json(v.type) for v in scans}
        symbols = symbols_of(tuple(v.type.shape or () for v in scans if isinstance(v.type, TensorType)))
        places = {s: place for s in sorted(symbols) if (place := _place(plan, step, s))}
        return {
            **common, **bodies, "carried": carried, "scans": len(scans), "types": types,
            **({"sizes": places} if places else {}),
        }  # fmt: skip

    def _launch(self, plan: Plan, region: Region, prefix: str, constants: Json) -> Json:
        graph = plan.graph
        name = prefix + region.name
        part = region_graph(graph, region.nodes, name, region.inputs, region.outputs)
        emitted = self._emit(part, region, name)
        self.clock.add(emitted.seconds)
        paths = {role: f"regions/{name}/{file}" for role, file in emitted.roles.items()}
        self.members.update((f"regions/{name}/{file}", data) for file, data in emitted.files.items())
        return {
            "kind": "launch", "region": name, "device": region.device, "executor": region.executor,
            "inputs": [located(i, region.memory) for i in region.inputs],
            "outputs": [located(o, region.memory) for o in region.outputs],
            "types": {located(o, region.memory): type_json(graph.types[o]) for o in region.outputs},
            "constants": [self._constant(array, constants) for _, array in emitted.constants],
            "symbols": [_source(plan, region, s) for s in emitted.symbols],
            **_needs(plan, region, part),
            "files": paths, "fresh_outputs": list(emitted.fresh_outputs),
            "nodes": [graph.nodes[i].label for i in region.nodes[:4]],
            "predicted_us": 1e6 * region.seconds,
        }  # fmt: skip

    def _emit(self, part: Graph, region: Region, name: str) -> EmittedRegion:
        if region.executor == EXTERN:
            from hcomp.codegen.extern_region import extern_model  # late: it loads onnx, which takes 0.7 s

            files, roles = {"model.onnx": extern_model(part)}, {"model": "model.onnx"}
            return EmittedRegion("onnxruntime", files, roles, (), (True,) * len(part.outputs))
        target = self.targets.get(region.device)
        if target is None or target.executor != region.executor:
            return emit_reference(part)
        self.cpu = dict(target.requirements()) or self.cpu
        try:
            return target.emit(part, name, {} if self.tuning is None else {"tuning": self.tuning})
        except CodegenError as error:
            raise _naming_node(error, part, target) from error

    def _operand(self, graph: Graph, value: str, constants: Json) -> str:
        array = graph.constant.get(value)
        return value if array is None else self._constant(array, constants)

    def _constant(self, array: NDArray[np.generic], constants: Json) -> str:
        """Return the program's value for a constant, stored once by its digest."""
        digest = array_digest(array)
        path = f"constants/{digest}"
        if path not in self.members:
            self.members[path] = _member(array)
        value = f"constant:{digest[:16]}"
        constants[value] = {
            "file": path,
            "dtype": dtype_name(array.dtype),
            "shape": list(array.shape),
        }
        return value


def _member(array: NDArray[np.generic]) -> bytes | NDArray[np.uint8]:
    """Return the bytes of a constant."""
    if dtype_name(array.dtype) == "string":
        return texts_member(array.ravel().tolist())
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8)


def _naming_node(error: CodegenError, part: Graph, target: Target) -> CodegenError:
    """Return the error with the node that fails alone, or else the region's first nodes."""
    reason = str(error).replace("(not rendered)", "TVM gives no reason")
    if any(reason.startswith(f"{n.label}:") or f"'{n.label}'" in reason for n in part.nodes):
        return CodegenError(reason)
    readers = node_readers(part)
    for i, node in enumerate(part.nodes):
        inputs, _ = boundary(part, (i,), readers)
        alone = region_graph(part, (i,), part.name, inputs, tuple(v.name for v in node.outputs))
        try:
            target.emit(alone, part.name, {})
        except CodegenError:
            return CodegenError(f"node {node.label!r} ({node.op}): {reason}")
    shown = ", ".join(node.label for node in part.nodes[:3]) + (", ..." if len(part.nodes) > 3 else "")
    return CodegenError(f"region {part.name} ({shown}): {reason}")


def _needs(plan: Plan, region: Region, part: Graph) -> Json:
    """Return what must hold of the region's sizes, and where their symbols are.

    What depends on a size that the region itself finds (NonZero) is left to numpy, which runs it.
    """
    found = [need for need in size_needs(part) if region.executor != EXTERN]
    places = {s: _place(plan, region, s) for s in sorted(symbols_of(tuple(need.dim for need in found)))}
    kept = [need for need in found if all(places[s] for s in need.dim.symbols)]
    if not kept:
        return {}
    return {
        "needs": [{"dim": str(n.dim), "node": n.node, "problem": n.problem} for n in kept],
        "sizes": {s: places[s] for s in sorted(symbols_of(tuple(need.dim for need in kept)))},
    }


def _source(plan: Plan, region: Region, symbol: str) -> list[Any]:
    """Return [value, axis] that has `symbol` as a plain size and exists when the region starts."""
    found = _place(plan, region, symbol)
    assert found is not None, f"no value gives the size {symbol} to the region {region.name}"
    return found


def _place(plan: Plan, reader: Region | Control, symbol: str) -> list[Any] | None:
    """As `_source`, or None where no value does."""
    graph = plan.graph
    available = [v.name for v in graph.inputs]
    for step in plan.steps:
        if step is reader:
            break
        if isinstance(step, Region):
            available += [o for o in step.outputs if step.memory == HOST]
        elif isinstance(step, Transfer) and step.target == HOST:
            available.append(step.value)
        elif isinstance(step, Control):
            available += [v.name for v in graph.nodes[step.node].outputs]
    for name in available:
        value_type = graph.types[name]
        if isinstance(value_type, TensorType) and value_type.shape is not None:
            for axis, dim in enumerate(value_type.shape):
                if is_symbol(dim) and str(dim) == symbol:
                    return [name, axis]
    return None


def _mark_dead(steps: Sequence[Json], outputs: Sequence[str]) -> None:
    """Note on each step the values that nothing reads after it."""
    seen = set(outputs)
    for step in reversed(steps):
        read = {*step.get("inputs", ()), *step.get("constants", ())} - {""}
        read.update(value for value, _ in (*step.get("symbols", ()), *step.get("sizes", {}).values()))
        if step["kind"] == "copy":
            read.add(step["value"])
        made = [step["to"]] if step["kind"] == "copy" else step["outputs"]
        step["free"] = sorted((read | set(made)) - seen)
        seen |= read
