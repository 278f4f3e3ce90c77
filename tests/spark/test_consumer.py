"""The option ``consumer`` in Spark: a pinned start, and the position of each reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import isolog
from spark_stream.consistency.isolation import ReaderState
from tests.conftest import ROOT
from tests.spark.conftest import Queries
from tests.spark.releases import RUNS
from tests.spark.test_stream_source import NUMBERS, add, wait_until


def fails(batch: DataFrame, batch_id: int) -> None:
    raise RuntimeError("the sink is broken")


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_named_query.py
@pytest.mark.parametrize(
    "checkpoint", ["the same", pytest.param("a new one", marks=pytest.mark.full)]
)
def test_query_from_latest_that_failed_in_its_first_batch_loses_no_record(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, checkpoint: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(topic, startingOffsets="latest", consumer=topic)
    broken = stream.writeStream.foreachBatch(fails)
    broken = broken.option("checkpointLocation", str(tmp_path / "the same"))
    running = broken.start()
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        running.awaitTermination(240)
    add(log, topic, range(10, 15))
    seen: list[int] = []

    def keeps(batch: DataFrame, batch_id: int) -> None:
        seen.extend(row.n for row in batch.collect())

    mended = stream.writeStream.foreachBatch(keeps).trigger(availableNow=True)
    mended = mended.option("checkpointLocation", str(tmp_path / checkpoint))
    for _ in range(RUNS):
        assert mended.start().awaitTermination(240)
    assert sorted(seen) == list(range(10, 15))
    [found] = log.describe_consumer(topic)
    assert (found.kind, found.starting) == ("query", "startingOffsets=latest")
    assert [(at.offset, at.lag) for at in found.partitions] == [(15, 0)]


def state(log: isolog.Log, name: str) -> ReaderState:
    [found] = log.describe_consumer(name)
    return found.state


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_named_query.py
def test_a_query_between_two_runs_has_stopped_although_it_lags(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(topic, consumer=topic).writeStream.format("noop")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(RUNS):
        assert stream.trigger(availableNow=True).start().awaitTermination(240)
    wait_until(lambda: state(log, topic) is ReaderState.STOPPED, "the end is on record")
    add(log, topic, range(10, 15))
    [found] = log.describe_consumer(topic)
    assert (found.state, found.lag) == (ReaderState.STOPPED, 5)
    query = stream.trigger(processingTime="1 second").start()
    wait_until(lambda: state(log, topic) is ReaderState.RUNNING, "the next run reads on")
    query.stop()
    wait_until(lambda: state(log, topic) is ReaderState.STOPPED, "the stop is on record")


DRIVER = """
import sys, time
from tests.spark.conftest import session_builder
path, topic, checkpoint = sys.argv[1:]
spark = session_builder("local[1]").getOrCreate()
stream = spark.readStream.format("isolog").option("path", path).option("subscribe", topic)
frame = stream.option("consumer", topic).load()
query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
query.processAllAvailable()
print("ready", spark.sparkContext._gateway.proc.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.full  # a separate driver takes a while to start
def test_query_whose_driver_was_killed_is_lost(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    command = [sys.executable, "-c", DRIVER, queries.path, topic, str(tmp_path / "checkpoint")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline().split()[1])
        assert state(log, topic) is ReaderState.RUNNING
        os.kill(pid, signal.SIGKILL)
        driver.kill()
    wait_until(lambda: state(log, topic) is ReaderState.GONE, "the JVM of the driver is gone")
