"""The processor's own rows of the lowering table: heavy operators with packed constant weights.

Where a row's condition does not hold (weights computed at run time, other element types), the node
takes the plain row of the common table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.codegen.kernel import Requirement
from hcomp.codegen.lowering import Lowering, Rule
from hcomp.codegen.relax_table import LOWER
from hcomp.ir.graph import Node
from hcomp.ir.types import TensorType
from hcomp.targets.cpu.choices import Choices
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy import emit_conv, emit_conv_transpose, emit_matmul
from hcomp.targets.cpu.heavy.attention import attention_rule
from hcomp.targets.cpu.heavy.conv_int8 import BYTES, emit_conv_int8
from hcomp.targets.cpu.heavy.conv_transpose import takes_conv_transpose
from hcomp.targets.cpu.heavy.matmul_int8 import emit_matmul_int8, takes_pairs
from hcomp.targets.cpu.heavy.pool import pool_body, takes_pool
from hcomp.targets.cpu.heavy.recurrent_rules import recurrent_rules

FLOAT32 = "float32"


def _transposed(features: CpuFeatures) -> Rule:
    def conv_transpose(lowering: Lowering, node: Node) -> Any:
        weight = _constant_weight(lowering, node)
        if weight is None or not takes_conv_transpose(node.attrs, weight.shape):
            return LOWER["conv_transpose"](lowering, node)
        attrs: Mapping[str, Any] = {k: v for k, v in node.attrs.items() if k != "channels_last"}
        found = emit_conv_transpose(
            lowering.builder,
            lowering.expr(node.inputs[0]),
            np.asarray(weight),
            **attrs,
            pack=_packer(lowering, node.inputs[1]),
            cpu=features,
            sizes=[lowering.dim(d) for d in (_output(node).shape or ())[1:-1]],
        )
        return lowering.typed(found, _output(node))

    return conv_transpose


def cpu_rules(features: CpuFeatures, choices: Choices | None = None) -> Mapping[str, Rule]:
    """Return the rows that replace those of the common table; `choices` has the measured blocks."""

    def matmul(lowering: Lowering, node: Node) -> Any:
        weight = _constant_weight(lowering, node)
        chosen = weight if weight is not None else _constant_bytes(lowering, node, features)
        if chosen is None or chosen.ndim != 2 or 0 in chosen.shape or chosen.shape[1] == 1:
            return LOWER["matmul"](lowering, node)
        data, pack = lowering.expr(node.inputs[0]), _packer(lowering, node.inputs[1])
        if weight is not None:
            found = emit_matmul(lowering.builder, data, np.asarray(weight), pack, features, choices)
        else:
            found = emit_matmul_int8(lowering.builder, data, np.asarray(chosen), pack, features)
        return _checked(lowering, node, found, -1, chosen.shape[0])

    def conv(lowering: Lowering, node: Node) -> Any:
        weight = _constant_weight(lowering, node)
        attrs: Mapping[str, Any] = node.attrs
        if attrs["channels_last"] and lowering.type(node.inputs[0]).dtype in BYTES:
            return _conv_int8(lowering, node, features)
        if weight is None or not attrs["channels_last"]:
            return LOWER["conv"](lowering, node)
        found = emit_conv(
            lowering.builder,
            lowering.expr(node.inputs[0]),
            np.asarray(weight),
            strides=attrs["strides"],
            padding=attrs["padding"],
            dilation=attrs["dilation"],
            groups=attrs["groups"],
            pack=_packer(lowering, node.inputs[1]),
            cpu=features,
            sizes=[lowering.dim(d) for d in (_output(node).shape or ())[1:-1]],
            choices=choices,
        )
        return lowering.typed(found, _output(node))

    def pool(kind: str) -> Rule:
        body = pool_body(kind)

        def rule(lowering: Lowering, node: Node) -> Any:
            if not takes_pool(lowering.type(node.inputs[0]), node.attrs):
                return LOWER[node.op](lowering, node)
            return lowering.kernel(node, body)

        return rule

    return {
        "attention": attention_rule(features),
        "matmul": matmul,
        "conv": conv,
        "conv_transpose": _transposed(features),
        "max_pool": pool("max"),
        "avg_pool": pool("mean"),
        **recurrent_rules(features),
    }


def _conv_int8(lowering: Lowering, node: Node, features: CpuFeatures) -> Any:
    attrs: Mapping[str, Any] = node.attrs
    found = emit_conv_int8(
        lowering.builder,
        lowering.expr(node.inputs[0]),
        np.asarray(lowering.array(node.inputs[1])),
        strides=attrs["strides"],
        padding=attrs["padding"],
        dilation=attrs["dilation"],
        groups=attrs["groups"],
        pack=_packer(lowering, node.inputs[1]),
        cpu=features,
        sizes=[lowering.dim(d) for d in (_output(node).shape or ())[1:-1]],
    )
    return lowering.typed(found, _output(node))


def _checked(lowering: Lowering, node: Node, made: Any, axis: int, size: int) -> Any:
    """Return a result in our type, computed only where the data's `axis` has the weight's size."""
    found = (lowering.type(node.inputs[0]).shape or ())[axis]
    made = lowering.typed(made, _output(node))
    if found == size:
        return made
    needed = Requirement(
        f"the data has {found} elements on an axis where the weight has {size}",
        lambda kernel: kernel.dim(found) == kernel.dim(size),
    )
    return lowering.guarded(made, lowering.size_guard(node.label, [needed]))


def _constant_weight(lowering: Lowering, node: Node) -> NDArray[np.generic] | None:
    """Return the weight (input 1) where it is constant and all is float32."""
    weight = lowering.array(node.inputs[1])
    types = (lowering.type(node.inputs[0]), _output(node))
    if weight is None or any(t.dtype != FLOAT32 for t in types):
        return None
    return weight if weight.dtype == np.float32 else None


def _constant_bytes(lowering: Lowering, node: Node, features: CpuFeatures) -> NDArray[np.generic] | None:
    """Return the weight (input 1) where it is constant and the kernel of bytes takes the product."""
    weight = lowering.array(node.inputs[1])
    if weight is None or weight.dtype not in (np.int8, np.uint8) or _output(node).dtype != "int32":
        return None
    bytes_too = lowering.type(node.inputs[0]).dtype in ("int8", "uint8")
    return weight if bytes_too and weight.ndim == 2 and takes_pairs(weight, features) else None


def _output(node: Node) -> TensorType:
    found = node.outputs[0].type
    assert isinstance(found, TensorType)
    return found


def _packer(lowering: Lowering, name: str) -> Callable[[str, NDArray[Any]], Any]:
    """Return the callback that registers a packed form of the constant `name`."""
    return lambda hint, array: lowering.pack(f"{name}.{hint}", array)
