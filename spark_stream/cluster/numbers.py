"""Numbers that nobody else gets: of producers and of transactions.

A block of them is taken by one compare-and-set and given out from memory: most cost nothing. What
a broker has not given out when it ends is lost: numbers have gaps.

Each broker gives out rising numbers, but the blocks of several brokers lie next to each other: what
one gives out now may be below what another gave out before. Who needs a number above an earlier one
says so.
"""

from __future__ import annotations

import threading
from typing import Final

from spark_stream.cluster.stores.store import MetadataStore

BLOCK: Final = 1_000
NUMBERS: Final = "numbers/"
"""What the keys of all counters start with: a restore finds them by it."""


class Numbers:
    """Rising numbers from 0, under one key of the store. From any thread."""

    def __init__(self, store: MetadataStore, key: str, block: int = BLOCK) -> None:
        self._store = store
        self._key = key
        self._block = block
        self._lock = threading.Lock()
        self._next = 0
        self._end = 0

    def take(self, above: int = -1) -> int:
        """Return a number above ``above`` that no other broker returns, now or later.

        The numbers up to ``above`` that are left of this broker's block are given up.
        """
        with self._lock:
            self._next = max(self._next, above + 1)
            if self._next >= self._end:
                self._next = self._take_block(self._next)
                self._end = self._next + self._block
            number = self._next
            self._next += 1
            return number

    def pass_over(self, used: int) -> bool:
        """Return no number up to ``used`` from now on; True if the store did not know of it."""
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
