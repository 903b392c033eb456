"""When everything of a placement happens: one lane a device, one for copies. Plans and searches ask this one.

A piece is what one device runs as one call. Pieces start in their order, each once its device is free and its
inputs are in the device's memory. A value is copied into a memory once, by the first piece that reads it there;
devices reach each other through the host's memory. Copies run one after the other beside the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

HOST = "host"
"""The memory that the runtime, extern nodes and the CPU share."""

COPIES = "copies"
"""The lane of copies."""


@dataclass(frozen=True)
class Piece:
    """What runs as one call: the lane (a device) and memory, seconds, and the values that it reads and makes."""

    lane: str
    memory: str
    seconds: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Event:
    """Something that happens: a piece (its index), or a copy of a value between two memories."""

    start: float
    end: float
    piece: int = -1
    value: str = ""
    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class Links:
    """What copies take: `seconds` of a value's bytes by the memory that is not the host's, and the bytes."""

    seconds: Mapping[str, Callable[[int], float]]
    bytes: Mapping[str, int]

    def time(self, value: str, source: str, target: str) -> float:
        """Return the seconds that copying a value takes."""
        return self.seconds[target if source == HOST else source](self.bytes[value])


def schedule(pieces: Sequence[Piece], given: Sequence[str], returned: Sequence[str], links: Links) -> list[Event]:
    """Return all events in the order in which they are issued.

    Args:
        pieces: in an order in which they can run.
        given: values that are in the host's memory from the start.
        returned: values that have to be there at the end.
        links: what copies take.
    """
    ready: dict[tuple[str, str], float] = {(name, HOST): 0.0 for name in given}
    home = dict.fromkeys(given, HOST)
    busy: dict[str, float] = {}
    events: list[Event] = []

    def bring(value: str, memory: str) -> float:
        if (value, memory) in ready:
            return ready[value, memory]
        source = home[value]
        if source != HOST and memory != HOST:
            bring(value, HOST)  # devices have no links among themselves here
            source = HOST
        start = max(ready[value, source], busy.get(COPIES, 0.0))
        end = start + links.time(value, source, memory)
        busy[COPIES] = ready[value, memory] = end
        events.append(Event(start, end, value=value, source=source, target=memory))
        return end

    for number, piece in enumerate(pieces):
        start = max([busy.get(piece.lane, 0.0), *(bring(name, piece.memory) for name in piece.inputs)])
        end = busy[piece.lane] = start + piece.seconds
        events.append(Event(start, end, piece=number))
        for name in piece.outputs:
            home[name] = piece.memory
            ready[name, piece.memory] = end
    for name in returned:
        if name in home:
            bring(name, HOST)
    return events


def peaks(pieces: Sequence[Piece], events: Sequence[Event], links: Links, kept: Sequence[str] = ()) -> dict[str, int]:
    """Return the most bytes of values that each memory holds at once, as events are issued.

    A copy of a value lives from the event that makes it to the last that reads it; `kept` ones in the host's
    memory live to the end. Each piece holds its inputs and outputs together.
    """
    spans: dict[tuple[str, str], list[int]] = {}
    for i, event in enumerate(events):
        if event.piece < 0:
            touched = [(event.value, event.source), (event.value, event.target)]
        else:
            piece = pieces[event.piece]
            touched = [(name, piece.memory) for name in (*piece.inputs, *piece.outputs)]
        for key in touched:
            spans.setdefault(key, [i, i])[1] = i
    for name in kept:
        if (name, HOST) in spans:
            spans[name, HOST][1] = len(events)
    change: dict[str, dict[int, int]] = {}
    for (name, memory), (first, last) in spans.items():
        steps = change.setdefault(memory, {})
        steps[first] = steps.get(first, 0) + links.bytes[name]
        steps[last + 1] = steps.get(last + 1, 0) - links.bytes[name]
    found = {}
    for memory, steps in change.items():
        now = top = 0
        for i in sorted(steps):
            now += steps[i]
            top = max(top, now)
        found[memory] = top
    return found
