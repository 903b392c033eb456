"""The program that `hcomp.compile` returns: run it, ask it why, save it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcomp.artifact.store import Artifact
from hcomp.errors import ArtifactError
from hcomp.files import as_path, why_unwritable
from hcomp.partition.report import PlanReport

if TYPE_CHECKING:
    from hcomp.runtime import Session


class Program:
    """A compiled model in memory; what it does is what the saved artifact does.

    Attributes:
        artifact: the verified members and manifest.
        source: the file that it was compiled from, where that is one.
        cached: whether it came from the compile cache.
        seconds: how long each stage of compiling took.
        plan: where each node runs and why, as `PlanReport` (to_dot, to_json, explain ...).
    """

    def __init__(
        self, artifact: Artifact, threads: int | None = None, source: Path | None = None,
        cached: bool = False, seconds: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.artifact = artifact
        self.source = source
        self.cached = cached
        self.seconds = dict(seconds or {})
        self.plan = PlanReport(json.loads(bytes(artifact.member("plan.json"))))
        self._threads = threads
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session that runs the program; made when first needed."""
        if self._session is None:
            from hcomp.runtime import Session

            self._session = Session(self.artifact, threads=self._threads)
        return self._session

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name for inputs by name (numpy, torch, or anything with DLPack).

        Raises:
            RunError: an input is missing, unknown, or of another type or shape.
        """
        return self.session.run(inputs)

    def __call__(self, *inputs: Any) -> Any:
        """Return the output (or a tuple of outputs) for inputs in the model's order."""
        return self.session(*inputs)

    def summary(self) -> dict[str, Any]:
        """Return counts and lists: nodes, regions, copies, host_nodes, extern_nodes, predicted time."""
        return self.plan.summary()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact to a file.

        Raises:
            ArtifactError: the file cannot be written, or is one that the model was read from.
        """
        if self.source is not None and os.path.lexists(target := as_path(path, "an artifact")):
            from hcomp.capture.files import model_files

            if reason := why_unwritable(target, model_files(self.source)):
                raise ArtifactError(f"{path}: cannot be written: {reason}")
        self.artifact.save(path)
