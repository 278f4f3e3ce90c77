"""Reading a range to its end, if the last records of the range are aborted."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.types import LongType, StructField, StructType

from isolog.errors import DataLoss
from spark_stream.client.reading.fetching import Fetched
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading import reader
from spark_stream.datasource.reading.reader import RangeReader
from spark_stream.datasource.values.offsets import Range
from tests.datasource.sources import batch_read

NUMBERS = pa.schema([("n", pa.int64())])
SCHEMA = StructType([StructField("n", LongType())])


def fetched(first: int, count: int, next_: int) -> Fetched:
    batch = pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})
    return Fetched(0, first, next_, batch)


class Leader:
    """Rows 0 to 9 of a partition. The records after them, up to the log's ``end``, were aborted."""

    def __init__(self, end: int) -> None:
        self._end = end
        self.isolation: Isolation | None = None

    def read_range(self, source: Any, start: int, end: int, *, wait_ms: int) -> Iterator[Fetched]:
        self.isolation = source.isolation
        bounds = Bounds(
            log_start_offset=0,
            last_stable_offset=self._end,
            high_watermark=self._end,
            log_end_offset=self._end,
        )
        if start < 10:
            yield fetched(start, 10 - start, 10)
        else:
            yield replace(fetched(start, 0, max(start, min(self._end, end))), bounds=bounds)


def read(
    monkeypatch: pytest.MonkeyPatch, leader: Leader, asked: Range, **options: str
) -> list[int]:
    topic = SimpleNamespace(id="id", name="t", schema=NUMBERS, schema_version=0)
    router = SimpleNamespace(timeout_s=30.0)
    topics = SimpleNamespace(known=lambda name: topic, router=router)
    here = SimpleNamespace(topics=topics, tables=None)
    monkeypatch.setattr(reader, "session", lambda place: here)
    monkeypatch.setattr(reader, "read_range", leader.read_range)
    chosen = source_options({"path": "x", "subscribe": "t", **options})
    found = RangeReader(chosen, SCHEMA).read((asked,))
    return [number for batch in found for number in batch.column("n").to_pylist()]


def test_batch_query_over_a_topic_without_records_is_empty(shared, log, topic):
    log.create_topic(topic, schema=NUMBERS)
    assert batch_read(shared.address, topic) == []


def test_range_that_ends_in_aborted_records_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, Leader(20), Range("t", "id", 0, 0, 20)) == list(range(10))


def test_range_of_only_aborted_records_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, Leader(20), Range("t", "id", 0, 10, 20)) == []


def test_missing_records_are_reported_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataLoss, match="t/0: offsets 15 to 19 are lost: the log ends at 15"):
        read(monkeypatch, Leader(15), Range("t", "id", 0, 0, 20))
    went_on = read(monkeypatch, Leader(15), Range("t", "id", 0, 0, 20), failOnDataLoss="false")
    assert went_on == list(range(10))


def test_a_range_of_read_atomic_is_read_as_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends are cuts already, so the leader need not compute one at every fetch."""
    leader = Leader(20)
    read(monkeypatch, leader, Range("t", "id", 0, 0, 20), isolation="read_atomic")
    assert leader.isolation is Isolation.READ_COMMITTED


def test_small_batches_are_joined_up_to_a_number_of_bytes():
    """A task of few large records must not hold all of them."""
    large = pa.record_batch({"value": pa.array([bytes(3 << 20)])})
    assert [batch.num_rows for batch in reader.join_small_batches([large] * 5)] == [2, 2, 1]
