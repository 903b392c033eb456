"""TVM's runtime library and the linker for object files, loaded without `import tvm`.

`import tvm` loads the compiler (260 MB, 2 to 4 s). The runtime alone is a shared library of 3 MB
that registers its functions with tvm_ffi when it is loaded.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import tvm_ffi

from hcomp.errors import ArtifactError, RunError

# Sorting, top-k and random numbers live in the second one.
LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")

# Any path that is not there: the linker then does not start a C++ compiler to ask it for its
# runtime (which costs 20 ms, and objects made by TVM need none).
NO_COMPILER = "/nonexistent/c++"

Buffer: TypeAlias = bytes | memoryview

MAX_REASON = 300

_LOCK = threading.Lock()


@cache
def _load_libraries() -> tuple[ctypes.CDLL, ...]:
    package = find_spec("tvm")
    if package is None or package.origin is None:
        raise RunError("apache-tvm is not installed: kernels cannot run without its runtime library")
    folder = Path(package.origin).parent / "lib"
    try:
        return tuple(ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL) for name in LIBRARIES)
    except OSError as error:
        raise RunError(f"TVM's runtime library cannot be loaded: {error}") from None


@cache
def tvm_function(name: str) -> Any:
    """Return a global function of TVM's runtime."""
    with _LOCK:
        _load_libraries()
    return tvm_ffi.get_global_func(name)


@cache
def _linker() -> Any:
    import tvm_ffi_orcjit

    return tvm_ffi_orcjit.default_session()


def link(objects: Sequence[Buffer]) -> Any:
    """Return the module of some object files, which stay in memory as long as it.

    Raises:
        ArtifactError: they are no object files for this machine.
    """
    with _LOCK:
        _load_libraries()
        try:
            return _linker().load_module([bytes(o) for o in objects], cxx=NO_COMPILER)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ArtifactError(f"the kernels cannot be loaded: {one_line(error)}") from error


def load_executable(program: Buffer, kernels: Any) -> Any:
    """Return the VM executable in the bytes of "program.vm", which calls `kernels`, a linked module or None.

    Raises:
        ArtifactError: the bytes are no such file.
    """
    load = tvm_function("ffi.Module.load_from_bytes.relax.VMExecutable")
    try:
        with _LOCK:
            executable = load(bytes(program))
            if kernels is not None:
                executable.import_module(kernels)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ArtifactError(f"the kernels cannot be loaded: {one_line(error)}") from error
    return executable


def one_line(error: BaseException) -> str:
    """Return an error's text on one line, cut where it gets long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."
