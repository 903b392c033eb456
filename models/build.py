"""What the builders share: seeded weights and the closing of a graph into a model."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Inputs = dict[str, npt.NDArray[np.generic]]
Build = Callable[[], tuple[ModelProto, Inputs]]

# Old enough for any ONNX Runtime of the last years to read.
IR_VERSION = 10


class Weights:
    """Initializers of one model, drawn from a fixed seed, so that every build is the same."""

    def __init__(self, seed: int) -> None:
        self.tensors: list[TensorProto] = []
        self._generator = np.random.default_rng(seed)

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Add `array` as an initializer and return its name."""
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, name: str, *shape: int) -> str:
        """Add a float32 weight and return its name.

        It is scaled by about the number of products that a layer sums, so that activations keep
        the size of about one through any number of layers.
        """
        scale = 1.0 / math.sqrt(max(1, math.prod(shape) // max(shape)))
        draw = self._generator.standard_normal(shape) * scale
        return self.constant(name, draw.astype(np.float32))

    def near_one(self, name: str, *shape: int) -> str:
        """Add a float32 weight between 0.5 and 1.5 (scales, variances) and return its name."""
        return self.constant(name, self._generator.uniform(0.5, 1.5, shape).astype(np.float32))

    def input(self, *shape: int) -> npt.NDArray[np.float32]:
        """Return an example input; not an initializer."""
        return self._generator.standard_normal(shape).astype(np.float32)


def tensor(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> ValueInfoProto:
    """Return the declaration of a graph input or output; a string is a symbolic dimension."""
    return helper.make_tensor_value_info(name, dtype, shape)


def finish(
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    weights: Weights,
    opset: int = 17,
) -> ModelProto:
    """Return the model of `nodes`, which are in topological order."""
    graph = helper.make_graph(nodes, name, inputs, outputs, weights.tensors)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=IR_VERSION,
        producer_name="hcomp models",
    )
