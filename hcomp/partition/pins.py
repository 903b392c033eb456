"""Pins: the user's own placement, `PATTERN=DEVICE`, by node name in the user's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hcomp.errors import PartitionError, UsageError
from hcomp.ir.graph import Graph, Node


@dataclass(frozen=True)
class Pin:
    """Nodes whose name (or `op:NAME`, whose source operator) matches `pattern` run on `device`."""

    pattern: str
    device: str

    def matches(self, node: Node) -> bool:
        """Say whether the pin names this node."""
        if self.pattern.startswith("op:"):
            return fnmatchcase(node.origin.op or node.op, self.pattern[3:])
        return fnmatchcase(node.label, self.pattern)

    def __str__(self) -> str:
        return f"{self.pattern}={self.device}"


def parse_pin(text: str, devices: Sequence[str]) -> Pin:
    """Return the pin that `PATTERN=DEVICE` spells; the last `=` divides.

    Raises:
        UsageError: no `=`, an empty pattern, or a device that the program does not have.
    """
    pattern, equals, device = text.rpartition("=")
    if not equals or not pattern:
        raise UsageError(f"a pin is PATTERN=DEVICE, found {text!r}")
    if device not in devices:
        raise UsageError(f"the pin {text!r} names the device {device!r}; there are: {', '.join(devices)}")
    return Pin(pattern, device)


def pin_of(node: Node, pins: Sequence[Pin]) -> Pin | None:
    """Return the pin that decides about a node: the last one that matches, so later ones refine."""
    return next((pin for pin in reversed(pins) if pin.matches(node)), None)


def check_pins(graphs: Iterable[Graph], pins: Sequence[Pin]) -> None:
    """Refuse pins that match nothing: a misspelt pattern would otherwise be ignored silently.

    Raises:
        PartitionError: a pin matches no node; names some nodes that exist.
    """
    nodes = [node for graph in graphs for node in graph.walk()]
    for pin in pins:
        if not any(pin.matches(node) for node in nodes):
            some = ", ".join(sorted({node.label for node in nodes})[:5])
            raise PartitionError(f"the pin {str(pin)!r} matches no node; there are for instance: {some}")
