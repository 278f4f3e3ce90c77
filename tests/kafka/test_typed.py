"""Typed topics for Kafka's clients: values are rows as JSON objects."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from spark_stream.kafka import reading
from spark_stream.kafka.refusals import KafkaCode
from spark_stream.kafka.typed import COLUMNS, as_records, as_rows
from spark_stream.schema.schemas import DEFAULT_SCHEMA, TIMESTAMP
from tests.kafka.clients import WAIT_S, asked, produced, producer_at, read_at, sent
from tests.kafka.kafka_batches import by_kafka, rebuilt

MOMENT = datetime(2026, 11, 29, 10, 0, 0, 123_456, UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("ratio", pa.float64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("data", pa.binary()),
        pa.field("is_new", pa.bool_()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": 'a\nb "c" ✓',
        "price": Decimal("12.34"),
        "ratio": 0.1,
        "at": MOMENT,
        "data": b"\0\xff",
        "is_new": True,
        "tags": ["x", None, "y"],
        "place": {"x": 1, "y": None},
        "counts": [("k", 1)],
    },
    {"id": 2},
    {"id": -(1 << 62), "name": "", "ratio": float("inf"), "tags": [], "counts": []},
]


def table() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


def records(values: list[bytes | None], headers: Any = None) -> pa.RecordBatch:
    count = len(values)
    arrays = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([headers] * count, DEFAULT_SCHEMA.field("headers").type),
        pa.array([MOMENT] * count, DEFAULT_SCHEMA.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=COLUMNS)


def test_rows_are_the_same_after_both_ways():
    times = pa.array([MOMENT + timedelta(seconds=n) for n in range(3)], TIMESTAMP.type)
    given = as_records(table().append_column(TIMESTAMP, times))
    assert given.schema.names == COLUMNS
    assert given.column("timestamp").to_pylist() == times.to_pylist()
    assert [json.loads(each)["id"] for each in given.column("value").to_pylist()] == [
        each["id"] for each in ROWS
    ]
    assert as_rows(given, SCHEMA).equals(table())


def test_values_may_have_any_form_of_json():
    found = as_rows(records([b'\n{ "id":\n1\r\n}\n', b'{"name": null, "id": 2}']), SCHEMA)
    assert found.column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "record 2: the value of a typed topic is a JSON object"),
        (b"", "record 2: the value"),
        (b" \n ", "record 2: the value"),
        (b"[1]", "record 2: the value"),
        (b"null", "record 2: the value"),
        (b"{", "record 2: the value"),
        (b"{]}", "record 2: not JSON"),
        (b'{"id": 1}{"id": 2}', "record 2: not JSON|several JSON objects"),
        (b'{"id": 1} {"id": 2}', "record 2: not JSON|several JSON objects"),
        (b'{"id": 1}\n{"id": 2}', "record 2: not JSON"),
        (b'{"id": 1, "name": "a\nb"}', "record 2: not JSON"),
        (b'{"id": 1, "name": "\xff"}', "record 2: not UTF-8"),
        (b'{"id": "one"}', "record 2: column 'id'"),
        (b'{"id": 1, "price": 1.234}', "record 2: column 'price'"),
        (b'{"name": "x"}', "record 2: column 'id' is null"),
        (b'{"id": 1, "other": 2}', "column 'other' is not one of the topic's columns"),
        (b'{"id": ' + b"[" * 1_000 + b"}", "record 2: nested deeper"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_fault(value, text):
    with pytest.raises(Exception, match=text) as refused:
        as_rows(records([b'{"id": 1}', value]), SCHEMA)
    assert type(refused.value).__name__ in ("InvalidRecords", "InvalidRecord", "SchemaMismatch")


def test_an_object_does_not_continue_in_the_next_record():
    with pytest.raises(Exception, match="record 1: the value"):
        as_rows(records([b'{"id":', b"1}"]), SCHEMA)
    with pytest.raises(Exception, match="record 1: not JSON"):
        as_rows(records([b'{"id": 1, "place": {}', b'{"x": 1}}']), SCHEMA)


def test_headers_are_refused():
    with pytest.raises(Exception, match="no headers"):
        as_rows(records([b'{"id": 1}'], [{"key": "a", "value": b""}]), SCHEMA)


@pytest.mark.slow
def test_clients_write_and_read_a_typed_topic(log, topic, gateway):
    log.create_topic(topic, partitions=2, schema=SCHEMA)
    values = [b'{"id": %d, "name": "n%d"}' % (number, number) for number in range(500)]
    rows = [{"value": each, "key": b"k", "partition": n % 2} for n, each in enumerate(values)]
    sent(producer_at(gateway, **{"enable.idempotence": True}), topic, rows)
    with log.producer() as producer:
        producer.append(topic, table(), partition=1).result()
    stored = log.read(topic)
    assert sorted(stored["id"].to_pylist()) == sorted([*range(500), *(each["id"] for each in ROWS)])
    found = read_at(gateway, topic, 2)
    texts = [json.loads(each.value()) for messages in found.values() for each in messages]
    assert len(texts) == 503
    assert {each["id"]: each["name"] for each in texts}[7] == "n7"
    assert all(each.key() is None for messages in found.values() for each in messages)
    [row] = [each for each in texts if each["id"] == 1 and each["price"]]
    assert row["tags"] == ["x", None, "y"]


@pytest.mark.slow
def test_a_batch_with_a_bad_value_is_refused_as_a_whole(log, topic, gateway):
    log.create_topic(topic, schema=SCHEMA)
    data = by_kafka([(None, b'{"id": 1}', [], 0), (None, b'{"id": "one"}', [], 0)])
    found = produced(gateway, topic, data)
    assert found["error_code"] == KafkaCode.INVALID_RECORD
    assert len(log.read(topic)) == 0


@pytest.mark.slow
def test_a_column_that_was_added_is_known_after_a_refusal(log, topic, gateway):
    log.create_topic(topic, schema=SCHEMA)
    first = by_kafka([(None, b'{"id": 1}', [], 0)])
    assert produced(gateway, topic, first)["error_code"] == 0
    log.alter_topic(topic, schema=SCHEMA.append(pa.field("added", pa.int32())))
    second = by_kafka([(None, b'{"id": 2, "added": 3}', [], 0)])
    assert produced(gateway, topic, second)["error_code"] == 0
    assert log.read(topic)["added"].to_pylist() == [None, 3]


@pytest.mark.slow
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_continues_in_the_altered_topic(log, topic, gateway, idempotent):
    """The number is stored with eight bytes instead of four, and in the second place."""
    first = pa.schema([("n", pa.int32()), ("m", pa.int32())])
    wider = pa.schema([("n", pa.int64()), ("m", pa.int64()), ("added", pa.int32())])
    log.create_topic(topic, schema=first)
    rows = [{"n": 1, "m": 2}, {"n": 1 << 40, "m": 5, "added": 7}, {"n": 3, "m": 4}]
    values = [{"value": json.dumps(each).encode()} for each in rows]
    producer = producer_at(gateway, **{"enable.idempotence": idempotent})
    sent(producer, topic, values[:1])
    log.alter_topic(topic, schema=wider)
    sent(producer, topic, values[1:2])
    sent(producer, topic, values[2:])
    assert log.read(topic).to_pylist() == [{"added": None, **each} for each in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then", "row"),
    [
        ({"n": pa.int32()}, {"n": pa.int64(), "m": pa.int8()}, {"n": 1}),
        ({"n": pa.int32()}, {"n": pa.int32(), "m": pa.map_(pa.string(), pa.int8())}, {"n": 1}),
        ({"n": pa.float32()}, {"n": pa.float64()}, {"n": 0.1}),
    ],
    ids=["integer", "map", "float"],
)
def test_a_batch_that_is_sent_again_after_an_alteration_is_stored_once(
    log, topic, gateway, other_gateway, first, then, row
):
    """The second gateway converts the JSON to the new columns."""
    log.create_topic(topic, schema=pa.schema(list(first.items())))
    wanted = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    producer_id = asked(gateway, "InitProducerId", 1, wanted)["producer_id"]
    data = by_kafka([(None, json.dumps(row).encode(), [], 0)])
    data = rebuilt(data, data[61:], producer=producer_id, producer_epoch=0, sequence=0)
    found = produced(gateway, topic, data)
    log.alter_topic(topic, schema=pa.schema(list(then.items())))
    assert produced(other_gateway, topic, data) == found
    assert len(log.read(topic)) == 1


@pytest.mark.slow
def test_a_consumer_sees_a_column_that_was_added(log, topic, gateway, monkeypatch):
    monkeypatch.setattr(reading, "_SCHEMA_S", 0.1)
    log.create_topic(topic, schema=SCHEMA)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    with closing(consumer), log.producer() as producer:
        producer.append(topic, table().slice(1, 1)).result()
        assert "added" not in json.loads(consumer.poll(WAIT_S).value())
        schema = SCHEMA.append(pa.field("added", pa.int32()))
        log.alter_topic(topic, schema=schema)
        row = pa.RecordBatch.from_pylist([{"id": 5, "added": 7}], schema=schema)
        found = None
        while found != 7:  # a record that was fetched before has the earlier columns
            producer.append(topic, row).result()
            found = json.loads(consumer.poll(WAIT_S).value()).get("added")
