"""NonMaxSuppression: a host operator, because how many boxes stay depends on the scores."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext


def _non_max_suppression(c: NodeContext) -> str:
    optional = [c.optional(i) for i in (2, 3, 4)]
    return c.b.emit(
        "non_max_suppression", c.input(0), c.input(1), *optional, center_point_box=c.attr("center_point_box", 0)
    )


DETECTION: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
