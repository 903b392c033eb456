"""Inputs for a run from the command line: files, or random tensors of the declared types."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hcomp.cli.options import by_name
from hcomp.dims import evaluate, symbols_of
from hcomp.dtypes import numpy_dtype
from hcomp.errors import HcompError, UsageError
from hcomp.files import why_unreadable
from hcomp.options import DEFAULT_SIZE, refuse_sizes

RANDOM_BYTES = 8
"""What each number takes while numpy makes it up."""


def input_files(texts: Sequence[str]) -> dict[str, str]:
    """Return the paths of `NAME=FILE.npy` texts by name.

    Raises:
        UsageError: the form is another, or a name comes twice.
    """
    pairs = []
    for text in texts:
        name, equals, path = text.rpartition("=")
        if not equals or not name:
            raise UsageError(f"an input is NAME=FILE.npy, found {text!r}")
        pairs.append((name, path))
    return by_name("--input", pairs)


def read_inputs(files: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Return the arrays in files.

    Raises:
        UsageError: a file holds no array (pickled ones are refused).
    """
    return {name: _load(path) for name, path in files.items()}


def _load(path: str) -> NDArray[Any]:
    if reason := why_unreadable(path):
        raise UsageError(f"{path}: not a .npy array: {reason}")
    try:
        with Path(path).open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except (MemoryError, OverflowError) as error:
        raise UsageError(f"{path}: the array that its header declares is too large for the memory: {error}") from None
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UsageError(f"{path}: not a .npy array: {error}") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path}: not a .npy array: it is an archive of several (.npz)")
    return array


def checked_sizes(specs: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every free size of the inputs, DEFAULT_SIZE where `sizes` gives none.

    Raises:
        UsageError: no input has a size of a given name.
    """
    known = {name for spec in specs for name in symbols_of(getattr(spec.type, "shape", None) or ())}
    if unknown := sizes.keys() - known:
        refuse_sizes(unknown, known)
    return {name: sizes.get(name, DEFAULT_SIZE) for name in sorted(known)}


def advise_sizes(sizes: Mapping[str, int], given: Mapping[str, int]) -> str:
    """Return what to try where sizes were made up that may make no sense to the model; else ""."""
    assumed = [name for name in sizes if name not in given]
    if not assumed:
        return ""
    shown = ", ".join(f"{name}={sizes[name]}" for name in assumed)
    return f" ({shown} is assumed and may make no sense for this model: --size {assumed[0]}=N sets it)"


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Add an advice to the error of a run, if it fails."""
    try:
        yield
    except HcompError as error:
        raise type(error)(f"{error}{advice}") from error


def random_inputs(
    specs: Sequence[Any], sizes: Mapping[str, int], given: Mapping[str, NDArray[Any]], seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Return `given` completed with seeded random tensors for the other inputs.

    Floats are normal, integers 0 or 1 (so that they are valid indices), bools even odds.

    Raises:
        UsageError: a size has no such name, or an input is no tensor, has no known rank, or does
            not fit the memory.
    """
    feeds = dict(given)
    symbols = checked_sizes(specs, sizes)
    for number, spec in enumerate(specs):
        if spec.name not in feeds:
            feeds[spec.name] = _random(spec, symbols, np.random.default_rng([seed, number]))
    return feeds


def _random(spec: Any, symbols: Mapping[str, int], generator: np.random.Generator) -> NDArray[Any]:
    shape = getattr(spec.type, "shape", None)
    if shape is None:
        raise UsageError(f"the input {spec.name!r} of type {spec.type} cannot be made up: give it as a file")
    dtype = spec.type.dtype
    if dtype == "string":
        raise UsageError(f"the input {spec.name!r} holds text and cannot be made up")
    concrete = _concrete(spec, shape, symbols)
    too_large = UsageError(
        f"the input {spec.name!r} of shape {list(concrete)} is too large for the memory; --size makes it smaller"
    )
    if RANDOM_BYTES * prod(concrete) > _memory():
        raise too_large
    try:
        if dtype == "bool" or "int" in dtype:
            return generator.integers(0, 2, concrete).astype(numpy_dtype(dtype))
        return generator.standard_normal(concrete).astype(numpy_dtype(dtype))
    except MemoryError:
        raise too_large from None


def _concrete(spec: Any, shape: Sequence[Any], symbols: Mapping[str, int]) -> tuple[int, ...]:
    try:
        concrete = tuple(evaluate(d, symbols) for d in shape)
    except ZeroDivisionError:
        concrete = (-1,)
    if any(size < 0 for size in concrete):
        chosen = ", ".join(f"{name}={size}" for name, size in symbols.items())
        raise UsageError(f"the input {spec.name!r} of type {spec.type} has no shape for the sizes {chosen}")
    return concrete


def _memory() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
