"""Filters of reads and consumers: the matching records, and the positions."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from isolog.errors import InvalidFilter
from tests.support import NUMBERS, eventually, numbers, values

LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]


@pytest.fixture
def flights(log, topic):
    """Ten batches of a thousand rows in each of two partitions."""
    schema = pa.schema([("n", pa.int64()), ("name", pa.string()), ("delay", pa.float64())])
    log.create_topic(topic, partitions=2, schema=schema)
    with log.producer() as producer:
        for partition in range(2):
            for first in range(0, 10_000, 1000):
                rows = range(first, first + 1000)
                batch = {
                    "n": pa.array(rows, pa.int64()),
                    "name": pa.array([f"{partition}-{n}" for n in rows]),
                    "delay": pa.array([None if n % 10 == 0 else float(n % 100) for n in rows]),
                }
                producer.append(topic, pa.record_batch(batch, schema), partition=partition)
    return topic


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_filtered_read_returns_matches_with_their_metadata(log, flights, isolation):
    text = "n between 4998 and 5001 and _partition = 1 or name = '0-7'"
    found = log.read(flights, filter=text, metadata=True, isolation=isolation)
    assert found.column("name").to_pylist() == ["0-7", "1-4998", "1-4999", "1-5000", "1-5001"]
    assert found.column("_offset").to_pylist() == [7, 4998, 4999, 5000, 5001]
    assert found.column("_partition").to_pylist() == [0, 1, 1, 1, 1]
    assert found.column("_topic").to_pylist() == [flights] * 5


def test_a_filter_may_use_columns_that_are_not_shown(log, flights):
    found = log.read(flights, filter="delay > 98.5 and n < 300", columns=["name"])
    assert found.column_names == ["name"]
    assert sorted(found.column(0).to_pylist()) == sorted(
        f"{partition}-{n}" for partition in range(2) for n in (99, 199, 299)
    )
    assert log.read(flights, filter="delay is null", columns=[]).num_rows == 2000


def test_a_range_can_be_filtered(log, flights):
    found = log.read(flights, start={0: 500, 1: -1}, end={0: 2501}, filter="n in (499, 500, 2500)")
    assert found.column("name").to_pylist() == ["0-500", "0-2500"]


def test_readers_reach_the_end_without_a_match(log, flights):
    assert log.read(flights, filter="name = 'nobody'").num_rows == 0
    with log.consumer(flights, filter="name = 'nobody'") as consumer:
        assert list(consumer.batches(until="latest")) == []
        assert consumer.position() == {(flights, 0): 10_000, (flights, 1): 10_000}


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_consumer_moves_past_records_that_do_not_match(log, flights, isolation):
    with log.consumer(flights, filter="n = 3333", isolation=isolation, columns=["name"]) as found:
        names = [name for batch in found.batches(until="latest") for name in batch[0].to_pylist()]
        assert sorted(names) == ["0-3333", "1-3333"]
        assert found.position() == {(flights, 0): 10_000, (flights, 1): 10_000}


def test_filtered_records_have_their_offsets(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.append(topic, values(*[f"v{n}" for n in range(100)]), partition=0)
    with log.consumer(topic, filter="value in ('v5', 'v50', 'v51')") as consumer:
        found = [(record.offset, record.value) for record in consumer.records(until="latest")]
        assert found == [(5, b"v5"), (50, b"v50"), (51, b"v51")]
        assert consumer.position() == {(topic, 0): 100}
    shown = log.read(topic, filter="offset >= 98 and timestamp > '2000-01-01'")
    assert shown.column("offset").to_pylist() == [98, 99]
    assert shown.column("value").to_pylist() == [b"v98", b"v99"]


def test_a_consumer_continues_at_a_position_between_two_matches(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.append(topic, values(*"abcabc"), partition=0)
    with log.consumer(topic, filter="value != 'b'") as consumer:
        records = consumer.records(until="latest")
        assert [next(records).offset for _ in range(2)] == [0, 2]
        assert consumer.position() == {(topic, 0): 3}
        position = consumer.position()
    with log.consumer(topic, filter="value != 'b'") as consumer:
        consumer.seek(position)
        assert [record.offset for record in consumer.records(until="latest")] == [3, 5]


def test_a_waiting_consumer_gets_new_matches(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    found: list[int] = []
    with log.consumer(topic, filter="n >= 100") as consumer:

        def follow() -> None:
            for batch in consumer.batches():
                found.extend(batch.column("n").to_pylist())

        thread = threading.Thread(target=follow)
        thread.start()
        with log.producer() as producer:
            for first in (0, 50, 95):
                producer.append(topic, numbers(first, 10), partition=0)
            eventually(lambda: found == [100, 101, 102, 103, 104])
        eventually(lambda: consumer.position() == {(topic, 0): 30})
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()


def test_aborted_records_do_not_match(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer(transactional_id=f"{topic}-writer") as producer:
        for first, kept in ((0, True), (1000, False), (2000, True)):
            producer.begin_transaction()
            # Wait for it: records that are unsent at an abort are never sent, and take no offsets.
            producer.append(topic, numbers(first, 1000), partition=0).result()
            producer.commit_transaction() if kept else producer.abort_transaction()
    for _ in range(2):
        found = log.read(
            topic, filter="n in (999, 1001, 2000)", isolation="read_committed", metadata=True
        )
        assert found.column("n").to_pylist() == [999, 2000]
        assert found.column("_offset").to_pylist() == [999, 2000]
        assert log.read(topic, filter="n = 1001").num_rows == 1


@pytest.mark.parametrize("text", ["nobody = 1", "n = 'one'", "n = ", "upper(name) = 'A'"])
def test_an_invalid_filter_is_refused_before_the_read(log, flights, text):
    with pytest.raises(InvalidFilter):
        log.read(flights, filter=text)
    with pytest.raises(InvalidFilter):
        log.consumer(flights, filter=text)
