"""Topics by pattern and partitions by number, in Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import isolog
from tests.spark.conftest import Queries
from tests.spark.test_stream_source import NUMBERS, Collected, add, read_back, wait_until


@pytest.mark.full  # without a JVM: tests/datasource/options/test_query_selection.py
def test_pattern_selects_topics_created_while_the_query_runs_or_is_stopped(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """It begins before there is any topic that matches: ``.schema`` names the columns."""
    stream = queries.stream(None, "n bigint", subscribePattern=f"{topic}-.+")
    running = Collected(stream, tmp_path)
    try:
        wait_until(lambda: running.query.lastProgress is not None, "a first look at the log")
        for number, name in enumerate("ab"):
            log.create_topic(f"{topic}-{name}", schema=NUMBERS)
            add(log, f"{topic}-{name}", range(10 * number, 10 * number + 10))
            wanted = list(range(10 * number + 10))
            wait_until(lambda wanted=wanted: running.numbers() == wanted, "the topic is read")
    finally:
        running.stop()
    assert running.query.exception() is None
    log.create_topic(f"{topic}-c", schema=NUMBERS)
    add(log, f"{topic}-c", range(20, 30))
    queries.copy(stream, tmp_path / "running", tmp_path / "running-checkpoint")
    assert read_back(spark, tmp_path / "running") == list(range(30))


def test_a_pattern_without_a_match_needs_columns(queries: Queries, topic: str) -> None:
    for read in (queries.read, queries.stream):
        with pytest.raises(AnalysisException, match="no topic matches subscribePattern"):
            read(None, subscribePattern=f"{topic}-.+")


@pytest.mark.full  # without a JVM: tests/datasource/options/test_query_selection.py
def test_only_assigned_partitions_are_read(
    queries: Queries, log: isolog.Log, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    for partition in range(3):
        add(log, topic, range(10 * partition, 10 * partition + 10), partition)
    assign = json.dumps({topic: [0, 2]})
    wanted = [*range(10), *range(20, 30)]
    assert sorted(row.n for row in queries.read(None, assign=assign).collect()) == wanted
    queries.copy(queries.stream(None, assign=assign), tmp_path / "out", tmp_path / "checkpoint")
    assert read_back(spark, tmp_path / "out") == wanted
    with pytest.raises(AnalysisException, match="partitions 0 to 2, not 3"):
        queries.read(None, assign=json.dumps({topic: [3]})).count()
