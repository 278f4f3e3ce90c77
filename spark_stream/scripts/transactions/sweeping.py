"""Regular work: abort expired transactions, finish decided ones, forget old ids.

A transaction expires when its timeout has passed, on the monotonic clock of its coordinator, since
that broker first saw the record with its number and deadline. So the clocks of two hosts are never
compared, and setting a wall clock expires nothing. The time starts again after a restart, and after
an outage of the metadata store, in which no owner could renew.

Ids that nobody uses are forgotten by their age, on the broker's steady clock, and only after the
broker itself has seen them idle for a while: so a broker that starts with a wrong clock forgets no
id in use. When a sink's id expires, what it committed is kept for its query
(``records.expire_sink``).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions.sinks import BATCH_WRITE_LISTED_MS, is_sink
from spark_stream.consistency.transactions.transactions import (
    COMMITS,
    DECIDED,
    Denied,
    Joined,
    State,
    Transaction,
)
from spark_stream.errors import IsologError, UnknownTopic
from spark_stream.scripts.steps import Script, WriteMarkers
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.finishing import Finisher, mark_dropped

FORGET_AFTER_MS: Final = 7 * 24 * 3_600_000
SEEN_IDLE_S: Final = 3_600.0
SEEN_IDLE_JOB_S: Final = 60.0


class Watch:
    """Remembers since when, on a monotonic clock, this broker has seen each record unchanged."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[int, int, State], float]] = {}

    def unchanged_s(self, record: Transaction, now_s: float) -> float:
        """Return for how long this broker has seen the number, deadline and state unchanged."""
        key = (record.number, record.deadline_ms, record.state)
        known, since = self._seen.get(record.transactional_id, (None, now_s))
        if known != key:
            since = now_s
        self._seen[record.transactional_id] = (key, since)
        return now_s - since

    def restart(self, record: Transaction | None = None) -> None:
        """Count from now on, for one record or for all."""
        if record is None:
            self._seen.clear()
        else:
            self._seen.pop(record.transactional_id, None)

    def keep_only(self, records_: Iterable[Transaction]) -> None:
        """Forget all records but these."""
        names = {each.transactional_id for each in records_}
        for gone in self._seen.keys() - names:
            del self._seen[gone]


class Swept(StrEnum):
    """What a sweep did with a record."""

    LEFT = "left as it is"
    EXPIRED = "expired"
    FINISHED = "finished"
    FORGOTTEN = "forgotten"


class TransactionSettings(Struct, frozen=True):
    """The settings of transactions, each under its name in the configuration."""

    sink_expiry_seconds: float = 30 * 86_400.0
    """The time after which a sink that committed a batch, and was unused since, expires."""


class Sweeper:
    """The sweeper of one broker."""

    def __init__(self, finisher: Finisher, settings: TransactionSettings) -> None:
        self.watch = Watch()
        self._finisher = finisher
        self._settings = settings

    def sweep_record(self, record: Transaction, now_s: float, now_ms: int) -> Script[Swept]:
        """Do what is due for a record whose coordinator is this broker.

        Raises:
            IsologError: a partition could not be marked or reached; the next sweep tries again.
        """
        unchanged_s = self.watch.unchanged_s(record, now_s)
        if record.state in DECIDED:
            if not self._finisher.holds(record):
                yield from self._finisher.finish(record)
            yield from self._finisher.record_finish(record)
            return Swept.FINISHED
        if record.state is State.OPEN:
            return (yield from self._expire_if_due(record, unchanged_s))
        age_s, seen_idle_s = self._kept_for(record)
        if (now_ms - record.deadline_ms) / 1000 <= age_s or unchanged_s <= seen_idle_s:
            return Swept.LEFT
        if is_sink(record) and record.committed_batch >= 0:
            yield from records.expire_sink(record)
        else:
            yield from records.forget(record)
        return Swept.FORGOTTEN

    def _expire_if_due(self, record: Transaction, unchanged_s: float) -> Script[Swept]:
        if unchanged_s * 1000 <= record.timeout_ms:
            return Swept.LEFT
        outcome = yield from records.change(
            record.transactional_id,
            records.as_judge(lambda found: rules.expire(found, record.number, record.deadline_ms)),
        )
        if isinstance(outcome, Denied):
            return Swept.LEFT
        yield from self._finisher.finish(outcome)
        yield from self._finisher.record_finish(outcome)
        return Swept.EXPIRED

    def _kept_for(self, record: Transaction) -> tuple[float, float]:
        """Return how long a record is kept after its deadline, and after it was first seen idle."""
        # Counted from its last use, which was a timeout before its deadline.
        timeout_s = record.timeout_ms / 1000
        if record.query == record.transactional_id:
            # A job's id is used again only to repeat a call.
            return BATCH_WRITE_LISTED_MS / 1000 - timeout_s, SEEN_IDLE_JOB_S
        if record.committed_batch >= 0:
            expiry_s = self._settings.sink_expiry_seconds
            return expiry_s - timeout_s, min(SEEN_IDLE_S, expiry_s)
        return FORGET_AFTER_MS / 1000, SEEN_IDLE_S


def mark_dropped_again(record: Transaction) -> Script[None]:
    """Write missing markers of dropped branches: a broker may have died before writing them.

    Raises: as ``finishing.mark_dropped``.
    """
    for producer_id in record.dropped if record.state is State.OPEN else ():
        yield from mark_dropped(record, producer_id)


class LostMarker(Struct, frozen=True):
    """A marker that damage took: what it was by its record, and why it could not be restored."""

    at: Joined
    number: int
    taken: tuple[int, ...]
    fate: str
    failure: IsologError | None = None


def restore_markers(open_parts: Iterable[tuple[Joined, int]]) -> Script[list[LostMarker]]:
    """Restore markers that damage took in partitions that this broker has begun to lead.

    A finished transaction that is open in a partition (``open_parts``: place and number) has lost
    its marker there, by a power cut or damage. Its record says what the marker was. If the record
    has moved on, nobody knows any more, and the transaction is taken as aborted. Transactions that
    are open or decided on record are left alone: their markers are still to come.

    If a marker could not be written, call :func:`write_lost_marker` with it later: by then the
    record may have moved on.
    """
    known = {record.number: record for record in (yield from records.read_all())}
    lost = []
    for at, number in open_parts:
        record = known.get(number)
        if record is not None and record.state not in (State.COMMITTED, State.ABORTED):
            continue
        taken = record.taken if record is not None and record.state in COMMITS else ()
        fate = "unknown: it is taken as aborted" if record is None else record.state.value
        lost.append((yield from write_lost_marker(LostMarker(at, number, taken, fate))))
    return lost


def write_lost_marker(lost: LostMarker) -> Script[LostMarker]:
    """Write a lost marker again, and return it with the error of this attempt.

    No error means that the marker is written or its topic gone.
    """
    failure: IsologError | None = None
    try:
        yield WriteMarkers(lost.at, lost.number, lost.taken)
    except UnknownTopic:
        pass
    except IsologError as error:
        failure = error
    return replace(lost, failure=failure)
