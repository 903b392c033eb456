"""A `loop` over time that a converter writes itself, for recurrences without an operator of their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hcomp.capture.context import NodeContext
from hcomp.dims import DimLike, symbols_of
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.types import TensorType


class TimeLoop:
    """The body being built; `finish` emits the loop.

    Attributes:
        c: the node's context, emitting into the body.
        step: the value that counts the iterations, int64 [].
        states: the carried values, as the body sees them.
    """

    def __init__(self, outer: NodeContext, steps: DimLike, carried: Sequence[str]) -> None:
        self.outer, self.steps, self.carried = outer, steps, list(carried)
        self.body = GraphBuilder("step", outer.b.names)
        self.body.origin = outer.b.origin
        self.c = copy.copy(outer)
        self.c.b = self.body
        self.step = self.body.input("step", TensorType("int64", ()))
        self._more = self.body.input("more", TensorType("bool", ()))
        self.states = [self.body.input("state", outer.b.types[s]) for s in carried]
        self._captured: list[str] = []

    def carry_in(self, value: str) -> str:
        """Return a value of the outer graph as the body sees it; "" stays ""."""
        if not value:
            return ""
        constant = self.outer.b.constant_array(value)
        if constant is not None:
            return self.body.constant(constant, value)
        self._captured.append(value)
        return self.body.input(value, self.outer.b.types[value])

    def finish(self, states: Sequence[str], scans: Sequence[str]) -> tuple[list[str], list[str]]:
        """Emit the loop; return the final states, and the scans stacked along a new first axis."""
        self._carry_symbols()
        graph = self.body.finish([self._more, *states, *scans])
        trips = self.outer.b.shape_value([self.steps], scalar=True)
        types = [self.outer.b.types[s] for s in self.carried]
        inner = [self.c.type(s) for s in scans]
        stacked = [TensorType(t.dtype, (self.steps, *(t.shape or ()))) for t in inner]
        made = self.outer.b.emit_typed(
            "loop", (trips, "", *self.carried, *self._captured), [*types, *stacked],
            attrs={"carried": len(states)}, graphs={"body": graph},
        )  # fmt: skip
        return list(made[: len(states)]), list(made[len(states) :])

    def _carry_symbols(self) -> None:
        """Let a value in for each size that the body mentions and none of its inputs has."""
        used: set[str] = set()
        for value_type in self.body.types.values():
            if isinstance(value_type, TensorType) and value_type.shape is not None:
                used |= symbols_of(value_type.shape)
        for attrs in self.body.all_attrs():
            used |= symbols_of(tuple(attrs.values()))
        for symbol in sorted(used):
            if self.body.introduces(symbol) is not None:
                continue
            source = self.outer.b.introduces(symbol)
            if source is None:
                raise self.outer.refuse(f"no value brings its size {symbol} into the loop over time")
            self.carry_in(source)
