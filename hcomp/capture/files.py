"""The files that a model lies in, found without `import onnx` where that is not needed: it takes 0.7 s."""

from __future__ import annotations

import mmap
from functools import lru_cache
from pathlib import Path

from hcomp.files import file_version, why_unreadable

_MARK = b"location"
"""External data names its file under this key, so a model without these bytes has none."""


def model_files(path: Path) -> tuple[Path, ...]:
    """Return the files that a model lies in: its own, and those of its external data.

    What cannot be read has only its own: it is for `load_model` to refuse it.
    """
    if why_unreadable(path):  # opening a pipe would wait for somebody to write
        return (path,)
    return _files_of(path, file_version(path.stat()))


@lru_cache(maxsize=8)
def _files_of(path: Path, _version: tuple[int, ...]) -> tuple[Path, ...]:
    """Search a file once: the cache and whoever writes beside it ask for the same one."""
    try:
        # Populated at once: a fault a page takes longer than the search.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ) as data:
            if data.find(_MARK) < 0:
                return (path,)
    except (OSError, ValueError):
        return (path,)
    from hcomp.capture.load import external_files

    return (path, *external_files(path))
