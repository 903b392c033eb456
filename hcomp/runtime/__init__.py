"""Running artifacts. Nothing heavy is imported before `Session` or `load` is first touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hcomp.runtime.session import Session, load

__all__ = ["Session", "load"]


def __getattr__(name: str) -> object:
    # Late, so that hcomp.runtime.startup can prepare the import of tvm_ffi.
    if name in __all__:
        from hcomp.runtime import session

        return getattr(session, name)
    raise AttributeError(name)
