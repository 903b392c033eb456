"""Reading models: an ONNX file or ModelProto becomes a Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hcomp.ir.graph import Graph

if TYPE_CHECKING:
    import os

    from onnx import ModelProto


def capture(model: str | os.PathLike[str] | ModelProto, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Return the graph of a model: a path to an ONNX file, or a ModelProto.

    `shapes` gives inputs by name a static shape.

    Raises:
        CaptureError: the model cannot be read, or no engine here can run one of its nodes.
    """
    from hcomp.capture.load import load_model
    from hcomp.capture.onnx_graph import capture_graph

    return capture_graph(load_model(model), shapes or {})
