"""Where the time of a run goes: every region and copy, measured beside what the plan predicted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from hcomp.artifact.manifest import Manifest
from hcomp.artifact.program import Copy, If, Launch, Step
from hcomp.errors import RunError, UsageError
from hcomp.files import as_path, reason_of, why_unwritable, write_whole
from hcomp.runtime.steps import Code
from hcomp.runtime.values import value_bytes


@dataclass(frozen=True)
class StepTime:
    """One step: the median of its measured times, the plan's prediction, and a simulated time.

    `simulated_us` is what the link of a simulated device would take: latency plus bytes over
    bandwidth, from the manifest's device entry.
    """

    name: str
    kind: str
    device: str
    nodes: tuple[str, ...]
    bytes: int
    measured_us: float
    predicted_us: float | None
    simulated_us: float | None


@dataclass(frozen=True)
class Profile:
    """The steps' times, and the moments (start and end, in us) of each step of the last run."""

    steps: tuple[StepTime, ...]
    total_us: float
    moments: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, object]:
        """Return the profile as plain data."""
        return {"total_us": self.total_us, "steps": [asdict(step) for step in self.steps]}

    def to_text(self) -> str:
        """Return the profile as a table for people."""
        rows: list[tuple[str, ...]] = [("step", "device", "measured us", "predicted us", "simulated us", "nodes")]
        rows += [_row(step) for step in self.steps]
        rows.append(("whole run", "", f"{self.total_us:.1f}", "", "", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    def chrome_trace(self) -> dict[str, object]:
        """Return the last run in the trace format that chrome://tracing and Perfetto open."""
        devices = sorted({step.device for step in self.steps})
        events: list[dict[str, object]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": device}}
            for i, device in enumerate(devices)
        ]
        for step, (start, end) in zip(self.steps, self.moments, strict=True):
            events.append(
                {
                    "ph": "X",
                    "name": f"{step.kind} {step.name}",
                    "cat": step.kind,
                    "pid": 1,
                    "tid": devices.index(step.device),
                    "ts": round(start, 3),
                    "dur": round(end - start, 3),
                    "args": {
                        "nodes": list(step.nodes),
                        "bytes": step.bytes,
                        "predicted_us": step.predicted_us,
                    },
                }
            )
        return {"displayTimeUnit": "ms", "traceEvents": events}

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file.

        Raises:
            RunError: the file cannot be written.
        """
        target = as_path(path, "a trace")
        text = json.dumps(self.chrome_trace())
        try:
            if reason := why_unwritable(target):
                raise RunError(f"{path}: cannot be written: {reason}")
            write_whole(target, lambda file: file.write(text.encode()))
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be written: {reason_of(error)}") from None


def profile_runs(manifest: Manifest, code: Code, values: Sequence[object], runs: int) -> Profile:
    """Run a program some times, once more to warm up, and return its profile."""
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise UsageError(f"runs must be an integer of at least 1, found {runs!r}")
    sizes = _run_once(manifest, code, values)[1]
    timelines = [_run_once(manifest, code, values)[0] for _ in range(runs)]
    steps = []
    for i, step in enumerate(manifest.program.steps):
        times = sorted(line[i + 1] - line[i] for line in timelines)
        steps.append(_step_time(manifest, step, sizes[i], times[len(times) // 2] * 1e6))
    totals = sorted(line[-1] - line[0] for line in timelines)
    last = [(moment - timelines[-1][0]) * 1e6 for moment in timelines[-1]]
    moments = tuple(pairwise(last))
    return Profile(tuple(steps), totals[len(totals) // 2] * 1e6, moments)


def _run_once(manifest: Manifest, code: Code, values: Sequence[object]) -> tuple[list[float], list[int]]:
    """Return the moments between steps in seconds, and the bytes that each copy made."""
    slots = [*values, *code.blank]
    moments, sizes = [time.perf_counter()], []
    for step, action, made in zip(manifest.program.steps, code.actions, code.made, strict=True):
        action(slots)
        moments.append(time.perf_counter())
        sizes.append(sum(value_bytes(slots[i]) for i in made) if isinstance(step, Copy) else 0)
    return moments, sizes


def _step_time(manifest: Manifest, step: Step, size: int, measured: float) -> StepTime:
    match step:
        case Launch():
            return StepTime(step.region, "launch", step.device, step.nodes, 0, measured, step.predicted_us, None)
        case Copy():
            simulated = _link_us(manifest, step, size)
            route = f"{step.value} {step.source}->{step.target}"
            return StepTime(route, "copy", step.target, (), size, measured, step.predicted_us, simulated)
    kind = "if" if isinstance(step, If) else "loop"
    return StepTime(", ".join(step.outputs), kind, "cpu", (), 0, measured, None, None)


def _link_us(manifest: Manifest, step: Copy, size: int) -> float | None:
    """Return the time of a copy on the link of its simulated end."""
    ends = [device for device in manifest.devices if device.name in (step.source, step.target)]
    for device in ends:
        if device.latency_us is not None and device.bandwidth_gb_s:
            return device.latency_us + size / (device.bandwidth_gb_s * 1e3)
    return None


def _row(step: StepTime) -> tuple[str, ...]:
    return (
        f"{step.kind} {step.name}",
        step.device,
        f"{step.measured_us:.1f}",
        _number(step.predicted_us),
        _number(step.simulated_us),
        ", ".join(step.nodes[:3]),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
