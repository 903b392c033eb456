"""hcomp compiles one model for several devices at once, by predicted cost, and says why.

    program = hcomp.compile("model.onnx", devices=["cpu", "null"])
    outputs = program.run({"input": array})

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hcomp.errors import HcompError

if TYPE_CHECKING:
    from hcomp.program import Program
    from hcomp.runtime import Session

__version__ = "0.1.0"
__all__ = ["HcompError", "__version__", "compile", "load"]


def compile(model: Any, **options: Any) -> Program:
    """Return the program that runs `model`; see `hcomp.options.compile_options` for the options."""
    from hcomp.compiler import compile_model

    return compile_model(model, **options)


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> Session:
    """Return a session that runs the artifact in a file.

    Raises:
        ArtifactError: the file is no artifact, damaged, or made for another processor.
    """
    from hcomp.artifact.store import Artifact
    from hcomp.runtime import Session

    return Session(Artifact.open(path), threads=threads)
