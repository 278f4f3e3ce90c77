"""A listener and progress bars over real queries."""

from __future__ import annotations

import io
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import isolog
from isolog.spark import LagListener, progress_bar
from spark_stream.datasource.watching import PartitionLag
from tests.spark.conftest import Queries
from tests.spark.releases import passes_limits
from tests.spark.test_stream_source import NUMBERS, add, wait_until


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[LagListener]:
    found = LagListener(metrics_port=0)
    spark.streams.addListener(found)
    yield found
    spark.streams.removeListener(found)


def scraped(listener: LagListener) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.full  # without a JVM: tests/datasource/test_watching_lag.py
@passes_limits
def test_a_listener_shows_the_lag_under_the_querys_isolation_level(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, listener: LagListener
) -> None:
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    add(log, topic, range(100))
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        add(log, topic, range(100, 150), partition=1)  # outside the transaction, before it
        batch = log.read(topic).to_batches()[0].slice(0, 10)
        producer.append(topic, batch, partition=1)
        producer.flush()
        query = (
            queries.stream(topic, maxOffsetsPerTrigger=60, isolation="read_committed")
            .writeStream.format("noop")
            .queryName(topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="1 hour")
            .start()
        )
        wait_until(lambda: topic in listener.lags(), "the first micro-batch is told of")
        assert listener.lags()[topic] == [
            PartitionLag(topic, 0, 40, 100),
            PartitionLag(topic, 1, 20, 50, 10),  # the open transaction holds ten back
        ]
        seen = scraped(listener)
        labels = f'partition="0",query="{topic}",topic="{topic}"'
        assert f"isolog_query_lag_records{{{labels}}} 60.0" in seen
        assert f'isolog_query_input_rows_total{{query="{topic}"}} 60.0' in seen
        query.stop()
        wait_until(lambda: topic not in listener.lags(), "the end of the query is told of")
        assert f'isolog_query_lag_records{{partition="0",query="{topic}"' not in scraped(listener)
        producer.abort_transaction()


def drawn(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.file.getvalue())


@passes_limits
@pytest.mark.full  # the test below has a bar, which it must not show
def test_a_query_and_a_batch_job_each_have_a_progress_bar(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(1000))
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bar(spark, screen):
        query = (
            queries.stream(topic, maxOffsetsPerTrigger=400)
            .writeStream.format("noop")
            .queryName("copied")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
        wait_until(lambda: "copied" in drawn(screen), "the bar is drawn")
        wait_until(
            lambda: (
                bool(spark.range(4).repartition(4).rdd.map(_slowly).collect())
                and "tasks" in drawn(screen)
            ),
            "a job is drawn",
        )
    assert "of 1,000 records" in drawn(screen)
    assert re.search(r"job \d+ .*\d of [0-9]+ tasks", drawn(screen))
    assert topic not in [each.name for each in spark.streams.active]


def _slowly(row: object) -> int:
    import time

    time.sleep(0.4)
    return 1


def test_no_bar_is_shown_without_a_terminal_or_notebook(spark: SparkSession) -> None:
    screen = Console(file=io.StringIO(), force_terminal=False, force_jupyter=False)
    with progress_bar(spark, screen):
        spark.range(10).count()
    assert drawn(screen) == ""
