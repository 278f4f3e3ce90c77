"""Who waits for a bound to pass an offset, as data.

Invariant: every waiter here waits for an offset that its bound has not passed. So when a bound
moves, exactly those that it satisfies are at the front of the heap, and no other is touched.
"""

from __future__ import annotations

import heapq
from typing import Final

_STALE_MIN: Final = 64


class Waiters:
    """Waiters by the offset that the bound must pass. The caller chooses a waiter's number."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._offsets: dict[int, int] = {}  # only waiters that are still waiting

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, waiter: int, offset: int) -> None:
        """Add a waiter until the bound is above the offset. Never use a number twice."""
        self._offsets[waiter] = offset
        heapq.heappush(self._heap, (offset, waiter))

    def cancel(self, waiter: int) -> bool:
        """Remove the waiter; return False if it was not waiting."""
        if self._offsets.pop(waiter, None) is None:
            return False
        if len(self._heap) > max(_STALE_MIN, 2 * len(self._offsets)):
            self._heap = [(offset, each) for each, offset in self._offsets.items()]
            heapq.heapify(self._heap)
        return True

    def remove_passed(self, bound: int) -> list[int]:
        """Remove and return the waiters whose offset is below the bound, lowest offset first."""
        found = []
        while self._heap and self._heap[0][0] < bound:
            _, waiter = heapq.heappop(self._heap)
            if self._offsets.pop(waiter, None) is not None:
                found.append(waiter)
        return found

    def beyond(self, end: int) -> list[int]:
        """Remove and return the waiters whose offset is not below ``end``: records were cut off."""
        found = [waiter for waiter, offset in self._offsets.items() if offset >= end]
        for waiter in found:
            self.cancel(waiter)
        return found
