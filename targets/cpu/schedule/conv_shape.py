"""The numbers of a packed convolution, as the lowering writes them on the block and the rule reads them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

CONV = "hcomp.conv"
"""Block annotation: the text of a `ConvShape`."""


@dataclass(frozen=True)
class ConvShape:
    """One convolution over `len(kernel)` spatial axes with a constant weight.

    Attributes:
        kernel: taps of each axis.
        strides: step of each axis.
        begin: zeros before each axis.
        end: zeros after each axis.
        dilation: distance of taps of each axis.
        groups: number of groups.
        inputs: input channels of one group.
        outputs: output channels of one group.
        rows: output channels of one register tile; the weight is packed as
            [groups][ceil(outputs / rows)][inputs][*kernel][rows], padded with zeros.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    inputs: int
    outputs: int
    rows: int

    def text(self) -> str:
        """Return the annotation."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> ConvShape:
        """Return the shape that `text` describes."""
        fields: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return cls(**values)

    @property
    def tiles(self) -> int:
        """Register tiles of output channels in one group."""
        return -(-self.outputs // self.rows)

    @property
    def pointwise(self) -> bool:
        """Whether each output reads exactly the input at its own position."""
        ones = all(k == 1 for k in self.kernel) and all(s == 1 for s in self.strides)
        return ones and not any(self.begin) and not any(self.end)
