"""The sessions of a leader's followers, as the replica's shell keeps them.

They hold the followers that get news, and the last batches, which stay in memory while there is
a follower to give them to (:class:`Recent`). A follower that keeps up asks for a batch a moment
after it was appended: it gets the bytes that the leader still has, instead of a copy from the file
for each follower. A batch is dropped once the high watermark has passed it; so a partition at rest
keeps nothing. What does not fit, and what a follower far behind asks for, comes from the file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from spark_stream.consistency.entries import ENTRY, Entry
from spark_stream.storage.format.codec import EncodedBatch, sealed
from spark_stream.storage.format.stored import StoredEntries

PARTITION_BYTES: Final = 8 << 20
"""The limit of one partition: twice what may be on its way to a follower."""

BROKER_BYTES: Final = 64 << 20


class MemoryRoom:
    """How much all partitions of a broker may keep, together; for any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._most = self._left = most_bytes

    @property
    def bytes_kept(self) -> int:
        """How many bytes are taken."""
        return self._most - self._left

    @property
    def bytes_left(self) -> int:
        """How many bytes are left."""
        return self._left

    def take(self, size: int) -> bool:
        """Take this many bytes; return False if there are fewer."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        """Give back bytes that were taken."""
        with self._lock:
            self._left += size


class Recent:
    """The last batches of one partition. :meth:`get` is for any thread, the rest for its writer."""

    def __init__(self, room: MemoryRoom) -> None:
        self._room = room
        self._kept: dict[int, StoredEntries] = {}  # by entry index, which rises
        self._bytes = 0

    def keep(self, entry: Entry, message: EncodedBatch) -> None:
        """Keep the batch of an entry that was appended."""
        size = message.size
        while self._kept and self._bytes + size > PARTITION_BYTES:
            self._drop_first()
        if size > PARTITION_BYTES or not self._room.take(size):
            return  # followers get it from the file
        self._bytes += size
        rows = np.frombuffer(sealed(entry.packed(0, size)), ENTRY)
        self._kept[entry.entry_index] = StoredEntries(rows, message.joined())

    def drop_below(self, entry: int) -> None:
        """Drop the entries before this one: they are replicated."""
        while self._kept and next(iter(self._kept)) < entry:
            self._drop_first()

    def clear(self) -> None:
        """Drop all batches: no follower needs them any more."""
        while self._kept:
            self._drop_first()

    def get(self, entry: int, end: int, max_bytes: int) -> StoredEntries | None:
        """Return the entry alone, if it is the last before ``end`` or no second one fits.

        None if it is not kept, or if the file gives several entries within ``max_bytes`` (of rows
        and data).
        """
        found = self._kept.get(entry)
        if found is None or entry + 1 == end:
            return found
        following = self._kept.get(entry + 1)
        if following is None or _size(found) + _size(following) <= max_bytes:
            return None
        return found

    def _drop_first(self) -> None:
        size = self._kept.pop(next(iter(self._kept))).data.size
        self._bytes -= size
        self._room.give_back(size)


def _size(entries: StoredEntries) -> int:
    return int(entries.rows.nbytes + entries.data.size)


News = Callable[[bool], None]
"""Tells a follower's stream that there are entries, or (False) only a new high watermark."""


class Sessions:
    """A replica's sessions, by number. The caller holds the replica's lock."""

    def __init__(self, recent: Recent) -> None:
        self.recent = recent
        self._news: dict[int, News] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._news

    def start(self, session: int, news: News) -> None:
        """Start a follower's session."""
        self._news[session] = news

    def keep(self, sessions: Collection[int]) -> None:
        """End all other sessions: their followers ask for new ones."""
        if not self._news:
            return  # every append comes here, and most partitions have no followers
        for session in [each for each in self._news if each not in sessions]:
            self._news.pop(session)(True)  # the stream looks, and finds its session over
        self._let_go()

    def end(self, session: int) -> bool:
        """End a follower's session; return False if it had ended before."""
        known = self._news.pop(session, None) is not None
        self._let_go()
        return known

    def end_all(self) -> None:
        """End all sessions: the followers look for another leader."""
        self.keep(())

    def _let_go(self) -> None:
        if not self._news:
            self.recent.clear()

    def give_batch(self, entry: Entry, message: EncodedBatch) -> None:
        """Keep the batch of an entry that was appended."""
        if self._news:
            self.recent.keep(entry, message)
            self.give_news()

    def give_news(self, *, entries: bool = True) -> None:
        """Tell all that there are entries, or (False) only that the high watermark has moved."""
        for news in self._news.values():
            news(entries)
