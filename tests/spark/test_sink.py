"""The batch and the streaming sink: placement of rows, refusals, and no lost row."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import isolog
from spark_stream.client.writing.partitioner import partitions_by, partitions_of
from tests.datasource.test_source_refusals import MISFITS, NOT_KAFKAS, WRITES
from tests.examples import the_first
from tests.spark.conftest import Queries, ended
from tests.spark.releases import RUNS
from tests.spark.test_stream_source import NUMBERS, add, wait_until

TEN = "select id as n from range(10)"


def test_missing_topic_is_an_error_without_create_topic(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    with pytest.raises(AnalysisException, match=f"there is no topic '{topic}'"):
        queries.write(spark.sql(TEN), topic)
    queries.write(spark.sql(TEN), topic, createTopic=True, partitions=3)
    made = log.describe(topic)
    assert len(made.partitions) == 3
    assert made.schema.field("n").type == pa.int64()


def test_dataframe_of_keys_and_values_creates_a_default_schema_topic(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    frame = spark.sql("select cast(id as string) as key, concat('v', id) as value from range(100)")
    queries.write(frame, topic, createTopic=True, partitions=4)
    table = log.read(topic)
    assert sorted(table["value"].to_pylist()) == sorted(b"v%d" % n for n in range(100))
    keys = table["key"].combine_chunks()
    assert table["partition"].to_pylist() == partitions_of(keys, 4, 0).tolist()


def test_headers_timestamps_and_partitions_of_rows_are_written(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    log.create_topic(topic, partitions=3)
    frame = spark.sql(
        "select cast('v' as binary) as value, cast(id % 3 as int) as partition,"
        " timestamp_millis(id) as timestamp,"
        " array(named_struct('key', 'h', 'value', cast(string(id) as binary))) as headers"
        " from range(9)"
    )
    queries.write(frame, topic)
    with log.consumer(topic) as consumer:
        records = list(consumer.records(until="latest"))
    assert sorted(record.partition for record in records) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(int(record.timestamp.timestamp() * 1000) for record in records) == list(range(9))
    assert {record.headers[0][0] for record in records} == {"h"}


@pytest.mark.rule("the topic and partition of a DataFrame's row", "datasource/writing/routing.py")
def test_topic_column_routes_rows_and_the_option_takes_precedence(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    names = [f"{topic}-0", f"{topic}-1"]
    frame = spark.sql(
        f"select concat('{topic}-', id % 2) as topic, cast(id as string) as value from range(10)"
    )
    queries.write(frame, None, createTopic=True)
    for name in names:
        log.describe(name)
    assert sorted(log.read(names[1])["value"].to_pylist()) == [b"1", b"3", b"5", b"7", b"9"]
    queries.write(frame, names[0])
    assert log.read(names[0]).num_rows == 15


def test_a_topic_column_routes_rows_of_typed_topics(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    frame = spark.sql(f"select concat('{topic}-', id % 2) as topic, id as n from range(10)")
    queries.write(frame, None, createTopic=True)
    assert sorted(log.read(f"{topic}-0")["n"].to_pylist()) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(("query", "_", "message"), the_first(MISFITS))
def test_dataframe_that_does_not_fit_is_refused_before_a_row_is_written(
    spark: SparkSession,
    queries: Queries,
    log: isolog.Log,
    topic: str,
    query: str,
    _: object,
    message: str,
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    with pytest.raises(AnalysisException, match="SCHEMA_MISMATCH") as caught:
        queries.write(spark.sql(query), topic)
    assert message in str(caught.value)
    assert log.read(topic).num_rows == 0


def test_metadata_columns_of_a_read_are_refused_for_a_new_topic(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    """The new topic would look like Kafka's, with the offsets of another topic."""
    queries.write(spark.sql("select 'k' as key, 'v' as value"), topic, createTopic=True)
    read = queries.read(topic)
    with pytest.raises(PySparkException, match="are metadata columns"):
        queries.write(read, f"{topic}-copied", createTopic=True)
    assert f"{topic}-copied" not in log.topics()
    queries.write(read.select("key", "value"), f"{topic}-copied", createTopic=True)
    assert log.read(f"{topic}-copied")["value"].to_pylist() == [b"v"]


@pytest.mark.parametrize(("query", "_", "message"), the_first(NOT_KAFKAS))
def test_dataframe_without_kafkas_columns_is_refused_by_column(
    spark: SparkSession,
    queries: Queries,
    log: isolog.Log,
    topic: str,
    query: str,
    _: object,
    message: str,
) -> None:
    log.create_topic(topic)
    with pytest.raises(AnalysisException, match="SCHEMA_MISMATCH") as caught:
        queries.write(spark.sql(query), topic)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 'v' as value, 7 as partition", "has partitions 0 to 0, not 7"),
        ("select 'v' as value, cast(null as string) as topic", "its column 'topic' is null"),
    ],
)
def test_rows_without_a_valid_partition_fail_the_write(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str, query: str, message: str
) -> None:
    log.create_topic(topic)
    with pytest.raises(PythonException) as caught:
        queries.write(spark.sql(query), None if "topic" in query else topic)
    assert message in str(caught.value)


@pytest.mark.parametrize(("options", "message"), the_first(WRITES))
def test_invalid_option_has_a_specific_message(
    spark: SparkSession, queries: Queries, topic: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        queries.write(spark.sql(TEN), topic, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("overwrite", "a log can only be appended to"),
        ("ignore", 'cannot be written in the "Ignore" mode'),
        ("errorifexists", 'cannot be written in the "ErrorIfExists" mode'),
    ],
)
def test_other_modes_than_append_are_refused(
    spark: SparkSession, shared_path: Path, topic: str, mode: str, message: str
) -> None:
    writer = spark.sql(TEN).write.format("isolog").mode(mode)
    with pytest.raises(AnalysisException) as caught:
        writer.option("path", str(shared_path)).option("topic", topic).save()
    assert message in str(caught.value)


def test_write_without_topic_or_topic_column_is_refused(
    spark: SparkSession, queries: Queries
) -> None:
    with pytest.raises(AnalysisException, match="no topic is given"):
        queries.write(spark.sql(TEN), None)


@pytest.mark.quick("true-read_committed", "false-read_uncommitted")
@pytest.mark.parametrize(
    ("transactional", "isolation"),
    [
        ("true", "read_uncommitted"),
        ("true", "read_committed"),
        ("false", "read_uncommitted"),
        ("false", "read_committed"),
    ],
)
def test_a_stream_copies_a_topic_to_another(
    queries: Queries,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    transactional: str,
    isolation: str,
) -> None:
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    to = f"{topic}-copy"
    for partition in (0, 1):
        add(log, topic, range(partition * 500, partition * 500 + 500), partition)
    query = (
        queries.stream(topic, maxOffsetsPerTrigger=300)
        .withColumn("twice", F.col("n") * 2)
        .writeStream.format("isolog")
        .option("path", queries.path)
        .option("topic", to)
        .option("createTopic", "true")
        .option("isolation", isolation)
        .option("transactional", transactional)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    copied = log.read(to)
    assert sorted(copied["n"].to_pylist()) == list(range(1000))
    assert copied["twice"].to_pylist() == [2 * n for n in copied["n"].to_pylist()]


@pytest.mark.full  # Spark makes the rows of a mode, and the test above appends
def test_complete_mode_appends_the_whole_result_and_for_each_batch_the_changed_rows(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path
) -> None:
    """Update mode itself is refused by Spark for every Python sink (test_spark_facts)."""
    log.create_topic(topic, schema=NUMBERS)
    add(log, topic, range(3))
    add(log, topic, [0, 1])
    counts = queries.stream(topic, maxOffsetsPerTrigger=3).groupBy("n").count()
    whole, changed = f"{topic}-whole", f"{topic}-changed"
    complete = queries.sink(
        counts, tmp_path / "complete", topic=whole, createTopic=True, partitions=1
    )
    update = (
        counts.writeStream.outputMode("update")
        .foreachBatch(lambda frame, _: queries.write(frame, changed, createTopic=True))
        .option("checkpointLocation", str(tmp_path / "update"))
        .trigger(availableNow=True)
    )
    for writer in (complete.outputMode("complete"), update):
        for _ in range(RUNS):
            assert ended(writer.start()) is None
    first = [(0, 1), (1, 1), (2, 1)]

    def rows(name: str) -> list[tuple[int, int]]:
        table = log.read(name)
        return sorted(zip(table["n"].to_pylist(), table["count"].to_pylist(), strict=True))

    assert rows(whole) == sorted([*first, (0, 2), (1, 2), (2, 1)])
    assert rows(changed) == sorted([*first, (0, 2), (1, 2)])


@pytest.mark.full  # brokers die in tests/spark/test_failover.py
@pytest.mark.chaos
def test_without_transactions_the_kill_of_a_broker_loses_no_row(
    spark: SparkSession, log_dir: Path, tmp_path: Path
) -> None:
    """The sink is then at least once: after restarts from the checkpoint no row is missing."""
    with isolog.connect(path=log_dir) as log:
        log.create_topic("in", schema=NUMBERS)
        log.create_topic("out", schema=NUMBERS, partitions=2)
        for start in range(0, 5_000, 1_000):
            add(log, "in", range(start, start + 1_000))
        source = Queries(spark, log_dir)

        def started() -> object:
            return (
                source.stream("in", maxOffsetsPerTrigger=500)
                .writeStream.format("isolog")
                .option("path", str(log_dir))
                .option("topic", "out")
                .option("transactional", "false")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )

        query = started()
        wait_until(lambda: log.read("out").num_rows > 0, "the first rows are written")
        os.kill(log.status().pid, signal.SIGKILL)
        for _ in range(15):  # runs with one micro-batch of 500 rows each, in Spark 4.1
            query.awaitTermination(240)
            copied = set(log.read("out")["n"].to_pylist())
            if query.exception() is None and copied == set(range(5_000)):
                break
            query = started()
        assert query.exception() is None
        assert copied == set(range(5_000))


def test_rows_of_a_typed_topic_are_placed_by_key_for_any_task(
    spark: SparkSession, queries: Queries, log: isolog.Log, topic: str
) -> None:
    frame = spark.sql("select id % 13 as k, id as n from range(0, 400, 1, 3)")
    queries.write(frame, topic, createTopic=True, partitions=4, partitionBy="k")
    queries.write(frame, topic)  # the topic keeps its key
    table = log.read(topic, metadata=True, isolation="read_committed")
    (batch,) = table.combine_chunks().to_batches()
    assert batch.num_rows == 800
    assert batch["_partition"].to_pylist() == partitions_by(batch, ["k"], 4, 0).tolist()
