"""Resets of the stored positions of named consumers and groups."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from isolog.errors import (
    ConsumerFenced,
    InvalidOption,
    InvalidRequest,
    UnknownConsumer,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.client.consumers import MovedPosition
from spark_stream.consistency.isolation import Isolation, ReaderState
from spark_stream.wire.consumer_messages import GetPosition, PinStart
from tests.support import eventually

pytestmark = pytest.mark.slow  # each test uses a broker


@pytest.fixture
def name() -> str:
    return f"consumer-{uuid.uuid4()}"


@pytest.fixture
def filled(log, topic):
    """A topic with two partitions, each with one record per second."""
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        for number in range(2):
            for second in range(4):
                moment = datetime(2024, 5, 1, 0, 0, second, tzinfo=UTC)
                producer.send(topic, str(second), partition=number, timestamp=moment)
    return topic


def stored(log, name: str) -> dict[int, int]:
    return {
        each.partition: each.offset
        for each in log._connection.call(GetPosition(consumer=name)).positions
    }


def read_all(log, topic: str, name: str, kind: str) -> None:
    with log.consumer(topic, **{kind: name}) as consumer:
        assert len(list(consumer.records(until="latest"))) == 8
        consumer.commit()


@pytest.mark.parametrize("kind", ["name", "group"])
@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 4, 1: 4}),
        (2, {0: 2, 1: 2}),
        (99, {0: 4, 1: 4}),
        ({1: 3}, {0: 4, 1: 3}),
        (datetime(2024, 5, 1, 0, 0, 1), {0: 1, 1: 1}),
    ],
)
def test_reset_moves_the_next_consumer(log, filled, name, kind, to, expected):
    read_all(log, filled, name, kind)
    plan = log.reset_consumer(name, to, dry_run=True)
    assert stored(log, name) == {0: 4, 1: 4}
    assert log.reset_consumer(name, to) == plan
    assert {each.partition: each.after for each in plan}.items() <= expected.items()
    assert {(each.topic, each.before) for each in plan} == {(filled, 4)}
    assert stored(log, name) == expected
    with log.consumer(filled, **{kind: name}) as consumer:
        found = list(consumer.records(until="latest"))
    assert len(found) == sum(4 - each for each in expected.values())


def test_reset_takes_some_topics_and_partitions(log, filled, name):
    read_all(log, filled, name, "name")
    other = f"{filled}-other"
    log.create_topic(other)
    moved = log.reset_consumer(name, "earliest", topics=filled, partitions=[1])
    assert moved == [MovedPosition(filled, 1, 4, 0)]
    assert log.reset_consumer(name, 0, topics=[other]) == [MovedPosition(other, 0, None, 0)]
    log.delete_topic(other)
    assert [each.topic for each in log.reset_consumer(name, "earliest")] == [filled, filled]
    with pytest.raises(UnknownTopic):
        log.reset_consumer(name, "earliest", topics=other)
    with pytest.raises(UnknownPartition, match="not 2"):
        log.reset_consumer(name, "earliest", partitions=[2])


def test_reset_ignores_positions_in_a_deleted_topic_of_the_name(log, filled, name):
    read_all(log, filled, name, "name")
    log.delete_topic(filled)
    log.create_topic(filled)
    assert log.reset_consumer(name, "earliest") == [MovedPosition(filled, 0, None, 0)]
    with log.consumer(filled, name=name, start=99) as consumer:
        assert consumer.position() == {(filled, 0): 0}


def test_reset_to_the_latest_cut_leaves_out_an_open_transaction(log, filled, name):
    read_all(log, filled, name, "name")
    with log.producer(transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(filled, "open", partition=0)
        producer.flush()
        moved = log.reset_consumer(name, "latest", isolation="read_atomic")
        assert [each.after for each in moved] == [4, 4]
        producer.abort_transaction()


def test_reset_sets_the_first_position_of_a_new_name(log, filled, name):
    with pytest.raises(UnknownConsumer, match=name):
        log.reset_consumer(name, "latest")
    log.reset_consumer(name, 3, topics=filled)
    with log.consumer(filled, group=name) as consumer:
        assert len(list(consumer.records(until="latest"))) == 2


def test_reset_fences_the_running_consumer(log, filled, name):
    with log.consumer(filled, name=name) as consumer:
        consumer.commit()
        log.reset_consumer(name, 2)
        with pytest.raises(ConsumerFenced, match="its position was reset"):
            consumer.commit()
    assert stored(log, name) == {0: 2, 1: 2}


def test_consumer_state_after_reset_is_stopped_with_its_isolation_level(log, filled, name):
    with log.consumer(filled, name=name, isolation="read_committed") as consumer:
        consumer.commit()
    log.reset_consumer(name, "earliest")
    (found,) = log.describe_consumer(name)
    assert (found.state, found.isolation) == (ReaderState.STOPPED, "read_committed")
    with log.consumer(filled, name=name, isolation="read_replicated"):
        eventually(lambda: log.describe_consumer(name)[0].isolation == "read_replicated")
        assert log.describe_consumer(name)[0].state is ReaderState.CATCHING_UP


def test_running_consumer_is_stopped_after_reset(log, filled, name):
    with log.consumer(filled, name=name) as consumer:
        consumer.commit()
        eventually(lambda: log.describe_consumer(name)[0].isolation is not None)
        log.reset_consumer(name, "earliest")
        assert log.describe_consumer(name)[0].state is ReaderState.STOPPED


@pytest.mark.parametrize("dry_run", [True, False])
def test_reset_of_a_group_with_members_fails(log, filled, name, dry_run):
    read_all(log, filled, name, "group")
    with log.consumer(filled, group=name):
        with pytest.raises(InvalidRequest, match="group with members") as refused:
            log.reset_consumer(name, "earliest", dry_run=dry_run)
        assert "Close them" in refused.value.hint
    log.reset_consumer(name, "earliest")
    [found] = log.describe_consumer(name)
    assert found.owned_by == "group"


def test_reset_of_a_query_fails_with_the_remedy(log, name):
    asked = PinStart.of(
        consumer=name,
        instance="i",
        selection="subscribe t",
        isolation=Isolation.READ_COMMITTED,
        start="{}",
    )
    log._connection.call(asked)
    with pytest.raises(InvalidRequest, match="Spark query") as refused:
        log.reset_consumer(name, "earliest")
    assert "startingOffsets" in refused.value.hint


@pytest.mark.parametrize("to", ["first", -3, 1.5, None])
def test_reset_to_an_invalid_place_fails(log, filled, name, to):
    with pytest.raises(InvalidOption):
        log.reset_consumer(name, to, topics=filled)
    assert stored(log, name) == {}


def test_reset_of_a_misspelled_name_suggests_the_consumer(log, filled, name):
    log.reset_consumer(name, 0, topics=[filled])
    with pytest.raises(UnknownConsumer, match=f"did you mean '{name}'"):
        log.reset_consumer(name[:-1], "earliest")
