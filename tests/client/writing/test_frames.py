"""``append`` takes data frames, of any library that speaks Arrow's C interface."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_stream.errors import SchemaMismatch

FLIGHTS = pa.schema(
    [
        ("carrier", pa.string()),
        ("delay", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
AT = datetime(2013, 1, 1, 5, tzinfo=UTC)
ROWS = {
    "carrier": ["UA", None],
    "delay": [3, None],
    "at": [AT, None],
    "price": [Decimal("1.25"), None],
    "tags": [["a", "b"], None],
}


class OneArray:
    """No more than the C interface for one array."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(ROWS),  # its delays are floats, its times of nanoseconds
        pd.DataFrame(ROWS, index=[7, 3])[["at", "delay", "tags", "carrier", "price"]],
        pl.DataFrame(ROWS),  # its text is string_view
        pl.DataFrame(ROWS).with_columns(pl.col("carrier").cast(pl.Categorical)),
        pa.RecordBatchReader.from_batches(
            FLIGHTS, pa.Table.from_pydict(ROWS, schema=FLIGHTS).to_batches()
        ),
        OneArray(pa.RecordBatch.from_pydict(ROWS, schema=FLIGHTS)),
        pa.Table.from_pydict(ROWS, schema=FLIGHTS),
    ],
    ids=["pandas", "pandas-index", "polars", "polars-categorical", "reader", "array", "table"],
)
def test_a_frame_comes_back_as_the_topics_types(log, topic, frame):
    log.create_topic(topic, schema=FLIGHTS)
    with log.producer() as producer:
        assert producer.append(topic, frame).result(20).count == 2
    found = log.read(topic)
    assert found.schema == FLIGHTS
    assert found.to_pydict() == ROWS


@pytest.mark.parametrize("library", [pd, pl])
def test_a_frame_goes_to_a_topic_with_kafkas_columns(log, topic, library):
    log.create_topic(topic, partitions=3)
    with log.producer() as producer:
        frame = library.DataFrame({"key": ["k", "k"], "value": ["a", "ü"]})
        assert producer.append(topic, frame).result(20).count == 2
    assert log.read(topic)["value"].to_pylist() == [b"a", "ü".encode()]


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (pd.DataFrame({"n": [1.5]}), "column 'n': expected int, got double"),
        (pl.DataFrame({"n": [1 << 40]}), "column 'n': expected int, got bigint"),
        (pd.DataFrame({"n": ["1"]}), "column 'n': expected int, got string"),
        (pd.DataFrame({"n": [1], "m": [2]}), "column 'm'"),
        (pl.DataFrame({"m": [2]}), "column 'n' .* is missing"),
        (pd.DataFrame({"n": [1, "a"]}), "column n"),
    ],
)
def test_what_would_change_by_it_is_refused_by_name(log, topic, frame, named):
    log.create_topic(topic, schema=pa.schema([("n", pa.int32())]))
    with log.producer() as producer, pytest.raises(SchemaMismatch, match=named):
        producer.append(topic, frame).result(20)
    assert log.read(topic).num_rows == 0


def test_a_frame_without_rows_leaves_no_trace(log, topic):
    log.create_topic(topic, schema=FLIGHTS)
    with log.producer() as producer:
        assert producer.append(topic, pl.DataFrame(ROWS).clear()).result(20).count == 0
