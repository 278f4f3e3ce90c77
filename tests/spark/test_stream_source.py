"""The streaming source: restarts, limits, moving starts, and lost records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import isolog
from tests.spark.conftest import Queries, ended
from tests.spark.releases import PASSES_LIMITS, passes_limits, plans_alone

NUMBERS = pa.schema([("n", pa.int64())])

# Without a JVM both are in tests/datasource/reading/test_losses_messages.py.
BOTH = [True, pytest.param(False, marks=pytest.mark.full)]


def add(log: isolog.Log, topic: str, numbers: range, partition: int = 0) -> None:
    with log.producer() as producer:
        batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
        producer.append(topic, batch, partition=partition)


def read_back(spark: SparkSession, out: Path) -> list[int]:
    frame = spark.read.schema("n bigint").parquet(str(out))  # of the batches that are committed
    return sorted(row.n for row in frame.collect())


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s until {what}"
        time.sleep(0.02)


class Collected:
    """A running query, and the rows that it has written."""

    def __init__(self, frame: DataFrame, tmp_path: Path, name: str = "running") -> None:
        self._out = tmp_path / name
        self._spark = frame.sparkSession
        self.query: StreamingQuery = (
            frame.writeStream.format("parquet")
            .option("path", str(self._out))
            .option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            .start()
        )

    def numbers(self) -> list[int]:
        return read_back(self._spark, self._out) if (self._out / "_spark_metadata").exists() else []

    def stop(self) -> None:
        self.query.stop()


@pytest.fixture
def out(tmp_path: Path) -> tuple[Path, Path]:
    """The target of a copy, and its checkpoint."""
    return tmp_path / "out", tmp_path / "checkpoint"


def test_restart_from_the_checkpoint_reads_the_records_in_between(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, out: tuple[Path, Path]
) -> None:
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    add(log, topic, range(100))
    add(log, topic, range(100, 150), partition=1)
    assert queries.copy(queries.stream(topic), *out) == [150]
    add(log, topic, range(150, 160), partition=1)
    assert sum(queries.copy(queries.stream(topic), *out)) == 10
    assert sum(queries.copy(queries.stream(topic), *out)) == 0
    assert read_back(spark, out[0]) == list(range(160))


def test_available_now_with_a_limit_reaches_its_target_and_stops(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, out: tuple[Path, Path]
) -> None:
    log.create_topic(topic, partitions=3, schema=NUMBERS)
    add(log, topic, range(700), partition=0)
    add(log, topic, range(700, 1000), partition=2)
    rows = queries.copy(queries.stream(topic, maxOffsetsPerTrigger=300), *out)
    assert rows == [300, 300, 300, 100]
    assert read_back(spark, out[0]) == list(range(1000))


@pytest.mark.full  # without a JVM: tests/datasource/values/test_limits_sharing.py
@passes_limits
def test_a_limit_is_shared_out_by_backlog(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    add(log, topic, range(900), partition=0)
    add(log, topic, range(900, 1000), partition=1)
    query = (
        queries.stream(topic, maxOffsetsPerTrigger=100)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(240)
    ends = [
        json.loads(progress["sources"][0]["endOffset"])[topic]["partitions"]
        if isinstance(progress["sources"][0]["endOffset"], str)
        else progress["sources"][0]["endOffset"][topic]["partitions"]
        for progress in query.recentProgress
    ]
    assert [end["0"]["offset"] for end in ends[:3]] == [90, 180, 270]
    assert [end["1"]["offset"] for end in ends[:3]] == [10, 20, 30]


def test_offsets_are_the_logs_and_name_the_topics_id(
    queries: Queries, log: isolog.Log, topic: str, out: tuple[Path, Path]
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(42))
    queries.copy(queries.stream(topic), *out)
    logged = (out[1] / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(logged) == {
        topic: {
            "id": log.describe(topic).id,
            "cluster": log.status().cluster_id,
            "partitions": {"0": {"offset": 42, "epoch": 0}},
        }
    }


@pytest.mark.rule("the start and the end of a query", "datasource/reading/bounds.py")
def test_a_stream_starts_at_explicit_offsets(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, out: tuple[Path, Path]
) -> None:
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    add(log, topic, range(10))
    add(log, topic, range(10, 20), partition=1)
    starting = json.dumps({topic: {"0": 7, "1": -2}})
    queries.copy(queries.stream(topic, startingOffsets=starting), *out)
    assert read_back(spark, out[0]) == [7, 8, 9, *range(10, 20)]


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_bounds.py
def test_latest_starts_after_the_present_records(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    running = Collected(queries.stream(topic, startingOffsets="latest"), tmp_path)
    try:
        checkpoint = tmp_path / "running-checkpoint" / "commits" / "0"
        wait_until(checkpoint.exists, "batch 0 is done")
        add(log, topic, range(10, 20))
        wait_until(lambda: running.numbers() == list(range(10, 20)), "the new records are there")
    finally:
        running.stop()


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_named_query.py
def test_a_start_at_latest_is_pinned_before_the_first_record_is_read(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, out: tuple[Path, Path]
) -> None:
    """Batch 0 was planned and not committed, and records arrived until the restart. All are read.

    On the restart Spark requests the initial offset again, and it is a later one: the range of
    batch 0 then ends below its start.
    """
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(topic, startingOffsets="latest")
    assert sum(queries.copy(stream, *out)) == 0
    (
        out[1] / "commits" / "0"
    ).unlink()  # as after a kill of the driver before the commit of batch 0
    (out[1] / "commits" / ".0.crc").unlink(missing_ok=True)
    add(log, topic, range(10, 30))
    queries.copy(queries.stream(topic, startingOffsets="latest"), *out)
    assert read_back(spark, out[0]) == list(range(10, 30))


@pytest.mark.full  # test_failover.py has a query that follows
def test_a_continuous_query_follows_and_stops_promptly(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    running = Collected(queries.stream(topic), tmp_path)
    try:
        for start in range(0, 30, 10):
            add(log, topic, range(start, start + 10))
            wait_until(lambda end=start + 10: running.numbers() == list(range(end)), "followed")
        assert running.query.lastProgress is not None
    finally:
        running.stop()
    assert running.query.exception() is None


@pytest.mark.full  # without a JVM: tests/datasource/test_watching_lag.py
@passes_limits
def test_progress_shows_the_latest_offset_of_the_log(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(100))
    query = (
        queries.stream(topic, maxOffsetsPerTrigger=60)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(240)
    latest = query.recentProgress[0]["sources"][0]["latestOffset"]
    latest = json.loads(latest) if isinstance(latest, str) else latest
    assert latest[topic]["partitions"]["0"]["offset"] == 100


def evict(log: isolog.Log, topic: str) -> int:
    """Wait until retention has removed the first segment. Return the log start offset."""

    def start() -> int:
        return log.describe(topic).partitions[0].log_start_offset

    wait_until(lambda: start() > 0, "retention removed a segment")
    return start()


RETAINED = {"segment.bytes": 65536, "retention.bytes": 65536}


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_losses_messages.py
@pytest.mark.parametrize("fail", BOTH)
def test_records_removed_by_retention_are_reported_or_skipped(
    spark: SparkSession,
    queries: Queries,
    log: isolog.Log,
    topic: str,
    out: tuple[Path, Path],
    fail: bool,
) -> None:
    log.create_topic(topic, schema=NUMBERS, config=RETAINED)
    add(log, topic, range(10))
    stream = queries.stream(topic, failOnDataLoss=str(fail).lower())
    queries.copy(stream, *out)
    for start in range(10, 60_010, 6_000):
        add(log, topic, range(start, start + 6_000))
    first = evict(log, topic)
    if fail:
        with pytest.raises(StreamingQueryException, match="DATA_LOSS") as caught:
            queries.copy(stream, *out)
        assert f"offsets 10 to {first - 1}" in str(caught.value) or "removed by" in str(
            caught.value
        )
    else:
        queries.copy(stream, *out)
        seen = read_back(spark, out[0])
        assert seen[:10] == list(range(10))
        assert seen[-1] == 60_009
        assert seen[10:] == list(range(seen[10], 60_010))


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_losses_messages.py
@pytest.mark.parametrize("fail", BOTH)
def test_topic_deleted_and_created_again_is_detected_by_its_id(
    spark: SparkSession,
    queries: Queries,
    log: isolog.Log,
    topic: str,
    out: tuple[Path, Path],
    fail: bool,
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(topic, failOnDataLoss=str(fail).lower())
    queries.copy(stream, *out)
    log.delete_topic(topic)
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(100, 120))
    if fail:
        with pytest.raises(StreamingQueryException, match="deleted and created again"):
            queries.copy(stream, *out)
    else:
        queries.copy(stream, *out)
        assert read_back(spark, out[0]) == [*range(10), *range(100, 120)]


@pytest.mark.full  # without a JVM: tests/datasource/reading/test_planning_deleted_topics.py
@pytest.mark.parametrize("fail", BOTH)
def test_a_topic_deleted_while_the_query_runs_is_reported(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, fail: bool
) -> None:
    other = f"{topic}-other"
    log.create_topic(topic, schema=NUMBERS)
    log.create_topic(other, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(f"{topic},{other}", failOnDataLoss=str(fail).lower())
    running = Collected(stream, tmp_path)
    try:
        wait_until(lambda: running.numbers() == list(range(10)), "the first records are read")
        log.delete_topic(topic)
        if fail:
            wait_until(lambda: running.query.exception() is not None, "the query failed")
            assert f"topic '{topic}' was deleted" in str(running.query.exception())
        else:
            add(log, other, range(10, 15))
            wait_until(lambda: running.numbers() == list(range(15)), "the other topic goes on")
    finally:
        running.stop()


@pytest.mark.full  # Spark joins streams like those of the tests above
def test_two_streams_can_be_joined(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(10))
    stream = queries.stream(topic)
    joined = stream.alias("a").join(stream.alias("b"), F.expr("a.n = b.n + 1")).select("a.n")
    queries.copy(joined, tmp_path / "out", tmp_path / "checkpoint")
    assert read_back(spark, tmp_path / "out") == list(range(1, 10))


@pytest.mark.full  # a watermark reads a column, as other queries do
def test_a_watermark_uses_the_records_timestamp(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    log.create_topic(topic)

    def send(*minutes: int) -> None:
        with log.producer() as producer:
            for minute in minutes:
                producer.send(topic, b"x", timestamp=1_700_000_000_000 + minute * 60_000)

    send(0, 1, 2, 20)
    counted = (
        queries.stream(topic)
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "5 minutes"))
        .count()
        .select(F.col("count").alias("n"))
    )
    queries.copy(counted, tmp_path / "out", tmp_path / "checkpoint")
    if not PASSES_LIMITS:  # without a target a run has no micro-batch without records
        send(20)
        queries.copy(counted, tmp_path / "out", tmp_path / "checkpoint")
    assert sum(read_back(spark, tmp_path / "out")) == 3


@pytest.mark.full  # without a JVM: tests/datasource/values/test_offsets.py
def test_a_checkpoint_of_another_source_is_refused_by_name(
    queries: Queries, log: isolog.Log, topic: str, out: tuple[Path, Path]
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(3))
    queries.copy(queries.stream(topic), *out)
    logged = out[1] / "offsets" / "0"
    lines = logged.read_text().splitlines()
    lines[-1] = json.dumps({topic: {"0": 1}})  # as Kafka's source writes it
    logged.write_text("\n".join(lines))
    (out[1] / "offsets" / ".0.crc").unlink(missing_ok=True)
    add(log, topic, range(3, 6))
    with pytest.raises(StreamingQueryException, match="the checkpoint's offset is not isolog's"):
        queries.copy(queries.stream(topic), *out)


@plans_alone
def test_the_wrapper_of_available_now_continues_after_a_failed_run(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    conf = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    found: list[list[int]] = []

    def run(**options: object) -> str | None:
        """Run to the end, and fail in the second micro-batch of all."""
        writer = queries.stream(topic, **options).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return ended(writer.trigger(availableNow=True).start())

    def keep(batch: DataFrame, batch_id: int) -> None:
        found.append(sorted(row.n for row in batch.collect()))
        assert len(found) != 2

    queries.spark.conf.set(conf, "true")
    try:
        for first in (0, 10):
            add(log, topic, range(first, first + 10))
            failure = run()
        assert "AssertionError" in str(failure)
        add(log, topic, range(20, 30))
        assert run() is None
        tens = [list(range(first, first + 10)) for first in (0, 10, 10, 20)]
        assert found == tens
        assert "Remove the limits" in str(run(maxOffsetsPerTrigger=10))
        assert found == tens
    finally:
        queries.spark.conf.unset(conf)
