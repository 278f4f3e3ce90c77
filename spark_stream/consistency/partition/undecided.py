"""The transactions of a partition that hold its last stable offset back.

Invariant: while a transaction is open, or its marker is not below the high watermark, no offset
from its first record on is stable. A marker alone does not decide for readers: a failover may take
it back. The invariant also holds after a log was opened.

Source: Kafka's firstUnstableOffset (ongoing transactions, and those with unreplicated markers).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from spark_stream.consistency.entries import Kind, Table
from spark_stream.consistency.ids import NO_TRANSACTION, EntryIndex, Offset

Key = tuple[int, int]
"""(transaction, producer id)."""

_COLUMNS: Final = (
    "transaction",
    "producer_id",
    "producer_epoch",
    "kind",
    "entry_index",
    "base_offset",
)


class OpenPart(Struct, frozen=True):
    """A producer's part of an open transaction in this partition: its epoch and first offset."""

    epoch: int
    first_offset: Offset


class Undecided:
    """Open transactions, and ended ones whose markers wait to be replicated.

    Parts begin in the order of their offsets, as the log grows. So the first open part in the dict
    is the earliest, however many there are.
    """

    def __init__(self) -> None:
        self._open: dict[Key, OpenPart] = {}
        self._producers: dict[int, dict[int, None]] = {}  # of each transaction
        self._marked: list[tuple[Offset, int]] = []  # a heap: first offset, marker's entry index

    @classmethod
    def derived(cls, tables: Sequence[Table], high_watermark: EntryIndex) -> Undecided:
        """Derive them from a log's entries tables; entries below the watermark are replicated."""
        found = cls()
        parts = _parts(tables, high_watermark)
        for transaction, producer_id, part, _ in parts:
            found.began(transaction, producer_id, part.epoch, part.first_offset)
        for transaction, producer_id, _, marker in parts:
            if marker is not None:
                found.on_marked(transaction, producer_id, marker)
        return found

    def began(self, transaction: int, producer_id: int, epoch: int, offset: Offset) -> None:
        """Record the producer's first batch in the transaction, at ``offset``.

        No-op for later ones.
        """
        key = (transaction, producer_id)
        if key not in self._open:
            self._open[key] = OpenPart(epoch, offset)
            self._producers.setdefault(transaction, {})[producer_id] = None

    def on_marked(self, transaction: int, producer_id: int, marker: int) -> None:
        """Note that the marker of this part is the entry with the index ``marker``."""
        part = self._open.pop((transaction, producer_id), None)
        if part is None:
            return
        heapq.heappush(self._marked, (part.first_offset, marker))
        producers = self._producers[transaction]
        del producers[producer_id]
        if not producers:
            del self._producers[transaction]

    def on_replicated(self, upto: EntryIndex) -> None:
        """Note that entries below ``upto`` are below the high watermark."""
        while self._marked and self._marked[0][1] < upto:
            heapq.heappop(self._marked)

    def first(self) -> Offset | None:
        """Return the first offset that is not stable, or None."""
        earliest = next(iter(self._open.values()), None)
        if not self._marked:
            return None if earliest is None else earliest.first_offset
        marked = self._marked[0][0]
        return marked if earliest is None else min(marked, earliest.first_offset)

    def earliest(self) -> tuple[int, Offset] | None:
        """Return the transaction of the earliest open part, and its first offset.

        Any thread may call it: it returns None while another one changes the parts.
        """
        try:
            (transaction, _), part = next(iter(self._open.items()))
        except (StopIteration, RuntimeError):
            return None
        return transaction, part.first_offset

    def open(self) -> Iterator[tuple[Key, OpenPart]]:
        """Iterate over the open parts, the earliest first."""
        return iter(self._open.items())

    def parts(self, transaction: int) -> list[tuple[int, OpenPart]]:
        """Return the open parts of a transaction: (producer id, part)."""
        producers = self._producers.get(transaction, {})
        return [(producer, self._open[transaction, producer]) for producer in producers]

    def __contains__(self, key: Key) -> bool:
        return key in self._open


def _parts(
    tables: Sequence[Table], upto: EntryIndex
) -> list[tuple[int, int, OpenPart, int | None]]:
    """Return (transaction, producer id, part, marker) of all undecided parts, earliest first.

    Those are the parts without a marker (None), and those whose marker is not below ``upto``.
    """
    rows = [np.flatnonzero(table["transaction"] != NO_TRANSACTION) for table in tables]
    if not sum(len(each) for each in rows):
        return []
    columns = {
        name: np.concatenate(
            [table[name][each].astype(np.int64) for table, each in zip(tables, rows, strict=True)]
        )
        for name in _COLUMNS
    }
    order = np.lexsort((columns["producer_id"], columns["transaction"]))  # stable: in log order
    columns = {name: column[order] for name, column in columns.items()}
    transaction, producer = columns["transaction"], columns["producer_id"]
    other = (transaction[1:] != transaction[:-1]) | (producer[1:] != producer[:-1])
    starts = np.flatnonzero(np.concatenate(([True], other)))
    marked = columns["kind"] != Kind.DATA
    # If a part is marked twice (its first marker was thought lost), the first marker decides.
    never = np.iinfo(np.int64).max
    markers = np.minimum.reduceat(np.where(marked, columns["entry_index"], never), starts)
    chosen = (markers >= upto) & ~marked[starts]
    starts, markers = starts[chosen], markers[chosen]
    first = np.argsort(columns["base_offset"][starts], kind="stable")
    starts, markers = starts[first], markers[first]
    numbers, producers, epochs, offsets = (
        columns[name][starts].tolist()
        for name in ("transaction", "producer_id", "producer_epoch", "base_offset")
    )
    return [
        (number, producer_id, OpenPart(epoch, Offset(offset)), None if marker == never else marker)
        for number, producer_id, epoch, offset, marker in zip(
            numbers, producers, epochs, offsets, markers.tolist(), strict=True
        )
    ]
