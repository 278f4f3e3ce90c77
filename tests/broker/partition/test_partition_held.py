"""A partition whose lock is held delays only its own batches, and none beyond its timeout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import isolog
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.process import Broker
from spark_stream.broker.scripting.coordinator import StreamJoins
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.environment import SystemClock
from spark_stream.errors import (
    InternalError,
    IsologError,
    RequestTimeout,
    UnknownOutcome,
    from_wire,
)
from spark_stream.scripts.steps import Script
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from tests.broker.stamped import Appender, Owner
from tests.brokers import broker_here
from tests.support import NUMBERS, Channel, eventually, numbers


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker in this process, so that a test can hold the lock of a partition."""
    with broker_here(tmp_path) as found:
        with isolog.connect(found.address) as log:
            log.create_topic("t", partitions=3, schema=NUMBERS)
        yield found


@pytest.fixture
def channel(broker: Broker) -> Iterator[Channel]:
    with Channel(broker.address) as found:
        yield found


def partition_of(broker: Broker, number: int) -> Partition:
    return broker.core.host.topic("t").partition(number)


def test_held_partition_delays_no_other_partition_of_its_stream(broker, channel):
    """The batches of the other partitions are acknowledged, and the delayed ones stay in order."""
    stream = Appender(channel)
    with partition_of(broker, 0)._state.lock:
        for partition in (0, 0, 1, 0, 2, 1):
            stream.send(partition)
        assert sorted(stream.ack()["number"] for _ in range(3)) == [2, 4, 5]
    acks = [stream.ack() for _ in range(3)]
    assert [(each["number"], each["offset"]) for each in acks] == [(0, 0), (1, 1), (3, 2)]
    stream.close()


def test_held_partition_delays_no_other_partition_of_its_transaction(broker, channel):
    """This holds for the first batch, before which the partition joins, and for later batches."""
    owner = Owner(channel).begin()
    stream = Appender(channel, transactional_id=owner.name)
    sequences = dict.fromkeys(range(3), 0)

    def send(partition: int) -> None:
        stamp = {"producer_id": owner.producer, "epoch": owner.epoch, "transaction": owner.number}
        stream.send(partition, stamp={**stamp, "sequence": sequences[partition]})
        sequences[partition] += 1

    for late, other in ((0, 1), (1, 2)):  # in the second round partition 1 has joined
        send(other)  # the join takes the lock of the partition
        assert stream.ack()["partition"] == other
        with partition_of(broker, late)._state.lock:
            send(late)
            send(other)
            assert stream.ack()["partition"] == other
        assert stream.ack()["partition"] == late
    send(0)
    assert "error" not in stream.ack()
    stream.close()
    owner.commit()
    assert partition_of(broker, 0).bounds().last_stable_offset == 2


def test_group_join_skips_a_held_partition(broker, channel):
    owner, partitions, script = joining_together(broker, channel)
    with partitions[1]._state.lock:
        broker.core.driver.run(script)
    joined = [each.transactions.has_joined(owner.number, owner.producer) for each in partitions]
    assert joined == [True, False, True]


def test_held_partition_confirms_its_recorded_join_after_the_release(broker, channel):
    owner, partitions, script = joining_together(broker, channel)

    def held(script: Script[None]) -> Script[None]:
        step = next(script)  # now the joins are open
        partitions[1]._state.lock.acquire()
        while True:
            answer = yield step
            try:
                step = script.send(answer)
            except StopIteration:
                return

    broker.core.driver.run(held(script))
    joined = [each.transactions.has_joined(owner.number, owner.producer) for each in partitions]
    assert joined == [True, False, True]
    partitions[1]._state.lock.release()
    assert partitions[1].transactions.has_joined(owner.number, owner.producer)


def test_refused_group_join_leaves_no_joins(broker, channel):
    owner, partitions, script = joining_together(broker, channel)
    owner.abort()
    with pytest.raises(IsologError):
        broker.core.driver.run(script)
    assert [len(each.core.joins) for each in partitions] == [0, 0, 0]


def joining_together(
    broker: Broker, channel: Channel
) -> tuple[Owner, list[Partition], Script[None]]:
    """Return the owner of an open transaction, and a script that joins all partitions to it."""
    owner = Owner(channel).begin()
    stamp = Stamp(owner.producer, owner.epoch, 0, owner.number)
    partitions = [partition_of(broker, number) for number in range(3)]
    joins = StreamJoins(broker.core.transactions.decisions, owner.name)
    return owner, partitions, joins.join_together(partitions, stamp)


def test_stream_ends_after_the_last_acknowledgement(broker, channel):
    stream = Appender(channel)
    with partition_of(broker, 0)._state.lock:
        stream.send(0)
        stream.send(1)
        assert stream.ack()["number"] == 1
        stream.close()
    assert stream.ack()["number"] == 0


def test_batches_of_a_disconnected_client_are_appended(broker, channel):
    stream = Appender(channel)
    with partition_of(broker, 0)._state.lock:
        stream.send(0)
        stream.send(1)
        assert stream.ack()["number"] == 1
        channel.close()
    eventually(lambda: partition_of(broker, 0).bounds().log_end_offset == 1)
    eventually(lambda: broker.activity.idle_seconds() > 0)


def test_batch_that_times_out_before_its_append_is_refused_and_retriable(broker, channel):
    stream = Appender(channel, timeout_ms=200)
    with partition_of(broker, 0)._state.lock:
        stream.send(0)
        stream.send(0)
        errors = [from_wire(stream.ack()["error"]) for _ in range(2)]
    assert [type(each) for each in errors] == [RequestTimeout] * 2
    assert all(each.retriable and "t/0" in each.message for each in errors)
    assert partition_of(broker, 0).bounds().log_end_offset == 0
    stream.send(0)
    assert stream.ack()["offset"] == 0
    stream.close()


@pytest.mark.parametrize("held", [False, True])
def test_batch_with_unexpected_error_and_its_successors_are_answered(
    broker, channel, monkeypatch, held
):
    stream, partition = Appender(channel), partition_of(broker, 0)
    judge = partition.appends._judge_and_append
    failures = [RuntimeError("nobody foresaw this")]

    def fails_once(*asked: Any) -> Any:
        if failures:
            raise failures.pop()
        return judge(*asked)

    monkeypatch.setattr(partition.appends, "_judge_and_append", fails_once)
    with partition._state.lock if held else nullcontext():
        stream.send(0)
        stream.send(0)
        stream.send(1)
        if held:
            assert stream.ack()["number"] == 2
    acks = [ack for ack in (stream.ack() for _ in range(2 if held else 3)) if ack["number"] != 2]
    assert isinstance(from_wire(acks[0]["error"]), InternalError)
    assert [(each["number"], each.get("offset")) for each in acks] == [(0, None), (1, 0)]
    stream.close()


# -- with followers -------------------------------------------------------------------------------


@pytest.fixture
def followed(tmp_path: Path) -> Partition:
    """A partition with one in-sync follower, which has no entries yet."""
    log = PartitionLog.open(tmp_path, LogFormat(NUMBERS))
    partition = Partition("t", "id", 0, log, 10**15, SystemClock(), alone=False)
    record = PartitionRecord((LEADER.broker, FOLLOWER.broker), LEADER.broker, EPOCH, MEMBERS)
    partition.role.lead(LEADER, record, 1)
    return partition


def replicate(partition: Partition) -> None:
    """Report that the follower has all entries."""
    session = partition.followers.start_session(
        FOLLOWER, EPOCH, EpochHistory(0, 0, ()), lambda _: None
    )
    session.on_acked(partition.log.end.entry)


LEADER, FOLLOWER = MEMBERS = (
    Member(BrokerId("l"), Generation("g")),
    Member(BrokerId("f"), Generation("h")),
)
EPOCH = LeaderEpoch(3)
IN_TRANSACTION = Stamp(1, 0, 0, 10)


@pytest.mark.parametrize(
    ("stamp", "isolation"),
    [(None, Isolation.READ_COMMITTED), (IN_TRANSACTION, Isolation.READ_UNCOMMITTED)],
)
def test_append_not_replicated_in_time_has_unknown_outcome(followed, stamp, isolation):
    followed.transactions.close_join(followed.transactions.open_join(10, 1), on_record=True)
    taken = followed.appends.take(followed.appends.prepare(numbers(0, 3), stamp), stamp, isolation)
    assert taken.pending is not None
    with pytest.raises(UnknownOutcome, match="offsets 0 to 2 are in the leader's log") as caught:
        followed.appends.await_acknowledgement(taken, 0.0)
    assert (caught.value.offset, caught.value.details["count"]) == (0, 3)
    assert caught.value.kept == 0
    assert followed.bounds().log_end_offset == 3
    again = stamp and followed.appends.take(
        followed.appends.prepare(numbers(0, 3), stamp), stamp, isolation
    )
    if again is not None:  # a duplicate needs the same acknowledgement
        assert again.appended.duplicate
        assert again.pending is not None
    replicate(followed)
    if again is not None:
        followed.appends.await_acknowledgement(again, 0.0)
    assert followed.bounds().high_watermark == 3


def test_read_uncommitted_append_is_acknowledged_without_replication(followed):
    assert followed.append(numbers(0, 3)).count == 3
    assert followed.bounds().high_watermark == 0
