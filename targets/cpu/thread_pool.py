"""The thread pool of kernels as object code: `thread_pool.ll`, made for one architecture.

It travels in the artifact, since nothing on the machine that runs it can make it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

import tvm

from hcomp.errors import CodegenError

SOURCE = Path(__file__).with_name("thread_pool.ll")

SYSTEMS = {
    "x86_64": {"PAUSE": "pause", "FUTEX": "202", "GETTID": "186"},
    "aarch64": {"PAUSE": "yield", "FUTEX": "98", "GETTID": "178"},
}
"""By architecture, the instruction of a loop that waits, and Linux's numbers of two calls."""

SIZES = {"POOLS": "8", "MOST_WORKERS": "127", "PARTS": "8", "SPINS": "200"}
"""POOLS: callers that can have workers at the same time. MOST_WORKERS: of one pool. PARTS: of a loop, for
each thread. SPINS: looks before a thread sleeps, 3 to 10 us. A network of 60 loops of 50 us is 3 % faster by it
than without, where it has the cores to itself; with 2000 it was slower beside a busy process.
"""

LITTLE = 10_000
"""Waking a thread takes some microseconds: below so many nanoseconds of work it does not pay."""


@cache
def thread_pool_object(triple: str, little: int = LITTLE) -> bytes:
    """Return the object file for an LLVM target triple.

    Args:
        triple: its first part names the architecture.
        little: nanoseconds of one thread below which a loop is not worth others.

    Raises:
        CodegenError: there is none for this architecture.
    """
    system = SYSTEMS.get(triple.partition("-")[0])
    if system is None:
        raise CodegenError(f"threads: expected a processor of {', '.join(SYSTEMS)}, found the target triple {triple}")
    text = Template(SOURCE.read_text()).substitute(system, **SIZES, TRIPLE=triple, LITTLE=str(little))
    with TemporaryDirectory(prefix="hcomp-") as folder:
        source, made = Path(folder, "pool.ll"), Path(folder, "pool.o")
        source.write_text(text)
        module = tvm.get_global_func("ffi.Module.load_from_file.ll")(str(source), "ll")
        module.write_to_file(str(made), "o")
        return made.read_bytes()
