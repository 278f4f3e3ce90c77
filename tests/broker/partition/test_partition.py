"""One partition in this process: bounds for readers, transactions, trims and producers."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from isolog.errors import (
    BrokerBusy,
    DiskFull,
    InvalidTransaction,
    NotLeader,
    OutOfOrderSequence,
    UnknownTopic,
)
from spark_stream.broker.partition.partition import CloseReason, Partition
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition import producers
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.environment import Clock, SystemClock
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression, LogSettings
from tests.clocks import YEAR_US, FakeClock
from tests.support import NUMBERS, numbers

DAY_US = 24 * 3_600 * 1_000_000


def opened(folder: Path, clock: Clock | None = None, **settings: int) -> Partition:
    log = PartitionLog.open(folder, LogFormat(NUMBERS, LogSettings(**settings)))
    return Partition("t", "id", 0, log, DAY_US, clock or SystemClock())


def joined(partition: Partition, transaction: int, *producer_ids: int) -> None:
    """Join the partition to a transaction whose record names it."""
    for producer_id in producer_ids:
        partition.transactions.close_join(
            partition.transactions.open_join(transaction, producer_id), on_record=True
        )


def stable(partition: Partition) -> int:
    return int(partition.bounds().last_stable_offset)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_prepared_batch_has_its_size_without_compression(
    tmp_path: Path, compression: Compression
):
    """Its thread serves readers of a small one, and decompression would take long."""
    partition = opened(tmp_path)
    partition.configure(LogFormat(NUMBERS, LogSettings(compression=compression)))
    candidate = partition.appends.prepare(numbers(0, 100_000), None)
    assert candidate.prepared is not None
    is_compressed = compression is not Compression.NONE
    assert (candidate.prepared.message.size < 700_000) is is_compressed
    assert candidate.nbytes >= 800_000


def test_readers_see_no_undecided_record_below_last_stable_offset(tmp_path: Path):
    """Odd transactions are aborted and even ones committed. Each has one batch.

    A concurrent READ_COMMITTED reader sees exactly the even numbers at any moment.
    """
    partition, rounds = opened(tmp_path), 600
    done = threading.Event()
    wrong: list[object] = []
    looks = [0]

    def look() -> None:
        seen = 0
        while not wrong and (not done.is_set() or seen < stable(partition)):
            end = partition.bounds(Isolation.READ_COMMITTED).last_stable_offset
            chunks = partition.log.read(0, end, committed=True)
            found = [n for chunk in chunks for n in chunk.batch.column("n").to_pylist()]
            if found != [2 * n for n in range((int(end) + 1) // 2)]:
                wrong.append((int(end), found[-5:]))
            seen = int(end)
            looks[0] += 1

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(rounds):
        joined(partition, number, 1)
        partition.append(numbers(number, 1), Stamp(1, number, 0, number))
        partition.transactions.end(number, lambda _, number=number: number % 2 == 0)
    done.set()
    for reader in readers:
        reader.join(60)
    assert not wrong
    assert looks[0] > 0
    assert stable(partition) == rounds


def test_opening_restores_producers_transactions_and_bounds(tmp_path: Path):
    before = opened(tmp_path)
    joined(before, 10, 1)
    joined(before, 11, 3, 4)
    before.append(numbers(0, 2), Stamp(1, 0, 0, 10))
    before.append(numbers(2, 1), Stamp(2, 0, 0))
    before.append(numbers(3, 1), Stamp(3, 0, 0, 11))
    before.transactions.end(10, lambda _: False)
    before.append(numbers(4, 1), Stamp(4, 0, 0, 11))
    after = opened(tmp_path)
    assert after.bounds(Isolation.READ_ATOMIC) == before.bounds(Isolation.READ_ATOMIC)
    assert stable(after) == 3
    assert set(after.transactions.open()) == set(before.transactions.open())
    assert after.append(numbers(2, 1), Stamp(2, 0, 0)).duplicate
    after.transactions.end(11, lambda producer: producer == 3)
    chunks = after.log.read(0, after.bounds().last_stable_offset, committed=True)
    assert [n for chunk in chunks for n in chunk.batch.column("n").to_pylist()] == [2, 3]


ONE_MORE = NUMBERS.append(pa.field("a", pa.string()))
TWO_MORE = ONE_MORE.append(pa.field("b", pa.string()))


@pytest.mark.parametrize(
    ("then", "later"),
    [
        (
            LogFormat(ONE_MORE, earlier=(NUMBERS,)),
            LogFormat(TWO_MORE, earlier=(NUMBERS, ONE_MORE)),
        ),
        (
            LogFormat(NUMBERS, LogSettings(compression=Compression.ZSTD)),
            LogFormat(NUMBERS, LogSettings(compression=Compression.LZ4)),
        ),
    ],
    ids=["columns", "compression"],
)
def test_a_duplicate_is_recognised_after_two_changes_of_its_topic(
    tmp_path: Path, then: LogFormat, later: LogFormat
):
    """The second change comes between the encoding of the duplicate and its check."""
    partition, stamp = opened(tmp_path), Stamp(1, 0, 0)
    partition.append(numbers(0, 300), stamp)
    partition.configure(then)
    duplicate = partition.appends.prepare(numbers(0, 300), stamp)
    other = partition.appends.prepare(numbers(1, 300), stamp)
    partition.configure(later)
    taken = partition.appends.take(duplicate, stamp, Isolation.READ_UNCOMMITTED)
    assert taken is not None
    assert taken.appended.duplicate
    with pytest.raises(OutOfOrderSequence, match="another batch"):
        partition.appends.take(other, stamp, Isolation.READ_UNCOMMITTED)


def test_batches_of_an_ended_transaction_are_refused(tmp_path: Path):
    """The first batch of the transaction passed its check before the decision."""
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    partition.transactions.end(10, lambda _: True)
    with pytest.raises(InvalidTransaction, match="has ended"):
        partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    assert partition.bounds().log_end_offset == 0


def test_second_end_of_a_transaction_writes_no_markers(tmp_path: Path):
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    joined(partition, 11, 2)
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    partition.transactions.end(10, lambda _: True)
    entries = partition.log.end.entry
    partition.transactions.end(10, lambda _: False)
    assert partition.log.end.entry == entries
    assert stable(partition) == 1


def test_readers_are_woken_by_markers_written_before_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    partition = opened(tmp_path)
    joined(partition, 10, 1, 2)
    partition.append(numbers(0, 3), Stamp(1, 0, 0, 10))
    partition.append(numbers(3, 3), Stamp(2, 0, 0, 10))
    woken = threading.Event()
    partition.wait_beyond(0, Isolation.READ_COMMITTED, woken.set)
    real, marks = partition.log.mark, []

    def mark(*args: object) -> None:
        marks.append(args)
        if len(marks) == 2:
            raise DiskFull("no room for the second marker")
        real(*args)

    monkeypatch.setattr(partition.log, "mark", mark)
    with pytest.raises(DiskFull):
        partition.transactions.end(10, lambda _: True)
    assert stable(partition) == 3
    assert woken.is_set()


def test_reads_are_woken_when_the_lease_has_expired(tmp_path: Path):
    """They fail then, so that their clients look for another leader."""
    partition, woken, serves = opened(tmp_path), threading.Event(), [True]
    me = Member(BrokerId("0"), Generation("g"))
    record = PartitionRecord((me.broker,), me.broker, LeaderEpoch(1), (me,))
    partition.role.lead(me, record, 1, lambda: serves[0])
    partition.wait_beyond(Offset(0), Isolation.READ_UNCOMMITTED, woken.set)
    partition.wake_refused()
    assert not woken.is_set()
    serves[0] = False
    partition.wake_refused()
    assert woken.is_set()
    with pytest.raises(NotLeader):
        partition.wait_beyond(Offset(0), Isolation.READ_UNCOMMITTED, woken.set)
    serves[0] = True
    woken.clear()
    partition.wait_beyond(Offset(0), Isolation.READ_UNCOMMITTED, woken.set)
    partition.append(numbers(0, 1))
    assert woken.is_set()


def test_atomic_cut_ends_before_overlapping_transactions(tmp_path: Path):
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    joined(partition, 11, 2)
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    partition.append(numbers(1, 1), Stamp(2, 0, 0, 11))
    partition.append(numbers(2, 1), Stamp(1, 0, 1, 10))
    partition.transactions.end(10, lambda _: True)
    bounds = partition.bounds(Isolation.READ_ATOMIC)
    assert (bounds.last_stable_offset, bounds.atomic_cut) == (1, 0)
    partition.transactions.end(11, lambda _: True)
    assert partition.bounds(Isolation.READ_ATOMIC).atomic_cut == 3


def test_calls_after_topic_deletion_raise_unknown_topic(tmp_path: Path):
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    joined(partition, 11, 2)
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    partition.close(CloseReason.TOPIC_DELETED)
    with pytest.raises(UnknownTopic):
        partition.transactions.end(10, lambda _: True)


def test_calls_after_a_move_raise_not_leader(tmp_path: Path):
    """A transaction skips deleted topics when it writes its markers, and must not skip this."""
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    partition.close(CloseReason.MOVED)
    with pytest.raises(NotLeader):
        partition.transactions.end(10, lambda _: True)
    with pytest.raises(NotLeader):
        partition.append(numbers(1, 1), Stamp(1, 0, 1, 10))


def test_dropping_a_branch_requires_leadership(tmp_path: Path):
    partition = opened(tmp_path)
    joined(partition, 5, 1)
    partition.close(CloseReason.MOVED)
    with pytest.raises(NotLeader):
        partition.transactions.drop_branch(5, 1)
    assert (5, 1) in partition.transactions._state.core.joins


@pytest.mark.parametrize("wrote", [True, False], ids=["wrote", "joined only"])
def test_batch_checked_before_its_branch_was_dropped_is_refused(tmp_path: Path, wrote: bool):
    """The check runs outside the lock, so the branch may be dropped before the append."""
    partition = opened(tmp_path)
    joined(partition, 5, 1, 2)
    if wrote:
        partition.append(numbers(1, 1), Stamp(1, 0, 0, 5))
    partition.append(numbers(2, 1), Stamp(2, 0, 0, 5))
    partition.transactions.drop_branch(5, 1)
    partition.transactions.drop_branch(5, 1)  # a retry
    assert stable(partition) == (1 if wrote else 0)
    with pytest.raises(InvalidTransaction, match="has ended"):
        partition.append(numbers(3, 1), Stamp(1, 0, 1 if wrote else 0, 5))
    partition.append(numbers(4, 1), Stamp(2, 0, 1, 5))
    partition.transactions.end(5, lambda producer: producer == 2)
    chunks = partition.log.read(0, partition.bounds().log_end_offset, committed=True)
    assert [n for chunk in chunks for n in chunk.batch.column("n").to_pylist()] == [2, 4]


@pytest.mark.parametrize("restarted", [False, True], ids=["held for long", "over a restart"])
def test_late_batch_of_a_long_ended_transaction_is_refused(tmp_path: Path, restarted: bool):
    """Its transaction had joined and was sealed 4,096 transactions ago.

    A bounded list of ended transactions accepted such a batch, and the LSO never moved again.
    """
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    partition.transactions.end(10, lambda _: True)
    for number in range(100, 4_300):
        partition.transactions.seal(number)
    if restarted:
        partition.close()
        partition = opened(tmp_path)
    with pytest.raises(InvalidTransaction, match="has ended"):
        partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    partition.append(numbers(0, 1))
    assert stable(partition) == 1


def test_seal_before_confirmation_cancels_the_join(tmp_path: Path):
    partition = opened(tmp_path)
    pending = partition.transactions.open_join(10, 1)
    partition.transactions.end(10, lambda _: True)
    partition.transactions.close_join(pending, on_record=True)
    assert not partition.transactions.has_joined(10, 1)
    with pytest.raises(InvalidTransaction, match="has ended"):
        partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))


def test_refused_join_is_removed(tmp_path: Path):
    partition = opened(tmp_path)
    partition.transactions.close_join(partition.transactions.open_join(10, 1), on_record=False)
    assert not partition.transactions.has_joined(10, 1)
    partition.transactions.close_join(partition.transactions.open_join(10, 1), on_record=True)
    assert partition.transactions.has_joined(10, 1)


def test_new_leader_epoch_has_no_joins(tmp_path: Path):
    partition = opened(tmp_path)
    joined(partition, 10, 1)
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 10))
    me = Member(BrokerId("b"), Generation("g"))
    partition.role.lead(me, PartitionRecord((me.broker,), me.broker, LeaderEpoch(1), (me,)), 1)
    with pytest.raises(InvalidTransaction):
        partition.append(numbers(1, 1), Stamp(1, 0, 1, 10))
    joined(partition, 10, 1)
    assert partition.append(numbers(1, 1), Stamp(1, 0, 1, 10)).offset == 1


def led(partition: Partition, epoch: int) -> None:
    me = Member(BrokerId("b"), Generation("g"))
    record = PartitionRecord((me.broker,), me.broker, LeaderEpoch(epoch), (me,))
    partition.role.lead(me, record, epoch)


def test_trim_hides_records_before_their_segment_is_removed(tmp_path: Path):
    partition = opened(tmp_path)
    partition.append(numbers(0, 10))
    partition.append(numbers(10, 10))
    partition.role.trim(Offset(15))
    partition.housekeep()
    assert partition.bounds().log_start_offset == 15
    assert partition.log.start.offset == 0
    partition.role.trim(Offset(20))
    partition.role.trim(Offset(12))  # by an outdated view
    partition.housekeep()
    assert partition.bounds().log_start_offset == partition.log.start.offset == 20
    assert partition.append(numbers(20, 1)).offset == 20


@pytest.mark.rule(
    "the first offset of a leader whose log ends below its log start", "broker/partition/state.py"
)
def test_leader_whose_log_ends_below_the_trim_resets_it_to_the_trim(tmp_path: Path):
    """An unclean election can cause this. Records with lower offsets would be hidden."""
    partition = opened(tmp_path)
    partition.append(numbers(0, 10))
    partition.role.rest(LeaderEpoch(1))
    partition.role.trim(Offset(25))
    assert partition.bounds().log_start_offset == 10
    led(partition, 2)
    assert partition.append(numbers(25, 5)).offset == 25
    bounds = partition.bounds()
    assert (bounds.log_start_offset, bounds.log_end_offset) == (25, 30)


@pytest.mark.parametrize("years", [10, -10])
def test_jump_of_the_wall_clock_removes_no_segment_and_no_producer(tmp_path: Path, years: int):
    clock = FakeClock()
    partition = opened(tmp_path, clock, retention_ms=DAY_US // 1000, segment_ms=DAY_US // 2000)
    partition.append(numbers(0, 2), Stamp(1, 0, 0))
    clock.jumped_us = years * YEAR_US
    partition.append(numbers(2, 1), Stamp(2, 0, 0))
    partition.housekeep()
    assert partition.bounds().log_start_offset == 0
    assert len(partition.log.segments) == 1
    assert partition.append(numbers(0, 2), Stamp(1, 0, 0)).duplicate
    timestamps = [int(each) for table in partition.log.tables() for each in table["timestamp"]]
    # timestamps are the wall clock's, before and after its jump
    assert timestamps == [clock.steady_us(), clock.wall_us()]
    clock.pass_us(2 * DAY_US)
    partition.housekeep()
    assert partition.bounds().log_start_offset == 3
    with pytest.raises(OutOfOrderSequence):
        partition.append(numbers(3, 1), Stamp(2, 0, 1))


def test_number_of_producers_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    clock = FakeClock()
    partition = opened(tmp_path, clock)
    for made_up in range(10):
        partition.append(numbers(made_up, 1), Stamp(1_000 + made_up, 0, 0))
    with pytest.raises(BrokerBusy, match="no room for a new producer"):
        partition.append(numbers(10, 1), Stamp(5_000, 0, 0))
    assert partition.append(numbers(10, 1), Stamp(1_000, 0, 1)).offset == 10
    clock.pass_us(producers.IDLE_AGE)
    assert partition.append(numbers(11, 1), Stamp(5_000, 0, 0)).offset == 11
    assert len(partition.core.producers) <= 10
    assert partition.append(numbers(0, 1), Stamp(5_000, 0, 1)).offset == 12
    partition.close()
