"""Finishing of decided transactions, and sweeps.

Order of steps: all partitions are sealed, then all are marked, with the markers of a commit forced,
then positions are stored, then the record says that it is finished. A script that stops between any
two leaves a decided record, and another script finishes that from the first step: every step can be
repeated.

**"All" are the partitions with a join on record after the decision** (``deciding.join`` has the
reason).

**All are sealed before any is marked.** Otherwise a batch of the transaction that is still on its
way could land in one partition after a reader has seen the transaction whole without that batch. So
if the leader of a partition cannot be reached, no partition is marked. A partition that is reached
but cannot be written (its disk failed, its log is damaged) takes no batch either: the others are
still marked.

**Only leaders of the epochs on record, or later ones, take these steps.** A leader replaced before
the decision may not have seen that, and have no batch of the transaction: it would report that all
is sealed and marked, while its successor has batches of the transaction. A leader elected after the
decision takes none: it would need a join, which the decided record refuses. One that is replaced
between seal and markers had all of it, and its marker counts once it is replicated.

**The markers of a commit are on the disk before it is finished**, if the topic forces anything.
Once the transaction is finished, the id continues, and its record no longer has the outcome. If a
power cut took a marker then, no broker could restore it, and readers would not see the transaction.

**The markers are below the high watermark before it is finished**: so a new leader has them, and a
reader that begins after ``commit()`` sees the transaction.

**Late callers do no harm.** A seal and markers of a transaction that is not open in a partition
change nothing there. For positions see ``positions.store_decided``. FINISH names the number.

**A sweep** aborts expired transactions, finishes decided ones, and removes old ids. A transaction
expires when its timeout has passed, on the monotonic clock of its coordinator, since that broker
first saw the record with its number and deadline. So the clocks of two hosts are never compared,
and setting a wall clock expires nothing. The time starts again after a restart, and after an outage
of the metadata store, in which no owner could renew.

Unused ids are removed by their age, on the broker's steady clock, and only after the broker itself
has seen them idle for a while: so a broker that starts with a wrong clock removes no id in use.
When a sink's id expires, its committed batches are kept for its query (``records.expire_sink``).
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
from spark_stream.errors import (
    IsologError,
    LeaderUnavailable,
    NotLeader,
    RequestTimeout,
    UnknownTopic,
)
from spark_stream.scripts.steps import (
    DropBranch,
    IsReplicated,
    Marked,
    Pause,
    Script,
    Seal,
    WriteMarkers,
    ask_present_leaders,
    together,
)
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.positions import store_decided

# Followers take about a millisecond. After five seconds a sweep continues with the missing ones.
_PAUSES_S: Final = (0.0005,) * 4 + (0.002,) * 8 + (0.01,) * 20 + (0.05,) * 96
_NOT_REACHED: Final = (LeaderUnavailable, NotLeader, RequestTimeout)


class Finisher:
    """The finisher of decided transactions at one broker.

    Its memory has the transactions that are finished, but not yet recorded as finished. FINISH can
    be put on record with the next change of the record, which saves a write for each transaction.
    If this memory is lost, transactions are only finished once more, which changes nothing. The
    memory is never wrong: a number is remembered only after its markers are written everywhere, and
    a finished transaction stays finished. If a transaction moves positions, FINISH is recorded
    immediately instead: ``positions.store_decided`` relies on that.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.ended: dict[int, str] = {}
        """Transactions whose joins can go once they are finished on record: number to id.

        Transactions with a refused join are among them."""

    def holds(self, found: Transaction) -> bool:
        """Return whether this broker has finished the transaction, but not yet recorded it."""
        return self._numbers.get(found.transactional_id) == found.number

    def settled(self, found: Transaction) -> Transaction:
        """Return the record, as finished if this broker has finished the transaction."""
        if found.state not in DECIDED or not self.holds(found):
            return found
        outcome = rules.finish(found, found.number)
        return outcome if isinstance(outcome, Transaction) else found

    def finish(self, decided: Transaction) -> Script[Transaction]:
        """Finish the transaction, and return the finished record.

        Raises:
            LeaderUnavailable, NotLeader, RequestTimeout: A leader was not reached. No partition is
                marked.
            DiskFull, StorageFailure, DamagedSegment: A partition could not be marked. All others
                are.
        """
        places, failure = yield from seal_partitions(decided)
        failure = (yield from write_markers(decided, places)) or failure
        if failure is not None:
            raise failure
        self.ended[decided.number] = decided.transactional_id
        if decided.state is State.COMMITTING and decided.positions:
            yield from store_decided(decided)
            return (yield from self.record_finish(decided))
        self._numbers[decided.transactional_id] = decided.number
        return self.settled(decided)

    def _forget(self, recorded: Transaction) -> None:
        if self.holds(recorded):
            del self._numbers[recorded.transactional_id]

    def record_finish(self, decided: Transaction) -> Script[Transaction]:
        """Record that the transaction is finished, and return its record."""
        outcome = yield from records.change(
            decided.transactional_id,
            records.as_judge(rules.finish, decided.number),
        )
        self._forget(decided)
        if isinstance(outcome, Transaction):
            return outcome
        # others have finished it, and its id continued
        over = rules.finish(decided, decided.number)
        return over if isinstance(over, Transaction) else decided


def seal_partitions(
    decided: Transaction,
) -> Script[tuple[list[Joined], IsologError | None]]:
    """Seal all partitions. Return the sealed ones, and the error of an unusable one.

    Raises:
        LeaderUnavailable, NotLeader, RequestTimeout: A partition may still take a batch.
    """
    places = yield from records.read_places(decided.number, decided=True)
    answers = yield from ask_present_leaders(Seal(at, decided.number) for at in places)
    sealed: list[Joined] = []
    failure: IsologError | None = None
    for at, answer in zip(places, answers, strict=True):
        if isinstance(answer, _NOT_REACHED):
            raise answer
        if not isinstance(answer, IsologError):
            sealed.append(at)
        elif not isinstance(answer, UnknownTopic):  # a deleted topic needs no seal
            failure = answer
    return sealed, failure


def write_markers(decided: Transaction, places: list[Joined]) -> Script[IsologError | None]:
    """Write the markers in sealed partitions, and wait until they are replicated.

    Return the error if a marker is missing, not on the disk, or not below the high watermark in
    time, or None.
    """
    taken = decided.taken if decided.state in COMMITS else ()
    answers = yield from ask_present_leaders(
        WriteMarkers(at, decided.number, taken) for at in places
    )
    late = yield from _await_replication(
        IsReplicated(at, answer.end, answer.leader_epoch)
        for at, answer in zip(places, answers, strict=True)
        if isinstance(answer, Marked) and not answer.replicated
    )
    return _failure(answers) or late


def _await_replication(asked: Iterable[IsReplicated]) -> Script[IsologError | None]:
    """Wait until the high watermark has passed these entries. Return the error of one, if any."""
    left = tuple(asked)
    for pause_s in _PAUSES_S:
        answers = yield from together(left)
        failure = _failure(answers)
        if failure is not None:
            return failure
        left = tuple(step for step, done in zip(left, answers, strict=True) if done is False)
        if not left:
            return None
        yield Pause(pause_s)
    where = f"{left[0].at.topic}/{left[0].at.partition}"
    return LeaderUnavailable(
        f"{where}: the markers of the transaction are not replicated yet",
        topic=left[0].at.topic,
        partition=left[0].at.partition,
    )


def mark_dropped(found: Transaction, producer_id: int) -> Script[None]:
    """End a dropped branch in all partitions, so that readers no longer wait for it.

    Raises:
        LeaderUnavailable, DiskFull, StorageFailure, DamagedSegment: A marker is missing. The
            transaction's end writes it.
    """
    places = yield from records.read_places(found.number)
    failure = _failure(
        (yield from together(DropBranch(at, found.number, producer_id) for at in places))
    )
    if failure is not None:
        raise failure


def _failure(answers: list[object]) -> IsologError | None:
    """Return the last error among the answers that is not about a deleted topic."""
    failed = [
        each
        for each in answers
        if isinstance(each, IsologError) and not isinstance(each, UnknownTopic)
    ]
    return failed[-1] if failed else None


FORGET_AFTER_MS: Final = 7 * 24 * 3_600_000
SEEN_IDLE_S: Final = 3_600.0
SEEN_IDLE_JOB_S: Final = 60.0


class Watch:
    """The times, on a monotonic clock, since when this broker has seen each record unchanged."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[int, int, State], float]] = {}

    def unchanged_s(self, record: Transaction, now_s: float) -> float:
        """Return the seconds for which this broker has seen the record unchanged.

        That means its number, deadline and state.
        """
        key = (record.number, record.deadline_ms, record.state)
        known, since = self._seen.get(record.transactional_id, (None, now_s))
        if known != key:
            since = now_s
        self._seen[record.transactional_id] = (key, since)
        return now_s - since

    def restart(self, record: Transaction | None = None) -> None:
        """Restart the time of one record, or of all."""
        if record is None:
            self._seen.clear()
        else:
            self._seen.pop(record.transactional_id, None)

    def keep_only(self, records_: Iterable[Transaction]) -> None:
        """Drop all records but these."""
        names = {each.transactional_id for each in records_}
        for gone in self._seen.keys() - names:
            del self._seen[gone]


class Swept(StrEnum):
    """The action of a sweep on a record."""

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
        """Take the due action for a record that this broker sweeps.

        Raises:
            IsologError: A partition could not be marked or reached. The next sweep retries.
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
            yield from records.delete_unchanged(record)
        return Swept.FORGOTTEN

    def _expire_if_due(self, record: Transaction, unchanged_s: float) -> Script[Swept]:
        if unchanged_s * 1000 <= record.timeout_ms:
            return Swept.LEFT
        outcome = yield from records.change(
            record.transactional_id,
            records.as_judge(rules.expire, record.number, record.deadline_ms),
        )
        if isinstance(outcome, Denied):
            return Swept.LEFT
        yield from self._finisher.finish(outcome)
        yield from self._finisher.record_finish(outcome)
        return Swept.EXPIRED

    def _kept_for(self, record: Transaction) -> tuple[float, float]:
        """Return the times for which a record is kept: since its deadline, and seen idle."""
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
    """A marker that damage took, with its content by the record, and the error of a restoration."""

    at: Joined
    number: int
    taken: tuple[int, ...]
    fate: str
    failure: IsologError | None = None


def restore_markers(open_parts: Iterable[tuple[Joined, int]]) -> Script[list[LostMarker]]:
    """Restore markers that damage took in partitions that this broker has begun to lead.

    A finished transaction that is open in a partition (``open_parts``: place and number) has lost
    its marker there, by a power cut or damage. Its record has the content of the marker. If the
    record has moved on, the content is unknown, and the transaction is taken as aborted.
    Transactions that are open or decided on record are left alone: their markers are still to come.

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

    No error means that the marker is written or its topic was deleted.
    """
    failure: IsologError | None = None
    try:
        yield WriteMarkers(lost.at, lost.number, lost.taken)
    except UnknownTopic:
        pass
    except IsologError as error:
        failure = error
    return replace(lost, failure=failure)
