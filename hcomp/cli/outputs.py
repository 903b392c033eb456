"""Writing the outputs of a run to a folder, a file each: .npy for arrays, .json for maps and sequences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from hcomp.artifact.types import TensorType
from hcomp.cli.files import check_output, write_file, write_text
from hcomp.errors import UsageError
from hcomp.files import reason_of


def output_files(specs: Sequence[Any], folder: str, read: Sequence[str]) -> dict[str, str]:
    """Return the path of each output's file by name, in a folder that is made where there is none.

    Raises:
        UsageError: the folder or a file in it cannot be written; `read` are files that must stay.
    """
    if folder in ("", "-"):
        raise UsageError(f"expected the name of a folder to write to, found {folder!r}")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {reason_of(error)}") from None
    files: dict[str, str] = {}
    taken: set[str] = set()
    for spec in specs:
        # Names come from the model, so they may hold slashes: they never choose a folder.
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in spec.name)
        safe = stem = safe.lstrip(".").encode()[:200].decode(errors="ignore") or "output"
        number = 1
        while safe.lower() in taken:
            number += 1
            safe = f"{stem}_{number}"
        taken.add(safe.lower())
        path = str(Path(folder) / f"{safe}.{'npy' if isinstance(spec.type, TensorType) else 'json'}")
        check_output(path, read)
        files[spec.name] = path
    return files


def write_outputs(outputs: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write the outputs that have a file.

    Raises:
        UsageError: one cannot be written.
    """
    for name, path in files.items():
        value = outputs[name]
        if path.endswith(".npy"):
            write_file(path, _array_writer(value))
        else:
            write_text(path, json.dumps(_plain(value), indent=1) + "\n")


def _array_writer(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind == "O":
        array = array.astype(np.str_)  # texts; as objects they would be pickled

    def write(file: IO[bytes]) -> None:
        np.save(file, array, allow_pickle=False)

    return write


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it; a map's keys become texts."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value if isinstance(value, int | float | str | bool | None) else str(value)
