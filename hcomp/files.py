"""Files that users name: only regular ones are read, and writing one harms nothing that is there.

What is written appears whole or not at all; a link stays a link and its target is written. Each
stage raises the sentences of this file as an error of its own class.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TypeAlias

from hcomp.errors import UsageError

AnyPath: TypeAlias = "str | os.PathLike[str]"


def as_path(path: object, what: str) -> Path:
    """Return a path that a caller gave; `what` is what it is the path of.

    Raises:
        UsageError: it is no path, or an empty one.
    """
    if isinstance(path, os.PathLike):
        path = path.__fspath__()
    if not isinstance(path, str):
        raise UsageError(f"{what} is named by a path (str or os.PathLike), found {type(path).__name__}")
    if not path:
        raise UsageError(f"{what} is named by an empty path")
    return Path(path)


def user_folder(variable: str, usual: str) -> Path:
    """Return hcomp's own folder in the one that an XDG variable names, or in the `usual` one at home.

    Raises:
        RuntimeError: there is no home.
    """
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / usual) / "hcomp"


def why_unreadable(path: AnyPath) -> str:
    """Return why a file cannot be read, or "": a pipe would block and a device might never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return reason_of(error)
    return "" if stat.S_ISREG(mode) else f"expected a regular file, found {_kind(mode)}"


def why_unwritable(path: AnyPath, read: Iterable[AnyPath] = ()) -> str:
    """Return why a file must not be written, or ""; `read` are files that the same command reads."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return _why_no_new_file(os.path.dirname(os.path.realpath(path)))
    except (OSError, ValueError) as error:
        return reason_of(error)
    if not stat.S_ISREG(found.st_mode):
        return f"expected a regular file or none, found {_kind(found.st_mode)}"
    for other in read:
        with contextlib.suppress(OSError, ValueError):
            if os.path.samestat(os.stat(other), found):
                return f"this would overwrite {os.fspath(other)}, which is read; name another file"
    return ""


def write_whole(path: AnyPath, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a new file and put it in the place of `path`, or of what `path` links to.

    Raises:
        OSError: the file cannot be written; nothing has changed then.
    """
    target = Path(os.path.realpath(path))
    # The name of the new file is as short as can be: that of the target may be of the longest.
    with NamedTemporaryFile(dir=target.parent, prefix=".hcomp.", delete=False) as file:
        try:
            write(file)
            file.close()
            Path(file.name).chmod(0o666 & ~_umask())
            Path(file.name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(file.name).unlink()
            raise


def file_version(found: os.stat_result) -> tuple[int, ...]:
    """Return what differs, to the system's clock, between a file and what is in its place after a change."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def copied_by_system(source: Path, before: os.stat_result, target: IO[bytes]) -> bool:
    """Copy a file, if it is as it was `before`, to a new one, and say whether the system could do so.

    Within a file system that takes a fifth of the time of writing its bytes, or none where blocks can be shared.
    """
    if not hasattr(os, "copy_file_range"):
        return False
    done = 0
    try:
        with source.open("rb") as file:
            found = os.fstat(file.fileno())
            if file_version(found) != file_version(before):
                return False
            while done < found.st_size:
                count = os.copy_file_range(file.fileno(), target.fileno(), found.st_size - done, done, done)
                if not count:
                    return False
                done += count
    except OSError:  # it is gone, or two file systems, or one that cannot
        return False
    return True


def write_own(path: AnyPath, text: str) -> None:
    """Write a text file that hcomp keeps for its user, whole or not at all; its folder is made if need be.

    Raises:
        UsageError: it cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, lambda file: file.write(text.encode()))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be written: {reason_of(error)}") from None


def _why_no_new_file(folder: str) -> str:
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"no permission to write in {folder}"


def reason_of(error: OSError | ValueError) -> str:
    """Return what the system says is wrong with a file, in its own words."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
