"""A message with an invalid record: earlier records stay, and the error has its number.

Records are appended in order, the first invalid one ends the message, no record is rolled back, and
the next message is judged independently (docs/vocabulary.md).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from isolog.errors import (
    BatchTooLarge,
    InvalidRecord,
    IsologError,
    RecordNotAttempted,
    RecordTooLarge,
)
from tests.support import values

TEXT = pa.schema([("s", pa.string())])


def bad_text(*rows: bytes) -> pa.RecordBatch:
    """Text from buffers, which Arrow does not validate."""
    offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(rows))]
    return pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.string(), len(rows), buffers)], schema=TEXT
    )


def refused(log, topic, batch) -> IsologError:
    """Return the error for the batch after five valid records. Check that the next write works."""
    producer = log.producer()
    future = producer.append(topic, batch, partition=0)
    error = future.exception(20)
    assert isinstance(error, IsologError)
    producer.close()
    return error


def check_prefix(log, topic, error, kept: int, at: int, next_batch) -> None:
    assert error.kept == kept
    assert error.offset == (at if kept else None)
    assert f"record {kept} of" in error.message
    bounds = log.describe(topic).partitions[0]
    assert bounds.log_end_offset == bounds.high_watermark == bounds.last_stable_offset == at + kept
    with log.producer() as producer:
        assert producer.append(topic, next_batch, partition=0).result(20).offset == at + kept
    for isolation in ("read_uncommitted", "read_committed"):
        assert log.read(topic, isolation=isolation).num_rows == at + kept + next_batch.num_rows


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_a_record_that_is_too_large_keeps_those_before_it(log, topic, bad):
    log.create_topic(topic, config={"max.record.bytes": 100})
    with log.producer() as producer:
        producer.append(topic, values("a", "b", "c", "d", "e"))
    sizes = [1000 if row == bad else row for row in range(10)]
    error = refused(log, topic, values(*[b"x" * size for size in sizes]))
    assert isinstance(error, RecordTooLarge)
    assert "max.record.bytes is 100" in error.message
    check_prefix(log, topic, error, bad, 5, values("next"))
    assert [len(value.as_py()) for value in log.read(topic)["value"]][5 : 5 + bad] == sizes[:bad]


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_a_null_in_a_required_column_keeps_the_records_before_it(log, topic, bad):
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    log.create_topic(topic, schema=schema)
    column = pa.array([None if row == bad else row for row in range(10)], pa.int64())
    error = refused(log, topic, pa.record_batch({"n": column}))
    assert isinstance(error, InvalidRecord)
    assert "column 'n'" in error.message
    good = pa.record_batch({"n": pa.array([100], pa.int64())})
    check_prefix(log, topic, error, bad, 0, good)
    assert log.read(topic)["n"].to_pylist() == [*range(bad), 100]


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_text_that_is_not_utf8_keeps_the_records_before_it(log, topic, bad):
    log.create_topic(topic, schema=TEXT)
    rows = [b"\xff\xfe" if row == bad else b"row" for row in range(10)]
    error = refused(log, topic, bad_text(*rows))
    assert isinstance(error, InvalidRecord)
    check_prefix(log, topic, error, bad, 0, pa.record_batch({"s": ["next"]}))
    assert log.read(topic)["s"].to_pylist() == ["row"] * bad + ["next"]
    log.read(topic).validate(full=True)


def test_the_first_invalid_record_determines_the_error(log, topic):
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string())])
    log.create_topic(topic, schema=schema, config={"max.record.bytes": 100})
    numbers = pa.array([0, 1, 2, None, 4], pa.int64())
    text = bad_text(b"a", b"b", b"x" * 200, b"d", b"\xff").column(0)
    error = refused(log, topic, pa.RecordBatch.from_arrays([numbers, text], ["n", "s"]))
    assert isinstance(error, RecordTooLarge)
    assert (error.kept, error.offset) == (2, 0)
    assert log.describe(topic).partitions[0].log_end_offset == 2


def test_each_record_of_a_refused_batch_gets_its_outcome(log, topic):
    """The client refuses errors that it can check. Errors of the leader are settled record by
    record.
    """
    log.create_topic(topic, config={"max.record.bytes": 100})
    producer = log.producer(linger_ms=200)
    producer.send(topic, b"warm").result(20)
    # The client has cached the limit of the old topic, and the leader has a lower one.
    with_limit = log.describe(topic)
    remembered = dict(with_limit.config) | {"max.record.bytes": "10000"}
    structs.force_setattr(producer._topics.known(topic), "config", remembered)
    futures = [producer.send(topic, b"x" * size) for size in (1, 2, 3000, 4, 5000, 6)]
    with pytest.raises(RecordTooLarge):
        producer.flush()
    assert [futures[n].result(0).offset for n in (0, 1)] == [1, 2]
    first = futures[2].exception(0)
    assert isinstance(first, RecordTooLarge)
    assert (first.kept, first.offset) == (2, 1)
    for number in (3, 4, 5):
        later = futures[number].exception(0)
        assert isinstance(later, RecordNotAttempted)
        assert later.retriable
        assert later.kept == 0
    again = [producer.send(topic, b"x" * size).result(20).offset for size in (4, 6)]
    assert again == [3, 4]
    producer.close()


def test_a_batch_over_partitions_is_refused_only_in_the_invalid_partition(log, topic):
    """Each partition's part is judged independently. ``kept`` counts the records of all parts."""
    log.create_topic(topic, partitions=4, config={"max.record.bytes": 100})
    keys = [f"key-{n}".encode() for n in range(40)]
    rows = [b"x" * (1000 if n == 20 else 1) for n in range(40)]
    producer = log.producer()
    error = producer.append(topic, pa.record_batch({"key": keys, "value": rows})).exception(20)
    assert isinstance(error, RecordTooLarge)
    assert log.read(topic).num_rows == error.kept
    assert 20 <= error.kept < 40
    producer.close()


def test_the_size_of_a_record_counts_only_its_values(log, topic):
    """If a batch shares buffers with a larger one, only its rows count."""
    schema = pa.schema(
        [
            ("list", pa.list_(pa.string())),
            ("map", pa.map_(pa.string(), pa.binary())),
            ("struct", pa.struct([("s", pa.string()), ("fixed", pa.list_(pa.int32(), 4))])),
        ]
    )
    log.create_topic(topic, schema=schema, config={"max.record.bytes": 200})

    def row(size: int) -> dict:
        return {
            "list": ["x" * size, None, "x"],
            "map": [("k", b"y" * size)],
            "struct": {"s": "z" * size, "fixed": [1, 2, 3, 4]},
        }

    whole = pa.RecordBatch.from_pylist([row(n) for n in (1000, 10, 20, 30, 40, 90, 10)], schema)
    error = refused(log, topic, whole.slice(1, 6))
    assert isinstance(error, RecordTooLarge)
    assert (error.kept, error.offset) == (4, 0)
    found = log.read(topic).to_pylist()
    assert [len(each["struct"]["s"]) for each in found] == [10, 20, 30, 40]


def test_a_batch_above_the_message_limit_is_refused_completely(log, topic):
    schema = pa.schema([("n", pa.null()), ("b", pa.bool_())])
    log.create_topic(topic, schema=schema)
    rows = (256 << 20) * 8 + 64
    bits = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes(rows // 8))])
    producer = log.producer()
    batch = pa.RecordBatch.from_arrays([pa.nulls(rows), bits], schema=schema)
    assert isinstance(producer.append(topic, batch).exception(60), BatchTooLarge)
    producer.close()
    assert log.describe(topic).partitions[0].log_end_offset == 0
