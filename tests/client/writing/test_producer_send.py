"""``Producer.send``: single records, in order, in the partition of their key."""

from __future__ import annotations

import random
import select
import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from isolog.errors import (
    BatchTooLarge,
    InvalidOption,
    InvalidRecord,
    InvalidRequest,
    IsologError,
    RecordTooLarge,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream import Written
from spark_stream.client.writing import batches
from spark_stream.client.writing import producer as producing
from spark_stream.client.writing.buffer import Buffer
from spark_stream.client.writing.lanes import Outgoing
from spark_stream.operating_system import PORTABLE
from tests.examples import examples
from tests.support import NUMBERS, values

pytestmark = pytest.mark.slow  # each test uses a broker


def kafka_murmur2(data: bytes) -> int:
    """Return Appleby's murmur2 as in Kafka, byte by byte, as the reference."""
    mask = 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ (k >> 24)) * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ k
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & mask
    h = (h ^ (h >> 13)) * 0x5BD1E995 & mask
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    return (kafka_murmur2(key) & 0x7FFFFFFF) % partitions


def test_the_model_of_murmur2_has_kafkas_own_values():
    # Kafka's UtilsTest.testMurmur2
    assert kafka_murmur2(b"21") == -973932308 % (1 << 32)
    assert kafka_murmur2(b"foobar") == -790332482 % (1 << 32)
    assert kafka_murmur2(b"a-little-bit-long-string") == -985981536 % (1 << 32)


def test_a_record_is_read_as_it_was_sent(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        future = producer.send(
            topic, b"hello", key=b"k", headers=[("h", b"v"), ("h", None), ("é", b"")], timestamp=1
        )
        assert isinstance(future, Future)
        assert future.result(20) == Written(topic, 0, 0, 1)
    (record,) = log.consumer(topic).records(until="latest")
    assert (record.topic, record.partition, record.offset) == (topic, 0, 0)
    assert (record.key, record.value) == (b"k", b"hello")
    assert record.headers == [("h", b"v"), ("h", None), ("é", b"")]
    assert record.timestamp == datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)


@pytest.mark.parametrize("value", [b"", b"\0\xff", "Grüße 🎈", None, bytearray(b"x")])
def test_values_and_keys_are_bytes_text_or_none(log, topic, value):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, value, key=value)
    (record,) = log.consumer(topic).records(until="latest")
    expected = value.encode() if isinstance(value, str) else value
    assert (record.key, record.value) == (expected, expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": 1},
        {"key": 1.5},
        {"key": "\ud800"},
    ],
)
def test_a_value_of_a_wrong_type_raises_type_error_without_other_failures(log, topic, wrong):
    log.create_topic(topic)
    with log.producer(linger_ms=200) as producer:
        good = producer.send(topic, b"good")
        with pytest.raises((TypeError, InvalidRecord), match=next(iter(wrong))):
            producer.send(topic, **({"value": b"v"} | wrong))
        assert good.result(20).offset == 0
    assert log.read(topic).num_rows == 1


def test_invalid_headers_and_partitions_fail_only_their_future(log, topic):
    log.create_topic(topic)
    producer = log.producer(linger_ms=200)
    good = producer.send(topic, b"good")
    assert isinstance(producer.send(topic, b"v", headers=["h"]).exception(20), InvalidRecord)
    assert isinstance(producer.send(topic, b"v", partition="0").exception(20), InvalidOption)
    batch = producer.append(topic, values("v"), partition="0")
    assert isinstance(batch.exception(20), InvalidOption)
    assert good.result(20).offset == 0
    producer.close()
    assert log.read(topic).num_rows == 1


def test_headers_may_be_a_mapping(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, b"v", headers={"ab": b"v", "h": None})
    (record,) = log.consumer(topic).records(until="latest")
    assert record.headers == [("ab", b"v"), ("h", None)]


def test_a_header_may_be_text(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, b"v", headers=[("h", "é")])
    (record,) = log.consumer(topic).records(until="latest")
    assert record.headers == [("h", "é".encode())]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        (-2_208_988_800_000, datetime(1900, 1, 1, tzinfo=UTC)),
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
        (
            datetime(1812, 6, 24, 1, 2, 3, 456789, tzinfo=UTC),
            datetime(1812, 6, 24, 1, 2, 3, 456789, tzinfo=UTC),
        ),
        (
            datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            datetime(2019, 12, 31, 18, 30, tzinfo=UTC),
        ),
        (datetime(2020, 6, 1), datetime(2020, 6, 1, tzinfo=UTC)),
        (datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_a_timestamp_is_milliseconds_or_a_datetime(log, topic, given, expected):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, b"v", timestamp=given)
    (record,) = log.consumer(topic).records(until="latest")
    assert record.timestamp == expected
    assert log.read(topic)["timestamp"][0].as_py() == expected


def test_without_a_timestamp_it_is_now(log, topic):
    log.create_topic(topic)
    before = datetime.now(UTC)
    with log.producer() as producer:
        producer.send(topic, b"v")
    (record,) = log.consumer(topic).records(until="latest")
    assert before <= record.timestamp <= datetime.now(UTC)


@pytest.mark.parametrize("timestamp", [1 << 62, -(1 << 62), 1 << 80])
def test_a_timestamp_out_of_range_fails_only_its_record(log, topic, timestamp):
    log.create_topic(topic)
    producer = log.producer(linger_ms=200)
    good = producer.send(topic, b"good")
    bad = producer.send(topic, b"bad", timestamp=timestamp)
    also_good = producer.send(topic, b"also good")
    with pytest.raises(InvalidRecord, match="timestamp"):
        bad.result(20)
    assert [good.result(20).offset, also_good.result(20).offset] == [0, 1]
    producer.close()


def test_a_record_of_the_year_20000_can_be_read_as_well(log, topic):
    """Arrow's range is larger than Python's. Such a record must not end a consumer."""
    log.create_topic(topic)
    far = pa.array([569_000_000_000_000_000, -569_000_000_000_000_000, 0], pa.int64())
    batch = pa.record_batch(
        {"value": [b"future", b"past", b"epoch"], "timestamp": far.cast(pa.timestamp("us", "UTC"))}
    )
    with log.producer() as producer:
        producer.append(topic, batch)
    found = list(log.consumer(topic).records(until="latest"))
    assert [record.value for record in found] == [b"future", b"past", b"epoch"]
    assert found[0].timestamp == datetime.max.replace(tzinfo=UTC)
    assert found[1].timestamp == datetime.min.replace(tzinfo=UTC)
    assert log.read(topic)["timestamp"].cast(pa.int64()).to_pylist() == far.to_pylist()


def test_a_key_goes_to_the_partition_of_kafkas_partitioner(log, topic):
    log.create_topic(topic, partitions=6)
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"21", b"foobar", b"a-little-bit-long-string"]
    keys += [bytes([n]) * n for n in range(1, 60)] + ["schlüssel".encode()]
    with log.producer(linger_ms=5) as producer:
        futures = [producer.send(topic, b"v", key=key) for key in keys]
        text = producer.send(topic, b"v", key="schlüssel")
    expected = [partition_of(key, 6) for key in keys]
    assert [future.result().partition for future in futures] == expected
    assert text.result().partition == expected[-1]
    assert len(set(expected)) == 6


def test_a_named_partition_overrides_the_key(log, topic):
    log.create_topic(topic, partitions=6)
    with log.producer(linger_ms=50) as producer:
        named = [producer.send(topic, b"v", key=b"k", partition=number) for number in range(6)]
        keyed = producer.send(topic, b"v", key=b"k")
    assert [future.result().partition for future in named] == list(range(6))
    assert keyed.result().partition == partition_of(b"k", 6)


@pytest.mark.parametrize("seed", range(examples(3)))
def test_records_of_an_open_batch_go_to_their_own_partitions(log, topic, seed):
    chance, sent, partition = random.Random(seed), [], None
    log.create_topic(topic, partitions=4)
    with suppress(UnknownPartition), log.producer(linger_ms=60_000) as producer:
        for number in range(300):
            if chance.random() < 0.3:
                partition = chance.choice([None, 0, 1, 2, 3, np.int64(2), 4, -1])
            key = chance.choice([None, b"k", b"%d" % number])
            headers = chance.choice([None, None, None, {"h": b"1"}])
            value = b"%d" % number
            future = producer.send(topic, value, key=key, partition=partition, headers=headers)
            sent.append((value, key, partition, future))
    rows = {(row["partition"], row["offset"]): row for row in log.read(topic).to_pylist()}
    stored = 0
    for value, key, partition, future in sent:
        if partition in (4, -1):
            assert isinstance(future.exception(), UnknownPartition)
            continue
        written = future.result()
        row = rows[written.partition, written.offset]
        assert (row["value"], row["key"]) == (value, key)
        if partition is not None:
            assert written.partition == partition
        elif key is not None:
            assert written.partition == partition_of(key, 4)
        stored += 1
    assert stored == len(rows)


def test_records_without_keys_use_all_partitions(log, topic):
    log.create_topic(topic, partitions=3)
    with log.producer() as producer:
        used = {producer.send(topic, b"v").result(20).partition for _ in range(12)}
    assert used == {0, 1, 2}


@pytest.mark.parametrize("partition", [-1, 2, 1 << 40])
def test_the_future_fails_for_an_unknown_partition(log, topic, partition):
    log.create_topic(topic, partitions=2)
    producer = log.producer()
    with pytest.raises(UnknownPartition, match=f"0 to 1, not {partition}"):
        producer.send(topic, b"v", partition=partition).result(20)
    producer.flush()
    producer.close()


def test_an_unknown_topic_fails_the_future_and_the_with_block(log, topic):
    producer = log.producer()
    future = producer.send(topic, b"v")
    with pytest.raises(UnknownTopic, match=topic), producer:
        pass
    assert isinstance(future.exception(0), UnknownTopic)


def test_send_to_a_typed_topic_fails(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    producer = log.producer()
    with pytest.raises(SchemaMismatch, match="typed: n"):
        producer.send(topic, b"v").result(20)
    producer.close()


def test_an_error_of_the_with_block_is_raised_before_one_of_the_producer(log, topic):
    producer = log.producer()
    producer.send(topic, b"v")
    with pytest.raises(ZeroDivisionError), producer:
        raise ZeroDivisionError


def test_flush_waits_for_everything_and_raises_the_first_error_once(log, topic):
    log.create_topic(topic, config={"max.record.bytes": 100})
    with log.producer(linger_ms=60_000) as producer:
        futures = [producer.send(topic, b"x" * size) for size in (10, 200, 20, 300)]
        with pytest.raises(RecordTooLarge, match=r"has 208 bytes"):
            producer.flush()
        assert all(future.done() for future in futures)
        producer.flush()  # it was reported
        assert [future.exception() is None for future in futures] == [True, False, True, False]
    assert log.read(topic).num_rows == 2


def test_a_record_above_every_limit_has_another_hint(log, topic, monkeypatch):
    log.create_topic(topic, config={"max.record.bytes": 1000})
    with suppress(IsologError), log.producer() as producer:
        for module in (batches, producing):  # instead of a value of 256 MiB
            monkeypatch.setattr(module, "BATCH_BYTES_MAX", 5000)
        large = producer.send(topic, b"x" * 2000).exception(20)
        largest = producer.send(topic, b"x" * 6000).exception(20)
        batch = producer.append(topic, pa.record_batch({"value": [b"x" * 6000]})).exception(20)
    assert "raise the topic's max.record.bytes" in str(large)
    for error in (largest, batch):
        assert isinstance(error, RecordTooLarge | BatchTooLarge)
        assert "Split the value: no topic takes" in str(error)
        assert "raise" not in str(error)


def test_an_oversized_record_fails_alone(log, topic):
    log.create_topic(topic, config={"max.record.bytes": 1000})
    producer = log.producer(linger_ms=100)
    futures = [producer.send(topic, b"x" * size) for size in [10, 10, 5000, 10]]
    error = futures[2].exception(20)
    assert isinstance(error, RecordTooLarge)
    assert "1000" in str(error)
    assert not error.retriable
    assert [futures[n].result(20).offset for n in (0, 1, 3)] == [0, 1, 2]
    producer.close()


def test_order_holds_through_sends_and_appends(log, topic):
    log.create_topic(topic)
    with log.producer(linger_ms=1) as producer:
        for number in range(0, 2000, 4):
            producer.send(topic, str(number))
            producer.send(topic, str(number + 1))
            producer.append(topic, values(str(number + 2), str(number + 3)))
    found = [int(value.as_py()) for value in log.read(topic)["value"]]
    assert found == list(range(2000))


def test_order_holds_for_each_of_many_threads(log, topic):
    """Appends of one thread must not reorder the sends of another thread."""
    log.create_topic(topic)
    with log.producer() as producer:
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                producer.append(topic, values("other"))

        others = [threading.Thread(target=append) for _ in range(2)]
        for thread in others:
            thread.start()
        try:
            for number in range(4000):
                producer.send(topic, str(number))
        finally:
            stop.set()
            for thread in others:
                thread.join()
    found = [value.as_py() for value in log.read(topic)["value"]]
    assert [int(value) for value in found if value != b"other"] == list(range(4000))


def test_a_full_batch_is_sent_before_its_linger_ends(log, topic):
    log.create_topic(topic)
    with log.producer(linger_ms=60_000, batch_bytes=1000) as producer:
        futures = [producer.send(topic, b"x" * 300) for _ in range(4)]
        assert futures[0].result(20).offset == 0


def test_a_full_buffer_is_sent_before_its_linger_ends(log, topic):
    log.create_topic(topic)
    with log.producer(linger_ms=60_000, buffer_bytes=1000) as producer:
        futures = [producer.send(topic, b"x" * 300) for _ in range(20)]
        assert futures[0].result(20).offset == 0


def test_waiting_records_are_sent_in_one_batch(shared, log, topic):
    log.create_topic(topic)
    with log.producer(linger_ms=300) as producer:
        for number in range(500):
            producer.send(topic, str(number))
    partition = log.describe(topic).partitions[0]
    assert partition.log_end_offset == 500
    entries = next((shared.directory / "topics" / topic).rglob("*.entries"))
    assert entries.stat().st_size // 88 <= 5


def test_a_closed_producer_refuses_records(log, topic):
    log.create_topic(topic)
    producer = log.producer()
    producer.send(topic, b"v")
    producer.close()
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send(topic, b"v")
    with pytest.raises(InvalidRequest, match="closed"):
        producer.append(topic, values("v"))
    assert log.read(topic).num_rows == 1


@pytest.mark.parametrize("isolation", ["read_replicated", "read_atomic", "", "committed"])
def test_a_producer_has_two_levels(log, isolation):
    with pytest.raises(InvalidOption, match=r"read_uncommitted \| read_committed"):
        log.producer(isolation=isolation)


@pytest.mark.parametrize(
    "setting",
    [
        {"linger_ms": -1},
        {"batch_bytes": 0},
        {"buffer_bytes": 0},
        {"timeout_ms": 0},
        {"timeout_ms": 1 << 40},
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(log, setting):
    with pytest.raises(InvalidOption, match=next(iter(setting))):
        log.producer(**setting)


def test_a_callback_may_call_the_producer_and_wait_for_room(log, topic):
    """Callbacks run on another thread than acknowledgements, without a deadlock."""
    log.create_topic(topic)
    ended = threading.Event()
    with log.producer(buffer_bytes=2000, timeout_ms=20_000) as producer:

        def again(future: Future[Written]) -> None:
            if future.result().offset >= 300:
                ended.set()
                return
            for _ in range(3):
                producer.append(topic, values(b"x" * 500))
            producer.send(topic, b"x" * 500).add_done_callback(again)

        producer.send(topic, b"first").add_done_callback(again)
        assert ended.wait(20)


def test_after_flush_every_future_is_done(log, topic):
    log.create_topic(topic, partitions=4)
    with log.producer() as producer:
        keys = [str(n).encode() for n in range(20)]
        batch = pa.record_batch({"key": keys, "value": keys})
        for _ in range(200):
            futures = [producer.append(topic, batch), producer.send(topic, b"v")]
            producer.flush()
            assert all(future.done() for future in futures)


@pytest.mark.skipif(PORTABLE or not hasattr(select, "epoll"), reason="only with epoll")
def test_a_thread_that_flushes_reads_the_acknowledgement(log, topic, monkeypatch):
    """A hand-over from the loop would cost a change of threads."""
    log.create_topic(topic)
    readers: list[int] = []

    def settle(self, rows, share):
        readers.append(threading.get_ident())
        give_back(self, rows, share)

    give_back = Buffer._give_back
    with log.producer() as producer:
        producer.send(topic, b"v").result()
        monkeypatch.setattr(Buffer, "_give_back", settle)
        for _ in range(50):
            producer.send(topic, b"v")
            producer.flush()
    assert readers.count(threading.get_ident()) > 50  # it also settles up before each send


def test_threads_that_flush_at_the_same_time_all_end(log, topic):
    log.create_topic(topic, partitions=4)

    def send(partition: int) -> None:
        for _ in range(50):
            producer.send(topic, b"v", partition=partition)
            producer.flush(60)

    with log.producer() as producer:
        threads = [threading.Thread(target=send, args=(each,)) for each in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(log.read(topic)) == 200


def test_a_cancelled_future_does_not_affect_other_records(log, topic):
    log.create_topic(topic)
    with log.producer(linger_ms=200) as producer:
        first = producer.send(topic, b"first")
        second = producer.send(topic, b"second")
        assert first.cancel()
        assert second.result(20).offset == 1


def test_numpy_numbers_are_accepted(log, topic):
    log.create_topic(topic, partitions=2)
    one = np.int64(1)
    with log.producer() as producer:
        assert producer.send(topic, b"a", partition=one, timestamp=one).result(20).partition == 1
        assert producer.append(topic, values("b"), partition=one).result(20).offset == 1
    assert log.read(topic, start=np.int64(0)).num_rows == 2
    assert log.read(topic, start={one: one}).num_rows == 1
    with log.consumer(topic) as consumer:
        consumer.seek({(topic, 1): one})
        assert len(list(consumer.records(until="latest"))) == 1


def test_a_batch_is_resent_on_another_stream_after_a_failed_send(log, topic, monkeypatch):
    log.create_topic(topic)
    failures = iter([MemoryError()])

    def whole_or_not(outgoing: Outgoing) -> pa.RecordBatch:
        for error in failures:
            raise error
        return whole(outgoing)

    whole = Outgoing.whole
    with log.producer() as producer:
        producer.send(topic, b"1").result(20)
        streams = producer._sender._loop._streams
        ((number, stream),) = streams.items()
        monkeypatch.setattr(Outgoing, "whole", whole_or_not)
        assert producer.send(topic, b"2").result(20).offset == 1
        assert number not in streams
        assert stream._is_over
