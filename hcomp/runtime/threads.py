"""How many threads kernels use, and the pool that they run on, which artifacts bring as object code.

The pool itself is `targets/cpu/thread_pool.ll`.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hcomp.errors import ArtifactError
from hcomp.options import MAX_THREADS, checked_threads
from hcomp.runtime.library import Buffer, link, one_line

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class _State(threading.local):
    """The number of threads that the calling thread's kernels use; 0 before it is set."""

    threads = 0


_state = _State()

_LOCK = threading.Lock()
_pool: Any = None
"""The module of the pool: the first artifact's serves the whole process, and is never unloaded."""


def wanted_threads(threads: int | None) -> int:
    """Return the number of threads for a session; None means TVM_NUM_THREADS or all cores.

    Raises:
        UsageError: the number is out of range.
    """
    if threads is None:
        text = os.environ.get("TVM_NUM_THREADS", "")
        threads = int(text) if text.isdigit() and 0 < int(text) <= MAX_THREADS else physical_cores()
    return checked_threads(threads)


@cache
def physical_cores() -> int:
    """Return the number of physical cores that this process may use."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = str(cpu)
        with suppress(OSError):
            siblings = Path(SIBLINGS.format(cpu)).read_text().strip()
        cores.add(siblings)
    return max(len(cores), 1)


def load_thread_pool(code: Buffer) -> None:
    """Let kernels that are loaded from now on run on the pool in an object file; only the first one is loaded.

    Raises:
        ArtifactError: it is no such object file for this machine.
    """
    global _pool
    with _LOCK:
        if _pool is not None:
            return
        found = link([code])
        try:
            found["setup"]()
            _pool = found
        except (RuntimeError, AttributeError) as error:
            raise ArtifactError(f"the thread pool cannot be loaded: {one_line(error)}") from error
    # The workers run code of this module, which goes away when the process ends.
    atexit.register(found["end"])
    os.register_at_fork(after_in_child=found["forget"])


def use_threads(threads: int) -> None:
    """Make kernels that this thread calls use `threads` threads from now on, where a pool is loaded."""
    if _state.threads != threads and _pool is not None:
        _pool["use"](threads)
        _state.threads = threads
