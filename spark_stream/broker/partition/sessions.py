"""The sessions of a leader's followers, and the recent batches in memory for them.

A follower that keeps up fetches a batch a moment after its append. It then receives the bytes that
are still in memory (:class:`Recent`), and the leader need not read the file for each follower. A
batch is dropped once the high watermark has passed it, so an idle partition holds no memory.
Batches that do not fit, and those for followers that are far behind, are read from the file.
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
"""The limit of one partition: twice the bytes that may be in flight to a follower."""

BROKER_BYTES: Final = 64 << 20


class MemoryRoom:
    """A counter of the memory for recent batches, which all partitions of a broker share.

    Any thread may use it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._most = self._left = most_bytes

    @property
    def bytes_kept(self) -> int:
        """The bytes in use."""
        return self._most - self._left

    @property
    def bytes_left(self) -> int:
        """The free bytes."""
        return self._left

    def take(self, size: int) -> bool:
        """Reserve bytes. Return False if too few are free."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._left += size


class Recent:
    """The recent batches of one partition. Any thread may call :meth:`get`, the writer the rest."""

    def __init__(self, room: MemoryRoom) -> None:
        self._room = room
        self._kept: dict[int, StoredEntries] = {}  # by entry index, in ascending order
        self._bytes = 0

    def keep(self, entry: Entry, message: EncodedBatch) -> None:
        """Keep the batch of an appended entry."""
        size = message.size
        while self._kept and self._bytes + size > PARTITION_BYTES:
            self._drop_first()
        if size > PARTITION_BYTES or not self._room.take(size):
            return  # followers receive it from the file
        self._bytes += size
        rows = np.frombuffer(sealed(entry.packed(0, size)), ENTRY)
        self._kept[entry.entry_index] = StoredEntries(rows, message.joined())

    def drop_below(self, entry: int) -> None:
        """Drop the entries below this one, which are replicated."""
        while self._kept and next(iter(self._kept)) < entry:
            self._drop_first()

    def clear(self) -> None:
        """Drop all batches."""
        while self._kept:
            self._drop_first()

    def get(self, entry: int, end: int, max_bytes: int) -> StoredEntries | None:
        """Return the entry alone, if it is the last one below ``end`` or a second one does not fit.

        Return None if the entry is not in memory, or if a read of the file would return several
        entries within ``max_bytes`` (of rows and data).
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
        self._room.release(size)


def _size(entries: StoredEntries) -> int:
    return int(entries.rows.nbytes + entries.data.size)


Notify = Callable[[bool], None]
"""Notifies a follower's stream of new entries (True) or of a new high watermark only (False)."""


class Sessions:
    """The sessions of a leader's followers, by number. The caller holds the replica's lock."""

    def __init__(self, recent: Recent) -> None:
        self.recent = recent
        self._followers: dict[int, Notify] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._followers

    def start(self, session: int, notify: Notify) -> None:
        """Start a follower's session."""
        self._followers[session] = notify

    def keep(self, sessions: Collection[int]) -> None:
        """End all other sessions. Their followers request new ones."""
        if not self._followers:
            return  # every append comes here, and most partitions have no followers
        for session in [each for each in self._followers if each not in sessions]:
            self._followers.pop(session)(True)  # the stream reads next, and that fails
        self._drop_if_unused()

    def end(self, session: int) -> bool:
        """End a follower's session. Return False if it has already ended."""
        known = self._followers.pop(session, None) is not None
        self._drop_if_unused()
        return known

    def end_all(self) -> None:
        """End all sessions. The followers look up the leader again."""
        self.keep(())

    def _drop_if_unused(self) -> None:
        if not self._followers:
            self.recent.clear()

    def add_batch(self, entry: Entry, message: EncodedBatch) -> None:
        """Keep the batch of an appended entry in memory, and notify all followers."""
        if self._followers:
            self.recent.keep(entry, message)
            self.notify()

    def notify(self, *, entries: bool = True) -> None:
        """Notify all followers of new entries, or (False) of a new high watermark only."""
        for notify in self._followers.values():
            notify(entries)
