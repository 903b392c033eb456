"""The numbers of a packed convolution, as the lowering writes them on the block and the rule reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm

from hcomp.targets.cpu.schedule.annotation import Annotation
from hcomp.targets.cpu.schedule.nest import GRAIN_OPERATIONS, imm, loads
from hcomp.targets.cpu.schedule.stages import Stage

CONV = "hcomp.conv"
"""Block annotation: the text of a `ConvShape`."""


@dataclass(frozen=True)
class ConvShape(Annotation):
    """One convolution over `len(kernel)` spatial axes, channels last, with a constant weight.

    Attributes:
        kernel: taps of each axis.
        strides: step of each axis.
        begin: zeros before each axis.
        end: zeros after each axis.
        dilation: distance of taps of each axis.
        groups: number of groups.
        inputs: input channels of one group.
        outputs: output channels of one group.
        columns: output channels of one panel; the weight is packed as
            [groups][ceil(outputs / columns)][*kernel, inputs][columns], padded with zeros. A depthwise
            weight is [*kernel][groups] and has no panels.
        tile: outputs along each axis of one tile of Winograd's filtering, whose weight is
            [(tile + 2)^2][panels][inputs][columns]; 0 for a direct convolution.
        positions: about how many output positions one task of a direct convolution computes; 0 for the
            schedule's own number.
        phases: the strides of a transposed convolution. It is written as a plain one with step 1 at whose
            every position all remainders of an output index by the strides, the phases, are computed,
            as further output channels; a short kernel has zeros in some phases. Empty for a plain one.
        before, behind: what of the first and of the last position's phases is outside of the result.
        together: phases of one panel; with 1, a phase has ceil(outputs / columns) panels.
        group: for bytes, neighbours along a run that stand together in the weight, which is
            [groups][panels][runs][ceil(run / group)][columns * group]; 0 for float32.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    inputs: int
    outputs: int
    columns: int
    tile: int = 0
    positions: int = 0
    phases: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    together: int = 1
    group: int = 0

    @classmethod
    def of(
        cls, kernel: Sequence[int], inputs: int, outputs: int,
        strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
        columns: int, group: int = 0,
    ) -> ConvShape:  # fmt: skip
        """Return a plain direct convolution; `inputs` and `outputs` are a group's, `padding` as an operator has it."""
        rank = len(kernel)
        return cls(
            kernel=tuple(int(k) for k in kernel),
            strides=tuple(int(s) for s in strides),
            begin=tuple(int(p) for p in padding[:rank]),
            end=tuple(int(p) for p in padding[rank:]),
            dilation=tuple(int(d) for d in dilation),
            groups=int(groups),
            inputs=int(inputs),
            outputs=int(outputs),
            columns=columns,
            group=group,
        )

    @property
    def panels(self) -> int:
        """Panels of output channels in one group."""
        return prod(self.phases) // self.together * self.parts

    @property
    def parts(self) -> int:
        """Panels that the output channels of one phase are cut into."""
        return -(-self.outputs // self.columns)

    @property
    def depth(self) -> int:
        """Products in one sum."""
        return prod(self.kernel) * self.inputs

    @property
    def run_taps(self) -> tuple[int, ...]:
        """Taps of the axes that do not continue each other: runs are counted over them.

        Taps along the last axis are contiguous, unless other channels stand between them.
        """
        return self.kernel[:-1] if self.dilation[-1] == 1 and self.groups == 1 else self.kernel

    @property
    def runs(self) -> int:
        """Runs of contiguous products of one sum."""
        return prod(self.run_taps)

    @property
    def run(self) -> int:
        """Products of one run."""
        return self.depth // self.runs

    @property
    def channels(self) -> int:
        """Channels of the image."""
        return self.groups * self.inputs

    @property
    def depthwise(self) -> bool:
        """Whether each output channel reads the input channel of its own number."""
        return self.groups > 1 and self.inputs == 1 and self.outputs == 1 and not self.phases

    @property
    def padded(self) -> bool:
        """Whether windows reach over the edge of the image."""
        return any(self.begin) or any(self.end)

    def positions_of(self, sizes: Sequence[Any]) -> list[Any]:
        """Return how many positions a transposed convolution has along each axis of an image of `sizes`."""
        spans = zip(sizes, self.begin, self.end, self.kernel, self.dilation, strict=True)
        return [size + imm(b + e - (k - 1) * d) for size, b, e, k, d in spans]


@dataclass(frozen=True)
class Convolution:
    """A recognised stage: its shape and its two inputs."""

    stage: Stage
    shape: ConvShape
    image: Any
    weight: Any

    @property
    def parallel(self) -> bool:
        """Whether there is enough work for more than one thread."""
        return 2 * self.stage.iterations >= GRAIN_OPERATIONS


def match_conv(stage: Stage) -> Convolution | None:
    """Return the packed convolution that `stage` computes, or None."""
    text = stage.annotations.get(CONV)
    if text is None or stage.store is None:
        return None
    value = stage.store.value
    term = value.b if isinstance(value.b, tvm.ir.prim.expr.Mul) else value.a
    image, weight = loads(term.a)[0].source, loads(term.b)[0].source
    return Convolution(stage, ConvShape.parse(str(text)), image, weight)
