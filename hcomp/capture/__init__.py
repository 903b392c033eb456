"""Reading models: an ONNX file or ModelProto becomes a Graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hcomp.errors import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto

    from hcomp.capture.onnx_graph import Captured


def capture_model(
    model: str | os.PathLike[str] | ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> Captured:
    """Return a model as a graph: from a path to an ONNX file, or from a ModelProto.

    `shapes` gives inputs by name a static shape.

    Raises:
        CaptureError: the model cannot be read, or no engine here can run one of its nodes.
        UsageError: `model` is of another kind.
    """
    from onnx import ModelProto

    from hcomp.capture.load import load_model
    from hcomp.capture.onnx_graph import capture_graph

    if not isinstance(model, str | os.PathLike | ModelProto):
        raise UsageError(f"a model is a path or an onnx.ModelProto, found {type(model).__name__}")
    return capture_graph(load_model(model), shapes or {})
