"""The open transactions of a partition: their joins, and the last stable offset.

**Joins.** A batch in a transaction is accepted only under a *confirmed join* of its (transaction,
producer id). The order of steps keeps every batch out of a transaction that has ended:

1. the leader opens a pending join,
2. it puts the join on record, then reads the transaction's record: an ended one refuses,
3. it confirms the join, unless that was cancelled after 1,
4. it accepts the batches.

Whoever decides a transaction seals it in all partitions on its record before any is marked. A seal
cancels the transaction's joins, pending and confirmed. The drop of a branch cancels those of the
branch. Joins are looked up after the decision. If the decision came before the read in 2, the
record refuses. If it came later, the join was on record before the decision, and this partition is
sealed. A seal before 3 cancels the join. After a seal later than 3, the batches accepted until then
are marked with the rest.

So ended transactions need not be remembered: only those under way take memory. Joins hold for one
epoch of one leader. The next leader makes them again.

**Undecided transactions.** Invariant: while a transaction is open, or its marker is not below the
high watermark, no offset from its first record on is stable. A marker alone does not decide for
readers: a failover may take it back. The invariant also holds after a log was opened.

Source: Kafka's firstUnstableOffset (ongoing transactions, and those with unreplicated markers).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from spark_stream.consistency.entries import Kind, Table
from spark_stream.consistency.ids import NO_TRANSACTION, EntryIndex, Offset

Key = tuple[int, int]
"""(transaction, producer id)."""


class PendingJoin(Struct, frozen=True, eq=False):
    """A join that the transaction's record has not confirmed or refused yet.

    There may be several with the same key.
    """

    transaction: int
    producer_id: int


class _Joins(Struct):
    """The joins of one transaction: producer ids that have joined, and joins that are pending."""

    confirmed: set[int] = field(default_factory=set)
    pending: set[PendingJoin] = field(default_factory=set)


class Joins:
    """The joins of one partition, in its leader's present epoch."""

    def __init__(self) -> None:
        self._transactions: dict[int, _Joins] = {}

    def __len__(self) -> int:
        """Return the number of confirmed and pending joins."""
        return sum(len(each.confirmed) + len(each.pending) for each in self._transactions.values())

    def __contains__(self, key: Key) -> bool:
        """Return whether the join is confirmed: batches of it are taken."""
        found = self._transactions.get(key[0])
        return found is not None and key[1] in found.confirmed

    def open(self, transaction: int, producer_id: int) -> PendingJoin:
        """Open a pending join, before it is recorded."""
        pending = PendingJoin(transaction, producer_id)
        self._transactions.setdefault(transaction, _Joins()).pending.add(pending)
        return pending

    def confirm(self, pending: PendingJoin) -> bool:
        """Confirm a recorded join. Return False if it was cancelled and must not be used."""
        found = self._transactions.get(pending.transaction)
        if found is None or pending not in found.pending:
            return False
        found.pending.discard(pending)
        found.confirmed.add(pending.producer_id)
        return True

    def give_up(self, pending: PendingJoin) -> None:
        """Give up a join that could not be recorded. An earlier confirmed one still holds."""
        found = self._transactions.get(pending.transaction)
        if found is not None:
            found.pending.discard(pending)
            self._tidy(pending.transaction)

    def seal(self, transaction: int) -> None:
        """Refuse all further batches of a decided transaction."""
        self._transactions.pop(transaction, None)

    def drop(self, transaction: int, producer_id: int) -> None:
        """Refuse all further batches of a branch that has ended."""
        found = self._transactions.get(transaction)
        if found is not None:
            found.confirmed.discard(producer_id)
            found.pending = {each for each in found.pending if each.producer_id != producer_id}
            self._tidy(transaction)

    def clear(self) -> None:
        """Drop all joins: those of an earlier epoch do not hold in a new one."""
        self._transactions.clear()

    def _tidy(self, transaction: int) -> None:
        found = self._transactions[transaction]
        if not found.confirmed and not found.pending:
            del self._transactions[transaction]


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
        """Derive them from a log's entries tables. Entries below the watermark are replicated."""
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
        """Record the marker of this part, the entry with the index ``marker``."""
        part = self._open.pop((transaction, producer_id), None)
        if part is None:
            return
        heapq.heappush(self._marked, (part.first_offset, marker))
        producers = self._producers[transaction]
        del producers[producer_id]
        if not producers:
            del self._producers[transaction]

    def on_replicated(self, upto: EntryIndex) -> None:
        """Record that entries below ``upto`` are below the high watermark."""
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
