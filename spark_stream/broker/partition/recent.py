"""What a leader has appended and its followers do not have yet, in memory.

A follower that keeps up asks for a batch a moment after it was appended: it gets the bytes that the
leader still has, instead of a copy from the file for each follower. A batch is dropped once the
high watermark has passed it; so a partition at rest keeps nothing. What does not fit, and what a
follower far behind asks for, comes from the file.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from spark_stream.consistency.entries import ENTRY, Entry
from spark_stream.storage.format.codec import sealed
from spark_stream.storage.format.message import EncodedBatch
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
