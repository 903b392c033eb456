"""Reading JSON that nobody has checked: every value is checked for type and range when taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from hcomp.errors import ArtifactError

MAX_INT = 2**63 - 1


def parse_json(data: bytes | memoryview, name: str) -> Fields:
    """Return the JSON object in `data`; `name` is what errors call it.

    Raises:
        ArtifactError: the bytes are no UTF-8 JSON object.
    """
    try:
        value = json.loads(bytes(data).decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{name} is not readable JSON: {error}") from None
    return Fields(_as_object(value, name), name)


@dataclass(frozen=True)
class Fields:
    """A JSON object being read; `path` is where it is: "manifest.json: program.steps[3]".

    All getters raise ArtifactError with the field's path, what was expected and what was found.
    """

    values: Mapping[str, object]
    path: str

    def has(self, key: str) -> bool:
        """Say whether the field is there and not null."""
        return self.values.get(key) is not None

    def raw(self, key: str) -> object:
        """Return the field as it is; it must be there."""
        if key not in self.values:
            raise ArtifactError(f"{self.path}: the field {key!r} is missing")
        return self.values[key]

    def text(self, key: str) -> str:
        """Return a string."""
        return as_text(self.raw(key), self.at(key))

    def flag(self, key: str) -> bool:
        """Return a boolean."""
        value = self.raw(key)
        return value if isinstance(value, bool) else _fail(self.at(key), "true or false", value)

    def integer(self, key: str, low: int = 0, high: int = MAX_INT) -> int:
        """Return an integer in low..high."""
        return as_integer(self.raw(key), self.at(key), low, high)

    def number(self, key: str) -> float | None:
        """Return a finite number that is not negative, or None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
            return _fail(self.at(key), "a number of 0 or more", value)
        return float(value)

    def items(self, key: str) -> list[object]:
        """Return a list."""
        value = self.raw(key)
        return value if isinstance(value, list) else _fail(self.at(key), "a list", value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        return tuple(as_text(v, f"{self.at(key)}[{i}]") for i, v in enumerate(self.items(key)))

    def optional_texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, empty where the field is not there."""
        return self.texts(key) if self.has(key) else ()

    def object(self, key: str) -> Fields:
        """Return an object."""
        return Fields(_as_object(self.raw(key), self.at(key)), self.at(key))

    def optional_object(self, key: str) -> Fields:
        """Return an object, empty where the field is not there."""
        return self.object(key) if self.has(key) else Fields({}, self.at(key))

    def objects(self, key: str) -> tuple[Fields, ...]:
        """Return a list of objects."""
        items = ((v, f"{self.at(key)}[{i}]") for i, v in enumerate(self.items(key)))
        return tuple(Fields(_as_object(v, where), where) for v, where in items)

    def children(self) -> tuple[tuple[str, Fields], ...]:
        """Return the members of an object whose values are all objects."""
        return tuple((key, self.object(key)) for key in self.values)

    def at(self, key: str) -> str:
        """Return the path of a field of this object."""
        separator = " " if self.path.endswith(":") else "."
        return f"{self.path}{separator}{key}"


def as_text(value: object, where: str) -> str:
    """Return `value` if it is a string."""
    return value if isinstance(value, str) else _fail(where, "a string", value)


def as_integer(value: object, where: str, low: int = 0, high: int = MAX_INT) -> int:
    """Return `value` if it is an integer in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        return _fail(
            where,
            f"an integer of {low} or more" if high == MAX_INT else f"an integer in {low}..{high}",
            value,
        )
    return value


def _as_object(value: object, where: str) -> dict[str, object]:
    return value if isinstance(value, dict) else _fail(where, "an object", value)


def _fail(where: str, expected: str, found: object) -> NoReturn:
    text = repr(found)
    raise ArtifactError(f"{where}: expected {expected}, found {text if len(text) < 60 else text[:57] + '...'}")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")
