"""Named consumers: stored positions, and positions that move with a transaction or not at all."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid

import pytest

from isolog.errors import (
    ConsumerFenced,
    InvalidOption,
    InvalidTransaction,
    TransactionAborted,
    UnknownTopic,
)
from spark_stream.wire.consumer_messages import GetPosition
from tests.support import BrokerProcess, eventually, values

pytestmark = pytest.mark.slow  # each test uses a broker


@pytest.fixture
def name() -> str:
    return f"consumer-{uuid.uuid4()}"


def fill(log, topic: str, count: int, partitions: int = 1) -> None:
    log.create_topic(topic, partitions=partitions)
    with log.producer() as producer:
        for number in range(partitions):
            producer.append(topic, values(*[str(n) for n in range(count)]), number)


def stored(log, name: str) -> dict[tuple[str, int], int]:
    """Return the position under the name without a takeover."""
    return {
        (p.topic, p.partition): p.offset
        for p in log._connection.call(GetPosition(consumer=name)).positions
    }


def test_a_named_consumer_continues_at_its_committed_position(log, topic, name):
    fill(log, topic, 10)
    with log.consumer(topic, name=name) as consumer:
        assert consumer.name == name
        records = consumer.records()
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        consumer.commit()
        next(records)  # read and not committed: it is read again
    with log.consumer(topic, name=name) as consumer:
        assert consumer.position() == {(topic, 0): 3}
        assert [record.offset for record in consumer.records(until="latest")] == list(range(3, 10))
        consumer.commit()
        consumer.seek({(topic, 0): 5})
        consumer.commit()  # a position may move back
    with log.consumer(topic, name=name, start="latest") as consumer:
        assert consumer.position() == {(topic, 0): 5}


def test_without_a_stored_position_it_begins_at_start(log, topic, name):
    fill(log, topic, 10, partitions=2)
    with log.consumer(topic, name=name, start={0: 4, 1: 6}) as consumer:
        assert consumer.position() == {(topic, 0): 4, (topic, 1): 6}
    with log.consumer(topic, name=name, start="latest") as consumer:
        assert consumer.position() == {(topic, 0): 10, (topic, 1): 10}


def test_positions_of_two_names_are_independent(log, topic, name):
    fill(log, topic, 10)
    with log.consumer(topic, name=name, start=7) as consumer:
        consumer.commit()
    with log.consumer(topic, name=f"{name}-other") as consumer:
        assert consumer.position() == {(topic, 0): 0}
    with log.consumer(topic) as consumer:
        assert consumer.name is None
        assert consumer.position() == {(topic, 0): 0}


def test_a_recreated_topic_is_read_from_start(log, topic, name):
    fill(log, topic, 10)
    with log.consumer(topic, name=name, start=7) as consumer:
        consumer.commit()
    log.delete_topic(topic)
    fill(log, topic, 10)
    with log.consumer(topic, name=name, start=2) as consumer:
        assert consumer.position() == {(topic, 0): 2}


@pytest.mark.parametrize("option", ["name", "group"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
def test_commit_fails_if_a_topic_was_deleted(log, topic, name, option, again):
    """The positions in the other topics are stored."""
    other = f"{topic}-other"
    fill(log, topic, 3)
    fill(log, other, 3)
    options = {"name": name} if option == "name" else {"group": name, "auto_commit": False}
    with log.consumer([topic, other], **options) as consumer:
        while set(consumer.position().values()) != {3}:
            consumer.poll(timeout=10)
        log.delete_topic(topic)
        if again:
            fill(log, topic, 3)
        with pytest.raises(UnknownTopic, match=f"{topic!r} was deleted") as raised:
            consumer.commit()
        assert raised.value.details["topic"] == topic
        assert stored(log, name)[other, 0] == 3
        assert stored(log, name).get((topic, 0), 0) == 0


def test_a_stored_position_survives_a_killed_broker(broker):
    with broker.connect() as log:
        fill(log, "t", 10)
        with log.consumer("t", name="mine", start=7) as consumer:
            consumer.commit()
        broker.kill()
        broker.restart()
        with log.consumer("t", name="mine") as consumer:
            assert consumer.position() == {("t", 0): 7}


def test_commit_without_a_name_fails(log, topic):
    fill(log, topic, 1)
    with log.consumer(topic) as consumer, pytest.raises(InvalidOption, match="no name"):
        consumer.commit()


@pytest.mark.parametrize("option", ["name", "group"])
@pytest.mark.parametrize("wrong", ["", "x" * 256, 7, "\ud800"])
def test_an_invalid_name_is_refused(log, topic, wrong, option):
    fill(log, topic, 1)
    with pytest.raises(InvalidOption, match="name is a text of 1 to 255 characters"):
        log.consumer(topic, **{option: wrong})


def test_a_position_moves_with_its_transaction(log, topic, name):
    fill(log, topic, 10, partitions=2)
    with (
        log.producer(transactional_id=name) as producer,
        log.consumer(topic, name=name) as consumer,
    ):
        list(consumer.records(until="latest"))
        producer.begin_transaction()
        producer.commit_position(consumer)
        assert stored(log, name) == {}
        producer.abort_transaction()
        assert stored(log, name) == {}
        with producer.transaction():
            consumer.seek({(topic, 0): 3})
            producer.commit_position(consumer)
            consumer.seek({(topic, 0): 4})
            producer.commit_position(consumer)
        assert stored(log, name) == {(topic, 0): 4, (topic, 1): 10}


def test_a_failed_transaction_moves_no_position(log, topic, name):
    fill(log, topic, 10)
    with (
        log.producer(transactional_id=name) as producer,
        log.consumer(topic, name=name, start=5) as consumer,
    ):
        producer.begin_transaction()
        producer.commit_position(consumer)
        producer.append("no-such-topic", values("v"))
        with pytest.raises(TransactionAborted):
            producer.commit_transaction()
        with producer.transaction():
            producer.append(topic, values("v"))
    with log.consumer(topic, name=name) as other:
        assert other.position() == {(topic, 0): 0}


def test_a_position_needs_a_transaction_and_a_name(log, topic, name):
    fill(log, topic, 1)
    with (
        log.producer(transactional_id=name) as producer,
        log.consumer(topic, name=name) as named,
        log.consumer(topic) as nameless,
    ):
        with pytest.raises(InvalidTransaction, match="outside"):
            producer.commit_position(named)
        with producer.transaction(), pytest.raises(InvalidOption, match="no name"):
            producer.commit_position(nameless)


def test_a_consumer_of_another_log_is_refused(log, broker, topic, name, shared):
    fill(log, topic, 1)
    with (
        broker.connect() as elsewhere,
        shared.connect() as same,
        elsewhere.producer(transactional_id=name) as stranger,
        same.producer(transactional_id=name) as producer,
        log.consumer(topic, name=name, start=1) as consumer,
    ):
        with stranger.transaction(), pytest.raises(InvalidOption, match="another log"):
            stranger.commit_position(consumer)
        with producer.transaction():
            producer.commit_position(consumer)
    with log.consumer(topic, name=name) as other:
        assert other.position() == {(topic, 0): 1}


@pytest.mark.full  # tests/simulation has kills in each run
@pytest.mark.parametrize("seed", [0, 1])
def test_a_repeatedly_killed_copy_copies_every_record_once(tmp_path, seed):
    """``kill -9`` of the copying process, and sometimes of the broker, at random times."""
    chance = random.Random(seed)
    with BrokerProcess(tmp_path / "log") as broker, broker.connect() as log:
        fill(log, "source", 300, partitions=2)
        log.create_topic("target", partitions=2)
        deadline = time.monotonic() + 120
        kills = 0
        while True:
            assert time.monotonic() < deadline, stored(log, "copy-target")
            with subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.client.reading.copier",
                    broker.address,
                    "source",
                    "target",
                ],
                stdout=subprocess.PIPE,
                text=True,
            ) as copier:
                assert copier.stdout is not None
                copier.stdout.readline()
                if kills >= 6:
                    assert copier.wait(60) == 0
                    break
                time.sleep(chance.uniform(0.0, 0.15))
                if kills == 3:
                    broker.kill()
                    broker.restart()
                    time.sleep(chance.uniform(0.0, 0.15))
                copier.kill()
            kills += 1
        eventually(lambda: all(each.state != "open" for each in log.transactions()))
        with log.consumer("target", isolation="read_committed") as consumer:
            found = list(consumer.records(until="latest"))
    for partition in range(2):
        mine = [int(each.value) for each in found if each.partition == partition]
        assert mine == list(range(300))


@pytest.mark.rule(
    "the stored position and the owner of a named consumer",
    "scripts/transactions/deciding.py",
    "scripts/transactions/positions.py",
)
def test_a_second_consumer_of_a_name_fences_the_first(log, topic, name):
    """The first can no longer store positions, outside or inside a transaction."""
    fill(log, topic, 5)
    with (
        log.producer(transactional_id=name) as producer,
        log.consumer(topic, name=name, start=1) as first,
    ):
        first.commit()
        with log.consumer(topic, name=name) as second:
            assert second.position() == {(topic, 0): 1}
            with pytest.raises(ConsumerFenced, match=name):
                first.commit()
            producer.begin_transaction()
            with pytest.raises(ConsumerFenced):
                producer.commit_position(first)
            producer.abort_transaction()
            second.seek({(topic, 0): 3})
            with producer.transaction():
                producer.commit_position(second)
        with pytest.raises(ConsumerFenced):  # the first does not get the name back
            first.commit()
    assert stored(log, name) == {(topic, 0): 3}


def test_a_takeover_of_the_name_before_the_commit_aborts_the_transaction(log, topic, name):
    """Otherwise records would be copied twice, because the newer consumer began before them."""
    fill(log, topic, 5)
    log.create_topic(f"{topic}-copy")
    with log.producer(transactional_id=name) as producer, log.consumer(topic, name=name) as early:
        producer.begin_transaction()
        for record in early.records(until="latest"):
            producer.send(f"{topic}-copy", record.value)
        producer.commit_position(early)
        with log.consumer(topic, name=name) as late:
            with pytest.raises(ConsumerFenced):
                producer.commit_transaction()
            assert late.position() == {(topic, 0): 0}
            with producer.transaction():  # the producer stays usable
                producer.commit_position(late)
    assert log.read(f"{topic}-copy", isolation="read_committed").num_rows == 0


@pytest.mark.quick("read_atomic")
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_atomic"])
def test_a_running_iteration_fails_after_a_takeover_of_its_name(log, topic, name, isolation):
    fill(log, topic, 1)
    with log.consumer(topic, name=name, isolation=isolation) as first:
        records = first.records()
        next(records)
        log.consumer(topic, name=name).close()
        began = time.monotonic()
        with pytest.raises(ConsumerFenced):
            next(records)
        assert time.monotonic() - began < 30


def test_the_owner_of_a_name_survives_a_killed_broker(broker):
    with broker.connect() as log:
        fill(log, "t", 3)
        first = log.consumer("t", name="mine")
        second = log.consumer("t", name="mine", start=2)
        broker.kill()
        broker.restart()
        with pytest.raises(ConsumerFenced):
            first.commit()
        second.commit()
        assert stored(log, "mine") == {("t", 0): 2}
