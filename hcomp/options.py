"""What a caller may ask of the compiler, checked before any work starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NoReturn

from hcomp.errors import UsageError

DEFAULT_SIZE = 16
"""What a free size counts as in predictions, and is in runs on made-up inputs, where nobody names one."""
MAX_SIZE = 10**18
"""No size of a tensor reaches it."""
MAX_THREADS = 1024
MAX_SECONDS = 10**6


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
        threads: how many threads the kernels of the returned program use; an artifact keeps none.
        cache: for a file as model, take the program from the compile cache, and keep it there.
        tune: seconds to search blocks of kernels for, by measuring them here; 0 for none.
        tuning: the file that measured blocks come from; with `tune`, new ones go there too ("": the
            user's own file, if `tune` asks for one).
    """

    devices: tuple[str, ...] = ("cpu",)
    objective: str = "latency"
    pins: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False
    threads: int | None = None
    cache: bool = True
    tune: float = 0.0
    tuning: str = ""


def compile_options(
    devices: Sequence[str] | str | None = None,
    objective: str = "latency",
    pins: Sequence[str] | str | Mapping[str, str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    strict: bool = False,
    threads: int | None = None,
    cache: bool = True,
    tune: float = 0.0,
    tuning: str | os.PathLike[str] = "",
    **unknown: object,
) -> CompileOptions:
    """Return options from the forms that callers write: one name or many, a dict of pins.

    Raises:
        UsageError: a value is of another type or out of its range, or there is no such option; names it.
    """
    if unknown:
        known = "devices, objective, pins, shapes, sizes, strict, threads, cache, tune, tuning"
        raise UsageError(f"hcomp.compile has no option {', '.join(map(repr, unknown))}; it has {known}")
    if isinstance(devices, str):
        devices = [d.strip() for d in devices.split(",") if d.strip()]
    if isinstance(pins, str):
        pins = [pins]
    if isinstance(pins, Mapping):
        pins = [f"{pattern}={_text('pins', device)}" for pattern, device in _named("pins", pins).items()]
    if not isinstance(strict, bool):
        raise wrong("strict", "True or False", strict)
    if not isinstance(cache, bool):
        raise wrong("cache", "True or False", cache)
    return CompileOptions(
        devices=_texts("devices", ("cpu",) if devices is None else devices),
        objective=_text("objective", objective),
        pins=_texts("pins", pins),
        shapes={name: _shape(name, shape) for name, shape in _named("shapes", shapes or {}).items()},
        sizes={name: _size(f"sizes[{name!r}]", size) for name, size in _named("sizes", sizes or {}).items()},
        strict=strict,
        threads=None if threads is None else checked_threads(threads),
        cache=cache,
        tune=_seconds("tune", tune),
        tuning=_text("tuning", os.fspath(tuning) if isinstance(tuning, os.PathLike) else tuning),
    )


def checked_threads(threads: object) -> int:
    """Return a number of threads.

    Raises:
        UsageError: it is no integer in 1..MAX_THREADS.
    """
    found = _integer(threads)
    if found is None or not 1 <= found <= MAX_THREADS:
        raise wrong("threads", f"an integer in 1..{MAX_THREADS}", threads)
    return found


def refuse_sizes(unknown: Iterable[str], known: Iterable[str]) -> NoReturn:
    """Raise the error of sizes whose names the model does not have."""
    names = ", ".join(repr(name) for name in sorted(unknown))
    raise UsageError(f"the model has no free size {names}; it has: {', '.join(sorted(known)) or 'none'}")


def wrong(option: str, expected: str, found: object) -> UsageError:
    """Return the error of an option whose value is none."""
    text = repr(found)
    return UsageError(f"{option} must be {expected}, found {text if len(text) < 80 else text[:77] + '...'}")


def _named(option: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong(option, "a dictionary by name", value)
    return value


def _text(option: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(option, "a text", value)
    return value


def _texts(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise wrong(option, "a text or a list of texts", value)
    return tuple(_text(f"each of {option}", item) for item in value)


def _shape(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise wrong(f"shapes[{name!r}]", "a list of integers", value)
    return tuple(_size(f"each of shapes[{name!r}]", size) for size in value)


def _size(option: str, value: object) -> int:
    found = _integer(value)
    if found is None or not 0 <= found < MAX_SIZE:
        raise wrong(option, "an integer of at least 0 (and below 10^18)", value)
    return found


def _seconds(option: str, value: object) -> float:
    numbers = isinstance(value, int | float) and not isinstance(value, bool)
    if not numbers or not 0 <= value < MAX_SECONDS:  # type: ignore[operator]  # it is a number
        raise wrong(option, f"a number of seconds in 0..{MAX_SECONDS}", value)
    return float(value)  # type: ignore[arg-type]  # as checked


def _integer(value: object) -> int | None:
    """Return an integer of Python or numpy as one of Python; None for anything else, True and False too."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # it is what decides
    except TypeError:
        return None
