"""The entries table: its layout, when a table is valid, and look-ups of offsets, bytes and times.

An entry describes a batch (records with offsets) or a marker (the end of a transaction: no records,
no offset). A segment's table is authoritative. All other state of a log is derived from it. Layout
to the byte: ``docs/format.md``.

Invariant of a table whose first entry has index ``i`` and offset ``o``: entry indexes are ``i``,
``i+1``, ``i+2`` and so on. Each base offset is the previous one plus the previous count. Markers
have count 0, batches at least 1. Leader epochs never fall. Positions have no gap and no overlap.

**Bytes of records.** A batch is stored as a whole. Its bytes are shared out evenly among its
records, rounded so that the shares add up to the batch. Records of aborted transactions count too:
they are read, and limits count them. A marker takes no bytes. Offsets outside of the tables have no
bytes.

**States of records.** A record is *aborted* once its log has the abort marker of its transaction's
part: a transaction's fate never changes. Below the high watermark any other record is *open* while
the part has no marker, and *committed* otherwise. Records without a transaction are committed. All
others are *not replicated*: a failover may take them back. The state is that of the record alone. A
committed record at or above the last stable offset is still hidden from ``read_committed``, because
an earlier transaction is open.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from spark_stream.consistency.ids import (
    NO_PRODUCER,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TRANSACTION,
    Offset,
)
from spark_stream.structs import OffsetField, Positional


class Kind(IntEnum):
    """The kind of an entry."""

    DATA = 0
    COMMIT = 1
    ABORT = 2


ENTRY: Final = np.dtype(
    [
        ("entry_index", "<i8"),
        ("base_offset", "<i8"),
        ("producer_id", "<i8"),
        ("transaction", "<i8"),
        ("timestamp", "<i8"),  # greatest record timestamp, microseconds since the epoch, UTC
        ("appended", "<i8"),  # the leader's clock when it appended, the same unit
        ("position", "<i8"),  # where the batch's IPC message starts in the .arrow file, bytes
        ("length", "<i8"),  # its length in bytes, 0 for a marker
        ("count", "<u4"),  # records
        ("leader_epoch", "<i4"),
        ("base_sequence", "<i4"),
        ("producer_epoch", "<i2"),
        ("kind", "u1"),
        ("schema", "u1"),  # the number of the batch's schema: 0 is the topic's first
        ("data_crc", "<u4"),  # CRC-32C of the length bytes at position
        ("entry_crc", "<u4"),  # CRC-32C of the bytes of this entry before this field
    ]
)
ENTRY_SIZE: Final = ENTRY.itemsize
CRC_SPAN: Final = ENTRY_SIZE - 4
_PACKED: Final = struct.Struct("<8qIiihBBI")  # ENTRY without its last field
_KINDS: Final = tuple(Kind)

MADE_UP: Final = 1 << 62  # brokers allocate only lower numbers. Clients invent numbers from here on

Table = npt.NDArray[np.void]


class Entry(Struct):
    """One entry before it has a place in a file. The fields are those of ``ENTRY``.

    Entries are never changed. The class is still not frozen, because each append makes some, and
    making a frozen one takes four times as long.
    """

    entry_index: int
    base_offset: int
    timestamp: int
    appended: int
    count: int
    leader_epoch: int
    data_crc: int
    kind: Kind = Kind.DATA
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transaction: int = NO_TRANSACTION
    schema: int = 0

    def packed(self, position: int, length: int) -> bytes:
        """Return the entry's bytes without its checksum. ``position``: the start of its batch."""
        return _PACKED.pack(
            self.entry_index,
            self.base_offset,
            self.producer_id,
            self.transaction,
            self.timestamp,
            self.appended,
            position,
            length,
            self.count,
            self.leader_epoch,
            self.base_sequence,
            self.producer_epoch,
            self.kind,
            self.schema,
            self.data_crc,
        )


def lone_entry(packed: bytes, index: int, offset: int, epoch: int) -> tuple[Entry, int] | None:
    """Return the entry in a row's bytes (without its checksum) and the length of its batch.

    Return None if the row would be invalid after entries that end at this index and offset, in this
    epoch, or if an entry cannot hold its values. The checks are those of :func:`valid_prefix`, for
    one row and in a tenth of the time: most appends have one entry.
    """
    (
        entry_index,
        base_offset,
        producer_id,
        transaction,
        timestamp,
        appended,
        _,
        length,
        count,
        leader_epoch,
        base_sequence,
        producer_epoch,
        kind,
        schema,
        data_crc,
    ) = _PACKED.unpack(packed)
    if entry_index != index or base_offset != offset or leader_epoch < epoch:
        return None
    whole = count > 0 and length > 0 if kind == Kind.DATA else count == length == 0
    if kind >= len(_KINDS) or not whole:
        return None
    entry = Entry(
        entry_index,
        base_offset,
        timestamp,
        appended,
        count,
        leader_epoch,
        data_crc,
        _KINDS[kind],
        producer_id,
        producer_epoch,
        base_sequence,
        transaction,
        schema,
    )
    return entry, length


def valid_prefix(table: Table, first_index: int | None, first_offset: int, position: int) -> int:
    """Count the leading entries that obey the table's invariant.

    ``first_index``: the required index of the first entry (None for any). ``first_offset``: its
    base offset. ``position``: the start of the first batch in the ``.arrow`` file. CRCs are not
    checked here, because that needs the bytes.
    """
    rows = len(table)
    if rows == 0:
        return 0
    index = table["entry_index"]
    count = table["count"].astype(np.int64)
    length = table["length"]
    start = int(index[0]) if first_index is None else first_index
    good = index == np.arange(start, start + rows, dtype=np.int64)
    ends = first_offset + np.cumsum(count)
    good &= table["base_offset"] == ends - count
    places = position + np.cumsum(length)
    good &= table["position"] == places - length
    data = table["kind"] == Kind.DATA
    good &= np.where(data, (count > 0) & (length > 0), (count == 0) & (length == 0))
    good &= table["kind"] <= Kind.ABORT
    epochs = table["leader_epoch"]
    good &= epochs >= np.maximum.accumulate(epochs)
    return rows if good.all() else int(good.argmin())


def next_offset(table: Table, first_offset: int) -> Offset:
    """Return the offset after the table's last record. ``first_offset`` if the table is empty."""
    if len(table) == 0:
        return Offset(first_offset)
    last = table[-1]
    return Offset(int(last["base_offset"]) + int(last["count"]))


def at_offset(table: Table, offset: int) -> int:
    """Return the row of the batch that holds ``offset``, which must be one of the table's offsets.

    A marker has the same base offset as the batch after it: of several rows with one base offset,
    the last is the batch.
    """
    return int(np.searchsorted(table["base_offset"], offset, side="right")) - 1


def aborted_rows(tables: Sequence[Table]) -> list[npt.NDArray[np.bool_] | None]:
    """Return a mask of the aborted batches of each table, shape (rows,), or None without any.

    A batch is aborted if the log has, in any of its tables, the ABORT marker of the batch's
    transaction and producer id.
    """
    transactions = [table["transaction"] for table in tables]
    producers = [table["producer_id"] for table in tables]
    kinds = [table["kind"] for table in tables]
    marked = [np.flatnonzero(kind == Kind.ABORT) for kind in kinds]
    if not sum(len(rows) for rows in marked):
        return [None] * len(tables)
    of_markers = _picked(transactions, marked)
    ended = np.unique(of_markers)
    suspects = [
        np.flatnonzero((kind == Kind.DATA) & (column >= 0) & _among(column, ended))
        for kind, column in zip(kinds, transactions, strict=True)
    ]
    # Each (transaction, producer id) becomes one number, from the places of both in sorted lists.
    _, number = np.unique(
        np.concatenate((of_markers, _picked(transactions, suspects))), return_inverse=True
    )
    known, writer = np.unique(
        np.concatenate((_picked(producers, marked), _picked(producers, suspects))),
        return_inverse=True,
    )
    pairs = number.astype(np.int64) * len(known) + writer
    hit = np.isin(pairs[len(of_markers) :], pairs[: len(of_markers)])
    masks: list[npt.NDArray[np.bool_] | None] = []
    for table, rows in zip(tables, suspects, strict=True):
        mine, hit = hit[: len(rows)], hit[len(rows) :]
        mask = None
        if mine.any():
            mask = np.zeros(len(table), np.bool_)
            mask[rows[mine]] = True
        masks.append(mask)
    return masks


def open_transactions(tables: Sequence[Table]) -> dict[tuple[int, int], int]:
    """Return each (transaction, producer id) without a marker, and the index of its first entry."""
    rows = [np.flatnonzero(table["transaction"] != NO_TRANSACTION) for table in tables]
    if not sum(len(each) for each in rows):
        return {}
    transaction, producer, kind, entry = (
        _picked([table[name] for table in tables], rows)
        for name in ("transaction", "producer_id", "kind", "entry_index")
    )
    order = np.lexsort((producer, transaction))  # stable: each group is in the order of the log
    transaction, producer = transaction[order], producer[order]
    starts = np.flatnonzero(
        np.concatenate(
            (
                [True],
                (transaction[1:] != transaction[:-1]) | (producer[1:] != producer[:-1]),
            )
        )
    )
    ended = np.logical_or.reduceat(kind[order] != Kind.DATA, starts)
    found = starts[~ended]
    keys = zip(transaction[found].tolist(), producer[found].tolist(), strict=True)
    return dict(zip(keys, entry[order][found].tolist(), strict=True))


def _picked(columns: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([column[each] for column, each in zip(columns, rows, strict=True)])


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return a mask of the values that are in ``known``, which is sorted and not empty."""
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[place] == values)


def first_at_or_after(table: Table, timestamp: int) -> int | None:
    """Return the first batch with a record timestamp at or after ``timestamp``, or None.

    Timestamps come from producers and need not rise with offsets, so no binary search is possible.
    Markers have a timestamp but no record, so they are never returned.
    """
    late = (table["timestamp"] >= timestamp) & (table["kind"] == Kind.DATA)
    return int(late.argmax()) if late.any() else None


def appended_at(tables: Sequence[Table], entry: int) -> int | None:
    """Return the append time of the entry with this index, or None if no table has it."""
    for table in tables:
        if len(table) and 0 <= entry - int(table[0]["entry_index"]) < len(table):
            return int(table[entry - int(table[0]["entry_index"])]["appended"])
    return None


def greatest_numbers(tables: Sequence[Table]) -> tuple[int, int]:
    """Return the greatest allocated producer id and transaction number, each -1 without any."""
    found = []
    for column in ("producer_id", "transaction"):
        given = [table[column][table[column] < MADE_UP] for table in tables]
        found.append(max((int(each.max()) for each in given if len(each)), default=-1))
    return found[0], found[1]


def stored_bytes(tables: Sequence[Table], start: int, end: int) -> int:
    """Return the stored bytes of the records ``[start, end)``."""
    return sum(
        _bytes_before(table, min(end, last)) - _bytes_before(table, max(start, first))
        for table, first, last in _within(tables, start, end)
    )


def end_within(tables: Sequence[Table], start: int, end: int, budget: int) -> Offset:
    """Return the end offset of the records from ``start`` that take at most ``budget`` bytes.

    It is at most ``end``. Only whole records count.
    """
    for table, first, last in _within(tables, start, end):
        before = _bytes_before(table, max(start, first))
        whole = _bytes_before(table, min(end, last)) - before
        if whole > budget:
            return Offset(_reached_within(table, before + budget))
        budget -= whole
    return Offset(max(start, end))


def _within(tables: Sequence[Table], start: int, end: int) -> list[tuple[Table, int, int]]:
    """Return the tables with records of ``[start, end)``, with the first offset and end of each."""
    found = []
    for table in tables:
        if len(table):
            first = int(table[0]["base_offset"])
            last = int(next_offset(table, Offset(first)))
            if first < min(end, last) and start < last:
                found.append((table, first, last))
    return found


def _bytes_before(table: Table, offset: int) -> int:
    """Return the bytes of the table's records below ``offset``, one of its offsets or their end."""
    row = table[at_offset(table, offset)]
    within = min(offset - int(row["base_offset"]), int(row["count"]))
    part = int(row["length"]) * within // int(row["count"]) if row["count"] else 0
    return int(row["position"]) - int(table[0]["position"]) + part


def _reached_within(table: Table, budget: int) -> int:
    """Return the table's greatest offset that has at most ``budget`` bytes before it."""
    ends = table["position"] + table["length"] - int(table[0]["position"])
    row = table[int(ends.searchsorted(budget, side="right"))]  # the first batch that does not fit
    left = budget - (int(row["position"]) - int(table[0]["position"]))
    within = ((left + 1) * int(row["count"]) - 1) // int(row["length"])
    return int(row["base_offset"]) + within


class RecordState(StrEnum):
    """The state of a record."""

    COMMITTED = "committed"
    OPEN = "open"
    ABORTED = "aborted"
    NOT_REPLICATED = "not_replicated"


class RecordRun(Positional):
    """Records ``first`` to ``end - 1``, all in one state and one transaction (None: in none)."""

    first: OffsetField
    end: OffsetField
    state: RecordState
    transaction: int | None = None


JudgedTable = tuple[Table, npt.NDArray[np.bool_] | None]
"""An entries table, and a mask of its aborted batches (None without any)."""

_STATES: Final = tuple(RecordState)


def record_states(
    tables: Sequence[JudgedTable],
    start: int,
    end: int,
    high_watermark: Offset,
    open_parts: Collection[tuple[int, int]],
) -> list[RecordRun]:
    """Return the states of the existing records of ``[start, end)``, as runs in order.

    ``open_parts``: the (transaction, producer id) of the parts that have no marker yet.
    """
    runs: list[RecordRun] = []
    for table, aborted in tables:
        first = table["base_offset"]
        last = first + table["count"]
        rows = np.flatnonzero((table["kind"] == Kind.DATA) & (last > start) & (first < end))
        if not len(rows):
            continue
        numbers = table["transaction"][rows]
        states = np.full(len(rows), _STATES.index(RecordState.COMMITTED))
        states[_is_open(table[rows], open_parts)] = _STATES.index(RecordState.OPEN)
        gone = np.zeros(len(rows), np.bool_) if aborted is None else aborted[: len(table)][rows]
        states[gone] = _STATES.index(RecordState.ABORTED)
        lows = np.maximum(first[rows], start).tolist()
        highs = np.minimum(last[rows], end).tolist()
        for at, (low, high) in enumerate(zip(lows, highs, strict=True)):
            number = None if numbers[at] == NO_TRANSACTION else int(numbers[at])
            state = _STATES[states[at]]
            if state is RecordState.ABORTED:
                _add(runs, RecordRun(low, high, state, number))
                continue
            replicated = min(max(int(high_watermark), low), high)
            if low < replicated:
                _add(runs, RecordRun(low, replicated, state, number))
            if replicated < high:
                _add(runs, RecordRun(replicated, high, RecordState.NOT_REPLICATED, number))
    return runs


def _is_open(rows: Table, open_parts: Collection[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(rows), np.bool_)
    for transaction, producer_id in open_parts:
        found |= (rows["transaction"] == transaction) & (rows["producer_id"] == producer_id)
    return found


def _add(runs: list[RecordRun], run: RecordRun) -> None:
    """Add a run, or extend the last one."""
    before = runs[-1] if runs else None
    if before is not None and (before.end, before.state, before.transaction) == (
        run.first,
        run.state,
        run.transaction,
    ):
        runs[-1] = RecordRun(before.first, run.end, run.state, run.transaction)
    else:
        runs.append(run)
