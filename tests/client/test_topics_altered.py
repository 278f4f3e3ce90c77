"""Altered topics with running clients: more partitions, other settings."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    InvalidConfig,
    InvalidOption,
    InvalidTopic,
    RecordTooLarge,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.wire.topic_messages import AskedTopic, ListOffsets
from tests.support import (
    NUMBERS,
    BrokerProcess,
    Channel,
    Fetching,
    eventually,
    numbers,
    range_of,
    values,
)


def in_partition(log: isolog.Log, topic: str, number: int) -> int:
    return log.describe(topic).partitions[number].log_end_offset


def test_a_topic_gets_more_partitions_and_keeps_its_records(log, topic):
    made = log.create_topic(topic, partitions=2, schema=NUMBERS, config={"segment.ms": 5000})
    with log.producer() as producer:
        producer.append(topic, numbers(0, 5), partition=1)
    altered = log.alter_topic(topic, partitions=4)
    assert (altered.id, altered.schema, len(altered.partitions)) == (made.id, NUMBERS, 4)
    assert altered.config["segment.ms"] == "5000"
    assert log.describe(topic) == altered
    with log.producer() as producer:
        producer.append(topic, numbers(5, 5), partition=3)
    assert log.read(topic).column("n").to_pylist() == list(range(10))
    assert log.alter_topic(topic, partitions=4).id == made.id  # the present number: no change


@pytest.mark.rule("alteration of a topic in use", "scripts/topics.py")
@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"partitions": 2}, InvalidTopic, "has 3 partitions and cannot have fewer"),
        ({"partitions": 0}, InvalidTopic, "fewer"),
        ({"partitions": 10_001}, InvalidTopic, "1 to 10000 partitions"),
        ({"partitions": 5, "config": {"segment.byte": 1}}, InvalidConfig, "'segment.bytes'"),
        ({"partitions": 5, "config": {"flush": "always"}}, InvalidConfig, "flush takes"),
        ({}, InvalidOption, "nothing to change"),
    ],
)
def test_an_invalid_change_is_refused_and_changes_nothing(log, topic, change, error, named):
    before = log.create_topic(topic, partitions=3, config={"segment.ms": 5000})
    with pytest.raises(error, match=named):
        log.alter_topic(topic, **change)
    assert log.describe(topic) == before


def test_an_unknown_topic_cannot_be_altered(log, topic):
    with pytest.raises(UnknownTopic, match=topic):
        log.alter_topic(topic, partitions=3)


def test_settings_apply_to_open_partitions_and_after_a_restart(broker, topic):
    with broker.connect() as log, broker.connect() as other:
        log.create_topic(topic, config={"max.record.bytes": 100, "segment.ms": 60_000})
        with pytest.raises(RecordTooLarge), log.producer() as producer:
            producer.send(topic, b"x" * 200)
        other.alter_topic(topic, config={"max.record.bytes": 1000, "segment.entries": 16})
        with log.producer() as producer:
            for _ in range(40):
                producer.send(topic, b"x" * 200).result()
        assert len(list(broker.directory.glob("topics/*/*/0/*.arrow"))) == 3
        other.alter_topic(topic, config={"max.record.bytes": 150})
        with pytest.raises(RecordTooLarge), log.producer() as producer:
            producer.append(topic, values(b"x" * 200))
    broker.restart()
    with broker.connect() as log:
        config = log.describe(topic).config
        found = [config[name] for name in ("max.record.bytes", "segment.entries", "segment.ms")]
        assert found == ["150", "16", "60000"]
        assert log.read(topic).num_rows == 40


def test_a_running_producer_uses_new_partitions(shared, log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        assert producer.send(topic, b"first").result().partition == 0
        with shared.connect() as other:
            other.alter_topic(topic, partitions=3)
        # By its number immediately, and by keys after the next answer.
        assert producer.append(topic, values("by number"), partition=2).result().partition == 2
        keyed = [producer.send(topic, b"x", key=str(key).encode()) for key in range(30)]
        assert {each.result().partition for each in keyed} == {0, 1, 2}
        with shared.connect() as other:
            other.alter_topic(topic, partitions=5)
        producer.send(topic, b"tells").result()
        keyed = [producer.send(topic, b"x", key=str(key).encode()) for key in range(60)]
        assert {each.result().partition for each in keyed} == {0, 1, 2, 3, 4}
    with pytest.raises(UnknownPartition, match="0 to 4, not 5"), log.producer() as producer:
        producer.send(topic, b"x", partition=5)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_atomic"])
def test_a_running_consumer_reads_new_partitions_from_their_start(shared, topic, isolation):
    with shared.connect() as log, shared.connect() as other:
        log.create_topic(topic, schema=NUMBERS)
        with other.producer() as producer:
            producer.append(topic, numbers(0, 3))
        with log.consumer(topic, isolation=isolation, start="latest") as consumer:
            batches = consumer.batches()
            with other.producer() as producer:
                producer.append(topic, numbers(3, 1))
            assert next(batches).column("n").to_pylist() == [3]
            other.alter_topic(topic, partitions=3)
            with other.producer(transactional_id=topic) as producer, producer.transaction():
                producer.append(topic, numbers(4, 1), partition=2)
                producer.append(topic, numbers(5, 1), partition=1)
            assert sorted(n for _ in "ab" for n in next(batches).column("n").to_pylist()) == [4, 5]
            assert consumer.position() == {(topic, 0): 4, (topic, 1): 1, (topic, 2): 1}


@pytest.mark.parametrize("change", [{"partitions": 3}, {"schema": "n bigint, m bigint"}])
def test_a_waiting_fetch_ends_when_its_topic_is_altered(shared, topic, change):
    """Its reader finds new partitions and columns without a poll."""
    began = time.monotonic()
    with shared.connect() as log, Channel(shared.address) as channel:
        log.create_topic(topic, schema=NUMBERS)
        with log.producer() as producer:
            producer.append(topic, numbers(0, 1)).result()
        asked = range_of(topic, 0, start=0, wait_ms=60_000, follow=True)
        answers = iter(Fetching(channel, asked))
        assert next(answers)[0].num_rows == 1
        log.alter_topic(topic, **change)
        [(_, end)] = answers
        assert end["partitions"] == change.get("partitions", 1)
    assert time.monotonic() - began < 50


def test_a_named_consumer_reads_partitions_added_between_its_runs_from_their_start(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.consumer(topic, start="latest", name=topic) as consumer:
        consumer.commit()
    log.alter_topic(topic, partitions=2)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 4), partition=1)
    with log.consumer(topic, start="latest", name=topic) as consumer:
        found = [n for batch in consumer.batches(until="latest") for n in batch.column("n")]
        assert [n.as_py() for n in found] == [0, 1, 2, 3]
        consumer.commit()
    with log.consumer(topic, start="earliest", name=topic) as consumer:
        assert consumer.position() == {(topic, 0): 0, (topic, 1): 4}


def test_an_atomic_read_includes_new_partitions(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer(transactional_id=topic) as producer:
        log.alter_topic(topic, partitions=2)
        with producer.transaction():
            for partition in (0, 1):
                producer.append(topic, numbers(partition, 1), partition=partition)
        producer.begin_transaction()
        producer.append(topic, numbers(9, 1), partition=1)
        eventually(lambda: in_partition(log, topic, 1) == 2)
        found = log.read(topic, isolation="read_atomic").column("n").to_pylist()
        assert sorted(found) == [0, 1]
        producer.abort_transaction()


def test_only_a_client_that_requests_the_schema_version_gets_it(log, topic):
    """A client of an earlier release refuses an answer with this field."""
    log.create_topic(topic, schema=NUMBERS)
    log.alter_topic(topic, schema=NUMBERS.append(pa.field("more", pa.int8())))

    def version(**fields: bool) -> int:
        answer = log._connection.call(ListOffsets(topics=[AskedTopic(topic=topic, **fields)]))
        return answer.topics[topic].schema_version

    assert (version(), version(schema_version=True)) == (0, 1)


def test_a_setting_gets_the_default_of_the_broker_again(tmp_path):
    conf = '[topic]\n"retention.ms" = 7000\n'
    with BrokerProcess(tmp_path / "log", conf=conf) as broker, broker.connect() as log:
        made = log.create_topic("t", config={"retention.ms": 5000, "segment.ms": 9000})
        assert made.overrides == ("retention.ms", "segment.ms")
        settings = {"segment.bytes": "1000000"}
        altered = log._topics.alter("t", None, settings, reset=["retention.ms", "flush.ms"])
        assert altered.overrides == ("segment.bytes", "segment.ms")
        assert [altered.config[name] for name in ("retention.ms", "segment.ms")] == ["7000", "9000"]
        with pytest.raises(InvalidConfig, match=r"unknown setting 'retention\.m'"):
            log._topics.alter("t", None, {}, reset=["retention.m"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partitions": 3}, None),
        ({"partitions": 1}, InvalidTopic),
        ({"partitions": 10_001}, InvalidTopic),
        ({"config": {"retention.ms": "9000"}}, None),
        ({"config": {"retention.ms": "soon"}}, InvalidConfig),
        ({"reset": ["retention.ms"]}, None),
        ({"reset": ["unknown"]}, InvalidConfig),
    ],
)
def test_a_dry_run_checks_an_alteration_without_its_effect(log, topic, change, error):
    made = log.create_topic(topic, partitions=2, config={"retention.ms": "5000"})
    change = {"partitions": None, "config": {}} | change
    if error is None:
        log._topics.alter(topic, **change, dry_run=True)
    else:
        with pytest.raises(error):
            log._topics.alter(topic, **change, dry_run=True)
    found = log.describe(topic)
    assert (found.config, len(found.partitions)) == (made.config, 2)
