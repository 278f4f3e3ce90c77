"""Unique numbers for producers and for transactions.

A broker takes a block of them by one compare-and-set and gives them out from memory, so most cost
nothing. What it has not given out when it ends is lost, so numbers have gaps.

Each broker gives out rising numbers, but from a block of its own: what one gives out now may be
below what another gave out before. Whoever needs a number above an earlier one passes that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_stream.cluster.stores.store import MetadataStore

BLOCK: Final = 1_000
NUMBERS: Final = "numbers/"
"""The prefix of all counters' keys, by which a restore finds them."""


class Numbers:
    """Rising numbers from 0, under one key of the store. From any thread."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        block: int = BLOCK,
        used: Callable[[], int] = lambda: -1,
    ) -> None:
        """Take no block yet. ``used`` returns the greatest number that is in use here, or -1."""
        self._store = store
        self._used = used
        self._key = key
        self._block = block
        self._lock = threading.Lock()
        self._next = 0
        self._end = 0

    def take(self, above: int = -1) -> int:
        """Return a number above ``above`` that no other broker returns, now or later.

        Numbers up to ``above`` that are left in this broker's block are dropped.
        """
        with self._lock:
            self._next = max(self._next, above + 1)
            if self._next >= self._end:
                # The stored counter may be older than the logs.
                self._next = self._take_block(max(self._next, self._used() + 1))
                self._end = self._next + self._block
            number = self._next
            self._next += 1
            return number

    def pass_over(self, used: int) -> bool:
        """Never give out a number up to ``used`` again; True if the stored counter was behind."""
        with self._lock:
            while True:
                record = self._store.get(self._key)
                if used < (0 if record is None else int(record.value["next"])):
                    return False
                version = 0 if record is None else record.version
                if self._store.put(self._key, {"next": used + 1}, version) is not None:
                    self._next = self._end = 0
                    return True

    def _take_block(self, least: int) -> int:
        """Reserve a block that begins at ``least`` or above, and return its first number."""
        while True:
            record = self._store.get(self._key)
            start = max(least, 0 if record is None else int(record.value["next"]))
            version = 0 if record is None else record.version
            if self._store.put(self._key, {"next": start + self._block}, version) is not None:
                return start
