"""The parts of a transformer layer as exporters write them: one small operator at a time."""

import math

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from models.build import Weights


def linear(weights: Weights, scope: str, source: str, width_in: int, width_out: int) -> tuple[list[NodeProto], str]:
    """Return the nodes of `source @ weight + bias`, and the name of their result."""
    name = scope.strip("/").replace("/", ".")
    w = weights.normal(f"{name}.weight", width_in, width_out)
    b = weights.normal(f"{name}.bias", width_out)
    nodes = [
        make_node("MatMul", [source, w], [f"{name}.product"], name=f"{scope}/MatMul"),
        make_node("Add", [f"{name}.product", b], [f"{name}.out"], name=f"{scope}/Add"),
    ]
    return nodes, f"{name}.out"


def _heads(
    weights: Weights, scope: str, source: str, width: int, permutation: list[int]
) -> tuple[list[NodeProto], str]:
    """Return the nodes that project `source` and lay it out by heads."""
    nodes, projected = linear(weights, scope, source, width, width)
    split, turned = f"{projected}.split", f"{projected}.heads"
    nodes += [
        make_node("Reshape", [projected, "split_shape"], [split], name=f"{scope}/Reshape"),
        make_node("Transpose", [split], [turned], name=f"{scope}/Transpose", perm=permutation),
    ]
    return nodes, turned


def attention(
    weights: Weights, scope: str, source: str, width: int, heads: int, mask: str
) -> tuple[list[NodeProto], str]:
    """Return the nodes of self-attention over `source: [batch, sequence, width]`.

    `mask` is added to the scores and broadcasts to `[batch, heads, sequence, sequence]`.
    """
    size = width // heads
    weights.constant("split_shape", np.array([0, 0, heads, size], np.int64))
    weights.constant("merge_shape", np.array([0, 0, width], np.int64))
    weights.constant("score_scale", np.array(1 / math.sqrt(size), np.float32))
    queries, q = _heads(weights, f"{scope}/query", source, width, [0, 2, 1, 3])
    keys, k = _heads(weights, f"{scope}/key", source, width, [0, 2, 3, 1])
    values, v = _heads(weights, f"{scope}/value", source, width, [0, 2, 1, 3])
    nodes = [
        *queries,
        *keys,
        *values,
        make_node("MatMul", [q, k], ["scores"], name=f"{scope}/MatMul"),
        make_node("Mul", ["scores", "score_scale"], ["scaled"], name=f"{scope}/Mul"),
        make_node("Add", ["scaled", mask], ["masked"], name=f"{scope}/Add"),
        make_node("Softmax", ["masked"], ["weighted"], name=f"{scope}/Softmax", axis=-1),
        make_node("MatMul", ["weighted", v], ["mixed"], name=f"{scope}/MatMul_1"),
        make_node("Transpose", ["mixed"], ["turned"], name=f"{scope}/Transpose", perm=[0, 2, 1, 3]),
        make_node("Reshape", ["turned", "merge_shape"], ["merged"], name=f"{scope}/Reshape"),
    ]
    projection, result = linear(weights, f"{scope}/output", "merged", width, width)
    return [*nodes, *projection], result
