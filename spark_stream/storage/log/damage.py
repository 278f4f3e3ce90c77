"""Which entries of a log are known to have a damaged batch.

A log keeps an entry whose batch fails its checksum: the entry still counts, and what is around it
stays readable. What is known here says only what a replica must not vouch for. It is in memory
only: after the log is opened again, the damage has to be found again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_stream.consistency.ids import EntryIndex
from spark_stream.errors import DamagedSegment

WAS_NOTED: Final = threading.Event()
"""Set once damage was noted in any log of this process; until then, no log need be asked."""


class Damage:
    """The damaged entries of one log. Any thread may note one; the writer forgets them."""

    def __init__(self) -> None:
        self._entries: frozenset[int] = frozenset()

    def note(self, entry: int) -> None:
        """Record that the batch of the entry with this index fails its checksum."""
        if entry not in self._entries:
            self._entries |= {entry}
            WAS_NOTED.set()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def first(self, start: EntryIndex) -> EntryIndex | None:
        """Return the first known damaged entry of a log that starts at ``start``, or None."""
        found = [entry for entry in self._entries if entry >= start]
        return EntryIndex(min(found)) if found else None

    def forget_from(self, entry: EntryIndex) -> None:
        """Forget damage from this entry on: the log was truncated there."""
        self._entries = frozenset(each for each in self._entries if each < entry)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Record damage met within the block, and let its error pass."""
        try:
            yield
        except DamagedSegment as error:
            if "entry" in error.details:
                self.note(int(error.details["entry"]))
            raise
