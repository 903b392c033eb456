"""How many threads generated code uses: TVM has one pool for each thread that calls it."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from hcomp.options import MAX_THREADS, checked_threads
from hcomp.runtime.library import tvm_function

LOG = logging.getLogger(__name__)
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
ANY_MODE = 0


class _State(threading.local):
    """What the calling thread's pool is set to; 0 before there is one."""

    threads = 0


_state = _State()


class _Largest:
    """The most threads that any session of this process wants: a pool cannot grow later."""

    threads = 1


def wanted_threads(threads: int | None) -> int:
    """Return the number of threads for a session; None means TVM_NUM_THREADS or all cores.

    Raises:
        UsageError: the number is out of range.
    """
    if threads is None:
        text = os.environ.get("TVM_NUM_THREADS", "")
        threads = int(text) if text.isdigit() and 0 < int(text) <= MAX_THREADS else physical_cores()
    threads = checked_threads(threads)
    _Largest.threads = max(_Largest.threads, threads)
    return threads


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


def use_threads(threads: int) -> None:
    """Make generated code that this thread calls use `threads` threads from now on."""
    if _state.threads == threads:
        return
    # The pool of a thread is made by its first use, as large as the list of cpus says; with
    # TVM_BIND_THREADS=0 the list binds nothing.
    cpus = [str(i) for i in range(max(threads, _Largest.threads))]
    tvm_function("runtime.config_threadpool")(ANY_MODE, threads, cpus, len(cpus))
    _state.threads = threads
    got = tvm_function("runtime.NumThreads")()
    if got < threads:
        LOG.warning("this thread's pool was made with %d threads and cannot grow to %d", got, threads)
