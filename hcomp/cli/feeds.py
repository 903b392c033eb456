"""Inputs for a run from the command line: files, or random tensors of the declared types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcomp.dims import evaluate, symbols_of
from hcomp.dtypes import numpy_dtype
from hcomp.errors import UsageError

DEFAULT_SIZE = 8
"""The size of a symbol that the caller does not give."""


def read_inputs(texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of `NAME=FILE.npy` texts.

    Raises:
        UsageError: the form is another, or the file holds no array (pickled ones are refused).
    """
    found: dict[str, NDArray[Any]] = {}
    for text in texts:
        name, equals, path = text.rpartition("=")
        if not equals or not name:
            raise UsageError(f"an input is NAME=FILE.npy, found {text!r}")
        try:
            found[name] = np.load(Path(path), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"{path}: not a .npy array: {error}") from None
    return found


def random_inputs(
    specs: Sequence[Any], sizes: Mapping[str, int], given: Mapping[str, NDArray[Any]], seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Return `given` completed with seeded random tensors for the other inputs.

    Floats are normal, integers 0 or 1 (so that they are valid indices), bools even odds.

    Raises:
        UsageError: an input is no tensor or has no known rank.
    """
    feeds = dict(given)
    for number, spec in enumerate(specs):
        if spec.name not in feeds:
            feeds[spec.name] = _random(spec, sizes, np.random.default_rng([seed, number]))
    return feeds


def _random(spec: Any, sizes: Mapping[str, int], generator: np.random.Generator) -> NDArray[Any]:
    shape = getattr(spec.type, "shape", None)
    if shape is None:
        raise UsageError(f"the input {spec.name!r} of type {spec.type} cannot be made up: give it as a file")
    symbols = {name: sizes.get(name, DEFAULT_SIZE) for name in symbols_of(shape)}
    concrete = tuple(evaluate(d, symbols) for d in shape)
    dtype = spec.type.dtype
    if dtype == "string":
        raise UsageError(f"the input {spec.name!r} holds text and cannot be made up")
    if dtype == "bool" or "int" in dtype:
        return generator.integers(0, 2, concrete).astype(numpy_dtype(dtype))
    return generator.standard_normal(concrete).astype(numpy_dtype(dtype))
