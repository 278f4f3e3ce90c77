"""Stamped batches are deduplicated and stored in sequence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

from isolog.errors import InvalidTransaction, OutOfOrderSequence, ProducerFenced
from tests.broker.stamped import Appender, Owner, seen
from tests.support import NUMBERS, BrokerProcess, Channel, act, eventually

UNCOMMITTED = "read_uncommitted"


@pytest.fixture
def numbers_topic(log, topic) -> str:
    log.create_topic(topic, 2, schema=NUMBERS)
    return topic


def new_producer(channel: Channel) -> int:
    return int(act(channel, "new-producer")["producer_id"])


def test_producer_ids_are_unique_over_restarts(channel, broker):
    with broker.channel() as mine:
        before = [new_producer(mine) for _ in range(3)]
    broker.kill()
    broker.restart()
    with broker.channel() as mine:
        after = [new_producer(mine) for _ in range(3)]
    assert len({*before, *after}) == 6


def test_last_five_batches_are_deduplicated_also_after_a_restart(broker):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    with broker.channel() as channel:
        producer = new_producer(channel)
        stream = Appender(channel, "t")
        first = [stream.put(10 * n, 2, producer, n) for n in range(8)]
        again = [stream.put(10 * n, 2, producer, n) for n in range(3, 8)]
    assert [ack["offset"] for ack in first] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert [ack["offset"] for ack in again] == [6, 8, 10, 12, 14]
    assert [ack["duplicate"] for ack in [*first, *again]] == [False] * 8 + [True] * 5
    broker.kill()
    broker.restart()
    with broker.channel() as channel:
        stream = Appender(channel, "t")
        acks = [stream.put(10 * n, 2, producer, n) for n in range(3, 8)]
        assert [ack["offset"] for ack in acks] == [6, 8, 10, 12, 14]
        assert isinstance(stream.refused(20, 2, producer, 2), OutOfOrderSequence)
        assert stream.put(80, 2, producer, 8)["offset"] == 16
        assert len(seen(channel, "t", UNCOMMITTED)) == 18


def test_older_missing_or_overlapping_sequences_are_refused(channel, numbers_topic):
    producer, stream = new_producer(channel), Appender(channel, numbers_topic)
    for number in range(7):
        stream.put(number, 1, producer, number)
    for number, count in ((0, 1), (9, 1), (5, 2)):
        error = stream.refused(number, count, producer, number)
        assert isinstance(error, OutOfOrderSequence)
        assert error.details["expected"] == 7
    assert len(seen(channel, numbers_topic, UNCOMMITTED)) == 7


def test_each_partition_has_separate_sequences(channel, numbers_topic):
    producer, stream = new_producer(channel), Appender(channel, numbers_topic)
    assert stream.put(1, 1, producer, 0, partition=0)["offset"] == 0
    assert stream.put(1, 1, producer, 0, partition=1)["offset"] == 0


def test_new_producer_epoch_starts_at_0_and_fences_the_old_one(channel, numbers_topic):
    producer, stream = new_producer(channel), Appender(channel, numbers_topic)
    stream.put(1, 1, producer, 0)
    assert isinstance(stream.refused(2, 1, producer, 1, epoch=1), OutOfOrderSequence)
    stream.put(2, 1, producer, 0, epoch=1)
    assert isinstance(stream.refused(3, 1, producer, 1, epoch=0), ProducerFenced)
    assert seen(channel, numbers_topic, UNCOMMITTED) == [1, 2]


def test_refused_batch_uses_up_its_sequence(channel, log, topic):
    log.create_topic(topic, schema=NUMBERS, config={"max.record.bytes": 4})
    producer, stream = new_producer(channel), Appender(channel, topic)
    assert stream.refused(1, 1, producer, 0).code == "RECORD_TOO_LARGE"
    assert stream.refused(1, 1, producer, 0).code == "RECORD_TOO_LARGE"
    assert stream.refused(2, 1, producer, 1).code == "RECORD_TOO_LARGE"


def test_write_outside_of_its_open_transaction_is_refused(channel, numbers_topic):
    owner = Owner(channel).begin()
    owner.put(numbers_topic, 1, 1)
    stream = Appender(channel, numbers_topic)
    error = stream.refused(2, 1, owner.producer, 1, epoch=owner.epoch)
    assert isinstance(error, InvalidTransaction)
    owner.commit()
    assert seen(channel, numbers_topic, "read_committed") == [1]


@pytest.mark.rule("the expiry of a producer", "consistency/partition/producers.py")
def test_idle_producers_expire_except_in_an_open_transaction(tmp_path: Path):
    conf = "producer_expiry_seconds = 0.2\nhousekeeping_seconds = 0.05\n"
    with BrokerProcess(tmp_path / "log", conf=conf) as broker, broker.channel() as channel:
        with broker.connect() as log:
            log.create_topic("t", schema=NUMBERS)
            log.create_topic("u", schema=NUMBERS)
        owner = Owner(channel).begin()
        owner.put("u", 1, 1)
        producer = new_producer(channel)
        stream = Appender(channel, "t")
        stream.put(1, 1, producer, 0)

        def has_expired() -> bool:
            # The first sequence of a producer without state is 0.
            ack = Appender(channel, "t").put(9, 1, producer, 1)
            return bool("error" in ack and json.dumps(ack["error"]).find('"expected": 0') > 0)

        stream.put(2, 1, producer, 1)
        # A request would renew the producer, so no request is sent until it has expired.
        time.sleep(0.5)
        eventually(has_expired)
        assert owner.put("u", 2, 1)["offset"] == 1
        owner.commit()
        assert seen(channel, "u", "read_committed") == [1, 2]


@pytest.mark.rule("a duplicate with other content", "broker/partition/appends.py")
@pytest.mark.parametrize("restarted", [False, True])
def test_batch_with_other_content_is_no_duplicate(broker, restarted: bool):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    with broker.channel() as channel:
        producer, stream = new_producer(channel), Appender(channel, "t")
        stream.put(10, 2, producer, 0)
        stream.put(20, 2, producer, 1)
    if restarted:
        broker.kill()
        broker.restart()
    with broker.channel() as channel:
        stream = Appender(channel, "t")
        for number, sequence in ((20, 0), (11, 0), (10, 1)):
            error = stream.refused(number, 2, producer, sequence)
            assert isinstance(error, OutOfOrderSequence)
            assert "another batch" in error.message
        assert stream.put(10, 2, producer, 0)["duplicate"]
        assert stream.put(30, 2, producer, 2)["offset"] == 4
        assert seen(channel, "t", UNCOMMITTED) == [10, 11, 20, 21, 30, 31]


@pytest.mark.parametrize(("before", "after"), [("none", "zstd"), ("zstd", "none")])
def test_retry_is_a_duplicate_after_the_topic_was_altered(broker, before: str, after: str):
    """The stored batch then has another encoding than the retry."""
    with broker.connect() as log, broker.channel() as channel:
        log.create_topic("t", schema=NUMBERS, config={"compression": before})
        producer, stream = new_producer(channel), Appender(channel, "t")
        stream.put(10, 2, producer, 0)
        log.alter_topic("t", config={"compression": after})
        assert stream.put(10, 2, producer, 0)["duplicate"]
        assert isinstance(stream.refused(12, 2, producer, 0), OutOfOrderSequence)
        log.alter_topic("t", schema=NUMBERS.append(pa.field("added", pa.string())))
        again = Appender(channel, "t")
        assert again.put(10, 2, producer, 0)["duplicate"]
        assert isinstance(again.refused(12, 2, producer, 0), OutOfOrderSequence)
