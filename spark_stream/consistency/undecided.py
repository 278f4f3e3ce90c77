"""The transactions of a partition that hold its last stable offset back.

Invariant: while a transaction is open, or its marker is not below the high watermark, no offset
from its first record on is stable. A marker alone does not decide for readers: a leader that fails
over may take it back.

Source: Kafka's firstUnstableOffset (ongoing transactions, and those with unreplicated markers).
"""

from __future__ import annotations

from spark_stream.consistency.ids import EntryIndex, Offset

Key = tuple[int, int]
"""(transaction, producer id)."""


class Undecided:
    """Open transactions, and ended ones whose markers wait to be replicated."""

    def __init__(self) -> None:
        self._open: dict[Key, int] = {}
        self._ended: dict[Key, tuple[int, int]] = {}  # marker's entry index, first offset

    def began(self, transaction: int, producer_id: int, offset: int) -> None:
        """The producer's first batch in the transaction is at ``offset``; later ones: no-op."""
        self._open.setdefault((transaction, producer_id), offset)

    def marked(self, transaction: int, producer_id: int, marker: int) -> None:
        """Its marker is the entry of this index."""
        first = self._open.pop((transaction, producer_id), None)
        if first is not None:
            self._ended[transaction, producer_id] = (marker, first)

    def replicated(self, upto: EntryIndex) -> None:
        """Entries below ``upto`` are below the high watermark."""
        for key in [key for key, (marker, _) in self._ended.items() if marker < upto]:
            del self._ended[key]

    def first(self) -> Offset | None:
        """The first offset that is not stable; None: all are."""
        firsts = [*self._open.values(), *(first for _, first in self._ended.values())]
        return Offset(min(firsts)) if firsts else None

    def open(self) -> dict[Key, int]:
        """The open ones, with their first offsets here."""
        return dict(self._open)

    def producers(self, transaction: int) -> list[int]:
        """The producer ids that have the transaction open here."""
        return [producer for number, producer in self._open if number == transaction]

    def __contains__(self, key: Key) -> bool:
        return key in self._open
