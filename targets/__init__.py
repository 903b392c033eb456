"""The targets by name. A new one is a folder and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hcomp.errors import UsageError
from hcomp.targets.base import EmittedRegion, Rule, Target


def _cpu() -> Target:
    from hcomp.targets.cpu import CPU

    return CPU


def _null() -> Target:
    from hcomp.targets.null import NULL

    return NULL


TARGETS: dict[str, Callable[[], Target]] = {"cpu": _cpu, "null": _null}
"""Called late: importing one target must not load another's compiler."""


def find_target(name: str) -> Target:
    """Return the target called `name`.

    Raises:
        UsageError: there is none; names those that exist.
    """
    if name not in TARGETS:
        raise UsageError(f"no target is called {name!r}: there are {', '.join(sorted(TARGETS))}")
    return TARGETS[name]()


def load_targets(names: Sequence[str]) -> dict[str, Target]:
    """Return the targets called `names`, in that order.

    Raises:
        UsageError: one of them does not exist.
    """
    return {name: find_target(name) for name in names}


def describe_targets() -> list[dict[str, str]]:
    """Return a line a target: its name, whether it is real or simulated here, and what it is."""
    found = []
    for name in TARGETS:
        state, detail = find_target(name).state()
        found.append({"name": name, "state": state, "detail": detail})
    return found


__all__ = [
    "TARGETS",
    "EmittedRegion",
    "Rule",
    "Target",
    "describe_targets",
    "find_target",
    "load_targets",
]
