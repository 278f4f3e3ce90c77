"""The transactions of a partition that hold its last stable offset back.

Invariant: while a transaction is open, or its marker is not below the high watermark, no offset
from its first record on is stable. A marker alone does not decide for readers: a leader that fails
over may take it back.

Source: Kafka's firstUnstableOffset (ongoing transactions, and those with unreplicated markers).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_stream.consistency.entries import Table, open_transactions
from spark_stream.consistency.ids import EntryIndex, Offset

Key = tuple[int, int]
"""(transaction, producer id)."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a producer has of an open transaction here: its epoch, and its first offset."""

    epoch: int
    first_offset: Offset


class Undecided:
    """Open transactions, and ended ones whose markers wait to be replicated.

    Parts begin in the order of their offsets, as the log grows: the first that is left is the
    earliest, however many there are.
    """

    def __init__(self) -> None:
        self._open: dict[Key, Part] = {}
        self._producers: dict[int, dict[int, None]] = {}  # of each transaction
        self._ended: dict[Key, tuple[int, Offset]] = {}  # marker's entry index, first offset

    def began(self, transaction: int, producer_id: int, epoch: int, offset: Offset) -> None:
        """The producer's first batch in the transaction is at ``offset``; later ones: no-op."""
        key = (transaction, producer_id)
        if key not in self._open:
            self._open[key] = Part(epoch, offset)
            self._producers.setdefault(transaction, {})[producer_id] = None

    def marked(self, transaction: int, producer_id: int, marker: int) -> None:
        """Its marker is the entry of this index."""
        part = self._open.pop((transaction, producer_id), None)
        if part is None:
            return
        self._ended[transaction, producer_id] = (marker, part.first_offset)
        producers = self._producers[transaction]
        del producers[producer_id]
        if not producers:
            del self._producers[transaction]

    def replicated(self, upto: EntryIndex) -> None:
        """Entries below ``upto`` are below the high watermark."""
        if self._ended:
            self._ended = {key: each for key, each in self._ended.items() if each[0] >= upto}

    def first(self) -> Offset | None:
        """The first offset that is not stable; None: all are."""
        if not self._open and not self._ended:
            return None
        firsts = [first for _, first in self._ended.values()]
        earliest = next(iter(self._open.values()), None)
        if earliest is not None:
            firsts.append(earliest.first_offset)
        return min(firsts, default=None)

    def open(self) -> Iterator[tuple[Key, Part]]:
        """The open parts, the earliest first."""
        return iter(self._open.items())

    def parts(self, transaction: int) -> list[tuple[int, Part]]:
        """What is open of a transaction: (producer id, its part)."""
        producers = self._producers.get(transaction, {})
        return [(producer, self._open[transaction, producer]) for producer in producers]

    def __contains__(self, key: Key) -> bool:
        return key in self._open


def open_parts(tables: Sequence[Table]) -> list[tuple[Key, Part]]:
    """From a log's entries tables in order: every part that no marker has ended, earliest first."""
    found = []
    starts = [int(table["entry_index"][0]) for table in tables if len(table)]
    filled = [table for table in tables if len(table)]
    for key, entry in open_transactions(tables).items():
        where = bisect_right(starts, entry) - 1
        row = filled[where][entry - starts[where]]
        found.append((key, Part(int(row["producer_epoch"]), Offset(int(row["base_offset"])))))
    return sorted(found, key=lambda each: each[1].first_offset)
