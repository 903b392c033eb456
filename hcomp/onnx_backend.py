"""The interface that ONNX defines for backends: `prepare`, `run_model`, `supports_device`.

`rep = hcomp.onnx_backend.prepare(model)`, then `outputs = rep.run([array])`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep

import hcomp
from hcomp.errors import HcompError, RunError
from hcomp.program import Program

DEVICES = {"CPU": "cpu"}
"""ONNX's names of device kinds and ours."""


class HcompBackendRep(BackendRep):
    """A compiled model; `run` takes inputs in the model's order or by name."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs in the model's order.

        Raises:
            RunError: the inputs do not fit the model.
        """
        names = [spec.name for spec in self.program.session.inputs]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        elif isinstance(inputs, Sequence):
            if len(inputs) != len(names):
                raise RunError(f"the model has {len(names)} inputs, got {len(inputs)}")
            feeds = dict(zip(names, inputs, strict=True))
        else:
            feeds = dict(zip(names, [inputs], strict=False))
        return tuple(self.program.run(feeds).values())


class HcompBackend(Backend):
    """hcomp behind ONNX's backend interface; devices are ONNX's names, such as "CPU"."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Say whether hcomp can read the model: every node is compiled, hosted or extern."""
        from hcomp.capture import capture_model

        if not cls.supports_device(device):
            return False
        try:
            capture_model(model)
        except HcompError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> HcompBackendRep:
        """Return the model compiled; keyword arguments are options of `hcomp.compile`.

        Raises:
            HcompError: the model or the device is refused.
        """
        if not cls.supports_device(device):
            raise HcompError(f"hcomp has no device {device!r} for ONNX; there are: {', '.join(DEVICES)}")
        options = {"devices": [DEVICES[_kind(device)]], **kwargs}
        return HcompBackendRep(hcomp.compile(model, **options))

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Return the outputs of one node, run as a model of its own on arrays."""
        import numpy as np
        from onnx import helper

        arrays = [np.asarray(value) for value in inputs]
        given = [name for name in node.input if name]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in zip(given, arrays, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        version = kwargs.pop("opset_version", 21)
        graph = helper.make_graph([node], "node", infos, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Say whether a device such as "CPU" or "CPU:0" is one that hcomp has."""
        return _kind(device) in DEVICES


def _kind(device: str) -> str:
    return device.partition(":")[0]


prepare = HcompBackend.prepare
run_model = HcompBackend.run_model
run_node = HcompBackend.run_node
supports_device = HcompBackend.supports_device
is_compatible = HcompBackend.is_compatible
