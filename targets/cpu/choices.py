"""The blocks of heavy kernels: what may be chosen for each, and where a measured choice takes the place of ours.

A kernel's lowering asks here with a signature (what it computes, its sizes, its element type) and a
space: for each number to choose the values that it may have, the analytic choice first. A choice that
is not in the space, such as one by an older hcomp, counts as none: the space has only what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Point = Mapping[str, int]
Space = Mapping[str, Sequence[int]]


@dataclass
class Choices:
    """Measured choices by signature, and the spaces of the signatures that were asked for."""

    measured: Mapping[str, Point] = field(default_factory=dict)
    asked: dict[str, Space] = field(default_factory=dict)

    def pick(self, signature: str, space: Space) -> Point:
        """Return the measured choice of a signature, or the analytic one."""
        self.asked[signature] = space
        wanted = self.measured.get(signature, {})
        fits = wanted.keys() == space.keys() and all(wanted[name] in values for name, values in space.items())
        return wanted if fits else analytic(space)


def analytic(space: Space) -> Point:
    """Return the choice that is made without measuring."""
    return {name: values[0] for name, values in space.items()}


def first_of(chosen: int, others: Sequence[int]) -> tuple[int, ...]:
    """Return the values of one number, the analytic one first."""
    return (chosen, *(value for value in others if value != chosen))
