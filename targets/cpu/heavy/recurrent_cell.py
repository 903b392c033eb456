"""One direction of LSTM, GRU or RNN: what it has, and how its packed weight and gates lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.activations import Activation

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent operator.

    Attributes:
        kind: `lstm`, `gru` or `rnn`.
        hidden: hidden units.
        dtype: dtype of everything.
        reverse: whether each sequence is read from its end.
        activations: as ONNX lists them for one direction.
        clip: bound of the inputs of gate activations, or None.
        input_forget: LSTM: the forget gate is 1 - input gate.
        linear_before_reset: GRU: the reset gate scales the product instead of the state.
        lengths: whether a length of every sequence is given.
        peepholes: LSTM: whether the gates see the cell state.
        bias: whether the gates have a bias (outside the reset gate).
        initial_h: whether the hidden state starts from a given one; otherwise from zeros.
        initial_c: LSTM: likewise for the cell state.
    """

    kind: str
    hidden: int
    dtype: str
    reverse: bool
    activations: tuple[Activation, ...]
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False
    lengths: bool = False
    peepholes: bool = False
    bias: bool = False
    initial_h: bool = False
    initial_c: bool = False

    @property
    def columns(self) -> int:
        """Columns of the input projection: all gates of all units."""
        return GATES[self.kind] * self.hidden

    @property
    def products(self) -> tuple[range, ...]:
        """The gates of each product with a state, in order of execution.

        All gates at once, except in the GRU whose reset gate scales the state of the third one.
        """
        if self.kind == "gru" and not self.linear_before_reset:
            return range(2), range(2, 3)
        return (range(GATES[self.kind]),)

    def lanes(self, cpu: CpuFeatures) -> int:
        """Return the elements of one vector."""
        return cpu.lanes(BYTES[self.dtype])

    def units(self, cpu: CpuFeatures) -> int:
        """Return the hidden units in whole vectors."""
        lanes = self.lanes(cpu)
        return -(-self.hidden // lanes) * lanes

    def panels(self, gates: range, cpu: CpuFeatures) -> tuple[int, int]:
        """Return (panels, columns of one) of the weight of a product, gate after gate without gaps.

        A panel's sums stay in registers over the whole state. Eight vectors of them hide the latency of
        the multiply-add (4 cycles, 2 a cycle on the processors that we know); three registers
        are left for the state's element and the weight. Among those, the one with the least padding.
        """
        lanes = self.lanes(cpu)
        vectors = -(-len(gates) * self.hidden // lanes)
        most = max(8, cpu.registers - 3)
        if vectors <= most:
            return 1, vectors * lanes
        chosen = min(range(8, most + 1), key=lambda v: (-(-vectors // v) * v, -v))
        return -(-vectors // chosen), chosen * lanes

    def row(self, cpu: CpuFeatures) -> int:
        """Return the elements that one sequence's gates take, whole vectors and panels included."""
        ends = [(GATES[self.kind] - 1) * self.hidden + self.units(cpu)]
        for gates in self.products:
            panels, width = self.panels(gates, cpu)
            ends.append(gates.start * self.hidden + panels * width)
        return max(ends)
