"""The bytes of an artifact: a plain zip in one canonical form, with a seal over all of it.

Members are stored, not compressed, so that constants can be mapped. Names are sorted, times are
fixed, and a padding field in the local header puts every constant on a multiple of 64.

The archive comment is the seal: a sha256 over every byte of the file that is not the data of a
member, and over manifest.json. The manifest holds the sha256 of the other members. A flipped byte
is therefore found wherever it is: in headers, names, padding, the directory or data.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from hcomp.artifact.manifest import MANIFEST
from hcomp.errors import ArtifactError

ALIGNMENT = 64
ALIGNED_PREFIX = "constants/"
MAX_MEMBERS = 1_000_000
LIMIT = 0xFFFF_FFFF  # from here on a size or offset needs the 64-bit fields of zip

SEAL = b"hcomp artifact 1 sha256 "
COMMENT_SIZE = len(SEAL) + 64
PADDING_ID = 0x6863  # "ch" on disk: an extra field that no other program knows, so all skip it
DOS_DATE = (1 << 5) | 1  # 1 January 1980, the first day that zip can name

LOCAL = struct.Struct("<4s5H3I2H")
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")


@dataclass(frozen=True)
class Span:
    """Where the data of a member lies in the file."""

    offset: int
    size: int


class _Sealed:
    """A stream that hashes what it writes, data of members apart."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.position = 0
        self.hash = hashlib.sha256()

    def write(self, data: bytes | memoryview, *, hashed: bool = True) -> None:
        if hashed:
            self.hash.update(data)
        self.stream.write(data)
        self.position += len(data)


def write_zip(stream: IO[bytes], members: Mapping[str, memoryview]) -> None:
    """Write the members as one artifact; equal members give equal bytes."""
    out = _Sealed(stream)
    central = b""
    for name, data in sorted(members.items()):
        central += _write_member(out, name, data)
    start = out.position
    out.write(central)
    _write_end(out, len(members), start)
    comment = SEAL + out.hash.hexdigest().encode()
    out.write(comment)


def read_zip(view: memoryview) -> dict[str, Span]:
    """Return where each member's data lies; the seal has been checked.

    Raises:
        ArtifactError: the bytes are no artifact, or differ from what was written anywhere
            outside of the members' data (which the manifest's digests cover).
    """
    count, start, end = _read_end(view)
    spans = _read_directory(view, count, start, end)
    digest = hashlib.sha256()
    position = 0
    for name, span in sorted(spans.items(), key=lambda item: (item[1].offset, item[1].size)):
        if span.offset < position:
            raise ArtifactError(f"damaged: the member {name} overlaps another")
        digest.update(view[position : span.offset])
        position = span.offset + span.size
        if name == MANIFEST:
            digest.update(view[span.offset : position])
    digest.update(view[position : len(view) - COMMENT_SIZE])
    if SEAL + digest.hexdigest().encode() != view[len(view) - COMMENT_SIZE :]:
        raise ArtifactError("damaged: headers or manifest do not have the digest they were sealed with")
    return spans


def _write_member(out: _Sealed, name: str, data: memoryview) -> bytes:
    """Write header and data; return the member's entry for the directory at the end."""
    encoded, offset, size, crc = name.encode("ascii"), out.position, data.nbytes, zlib.crc32(data)
    large = size >= LIMIT
    extra = struct.pack("<2H2Q", 1, 16, size, size) if large else b""
    if name.startswith(ALIGNED_PREFIX):
        begin = offset + LOCAL.size + len(encoded) + len(extra) + 4
        padding = -begin % ALIGNMENT
        extra += struct.pack("<2H", PADDING_ID, padding) + bytes(padding)
    short = LIMIT if large else size
    version = 45 if large or offset >= LIMIT else 20
    head = (version, 0, 0, 0, DOS_DATE, crc, short, short, len(encoded))
    out.write(LOCAL.pack(b"PK\3\4", *head, len(extra)) + encoded + extra)
    out.write(data, hashed=name == MANIFEST)
    return _central_entry(encoded, head, offset, size)


def _central_entry(encoded: bytes, head: tuple[int, ...], offset: int, size: int) -> bytes:
    wide = ([size, size] if size >= LIMIT else []) + ([offset] if offset >= LIMIT else [])
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    made_by = 3 << 8 | head[0]
    mode = 0o100644 << 16
    rest = (len(extra), 0, 0, 0, mode, min(offset, LIMIT))
    return CENTRAL.pack(b"PK\1\2", made_by, *head, *rest) + encoded + extra


def _write_end(out: _Sealed, count: int, start: int) -> None:
    position, size = out.position, out.position - start
    if count >= 0xFFFF or start >= LIMIT or size >= LIMIT:
        out.write(END64.pack(b"PK\6\6", END64.size - 12, 3 << 8 | 45, 45, 0, 0, count, count, size, start))
        out.write(LOCATOR.pack(b"PK\6\7", 0, position, 1))
    short = min(count, 0xFFFF)
    out.write(END.pack(b"PK\5\6", 0, 0, short, short, min(size, LIMIT), min(start, LIMIT), COMMENT_SIZE))


def _read_end(view: memoryview) -> tuple[int, int, int]:
    """Return the number of members, and where their directory starts and ends."""
    at = len(view) - COMMENT_SIZE - END.size
    if at < 0 or view[len(view) - COMMENT_SIZE :][: len(SEAL)] != SEAL or bytes(view[at : at + 4]) != b"PK\5\6":
        raise ArtifactError(_not_sealed(view))
    _, _, _, _, count, size, start, _ = END.unpack_from(view, at)
    locator = at - LOCATOR.size
    if locator >= END64.size and bytes(view[locator : locator + 4]) == b"PK\6\7":
        position = LOCATOR.unpack_from(view, locator)[2]
        if position != locator - END64.size or bytes(view[position : position + 4]) != b"PK\6\6":
            raise ArtifactError("damaged: the 64-bit end record is missing")
        _, _, _, _, _, _, _, count, size, start = END64.unpack_from(view, position)
        at = position
    if count > MAX_MEMBERS or start + size != at or size < count * CENTRAL.size:
        raise ArtifactError("damaged: the directory is not where the end record says")
    return count, start, at


def _not_sealed(view: memoryview) -> str:
    """Return what bytes are that do not end in our seal."""
    # A comment, which is last in a zip, has at most 65,535 bytes, and the end record gives its size.
    tail = bytes(view[-(END.size + 0xFFFF) :])
    at = tail.rfind(b"PK\5\6")
    if bytes(view[:2]) == b"PK" and 0 <= at <= len(tail) - END.size:
        *_, comment = END.unpack_from(tail, at)
        if at + END.size + comment == len(tail):
            return (
                "not an hcomp artifact: a zip file without the seal of hcomp, perhaps an artifact that another"
                " program has packed again; `hcomp compile` makes one"
            )
    return "not an hcomp artifact, or a truncated one: its end record is missing"


def _read_directory(view: memoryview, count: int, start: int, end: int) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    at = start
    for _ in range(count):
        if at + CENTRAL.size > end:
            raise ArtifactError("damaged: the directory is too short")
        entry = CENTRAL.unpack_from(view, at)
        method, packed, size, offset = entry[4], entry[8], entry[9], entry[16]
        name_size, extra_size = entry[10], entry[11]
        name_at = at + CENTRAL.size
        at = name_at + name_size + extra_size
        if entry[0] != b"PK\1\2" or at > end:
            raise ArtifactError("damaged: the directory has a broken entry")
        name = _safe_name(bytes(view[name_at : name_at + name_size]))
        if method != 0 or packed != size or name in spans:
            raise ArtifactError(f"damaged: the member {name} is compressed, or there twice")
        size, offset = _wide(view[name_at + name_size : at], size, offset)
        spans[name] = _data_span(view, name, offset, size, start)
    if at != end:
        raise ArtifactError("damaged: the directory is too long")
    return spans


def _safe_name(encoded: bytes) -> str:
    """Return a member's name; only relative paths of plain characters are possible."""
    name = encoded.decode("ascii", "replace")
    if not is_safe_name(name):
        raise ArtifactError(f"damaged: {name!r} is no name of a member")
    return name


def is_safe_name(name: str) -> bool:
    """Say whether `name` can be a member: printable ASCII, relative, no "..", no backslash."""
    parts = name.split("/")
    return name.isascii() and name.isprintable() and "\\" not in name and not {"", ".", ".."}.intersection(parts)


def _wide(extra: memoryview, size: int, offset: int) -> tuple[int, int]:
    """Return size and offset with the 64-bit values that replace full 32-bit ones."""
    needed = 2 * (size == LIMIT) + (offset == LIMIT)
    if not needed:
        return size, offset
    if len(extra) != 4 + 8 * needed:
        raise ArtifactError("damaged: a 64-bit size is missing")
    values = list(struct.unpack_from(f"<{needed}Q", extra, 4))
    if offset == LIMIT:
        offset = values.pop()
    return (values[0] if values else size), offset


def _data_span(view: memoryview, name: str, offset: int, size: int, limit: int) -> Span:
    if offset + LOCAL.size > limit or bytes(view[offset : offset + 4]) != b"PK\3\4":
        raise ArtifactError(f"damaged: the member {name} has no header")
    *_, name_size, extra_size = LOCAL.unpack_from(view, offset)
    data = offset + LOCAL.size + name_size + extra_size
    if data + size > limit:
        raise ArtifactError(f"damaged: the member {name} is larger than the file")
    return Span(data, size)
