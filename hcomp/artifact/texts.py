"""Arrays of texts as members: a JSON list, in the order of the elements."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hcomp.errors import ArtifactError

LEAST_BYTES = 3
"""What a text takes at least, with its comma: no member is shorter than so many bytes an element."""


def texts_member(texts: Sequence[object]) -> bytes:
    """Return the bytes of texts, ASCII only."""
    return json.dumps(
        [t.decode("utf-8", "surrogateescape") if isinstance(t, bytes) else str(t) for t in texts]
    ).encode()


def read_texts(member: memoryview, count: int) -> list[str]:
    """Return the texts in a member.

    Raises:
        ArtifactError: it holds something else, or not `count` of them.
    """
    try:
        found = json.loads(bytes(member).decode("ascii"))
    except (ValueError, RecursionError):
        raise ArtifactError("a constant of texts is no JSON") from None
    if not isinstance(found, list) or len(found) != count or not all(isinstance(t, str) for t in found):
        raise ArtifactError(f"a constant of texts is no list of {count} texts")
    return found
