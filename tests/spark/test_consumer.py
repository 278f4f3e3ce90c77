"""The option ``consumer`` in Spark: a pinned start, and who reads where."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import spark_stream as isolog
from tests.spark.conftest import Queries
from tests.spark.test_stream_source import NUMBERS, add


def fails(batch: DataFrame, batch_id: int) -> None:
    raise RuntimeError("the sink is broken")


@pytest.mark.parametrize(
    "checkpoint", ["the same", pytest.param("a new one", marks=pytest.mark.full)]
)
def test_a_query_from_latest_that_failed_in_its_first_batch_loses_nothing(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(topic, startingOffsets="latest", consumer=topic)
    broken = stream.writeStream.foreachBatch(fails)
    broken = broken.option("checkpointLocation", str(tmp_path / "the same"))
    running = broken.start()
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        running.awaitTermination(60)
    add(log, topic, range(10, 15))
    seen: list[int] = []

    def keeps(batch: DataFrame, batch_id: int) -> None:
        seen.extend(row.n for row in batch.collect())

    mended = stream.writeStream.foreachBatch(keeps).trigger(availableNow=True)
    query = mended.option("checkpointLocation", str(tmp_path / checkpoint)).start()
    assert query.awaitTermination(60)
    assert sorted(seen) == list(range(10, 15))
    [found] = log.describe_consumer(topic)
    assert (found.kind, found.starting) == ("query", "startingOffsets=latest")
    assert [(at.offset, at.lag) for at in found.partitions] == [(15, 0)]
