"""``Producer.append``: Arrow batches, split over partitions by key without a loop over rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from isolog.errors import (
    InvalidRecord,
    InvalidRequest,
    SchemaMismatch,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream import Written
from spark_stream.client.connecting.router import Router
from spark_stream.schema.schemas import HEADERS_TYPE, TIMESTAMP_TYPE, stored_schema
from tests.client.writing.test_producer_send import partition_of
from tests.support import NUMBERS, numbers, values


def test_a_batch_and_a_table_are_read_as_they_were_written(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        first = producer.append(topic, numbers(0, 5))
        table = pa.Table.from_batches([numbers(5, 3), numbers(8, 2)])
        second = producer.append(topic, table)
        assert first.result(20) == Written(topic, 0, 0, 5)
        assert second.result(20) == Written(topic, 0, 5, 5)
    assert log.read(topic)["n"].to_pylist() == list(range(10))


def test_a_closed_producer_leaves_its_cached_leaders_to_the_next_one(log, topic, monkeypatch):
    """Its stream has ended, and the leader has not changed."""
    log.create_topic(topic, schema=NUMBERS, partitions=2)
    asked: list[str] = []
    refresh = Router.refresh

    def noted(router: Router, name: str, *rest: object) -> None:
        asked.append(name)
        refresh(router, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Router, "refresh", noted)
    for first in range(0, 20, 5):
        with log.producer() as producer:
            for partition in range(2):
                producer.append(topic, numbers(first, 5), partition=partition).result(20)
    assert asked == [topic]
    assert log.read(topic).num_rows == 40


def test_an_empty_batch_is_settled_without_an_append(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        for empty in (numbers(0, 0), NUMBERS.empty_table()):
            written = producer.append(topic, empty).result(0)
            assert written == Written(topic, 0, 0, 0)
    assert log.describe(topic).partitions[0].log_end_offset == 0


def test_batches_of_a_typed_topic_go_to_the_partitions_in_turn(log, topic):
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    with log.producer() as producer:
        futures = [producer.append(topic, numbers(n, 1)) for n in range(9)]
        named = producer.append(topic, numbers(9, 1), partition=2)
    assert sorted(future.result().partition for future in futures) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert named.result().partition == 2


def keyed(*keys: bytes | None) -> pa.RecordBatch:
    rows = [str(number).encode() for number in range(len(keys))]
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": rows})


def test_keys_spread_a_batch_over_partitions_in_order(log, topic):
    log.create_topic(topic, partitions=4)
    keys = [f"key-{n % 17}".encode() for n in range(200)]
    with log.producer() as producer:
        written = producer.append(topic, keyed(*keys)).result(20)
    assert written.count == 200
    assert {part.partition for part in written.parts} == {0, 1, 2, 3}
    assert sum(part.count for part in written.parts) == 200
    assert (written.partition, written.offset) == (partition_of(keys[0], 4), 0)
    table = log.read(topic)
    for number in range(4):
        rows = table.filter(pa.compute.equal(table["partition"], number))
        expected = [n for n, key in enumerate(keys) if partition_of(key, 4) == number]
        assert [int(value.as_py()) for value in rows["value"]] == expected


def test_a_batch_with_keys_of_one_partition_has_no_parts(log, topic):
    log.create_topic(topic, partitions=4)
    with log.producer() as producer:
        written = producer.append(topic, keyed(b"same", b"same")).result(20)
    assert written == Written(topic, partition_of(b"same", 4), 0, 2)


def test_records_without_a_key_stay_together(log, topic):
    log.create_topic(topic, partitions=4)
    with log.producer() as producer:
        written = producer.append(topic, keyed(None, b"a", None, b"b", None)).result(20)
    table = log.read(topic)
    keyless = table.filter(pa.compute.is_null(table["key"]))
    assert len(set(keyless["partition"].to_pylist())) == 1
    assert keyless["value"].to_pylist() == [b"0", b"2", b"4"]
    assert written.count == 5


def test_a_named_partition_overrides_the_keys_of_a_batch(log, topic):
    log.create_topic(topic, partitions=4)
    with log.producer() as producer:
        batch = keyed(*[str(n).encode() for n in range(50)])
        assert producer.append(topic, batch, partition=3).result(20) == Written(topic, 3, 0, 50)


def test_a_sliced_batch_is_appended_as_its_rows(log, topic):
    log.create_topic(topic, partitions=4)
    batch = keyed(*[f"key-{n}".encode() for n in range(100)]).slice(40, 20)
    with log.producer() as producer:
        producer.append(topic, batch)
    table = log.read(topic)
    assert sorted(int(value.as_py()) for value in table["value"]) == list(range(40, 60))
    for key, number in zip(table["key"], table["partition"], strict=True):
        assert partition_of(key.as_py(), 4) == number.as_py()


def test_key_headers_and_timestamp_may_be_left_out(log, topic):
    log.create_topic(topic)
    before = datetime.now(UTC)
    with log.producer() as producer:
        producer.append(topic, pa.record_batch({"value": [b"v"]}))
    (record,) = log.consumer(topic).records(until="latest")
    assert (record.key, record.value, record.headers) == (None, b"v", [])
    assert before <= record.timestamp <= datetime.now(UTC)


def test_a_value_may_not_be_left_out(log, topic):
    log.create_topic(topic)
    producer = log.producer()
    with pytest.raises(SchemaMismatch, match="'value'"):
        producer.append(topic, pa.record_batch({"key": [b"k"]})).result(20)
    producer.close()


def test_null_timestamps_become_the_present_time(log, topic):
    log.create_topic(topic)
    moment = datetime(1960, 1, 1, tzinfo=UTC)
    batch = pa.record_batch(
        {"value": [b"a", b"b"], "timestamp": pa.array([None, moment], TIMESTAMP_TYPE)}
    )
    with log.producer() as producer:
        producer.append(topic, batch)
    first, second = log.consumer(topic).records(until="latest")
    assert (datetime.now(UTC) - first.timestamp) < timedelta(minutes=5)
    assert second.timestamp == moment


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_of_every_unit_fit_or_are_refused_by_name(log, topic, unit, zone):
    """Coarser units are exact. Nanoseconds may lose precision, and a time without a zone is
    ambiguous.
    """
    log.create_topic(topic)
    batch = pa.record_batch({"value": [b"a"], "timestamp": pa.array([7], pa.timestamp(unit, zone))})
    producer = log.producer()
    future = producer.append(topic, batch)
    if zone is None or unit == "ns":
        with pytest.raises(SchemaMismatch, match="'timestamp'"):
            producer.close()
        assert isinstance(future.exception(0), SchemaMismatch)
        return
    future.result(20)
    producer.close()
    (record,) = log.consumer(topic).records(until="latest")
    per_unit = {"s": timedelta(seconds=7), "ms": timedelta(milliseconds=7)}
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert record.timestamp == epoch + per_unit.get(unit, timedelta(microseconds=7))


def test_text_columns_fit_a_default_schema_topic(log, topic):
    log.create_topic(topic)
    batch = pa.record_batch({"value": pa.array(["é"]), "key": pa.array(["k"], pa.large_string())})
    with log.producer() as producer:
        producer.append(topic, batch)
    (record,) = log.consumer(topic).records(until="latest")
    assert (record.key, record.value) == (b"k", "é".encode())


def test_headers_travel_in_batches(log, topic):
    log.create_topic(topic)
    headers = pa.array([[{"key": "h", "value": b"v"}], None, []], HEADERS_TYPE)
    with log.producer() as producer:
        producer.append(topic, pa.record_batch({"value": [b"a", b"b", b"c"], "headers": headers}))
    found = [record.headers for record in log.consumer(topic).records(until="latest")]
    assert found == [[("h", b"v")], [], []]
    assert log.read(topic, headers=True)["headers"].to_pylist() == headers.to_pylist()


EVERYTHING = pa.table(
    {
        "bool": pa.array([True, None]),
        "i8": pa.array([-128, None], pa.int8()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "f32": pa.array([1.5, None], pa.float32()),
        "f64": pa.array([float("inf"), None]),
        "dec": pa.array([Decimal("-123456789012345678.90"), None], pa.decimal128(20, 2)),
        "date": pa.array([date(1582, 10, 15), None]),
        "ts": pa.array([datetime(1950, 1, 1), None], pa.timestamp("us")),
        "tz": pa.array([datetime(2050, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "dur": pa.array([timedelta(days=-3), None], pa.duration("us")),
        "time": pa.array([1, None], pa.time64("us")),
        "text": pa.array(["🎈", None]),
        "large": pa.array(["x", None], pa.large_string()),
        "bytes": pa.array([b"\0", None]),
        "fixed": pa.array([b"abc", None], pa.binary(3)),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": [{"c": "d"}]}, None]),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "null": pa.nulls(2),
    }
)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_values_of_every_type_are_read_as_they_were_written(log, topic, compression):
    log.create_topic(topic, schema=EVERYTHING.schema, config={"compression": compression})
    with log.producer() as producer:
        for start in range(2):
            producer.append(topic, EVERYTHING.slice(start, 1))
        producer.append(topic, EVERYTHING)
    found = log.read(topic)
    stored = EVERYTHING.cast(stored_schema(EVERYTHING.schema))
    assert found.schema == stored.schema
    assert found.equals(pa.concat_tables([stored, stored]))


def test_columns_are_reordered_and_widened(log, topic):
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
    log.create_topic(topic, schema=schema)
    batch = pa.record_batch(
        {
            "s": pa.array(["a", "b"]).dictionary_encode(),
            "x": pa.array([1.5, 2.5], pa.float32()),
            "n": pa.array([1, None], pa.uint16()),
        }
    )
    with log.producer() as producer:
        producer.append(topic, batch)
    assert log.read(topic).to_pylist() == [
        {"n": 1, "x": 1.5, "s": "a"},
        {"n": None, "x": 2.5, "s": "b"},
    ]


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"n": pa.array(["x"])}, "column 'n': expected bigint, got string"),
        ({"n": pa.array([1.5])}, "column 'n': expected bigint, got double"),
        ({"n": pa.array([1], pa.uint64())}, "column 'n': expected bigint, got uint64"),
        ({"m": pa.array([1])}, "column 'n'"),
        ({"n": pa.array([1]), "m": pa.array([1])}, "column 'm'"),
        ({"N": pa.array([1])}, "column 'n'"),
    ],
)
def test_a_batch_that_does_not_fit_names_the_column(log, topic, batch, named):
    log.create_topic(topic, schema=NUMBERS)
    producer = log.producer()
    future = producer.append(topic, pa.record_batch(batch))
    with pytest.raises(SchemaMismatch, match=named):
        future.result(20)
    assert producer.append(topic, numbers(0, 1)).result(20).offset == 0
    producer.close()


def test_two_columns_of_one_name_are_refused(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    producer = log.producer()
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"])
    assert isinstance(producer.append(topic, twice).exception(20), SchemaMismatch)
    log.create_topic(f"{topic}-default")
    twice = pa.RecordBatch.from_arrays([pa.array([b"1"]), pa.array([b"2"])], ["value", "value"])
    assert isinstance(producer.append(f"{topic}-default", twice).exception(20), SchemaMismatch)
    producer.close()


def test_data_that_is_no_batch_raises_type_error(log, topic):
    log.create_topic(topic)
    with log.producer() as producer, pytest.raises(TypeError, match="list"):
        producer.append(topic, [{"value": b"v"}])
    with log.producer() as producer, pytest.raises(TypeError, match="key is a column's name"):
        producer.append(topic, values("v"), key=5)


def test_the_future_fails_for_unknown_topics_and_partitions(log, topic):
    producer = log.producer()
    assert isinstance(producer.append(topic, values("v")).exception(20), UnknownTopic)
    log.create_topic(topic)
    assert isinstance(producer.append(topic, values("v"), 1).exception(20), UnknownPartition)
    assert isinstance(producer.append(topic, values("v"), -1).exception(20), UnknownPartition)
    producer.close()


def test_a_batch_larger_than_the_buffer_is_sent_alone(log, topic):
    log.create_topic(topic, schema=NUMBERS)
    with log.producer(buffer_bytes=1000) as producer:
        for first in range(0, 5000, 1000):
            producer.append(topic, numbers(first, 1000))
    assert log.read(topic)["n"].to_pylist() == list(range(5000))


def test_a_value_of_ten_megabytes_is_sent_and_appended(log, topic):
    log.create_topic(topic)
    big = bytes(range(256)) * 40_960
    with log.producer() as producer:
        producer.send(topic, big)
        producer.append(topic, values(big, None))
    found = [record.value for record in log.consumer(topic).records(until="latest")]
    assert found == [big, big, None]


@pytest.mark.rule(
    "joining of small batches, and the outcome of each",
    "client/writing/lanes.py",
    "client/writing/batches.py",
)
def test_small_batches_are_joined_without_the_invalid_ones(log, topic):
    """Each batch has its own outcome, in order. The schemas differ only in their metadata."""
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.string())])
    log.create_topic(topic, schema=schema)
    noted = schema.with_metadata({"by": "the caller"})
    with log.producer() as producer:
        futures, expected = [], []
        for number in range(400):
            rows = [number * 10 + row for row in range(number % 4 + 1)]
            if number % 100 == 50:  # its second row has no value
                columns = [pa.array([rows[0], None], pa.int64()), pa.array(["x", "y"])]
                batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
                futures.append((producer.append(topic, batch), None))
                expected.append(rows[0])
                continue
            columns = [pa.array(rows, pa.int64()), pa.array([f"é{row}" for row in rows])]
            kind = noted if number % 2 else schema
            batch = pa.RecordBatch.from_arrays(columns, schema=kind)
            futures.append((producer.append(topic, batch), len(expected)))
            expected += rows
        for future, offset in futures:
            if offset is None:
                assert isinstance(future.exception(20), InvalidRecord)
                assert future.exception().kept == 1
            else:
                assert future.result(20).offset == offset
    assert log.read(topic)["n"].to_pylist() == expected


def test_the_error_names_the_unknown_column_not_an_optional_one(log, topic):
    log.create_topic(topic)
    batch = pa.record_batch({"value": pa.array([b"x"]), "zz": pa.array([1])})
    with log.producer() as producer, pytest.raises(SchemaMismatch, match="column 'zz'"):
        producer.append(topic, batch).result()


def test_a_refused_append_leaves_nothing_behind(log, topic):
    log.create_topic(topic, schema="n int")
    producer = log.producer()
    producer.close()
    for _ in range(10):
        with pytest.raises(InvalidRequest, match="closed"):
            producer.append(topic, pa.table({"n": pa.array([1], pa.int32())}), partition=0)
    assert not producer._sender.failures.unsettled
