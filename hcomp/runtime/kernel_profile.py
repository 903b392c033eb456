"""What each kernel takes and reaches, and what bounds it on a machine that was measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hcomp.machine import Machine
from hcomp.options import wrong
from hcomp.runtime.kernel_clock import KernelClock, Lap
from hcomp.runtime.steps import Code

OVERHEAD = "overhead"


@dataclass(frozen=True)
class KernelTime:
    """One kernel's share of a run; all numbers are of all its calls together.

    Attributes:
        region, kernel, rule: where it is, its name, and the schedule rule that made its loops.
        nodes: the nodes of the model that it computes.
        calls: calls in one run.
        us: the median over the runs.
        best_us: the least of them.
        operations: arithmetic operations, a multiply-add being two; None where unknown.
        bytes: what it reads and writes of its operands, each element once; None where unknown.
    """

    region: str
    kernel: str
    rule: str
    nodes: tuple[str, ...]
    calls: int
    us: float
    best_us: float
    operations: int | None
    bytes: int | None

    @property
    def gflop_s(self) -> float | None:
        """Operations a second, in 10^9."""
        return None if self.operations is None else _rate(self.operations, self.us)

    @property
    def gb_s(self) -> float | None:
        """Bytes a second, in 10^9."""
        return None if self.bytes is None else _rate(self.bytes, self.us)

    def bound(self, machine: Machine, threads: int) -> tuple[str, float]:
        """Return what bounds the kernel, and the share of its time that this would take by itself.

        Of the operations at the machine's peak, the bytes at the speed of the smallest memory that holds
        what a call touches, and the launches, it is the one that takes longest.
        """
        memory, speed = machine.memory_of((self.bytes or 0) // max(1, self.calls), threads)
        least = {
            "compute": (self.operations or 0) / machine.peak(threads) / 1e3,
            f"memory ({memory})": (self.bytes or 0) / speed / 1e3,
            OVERHEAD: self.calls * machine.launch_us,
        }
        name = max(least, key=least.__getitem__)
        return name, min(1.0, least[name] / self.us) if self.us else 1.0


@dataclass(frozen=True)
class KernelProfile:
    """The kernels' times of one run, the longest first."""

    kernels: tuple[KernelTime, ...]
    threads: int
    runs: int

    @property
    def total_us(self) -> float:
        """The time of all kernels together."""
        return sum(kernel.us for kernel in self.kernels)

    def to_json(self, machine: Machine | None = None) -> dict[str, object]:
        """Return the profile as plain data; shares and bounds where the machine was measured."""
        rows = []
        for kernel in self.kernels:
            row = {**asdict(kernel), "gflop_s": kernel.gflop_s, "gb_s": kernel.gb_s}
            if machine is not None:
                bound, share = kernel.bound(machine, self.threads)
                row |= {"peak_share": _peak_share(kernel, machine, self.threads), "bound": bound, "bound_share": share}
            rows.append(row)
        return {"total_us": self.total_us, "threads": self.threads, "runs": self.runs, "kernels": rows}

    def to_rows(self, machine: Machine | None = None, most: int | None = None) -> list[tuple[str, ...]]:
        """Return the rows of a table for people, with its head; `most` cuts it."""
        head = ("us", "share", "calls", "GFLOP/s", "GB/s", "of peak", "bound by", "rule", "kernel", "nodes")
        rows: list[tuple[str, ...]] = [head if machine is not None else (*head[:5], *head[7:])]
        total = self.total_us or 1.0
        for kernel in self.kernels[:most]:
            reached: tuple[str, ...] = ()
            if machine is not None:
                bound, share = kernel.bound(machine, self.threads)
                peak = _peak_share(kernel, machine, self.threads)
                reached = ("" if peak is None else f"{100 * peak:.0f} %", f"{bound} {100 * share:.0f} %")
            nodes = ", ".join(kernel.nodes[:3]) + (f", ... ({len(kernel.nodes)})" if len(kernel.nodes) > 3 else "")
            rows.append((
                f"{kernel.us:.1f}", f"{100 * kernel.us / total:.1f} %", str(kernel.calls), _text(kernel.gflop_s),
                _text(kernel.gb_s), *reached, kernel.rule, kernel.kernel, nodes,
            ))  # fmt: skip
        return rows


def profile_kernels(code: Code, clock: KernelClock, values: Sequence[object], runs: int, threads: int) -> KernelProfile:
    """Run a program whose kernels `clock` times some times, once more to warm up, and return its profile."""
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise wrong("runs", "an integer of at least 1", runs)
    code.run(values)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    last: dict[tuple[str, str], Lap] = {}
    for _ in range(runs):
        clock.laps = {}
        code.run(values)
        last = clock.laps
        for key, lap in last.items():
            seconds[key].append(lap.seconds)
    found = []
    for key, lap in last.items():
        entry, laps = clock.entries[key], [1e6 * t for t in seconds[key]]
        times = (statistics.median(laps), min(laps))
        found.append(KernelTime(*key, entry.rule, entry.nodes, lap.calls, *times, lap.operations, lap.bytes))
    return KernelProfile(tuple(sorted(found, key=lambda k: -k.us)), threads, runs)


def _peak_share(kernel: KernelTime, machine: Machine, threads: int) -> float | None:
    reached = kernel.gflop_s
    return None if reached is None else reached / machine.peak(threads)


def _rate(amount: int, us: float) -> float:
    return amount / us / 1e3 if us else 0.0


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
