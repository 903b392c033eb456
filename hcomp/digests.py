"""Digests of much data, in threads: hashing is most of the time of a load, and of a look into the cache."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

MOST_THREADS = 4
WORTH_THREADS = 1_000_000
"""Bytes below which a thread takes longer to start than it saves."""
CHUNK = 1 << 25
"""Bytes of a file that one thread hashes at a time."""
_READ = 1 << 20

Key = TypeVar("Key", bound=Hashable)


def sha256_of_each(views: Mapping[Key, memoryview]) -> dict[Key, str]:
    """Return the sha256 of every piece of memory, in hexadecimal."""
    sizes = {name: view.nbytes for name, view in views.items()}
    return _in_threads(sizes, lambda name: hashlib.sha256(views[name]).hexdigest())


def sha256_of_file(path: Path) -> str:
    """Return a digest of a file's bytes: sha256 of the sha256 of its chunks, which threads can share.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        sizes = {start: min(CHUNK, size - start) for start in range(0, size, CHUNK)}

        def hashed(start: int) -> str:
            digest = hashlib.sha256()
            # Read and not mapped: of a file that gets shorter meanwhile, mapped memory ends the process.
            for at in range(start, start + sizes[start], _READ):
                digest.update(os.pread(file.fileno(), min(_READ, start + sizes[start] - at), at))
            return digest.hexdigest()

        found = _in_threads(sizes, hashed)
    return hashlib.sha256("".join(found[start] for start in sizes).encode()).hexdigest()


def _in_threads(sizes: Mapping[Key, int], work: Callable[[Key], str]) -> dict[Key, str]:
    """Return `work` of every key, the largest first.

    Raises:
        OSError: a file cannot be read.
    """
    waiting = sorted(sizes, key=lambda key: sizes[key])
    found: dict[Key, str] = {}
    failed: list[OSError] = []

    def some() -> None:
        # list.pop and setting an item are atomic.
        while waiting:
            try:
                key = waiting.pop()
            except IndexError:
                return
            try:
                found[key] = work(key)
            except OSError as error:
                failed.append(error)

    is_much = sum(sizes.values()) > WORTH_THREADS
    helpers = min(MOST_THREADS, os.cpu_count() or 1, len(sizes)) - 1 if is_much else 0
    threads = [threading.Thread(target=some) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    some()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found
