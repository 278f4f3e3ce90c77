"""A partition that is held holds up no other of the stream, and no batch beyond its time."""

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
    """In this process, so that a test can hold one of its partitions."""
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


def test_a_held_partition_holds_up_no_other_of_its_stream(broker, channel):
    """All through one stream: the others are acknowledged meanwhile, and its own in their order."""
    stream = Appender(channel)
    with partition_of(broker, 0)._state.lock:
        for partition in (0, 0, 1, 0, 2, 1):
            stream.send(partition)
        assert sorted(stream.ack()["number"] for _ in range(3)) == [2, 4, 5]
    acks = [stream.ack() for _ in range(3)]
    assert [(each["number"], each["offset"]) for each in acks] == [(0, 0), (1, 1), (3, 2)]
    stream.close()


def test_a_held_partition_holds_up_no_other_of_a_transaction(broker, channel):
    """Neither before its first batch there, when it has to join, nor later."""
    owner = Owner(channel).begin()
    stream = Appender(channel, transactional_id=owner.name)
    sequences = dict.fromkeys(range(3), 0)

    def send(partition: int) -> None:
        stamp = {"producer_id": owner.producer, "epoch": owner.epoch, "transaction": owner.number}
        stream.send(partition, stamp={**stamp, "sequence": sequences[partition]})
        sequences[partition] += 1

    for late, other in ((0, 1), (1, 2)):  # partition 1 has joined by then
        send(other)  # and joins: that takes its lock
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


def test_partitions_that_join_together_leave_out_one_that_is_held(broker, channel):
    owner, partitions, script = joining_together(broker, channel)
    with partitions[1]._state.lock:
        broker.core.driver.run(script)
    joined = [each.transactions.has_joined(owner.number, owner.producer) for each in partitions]
    assert joined == [True, False, True]


def test_a_partition_that_is_held_when_its_join_is_on_record_confirms_it_once_it_is_free(
    broker, channel
):
    owner, partitions, script = joining_together(broker, channel)

    def held(script: Script[None]) -> Script[None]:
        step = next(script)  # the joins are open
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


def test_partitions_that_may_not_join_together_remember_nothing_of_it(broker, channel):
    owner, partitions, script = joining_together(broker, channel)
    owner.abort()
    with pytest.raises(IsologError):
        broker.core.driver.run(script)
    assert [len(each.core.joins) for each in partitions] == [0, 0, 0]


def joining_together(
    broker: Broker, channel: Channel
) -> tuple[Owner, list[Partition], Script[None]]:
    """The owner of an open transaction, and a script by which all partitions join it."""
    owner = Owner(channel).begin()
    stamp = Stamp(owner.producer, owner.epoch, 0, owner.number)
    partitions = [partition_of(broker, number) for number in range(3)]
    joins = StreamJoins(broker.core.transactions.decisions, owner.name)
    return owner, partitions, joins.join_together(partitions, stamp)


def test_a_stream_ends_after_its_last_batch_was_acknowledged(broker, channel):
    stream = Appender(channel)
    with partition_of(broker, 0)._state.lock:
        stream.send(0)
        stream.send(1)
        assert stream.ack()["number"] == 1
        stream.close()
    assert stream.ack()["number"] == 0


def test_a_client_that_goes_away_leaves_what_it_had_sent(broker, channel):
    stream = Appender(channel)
    with partition_of(broker, 0)._state.lock:
        stream.send(0)
        stream.send(1)
        assert stream.ack()["number"] == 1
        channel.close()
    eventually(lambda: partition_of(broker, 0).bounds().log_end_offset == 1)
    eventually(lambda: broker.activity.idle_seconds() > 0)


def test_a_batch_whose_time_is_over_before_its_append_is_refused_and_may_be_sent_again(
    broker, channel
):
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
def test_a_batch_that_fails_for_no_reason_that_is_known_is_answered_and_so_are_those_behind_it(
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
    """A partition that has a follower in sync, which has nothing yet."""
    log = PartitionLog.open(tmp_path, LogFormat(NUMBERS))
    partition = Partition("t", "id", 0, log, 10**15, SystemClock(), alone=False)
    record = PartitionRecord((LEADER.broker, FOLLOWER.broker), LEADER.broker, EPOCH, MEMBERS)
    partition.role.lead(LEADER, record, 1)
    return partition


def replicate(partition: Partition) -> None:
    """The follower has all that there is."""
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
def test_an_append_that_is_not_replicated_in_time_has_an_unknown_outcome(
    followed, stamp, isolation
):
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
    if again is not None:  # a duplicate is acknowledged under the same rule
        assert again.appended.duplicate
        assert again.pending is not None
    replicate(followed)
    if again is not None:
        followed.appends.await_acknowledgement(again, 0.0)
    assert followed.bounds().high_watermark == 3


def test_an_append_outside_a_transaction_that_asks_for_no_more_is_acknowledged_at_once(followed):
    assert followed.append(numbers(0, 3)).count == 3
    assert followed.bounds().high_watermark == 0
