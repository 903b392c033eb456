"""One ONNX node through capture and the numpy reference, in every form that a model may give it.

Shapes static or symbolic, parameters as initializers or known only at run time: all four must be
captured without an extern node and agree with ONNX Runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.helper import np_dtype_to_tensor_dtype

from hcomp.capture import capture_model
from hcomp.ir.graph import Graph
from hcomp.testing import assert_close, interpret
from tests.ort_node import run_node

Array = NDArray[Any]
FORMS = ("static", "symbolic", "late", "symbolic late")


@dataclass
class Case:
    """A node: operator, inputs (None: absent), attributes.

    `params` are the inputs that hold parameters: initializers, except in the forms called late.
    `expected` replaces ONNX Runtime where it lacks the operator or differs from the standard.
    """

    op: str
    inputs: Sequence[Array | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    params: Sequence[int] = ()
    outputs: int = 1
    forms: Sequence[str] = FORMS
    expected: Sequence[Any] | None = None
    terms: int = 64
    note: str = ""

    def __str__(self) -> str:
        shapes = ",".join("-" if x is None else f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}-{self.opset} {self.note} {shapes} {attrs}".replace(" ", "_")[:110]


def case(op: str, *inputs: Any, **options: Any) -> Case:
    """Return a Case; options that are no fields of it are the node's attributes."""
    own = {k: options.pop(k) for k in list(options) if k in Case.__dataclass_fields__}
    return Case(op, [None if x is None else np.asarray(x) for x in inputs], options, **own)


def model_of(case: Case, form: str) -> onnx.ModelProto:
    """Return the model of one node in one of FORMS."""
    late, symbolic = "late" in form, "symbolic" in form
    names = ["" if x is None else f"i{k}" for k, x in enumerate(case.inputs)]
    results = [f"o{k}" for k in range(case.outputs)]
    inputs, constants = [], []
    for k, x in enumerate(case.inputs):
        if x is None:
            continue
        if k in case.params and not late:
            constants.append(onnx.numpy_helper.from_array(x, names[k]))
            continue
        is_data = k not in case.params
        shape = [f"d{k}_{i}" if symbolic and is_data else d for i, d in enumerate(x.shape)]
        dtype = np_dtype_to_tensor_dtype(x.dtype)
        inputs.append(helper.make_tensor_value_info(names[k], dtype, shape))
    node = helper.make_node(case.op, names, results, **case.attrs)
    declared = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "case", inputs, declared, constants)
    opsets = {"": case.opset, "com.microsoft": 1, "ai.onnx.ml": 3}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 10
    return model


def captured(case: Case, form: str) -> Graph:
    """Return the graph that capture makes of the node."""
    return capture_model(model_of(case, form)).graph


def check(case: Case, form: str) -> None:
    """Raise AssertionError unless hcomp's reading of the node gives what ONNX Runtime gives."""
    graph = captured(case, form)
    extern = [n.attrs["reason"] for n in graph.walk() if n.op == "extern"]
    assert not extern, extern[0]
    given = {f"i{k}": x for k, x in enumerate(case.inputs) if x is not None}
    found = list(interpret(graph, {v.name: given[v.name] for v in graph.inputs}).values())
    expected = case.expected
    if expected is None:
        expected = run_node(case.op, case.inputs, outputs=case.outputs, opset=case.opset, **case.attrs)
    for k, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_close(mine, np.asarray(theirs), terms=case.terms, context=f"{case} output {k}")


def params_of(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the keywords of pytest.mark.parametrize over cases and their forms."""
    import pytest

    rows = [
        pytest.param(c, form, id=f"{i}_{c}_{form.replace(' ', '_')}")
        for i, c in enumerate(cases)
        for form in c.forms
        # Without parameters "late" is nothing new.
        if c.params or "late" not in form
    ]
    return {"argnames": ("case", "form"), "argvalues": rows}


__all__ = ["FORMS", "Case", "TensorProto", "captured", "case", "check", "model_of", "params_of"]
