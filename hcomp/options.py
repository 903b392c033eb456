"""What a caller may ask of the compiler, checked before any work starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hcomp.errors import UsageError


@dataclass(frozen=True)
class CompileOptions:
    """The options of `hcomp.compile`.

    Attributes:
        devices: names of targets, the first one preferred where costs are equal.
        objective: what the plan minimises: "latency".
        pins: `PATTERN=DEVICE` texts; the last one that matches a node decides.
        shapes: sizes of inputs by name, to make them static.
        sizes: what symbols count as in costs.
        strict: refuse a model with extern nodes.
        threads: how many threads the kernels use; None leaves it to the machine.
    """

    devices: tuple[str, ...] = ("cpu",)
    objective: str = "latency"
    pins: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            if any(not isinstance(d, int) or d < 0 for d in shape):
                raise UsageError(f"the shape of {name!r} must be integers of at least 0, found {list(shape)}")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads must be at least 1, found {self.threads}")


def compile_options(
    devices: Sequence[str] | str | None = None,
    objective: str = "latency",
    pins: Sequence[str] | str | Mapping[str, str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    strict: bool = False,
    threads: int | None = None,
) -> CompileOptions:
    """Return options from the forms that callers write: one name or many, a dict of pins.

    Raises:
        UsageError: a value is out of its range.
    """
    if isinstance(devices, str):
        devices = [d.strip() for d in devices.split(",") if d.strip()]
    if isinstance(pins, str):
        pins = [pins]
    if isinstance(pins, Mapping):
        pins = [f"{pattern}={device}" for pattern, device in pins.items()]
    return CompileOptions(
        devices=tuple(devices) if devices is not None else ("cpu",),
        objective=objective,
        pins=tuple(pins),
        shapes={name: tuple(int(d) for d in shape) for name, shape in (shapes or {}).items()},
        sizes=dict(sizes or {}),
        strict=strict,
        threads=threads,
    )
