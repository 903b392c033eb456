"""The artifact: the file that the compile side writes and the run side reads."""

from hcomp.artifact.manifest import Manifest
from hcomp.artifact.store import Artifact

__all__ = ["Artifact", "Manifest"]
