"""The producers of a partition: idempotence (duplicates and order), fencing, open transactions.

A producer numbers its batches in each partition 0, 1, 2, … (after 2^31-1 comes 0), and starts again
with each epoch. So the leader can distinguish a retry of a batch (a duplicate), a new batch, and a
gap. A Kafka producer numbers its records instead: its batch covers several sequences, and is known
by the last one. Its sequences continue over its transactions, which have an epoch each.

Invariants of a producer's state:

* its epoch never falls, and a batch of a lower epoch is fenced.
* the recent batches, at most five, have consecutive sequences, apart from refused ones.
* it has at most one open transaction, which ends with a marker. The marker ends the epoch too: the
  next transaction has a higher epoch, so a delayed batch of the earlier transaction cannot get into
  the later one.
* a state with an open transaction never expires.
* a partition has at most ``PRODUCERS_MAX`` states. For a new one it evicts those that have ended,
  and those that were not used for ``IDLE_AGE``. If there are none, the new producer is refused.

Everything but the sequences of refused batches is derived from the entries table when a log opens.
Followers do not judge batches: they accept the leader's decisions.

Source: Kafka's ProducerStateManager (the window of five batches), KIP-890 (one epoch per
transaction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from spark_stream.consistency.entries import Entry, Kind, Table
from spark_stream.consistency.ids import (
    NO_PRODUCER,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TRANSACTION,
    Offset,
)
from spark_stream.structs import INT64_MAX, OffsetField, Positional

WINDOW: Final = 5
ENDED_AGE: Final = 300 * 1_000_000  # microseconds
IDLE_AGE: Final = 900 * 1_000_000  # microseconds. No client retries a batch for so long
PRODUCERS_MAX: Final = 50_000
"""Producers that a partition remembers. Each has up to a kibibyte."""
SEQUENCE_MAX: Final = (1 << 31) - 1
EPOCH_MAX: Final = (1 << 15) - 1


class Stamp(Positional):
    """The producer of a batch, and the batch's place in the producer's order in the partition.

    ``sequence`` counts batches, from 0 in each partition. After 2^31-1 comes 0. ``first``: the
    first of the sequences up to ``sequence`` that the batch covers, None for ``sequence`` itself.
    ``since``: the epoch from which on the sequences of this producer continue over epochs, None if
    they start again with each.
    """

    producer_id: OffsetField
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
    sequence: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)]
    transaction: Annotated[int, Meta(ge=NO_TRANSACTION, le=INT64_MAX)] = NO_TRANSACTION
    first: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)] | None = None
    since: Annotated[int, Meta(ge=0, le=EPOCH_MAX)] | None = None

    @property
    def first_sequence(self) -> int:
        """The first sequence that the batch covers."""
        return self.sequence if self.first is None else self.first


NOBODY: Final = Stamp(NO_PRODUCER, NO_PRODUCER_EPOCH, NO_SEQUENCE)


class RecentBatch(Struct, frozen=True):
    """A batch that was kept: its sequence, first offset, number of records, and checksum."""

    sequence: int
    offset: int
    count: int
    crc: int = 0


class ProducerState(Struct, frozen=True):
    """One producer in one partition. ``used`` is the leader's clock (µs) at its last entry.

    ``last_sequence`` is -1 before the first batch of the epoch. ``transaction`` is the open one,
    ``first_offset`` where it begins. ``ended``: a marker has ended this epoch.
    """

    epoch: int
    last_sequence: int = -1
    recent: tuple[RecentBatch, ...] = ()
    transaction: int = NO_TRANSACTION
    first_offset: int = -1
    ended: bool = False
    used: int = 0

    @property
    def open(self) -> bool:
        return self.transaction != NO_TRANSACTION


class RefusalReason(StrEnum):
    """The reason for the refusal of a batch."""

    FENCED = "fenced"  # a higher epoch was seen
    ENDED = "ended"  # its transaction has ended here
    GAP = "gap"  # a batch before it is missing
    TOO_OLD = "too_old"  # before the window: it cannot be compared with a stored batch
    OTHER_BATCH = "other_batch"  # its sequence was another batch's
    OUTSIDE = "outside"  # a write outside the producer's open transaction
    ANOTHER = "another"  # a second transaction while one is open


class Accepted(Struct, frozen=True):
    """The batch is the next one."""


class Duplicate(Struct, frozen=True):
    """The batch is in the log already. It gets the same acknowledgement as the first time.

    ``crc``: of the stored batch. A batch with another checksum is a duplicate only if its records
    are those of the stored batch in another encoding.
    """

    offset: Offset
    count: int
    crc: int = 0


class RefusedBatch(Struct, frozen=True):
    """The batch changes nothing. ``expected`` is the sequence that would be taken."""

    reason: RefusalReason
    expected: int


def following(sequence: int) -> int:
    """Return the next sequence: 0 follows 2^31-1."""
    return 0 if sequence == SEQUENCE_MAX else sequence + 1


def judge(
    state: ProducerState | None, stamp: Stamp, records: int
) -> Accepted | Duplicate | RefusedBatch:
    """Deduplicate a batch of which ``records`` are valid, and check its place in the order."""
    if state is None or stamp.epoch > state.epoch:
        if state is not None and state.open:
            return RefusedBatch(RefusalReason.ANOTHER, following(state.last_sequence))
        if stamp.since is not None and (state is None or state.epoch >= stamp.since):
            if state is None or state.last_sequence < 0:
                return Accepted()  # the earlier sequences have expired
            return _in_order(state, stamp, records)
        return Accepted() if stamp.first_sequence == 0 else RefusedBatch(RefusalReason.GAP, 0)
    expected = following(state.last_sequence)
    if stamp.epoch < state.epoch:
        return RefusedBatch(RefusalReason.FENCED, expected)
    if state.open and stamp.transaction != state.transaction:
        outside = stamp.transaction == NO_TRANSACTION
        return RefusedBatch(RefusalReason.OUTSIDE if outside else RefusalReason.ANOTHER, expected)
    if state.ended:
        return RefusedBatch(RefusalReason.ENDED, expected)
    if stamp.transaction != NO_TRANSACTION and not state.open and state.recent:
        return RefusedBatch(RefusalReason.ANOTHER, expected)  # the epoch has written outside any
    return _in_order(state, stamp, records)


def _in_order(
    state: ProducerState, stamp: Stamp, records: int
) -> Accepted | Duplicate | RefusedBatch:
    expected = following(state.last_sequence)
    if stamp.first_sequence == expected:
        return Accepted()
    for batch in state.recent:
        if batch.sequence == stamp.sequence:
            if batch.count != records:
                return RefusedBatch(RefusalReason.OTHER_BATCH, expected)
            return Duplicate(Offset(batch.offset), batch.count, batch.crc)
    ahead = (stamp.first_sequence - expected) % (SEQUENCE_MAX + 1)
    gap = not state.recent or ahead <= SEQUENCE_MAX // 2
    return RefusedBatch(RefusalReason.GAP if gap else RefusalReason.TOO_OLD, expected)


def appended(
    state: ProducerState | None, stamp: Stamp, offset: int, records: int, now: int, crc: int = 0
) -> ProducerState:
    """Return the state after an accepted batch. A batch of 0 records only uses up its sequence."""
    before = state if state is not None and state.epoch == stamp.epoch else None
    recent = before.recent if before else ()
    if records:
        recent = (*recent, RecentBatch(stamp.sequence, offset, records, crc))[-WINDOW:]
    transaction: int = NO_TRANSACTION
    first = -1
    if before is not None and before.open:
        transaction, first = before.transaction, before.first_offset
    elif records and stamp.transaction != NO_TRANSACTION:
        transaction, first = stamp.transaction, offset
    return ProducerState(stamp.epoch, stamp.sequence, recent, transaction, first, False, now)


def ended(state: ProducerState | None, epoch: int, now: int) -> ProducerState:
    """Return the state after a marker. A higher epoch than the state's is adopted."""
    if state is None or epoch > state.epoch:
        return ProducerState(epoch, ended=True, used=now)
    return replace(state, transaction=NO_TRANSACTION, first_offset=-1, ended=True, used=now)


def folded(state: ProducerState | None, entry: Entry) -> ProducerState:
    """Return the state after an entry of the producer in the log, whichever replica judged it."""
    if entry.kind is Kind.DATA:
        stamp = Stamp(
            entry.producer_id, entry.producer_epoch, entry.base_sequence, entry.transaction
        )
        return appended(
            state, stamp, entry.base_offset, entry.count, entry.appended, entry.data_crc
        )
    if state is not None and state.epoch > entry.producer_epoch:
        return state  # a lost marker, written again after the producer began a later epoch
    return ended(state, entry.producer_epoch, entry.appended)


def expires(state: ProducerState, age: int) -> int | None:
    """Return the time from which a state may be removed if its producer does not use it again.

    ``age``: the expiry of an unused state, in microseconds. After a transaction has ended, only its
    delayed requests can still arrive, and the transaction's record refuses those too. So a state
    that has ended is kept only for the longest delay of a request.
    """
    if state.open:
        return None
    return state.used + (min(age, ENDED_AGE) if state.ended else age) + 1


def expired(state: ProducerState, now: int, age: int) -> bool:
    """Return whether a state has expired."""
    since = expires(state, age)
    return since is not None and since <= now


def surplus(states: Mapping[int, ProducerState], now: int, limit: int) -> list[int]:
    """Return the producers to evict so that a tenth of ``limit`` is free, the oldest first."""
    due = {
        each: state.used + (0 if state.ended else IDLE_AGE)
        for each, state in states.items()
        if not state.open
    }
    wanted = max(0, len(states) - limit + limit // 10)
    return [each for each in sorted(due, key=due.__getitem__)[:wanted] if due[each] <= now]


def derived(tables: Sequence[Table], now: int, age: int) -> dict[int, ProducerState]:
    """Derive the states of all unexpired producers from the log's entries tables, in order.

    The order of the log decides: a state is the producer's last epoch, the last five batches of
    that epoch, and the marker after them, if there is one.
    """
    # Entries are wide: with millions of them, reading a column costs a pass over all entries.
    log = _Log(tables)
    ids = log.column("producer_id")
    stamped = np.flatnonzero(ids >= 0)
    if not len(stamped):
        return {}
    found, inverse = np.unique(ids[stamped], return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    stamped, inverse = stamped[order], inverse[order]
    edges = np.searchsorted(inverse, np.arange(len(found) + 1))
    timely = ~_late_markers(log, stamped, inverse)
    if not timely.all():
        stamped, inverse = stamped[timely], inverse[timely]
        edges = np.searchsorted(inverse, np.arange(len(found) + 1))
    last = stamped[edges[1:] - 1]
    marked = log.column("kind", last) != Kind.DATA
    kept_for = np.where(marked, min(age, ENDED_AGE), age)
    is_open = (log.column("transaction", last) != NO_TRANSACTION) & ~marked
    appended_at = log.column("appended", last)
    alive = now - appended_at <= kept_for
    if (excess := int(alive.sum()) - PRODUCERS_MAX) > 0:
        alive &= appended_at > np.partition(appended_at[alive], excess - 1)[excess - 1]
    states = {}
    for each in np.flatnonzero(alive | is_open):
        states[int(found[each])] = _of_producer(log, stamped[edges[each] : edges[each + 1]])
    return states


class _Log:
    """The columns of a log's tables, joined."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = [table for table in tables if len(table)]
        self._starts = np.cumsum([0, *map(len, self._tables)])

    def column(self, name: str, rows: np.ndarray | None = None) -> np.ndarray:
        """Return a whole column, or only its values in these rows (in any order)."""
        if rows is None:
            parts = [table[name] for table in self._tables]
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if len(self._tables) == 1:  # most logs are short, and a broker opens thousands of them
            values: np.ndarray = self._tables[0][name][rows].astype(np.int64)
            return values
        where = np.searchsorted(self._starts, rows, side="right") - 1
        values = np.zeros(len(rows), np.int64)
        for number in range(where.min(initial=0), where.max(initial=-1) + 1):
            here = where == number
            values[here] = self._tables[number][name][rows[here] - self._starts[number]]
        return values


def _late_markers(log: _Log, rows: np.ndarray, producer: np.ndarray) -> np.ndarray:
    """Return a mask of the markers of an epoch that their producer had left before.

    A lost marker is written again, perhaps after its producer began a later epoch.
    """
    epochs = log.column("producer_epoch", rows)
    late = np.zeros(len(rows), np.bool_)
    if not ((epochs[1:] < epochs[:-1]) & (producer[1:] == producer[:-1])).any():
        return late
    data = log.column("kind", rows) == Kind.DATA
    before = np.maximum.accumulate(np.where(data, np.arange(len(rows)), -1))
    late[:] = (before >= 0) & (producer[before] == producer) & (epochs < epochs[before])
    return late


def _of_producer(log: _Log, rows: np.ndarray) -> ProducerState:
    """Derive a producer's state from its rows, in the order of the log."""
    epochs = log.column("producer_epoch", rows)
    epoch = int(epochs[-1])
    rows = rows[epochs == epoch]
    data = rows[log.column("kind", rows) == Kind.DATA]
    latest = [
        log.column(name, data[-WINDOW:]).tolist()
        for name in ("base_sequence", "base_offset", "count", "data_crc")
    ]
    recent = tuple(RecentBatch(*each) for each in zip(*latest, strict=True))
    sequence = recent[-1].sequence if recent else -1
    used = int(log.column("appended", rows[-1:])[0])
    over = len(data) < len(rows)
    transaction = int(log.column("transaction", rows[-1:])[0])
    if over or transaction == NO_TRANSACTION:
        return ProducerState(epoch, sequence, recent, ended=over, used=used)
    first = int(log.column("base_offset", data[:1])[0])
    return ProducerState(epoch, sequence, recent, transaction, first, used=used)
