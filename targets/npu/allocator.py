"""Places in a scratchpad, handed out round and round, so that buffers used in turns do not wait for one another."""

from __future__ import annotations

from bisect import bisect_left

from hcomp.errors import CodegenError

ALIGNMENT = 64


class Allocator:
    """Next fit: the search starts behind the block that was given last."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.next = 0
        self.starts: list[int] = []
        self.ends: list[int] = []

    def take(self, size: int) -> int:
        """Return the address of a free block of at least `size` bytes, a multiple of 64.

        Raises:
            CodegenError: there is none; says how much is free.
        """
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        place = self._hole(self.next, size)
        if place is None:
            place = self._hole(0, size)
        if place is None:
            free = self.size - sum(e - s for s, e in zip(self.starts, self.ends, strict=True))
            raise CodegenError(
                f"{self.name} has no block of {size} bytes: {free} of {self.size} are free, in holes; use smaller tiles"
            )
        index = bisect_left(self.starts, place)
        self.starts.insert(index, place)
        self.ends.insert(index, place + size)
        self.next = place + size
        return place

    def give_back(self, address: int) -> None:
        """Free the block that starts at an address.

        Raises:
            CodegenError: none does.
        """
        index = bisect_left(self.starts, address)
        if index == len(self.starts) or self.starts[index] != address:
            raise CodegenError(f"{self.name} has no block at {address} to free")
        del self.starts[index], self.ends[index]

    def largest(self) -> int:
        """Return the bytes of the largest free block."""
        edges = zip([0, *self.ends], [*self.starts, self.size], strict=True)
        return max(start - end for end, start in edges) // ALIGNMENT * ALIGNMENT

    def _hole(self, place: int, size: int) -> int | None:
        """Return the first free place from `place` on."""
        index = bisect_left(self.starts, place)
        if index and self.ends[index - 1] > place:
            place = self.ends[index - 1]
        while place + size <= self.size:
            if index == len(self.starts) or self.starts[index] >= place + size:
                return place
            place = self.ends[index]
            index += 1
        return None
