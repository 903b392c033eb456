"""Artifacts made by hand for the tests of the run side: regions from Relax, steps written out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hcomp.artifact import Artifact

Type = tuple[str, Sequence[int | str]]  # element type and shape, with symbols as text


def type_json(type_: Type) -> dict[str, object]:
    return {"dtype": type_[0], "shape": list(type_[1])}


def kernels(
    types: Sequence[Type],
    body: Callable[..., Any],
    symbols: Sequence[str] = (),
) -> dict[str, bytes]:
    """Return the files of a region by role: `body(*vars)` gives a Relax expression or a tuple of them."""
    import tvm
    from tvm import relax

    from hcomp.codegen.machine_code import machine_code
    from hcomp.targets.cpu.codegen import processor
    from hcomp.targets.cpu.schedule.lower import lower_blocks
    from hcomp.targets.cpu.thread_pool import thread_pool_object

    variables: dict[str, Any] = {}

    def dim(size: int | str) -> Any:
        if isinstance(size, int):
            return size
        return variables.setdefault(size, tvm.tirx.Var(size, "int64"))

    params = [
        relax.Var(f"p{i}", relax.TensorType([dim(d) for d in shape], dtype)) for i, (dtype, shape) in enumerate(types)
    ]
    sizes = [relax.Var("sizes", relax.ShapeType([dim(s) for s in symbols]))] if symbols else []
    builder = relax.BlockBuilder()
    with builder.function("main", [*params, *sizes]):
        with builder.dataflow():
            found = body(*params, *(variables[s] for s in symbols))
            many = isinstance(found, tuple)
            values = [builder.emit(v) for v in (found if many else (found,))]
            result = builder.emit_output(relax.Tuple(values) if many else values[0])
        builder.emit_func_output(result)
    module = relax.get_pipeline("default")(relax.get_pipeline("zero")(builder.get()))
    program, objects = machine_code(lower_blocks(module), tvm.target.Target("llvm"))
    pool = thread_pool_object(processor()[0].triple)
    return {"program": program, "threads": pool, **{f"object{number}": data for number, data in enumerate(objects)}}


class Maker:
    """Collects members, constants and steps of one program, and makes the artifact."""

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}
        self.constants: dict[str, dict[str, object]] = {}
        self.steps: list[dict[str, object]] = []

    def constant(self, name: str, array: np.ndarray, dtype: str | None = None) -> None:
        file = f"constants/{hashlib.sha256(array.tobytes()).hexdigest()}"
        self.members[file] = array
        dtype = dtype or array.dtype.name
        self.constants[name] = {"file": file, "dtype": dtype, "shape": list(array.shape)}

    def vm(
        self,
        region: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        files: Mapping[str, bytes],
        **fields: object,
    ) -> None:
        paths = {}
        for role, data in files.items():
            paths[role] = f"regions/{region}/{role}"
            self.members[paths[role]] = data
        step = {"kind": "launch", "region": region, "device": "cpu", "executor": "vm"}
        whole = {**step, "inputs": list(inputs), "outputs": list(outputs), "files": paths}
        self.steps.append({**whole, "fresh_outputs": [True] * len(outputs), **fields})

    def program(self, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, object]:
        return {
            "inputs": list(inputs),
            "outputs": list(outputs),
            "constants": self.constants,
            "steps": self.steps,
        }

    def artifact(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        values: Sequence[str] | None = None,
    ) -> Artifact:
        """Return the artifact; a type is a `Type` or what the manifest writes.

        `values` are the values behind the outputs, where their names are others.
        """

        def spec(name: str, type_: Any) -> dict[str, object]:
            return {"name": name, "type": type_ if isinstance(type_, dict) else type_json(type_)}

        fields = {
            "hcomp": "0.1.0",
            "name": "test",
            "inputs": [spec(*item) for item in inputs.items()],
            "outputs": [spec(*item) for item in outputs.items()],
            "devices": [
                {"name": "cpu", "kind": "cpu"},
                {"name": "null", "kind": "null", "latency_us": 5, "bandwidth_gb_s": 2.0},
            ],
            "program": self.program(list(inputs), values or list(outputs)),
            "summary": {"nodes": 4},
        }
        return Artifact.build(fields, self.members)


def four_operators(shape: Sequence[int | str] = (8, 8)) -> Artifact:
    """Return y = exp(relu(x @ w + w)) of 8x8 matrices."""
    from tvm import relax

    def body(x: Any, w: Any) -> Any:
        return relax.op.exp(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w), x)))

    maker = Maker()
    types = {"x": ("float32", shape), "w": ("float32", (8, 8))}
    maker.vm("r0", ["x", "w"], ["y"], kernels(list(types.values()), body), nodes=["/mm (MatMul)"])
    return maker.artifact(types, {"y": ("float32", shape)})


def four_operators_numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.maximum(x @ w + x, 0)))
