"""A query on a log that was truncated and grew: the loss is reported, no record is skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.brokers import append_entries, truncate_log
from tests.spark.conftest import Queries
from tests.support import NUMBERS, BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "log") as found:
        yield found


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_losses_truncation.py
def test_query_on_a_truncated_log_reports_the_loss_and_continues_there(
    spark: SparkSession, queries: Queries, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with broker.connect() as log:
        log.create_topic(topic, schema=NUMBERS)
    append_entries(broker, topic, 0, 100)
    out = tmp_path / "out", tmp_path / "checkpoint"

    def stream(**options: object) -> DataFrame:
        reader = spark.readStream.format("isolog").option("bootstrap", broker.address)
        return reader.options(**options).load(topic)

    def written() -> list[int]:
        frame = spark.read.schema("n bigint").parquet(str(out[0]))
        return sorted(row.n for row in frame.collect())

    assert queries.copy(stream(), *out) == [100]
    truncate_log(broker, 60)  # a power cut takes the last 40 records, which nobody had flushed
    append_entries(broker, topic, 1000, 90)
    with pytest.raises(StreamingQueryException, match=r"offsets 60 to 99 were (cut off|truncated)"):
        queries.copy(stream(), *out)
    queries.copy(stream(failOnDataLoss="false"), *out)
    assert written() == [*range(100), *range(1000, 1090)]
    append_entries(broker, topic, 2000, 5)
    assert queries.copy(stream(), *out) == [5]
    assert written()[-5:] == [2000, 2001, 2002, 2003, 2004]

    # What a query's progress shows is a place to start from.
    logged = json.loads((out[1] / "offsets" / "0").read_text().splitlines()[-1])
    logged[topic]["partitions"]["0"] = {"offset": 148, "epoch": 1}
    again = tmp_path / "again", tmp_path / "again-checkpoint"
    assert queries.copy(stream(startingOffsets=json.dumps(logged)), *again) == [7]
