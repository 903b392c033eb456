"""Starting fast: for the command line only, never for a library call.

`tvm_ffi` imports torch and ml_dtypes by itself where they are installed, which takes 1.5 s and
0.4 s and which running an artifact does not need. A library must not change what its host can
import, so only `hcomp run` and its like, which own their process, come here. `hcomp compile` hides torch alone:
onnx needs ml_dtypes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

OPTIONAL = ("torch", "ml_dtypes")


@contextmanager
def without_optional_imports(names: Sequence[str] = OPTIONAL) -> Iterator[None]:
    """Make imports of `names` fail inside the block, unless they are loaded."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None means "no such module"
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def one_blas_thread() -> None:
    """Let numpy use one thread, where it is not loaded yet.

    Packing weights multiplies many small matrices, for which OpenBLAS's threads wait for each other
    actively: 5 s instead of 1 s for a ResNet-50 where the cores have something else to do as well.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def import_runtime() -> None:
    """Import hcomp's runtime without torch and ml_dtypes; both can be imported afterwards."""
    with without_optional_imports():
        import hcomp.runtime.session  # noqa: F401  # the import is the effect
