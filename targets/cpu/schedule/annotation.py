"""Numbers of an operator on a block: the lowering writes them as text, the schedule rule reads them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Annotation:
    """A record of numbers, texts and tuples of numbers."""

    def text(self) -> str:
        """Return the annotation's value."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the record that `text` describes."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
