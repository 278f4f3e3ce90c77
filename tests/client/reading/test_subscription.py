"""The topics and partitions of a consumer: by name, by pattern, chosen partitions."""

from __future__ import annotations

import re
import threading

import pytest

from isolog.errors import (
    BrokerUnavailable,
    InvalidOption,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.client.topics import TopicsClient
from tests.support import NUMBERS, eventually, numbers, values

LEVELS = ["read_uncommitted", "read_committed", "read_atomic"]


def fill(log, topic: str, partitions: int = 1) -> None:
    log.create_topic(topic, partitions=partitions)
    send(log, topic, partitions)


def send(log, topic: str, partitions: int) -> None:
    with log.producer(isolation="read_committed") as producer:
        for number in range(partitions):
            producer.append(topic, values(f"{number}"), number)


@pytest.mark.quick("read_atomic")
@pytest.mark.parametrize("isolation", LEVELS)
def test_only_chosen_partitions_are_read(log, topic, isolation):
    fill(log, topic, 4)
    with log.consumer(topic, partitions=[3, 1], isolation=isolation) as consumer:
        assert {record.partition for record in consumer.records(until="latest")} == {1, 3}
        assert consumer.position() == {(topic, 1): 1, (topic, 3): 1}
        log.alter_topic(topic, partitions=5)
        send(log, topic, 5)
        assert {record.partition for record in consumer.records(timeout=1)} == {1, 3}
        with pytest.raises(InvalidOption, match="is not a"):
            consumer.seek({(topic, 0): 0})
    with log.consumer(topic, partitions=[2], isolation=isolation, start="latest") as consumer:
        assert consumer.position() == {(topic, 2): 2}
        assert consumer.poll() == []


def test_a_stored_position_applies_to_chosen_partitions(log, topic):
    fill(log, topic, 3)
    with log.consumer(topic, partitions=[0, 1], name=f"{topic}-name") as consumer:
        assert len(list(consumer.records(until="latest"))) == 2
        consumer.commit()
    with log.consumer(topic, partitions=[1, 2], name=f"{topic}-name") as consumer:
        assert consumer.position() == {(topic, 1): 1, (topic, 2): 0}


@pytest.mark.quick("read_committed")
@pytest.mark.parametrize("isolation", LEVELS)
def test_later_topics_of_a_pattern_are_read_from_their_first_record(log, topic, isolation):
    fill(log, f"{topic}-a")
    fill(log, f"other-{topic}-a")  # a part of a name does not match
    pattern = re.compile(f"{topic}-.*")
    with log.consumer(pattern, isolation=isolation, start="latest") as consumer:
        assert consumer.poll() == []
        fill(log, f"{topic}-b", 2)
        found = [*eventually(lambda: consumer.poll(1)), *eventually(lambda: consumer.poll(1))]
        assert {(each.topic, each.partition) for each in found} == {
            (f"{topic}-b", 0),
            (f"{topic}-b", 1),
        }
        fill(log, f"{topic}-c")
        assert [each.topic for each in consumer.records(until="latest")] == [f"{topic}-c"]
        assert list(consumer.position()) == [
            (f"{topic}-a", 0),
            (f"{topic}-b", 0),
            (f"{topic}-b", 1),
            (f"{topic}-c", 0),
        ]


@pytest.mark.quick("read_committed")
@pytest.mark.parametrize("isolation", LEVELS)
def test_a_pattern_without_matches_waits_for_its_first_topic(log, topic, isolation):
    with log.consumer(re.compile(f"{topic}-.*"), isolation=isolation) as consumer:
        assert list(consumer.records(until="latest")) == []
        assert list(consumer.batches(timeout=0)) == []
        maker = threading.Timer(0.2, fill, (log, f"{topic}-a"))
        maker.start()
        batch = next(consumer.batches())
        maker.join()
        assert batch["value"].to_pylist() == [b"0"]


def test_read_atomic_includes_a_new_topic_of_a_transaction(log, topic):
    fill(log, f"{topic}-a")
    with log.consumer(re.compile(f"{topic}-.*"), isolation="read_atomic") as consumer:
        assert len(list(consumer.records(until="latest"))) == 1
        log.create_topic(f"{topic}-b")
        with log.producer(transactional_id=topic) as producer, producer.transaction():
            for name in f"{topic}-a", f"{topic}-b":
                producer.append(name, values("both"))
        found = list(consumer.records(until="latest"))
        assert {record.topic for record in found} == {f"{topic}-a", f"{topic}-b"}


def test_read_atomic_includes_a_new_topic_after_a_deleted_one(log, topic, monkeypatch):
    """The deleted topic is in the list of topics, and before the new one."""
    fill(log, f"{topic}-a")
    names = TopicsClient.names
    with log.consumer(re.compile(f"{topic}-.*"), isolation="read_atomic") as consumer:
        log.create_topic(f"{topic}-c")
        with log.producer(transactional_id=topic) as producer, producer.transaction():
            for name in f"{topic}-a", f"{topic}-c":
                producer.append(name, values("both"))
        outdated = [f"{topic}-b", *names(log._topics)]
        monkeypatch.setattr(TopicsClient, "names", lambda *_, **__: outdated)
        found = list(consumer.records(until="latest"))
    assert {record.topic for record in found} == {f"{topic}-a", f"{topic}-c"}


def test_read_atomic_does_not_continue_without_the_list_of_topics(log, topic, monkeypatch):
    fill(log, f"{topic}-a")
    with log.consumer(re.compile(f"{topic}-.*"), isolation="read_atomic") as consumer:

        def fail(*_: object, **__: object) -> list[str]:
            raise BrokerUnavailable("no broker answers")

        monkeypatch.setattr(TopicsClient, "names", fail)
        with pytest.raises(BrokerUnavailable):
            list(consumer.records(until="latest"))
        monkeypatch.undo()
        assert len(list(consumer.records(until="latest"))) == 1


def test_a_typed_topic_that_comes_later_is_named_in_the_error(log, topic):
    fill(log, f"{topic}-a")
    with log.consumer(re.compile(f"{topic}-.*")) as consumer:
        assert len(consumer.poll(60)) == 1
        log.create_topic(f"{topic}-b", schema=NUMBERS)
        with log.producer() as producer:
            producer.append(f"{topic}-b", numbers(0, 3))
        with pytest.raises(SchemaMismatch, match=f"{topic}-b"):
            eventually(lambda: consumer.poll(1))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"partitions": []}, InvalidOption, "partitions takes a list"),
        ({"partitions": 1}, InvalidOption, "partitions takes a list"),
        ({"partitions": "1"}, InvalidOption, "partitions takes a list"),
        ({"partitions": [-1]}, InvalidOption, "partitions takes a list"),
        ({"partitions": [True]}, InvalidOption, "partitions takes a list"),
        ({"partitions": [0, 2]}, UnknownPartition, "has partitions 0 to 1, not 2"),
        ({"partition": [0]}, InvalidOption, "no option 'partition' .is 'partitions' meant"),
    ],
)
def test_invalid_topics_and_partitions_are_refused(log, topic, settings, error, message):
    fill(log, topic, 2)
    with pytest.raises(error, match=message):
        log.consumer(topic, **settings)


def test_patterns_take_no_partitions_and_no_bytes(log):
    with pytest.raises(InvalidOption, match="takes no partitions"):
        log.consumer(re.compile("a"), partitions=[0])
    with pytest.raises(InvalidOption, match="compiled from text"):
        log.consumer(re.compile(b"a"))


def test_an_unknown_named_topic_is_an_error(log, topic):
    with pytest.raises(UnknownTopic):
        log.consumer([topic])
