"""Keys, values, headers and timestamps of every kind survive a stream unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import isolog
from tests.spark.conftest import Queries

MOMENTS = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1883, 11, 18, 17, 0, 0, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
)
TEXTS = ("plain", "Grüße, 世界 🛫", "e\u0301 \u202e \x00 \n", "", None)


def seen_by(stream: DataFrame, checkpoint: Path) -> list[Any]:
    """Return all rows of a stream, by its micro-batches."""
    rows: list[Any] = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    return rows


@pytest.mark.full  # nulls and times: test_types.py and test_times.py
def test_nulls_unicode_headers_and_times_before_1970_are_copied_unchanged(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        for number, (text, moment) in enumerate(zip(TEXTS, MOMENTS, strict=True)):
            headers = [] if text is None else [(text or "h", text.encode()), ("none", None)]
            key, value = (text, None) if number % 2 else (None, text)
            producer.send(topic, value, key=key, headers=headers, timestamp=moment)
            producer.send(topic, text, key=text, headers=headers, timestamp=moment)
    stream = queries.stream(topic, includeHeaders=True).selectExpr(
        "offset",
        "cast(key as string)",
        "cast(value as string)",
        "headers",
        "unix_micros(timestamp) as moment",
    )
    rows = sorted(seen_by(stream, tmp_path / "checkpoint"), key=lambda row: row.offset)
    assert [row.offset for row in rows] == list(range(10))
    for number, (text, moment) in enumerate(zip(TEXTS, MOMENTS, strict=True)):
        half, whole = rows[2 * number : 2 * number + 2]
        assert (half.key, half.value) == ((text, None) if number % 2 else (None, text))
        assert (whole.key, whole.value) == (text, text)
        wanted = [] if text is None else [(text or "h", text.encode()), ("none", None)]
        for row in (half, whole):
            assert [(each.key, each.value) for each in row.headers or []] == wanted
            assert row.moment == (moment - MOMENTS[3]) // timedelta(microseconds=1)


@pytest.mark.full  # test_sink_transactions.py has a micro-batch without rows
def test_a_query_continues_after_micro_batches_without_rows(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """An empty batch in the log and an aborted range bring no rows, and the query moves on."""
    column = "größe 世界"
    log.create_topic(topic, schema=pa.schema([(column, pa.string())]))

    def batch(*texts: str | None) -> pa.RecordBatch:
        return pa.record_batch({column: pa.array(texts, pa.string())})

    with log.producer() as producer:
        producer.append(topic, batch())
        producer.append(topic, batch(*TEXTS))
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.append(topic, batch(*"aborted"))
        producer.abort_transaction()
    options = {"isolation": "read_committed", "maxOffsetsPerTrigger": 6}
    rows = seen_by(queries.stream(topic, **options), tmp_path / "checkpoint")
    assert sorted(rows, key=str) == sorted([(text,) for text in TEXTS], key=str)
