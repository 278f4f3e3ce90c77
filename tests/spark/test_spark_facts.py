"""The facts of Spark that the connector relies on (docs/spark/facts.md), so that changes show."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.errors import (
    AnalysisException,
    PySparkException,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import isolog
from spark_stream.datasource.spark.releases import DataSourceStreamArrowWriter
from spark_stream.datasource.spark.workers import COMMITS, is_worker
from spark_stream.datasource.writing.identity import BATCH, QUERY, RUN
from tests.spark.conftest import Queries
from tests.spark.releases import passes_limits, plans_alone
from tests.support import eventually

pytestmark = pytest.mark.full  # they change with Spark's release, not with ours

KEYS = (BATCH, QUERY, RUN)


def test_the_format_is_known_without_registration(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"no log is given.*option\(\"path\", "):
        spark.read.format("isolog").load()


def test_load_with_a_path_option_is_refused_by_spark_itself(
    spark: SparkSession, shared_path: Path
) -> None:
    with pytest.raises(AnalysisException, match="'path' or 'paths' option set and load"):
        spark.read.format("isolog").option("path", str(shared_path)).load("topic")


class Told(DataSourceStreamReader):
    """A source of ten rows a batch, for two batches, which records Spark's calls."""

    def __init__(self, options: dict[str, str]) -> None:
        self._told = Path(options["told"])
        self._at: dict[str, Any] = {"at": 0}

    def _tell(self, what: str, *values: object) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps([what, *values]) + "\n")

    def initialOffset(self) -> dict[str, Any]:
        self._tell("initialOffset")
        return {"at": 0}

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        start = start or self._at
        self._tell("latestOffset", start, type(limit).__name__)
        return {"at": min(20, start["at"] + 10)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._tell("partitions", start, end)
        self._at = end
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array(range(*partition.value), pa.int64())})

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"at": 99}


class ToldBatch(DataSourceReader):
    """A source with a row for each call of ``partitions``."""

    def __init__(self, options: dict[str, str]) -> None:
        self._told = Path(options["told"])

    def partitions(self) -> list[InputPartition]:
        with self._told.open("a") as out:
            out.write('["planned"]\n')
        return [InputPartition(len(self._told.read_text().splitlines()))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array(range(partition.value), pa.int64())})


class Writes(DataSourceStreamArrowWriter):
    """A sink that records the information of a task and of a commit."""

    def __init__(self, options: dict[str, str], arguments: list[str]) -> None:
        self._told = Path(options["told"])
        self._fails = options.get("fails") == "true"
        with self._told.open("a") as out:
            out.write(json.dumps(["made", is_worker(COMMITS), *arguments]) + "\n")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        rows = [batch.num_rows for batch in iterator]
        known = [context.getLocalProperty(name) for name in KEYS]
        with self._told.open("a") as out:
            out.write(json.dumps(["write", rows, *known]) + "\n")
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps(["commit", len(messages), batchId]) + "\n")
        if self._fails:
            raise RuntimeError("the reply is lost")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps(["abort", len(messages), batchId]) + "\n")


class TellingSource(DataSource):
    """``format("telling")``."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def schema(self) -> str:
        return "n bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Told(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ToldBatch(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return Writes(dict(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return JobWriter(dict(self.options))


class Run:
    """One run of a query from the telling source into the telling sink."""

    def __init__(self, spark: SparkSession, directory: Path, *, fails: bool = False) -> None:
        spark.dataSource.register(TellingSource)
        self.checkpoint = directory / "checkpoint"
        path = directory / "told"
        path.unlink(missing_ok=True)
        query = (
            spark.readStream.format("telling")
            .option("told", str(path))
            .load()
            .writeStream.format("telling")
            .option("told", str(path))
            .option("fails", str(fails).lower())
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(once=True)
            .start()
        )
        self.query_id, self.run_id = str(query.id), str(query.runId)
        try:
            query.awaitTermination(240)
        except StreamingQueryException:
            assert fails
        self._told = [json.loads(line) for line in path.read_text().splitlines()]
        self.latest = None
        if query.lastProgress is not None:
            self.latest = query.lastProgress["sources"][0]["latestOffset"]

    def calls(self, what: str) -> list[list[Any]]:
        """The arguments of each call of this name."""
        return [line[1:] for line in self._told if line[0] == what]


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the calls of a source and of a sink in the first run of a query."""
    return Run(spark, tmp_path_factory.mktemp("run"))


@passes_limits
def test_initial_offset_is_requested_more_than_once(run: Run) -> None:
    assert len(run.calls("initialOffset")) >= 2


@passes_limits
def test_trigger_once_requests_all_available_records(run: Run) -> None:
    assert {limit for _, limit in run.calls("latestOffset")} == {"ReadAllAvailable"}


@plans_alone
def test_source_without_limits_first_gets_the_checkpoints_offset_as_an_empty_range(
    spark: SparkSession, tmp_path: Path
) -> None:
    """So a restarted source has its start, whether the last micro-batch was committed or not."""
    first = Run(spark, tmp_path)
    assert [first.calls("latestOffset"), first.calls("partitions")] == [
        [[{"at": 0}, "NoneType"]],
        [[{"at": 0}, {"at": 10}]],
    ]
    (first.checkpoint / "commits" / "0").unlink()
    repeated = Run(spark, tmp_path)
    assert repeated.calls("partitions") == [[{"at": 10}, {"at": 10}], [{"at": 0}, {"at": 10}]]
    assert repeated.calls("latestOffset") == []  # Trigger.Once and AvailableNow end after one
    again = Run(spark, tmp_path)
    assert again.calls("partitions") == [[{"at": 10}, {"at": 10}], [{"at": 10}, {"at": 20}]]
    assert again.calls("latestOffset") == [[{"at": 10}, "NoneType"]]


def test_a_micro_batch_is_planned_when_the_one_before_it_is_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    """So the query has read all records before its start."""
    spark.dataSource.register(TellingSource)
    told = tmp_path / "told"
    stream = spark.readStream.format("telling").option("told", str(told)).load()
    sink = stream.writeStream.format("telling").option("told", str(told))
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def lines() -> list[list[Any]]:
        text = told.read_text() if told.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("]")]

    def asked_from(at: int) -> list[int]:
        wanted = ["latestOffset", {"at": at}]
        return [n for n, line in enumerate(lines()) if line[:2] == wanted]

    try:
        eventually(lambda: asked_from(20), 60)
    finally:
        query.stop()
    done = [n for n, line in enumerate(lines()) if line[0] == "commit"]
    assert done[0] < asked_from(10)[0] < done[1] < asked_from(20)[0]


def test_a_batch_data_frame_is_planned_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TellingSource)
    reader = spark.read.format("telling").option("told", str(tmp_path / "told"))
    frame = reader.load()
    assert [frame.count(), frame.count(), reader.load().count()] == [1, 1, 2]


def test_a_seed_lasts_in_foreach_batch_and_not_in_a_streaming_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(0, 1000, 1, 1).write.parquet(str(tmp_path / "numbers"))

    def attempt(outside: str, inside: str) -> list[int]:
        found: list[int] = []

        def keep(batch: DataFrame, batch_id: int) -> None:
            found.extend(row.id for row in batch.where(inside).collect())

        numbers = spark.readStream.schema("id bigint").parquet(str(tmp_path / "numbers"))
        query = numbers.where(outside).writeStream.foreachBatch(keep)
        assert query.trigger(availableNow=True).start().awaitTermination(240)
        return found

    half = "rand(7) < 0.5"
    assert attempt("true", half) == attempt("true", half)
    assert attempt(half, "true") != attempt(half, "true")


def test_local_property_has_the_micro_batch_of_a_task(run: Run) -> None:
    rows, batch_id, _, _ = run.calls("write")[0]
    assert sum(rows) == 10
    assert batch_id == "0"


def test_local_property_has_the_query_of_a_task(run: Run) -> None:
    _, _, query_id, _ = run.calls("write")[0]
    assert query_id == run.query_id


def test_job_group_has_the_run_of_a_tasks_query(run: Run) -> None:
    _, _, _, run_id = run.calls("write")[0]
    assert run_id == run.run_id


def test_the_query_id_is_the_checkpoints_and_the_run_id_is_new(
    spark: SparkSession, run: Run
) -> None:
    kept = json.loads((run.checkpoint / "metadata").read_text())
    assert kept["id"] == run.query_id
    again = Run(spark, run.checkpoint.parent)
    assert again.query_id == run.query_id
    assert again.run_id != run.run_id
    assert again.calls("write")[0][1:] == ["1", run.query_id, again.run_id]


def test_a_commit_gets_the_batch_id(run: Run) -> None:
    assert run.calls("commit") == [[1, 0]]
    assert run.calls("abort") == []


def test_a_commit_that_raises_is_followed_by_an_abort_and_replayed_under_its_id(
    spark: SparkSession, tmp_path: Path
) -> None:
    failed = Run(spark, tmp_path, fails=True)
    assert failed.calls("commit") == [[1, 0]]
    assert failed.calls("abort") == [[1, 0]]
    again = Run(spark, tmp_path)
    assert again.calls("commit")[0] == [1, 0]
    assert again.calls("write")[0][2] == failed.query_id


def test_sink_is_created_again_for_every_commit(run: Run) -> None:
    """So nothing of a task or of an earlier commit is on ``self``."""
    makers = run.calls("made")
    assert len(makers) >= 2


def test_sink_detects_by_its_process_that_it_is_for_a_commit(run: Run) -> None:
    """So it can skip the preparation of tasks, which would only cost time."""
    commits = [commits for commits, *_ in run.calls("made")]
    assert commits.count(True) == len(run.calls("commit"))
    assert not commits[0]


@passes_limits
def test_reported_offset_is_the_latest_offset_of_the_progress(run: Run) -> None:
    latest = run.latest
    assert (json.loads(latest) if isinstance(latest, str) else latest) == {"at": 99}


class JobWriter(DataSourceArrowWriter):
    """A writer with a name from its creation."""

    def __init__(self, options: dict[str, str]) -> None:
        self._told = Path(options["told"])
        self._name = uuid.uuid4().hex

    def _tell(self, what: str) -> None:
        with self._told.open("a") as out:
            out.write(json.dumps([what, self._name]) + "\n")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        self._tell("write")
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tell("commit")


def test_the_tasks_and_the_commit_of_a_batch_write_have_the_same_writer(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TellingSource)
    told = tmp_path / "told"
    for _ in range(2):
        frame = spark.range(0, 10, 1, 2)
        frame.write.format("telling").mode("append").option("told", str(told)).save()
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [what for what, _ in lines] == ["write", "write", "commit"] * 2
    assert len({name for _, name in lines[:3]}) == 1
    assert len({name for _, name in lines}) == 2


class OffType(DataSource):
    """A source that yields a column in another type than it declared."""

    @classmethod
    def name(cls) -> str:
        return "offtype"

    def schema(self) -> str:
        return "items array<int>"

    def reader(self, schema: StructType) -> Any:
        from pyspark.sql.datasource import DataSourceReader

        class Reader(DataSourceReader):
            def partitions(self) -> list[InputPartition]:
                return [InputPartition(0)]

            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                yield pa.record_batch({"items": pa.array([[1]], pa.list_(pa.int64()))})

        return Reader()


def test_first_batch_must_have_exactly_sparks_schema(spark: SparkSession) -> None:
    spark.dataSource.register(OffType)
    refusal = "DATA_SOURCE_RETURN_SCHEMA_MISMATCH|UNSUPPORTED_CALL"  # the second one in 4.1
    with pytest.raises(PySparkException, match=refusal):
        spark.read.format("offtype").load().collect()


def raised_in_a_thread(work: Callable[[], object]) -> Exception | None:
    """Return the exception of the work in a thread without the session."""
    found: list[Exception] = []

    def attempt() -> None:
        try:
            work()
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(60)
    return found[0] if found else None


def test_a_thread_has_no_active_session_and_so_no_python_data_source_to_write_to(
    spark: SparkSession, queries: Queries, topic: str
) -> None:
    """The remedy is in docs/spark/cluster.md.

    Spark does not even look for the module of the data source, so our code cannot help.
    """
    frame = spark.range(3)

    def write() -> None:
        queries.write(frame, topic, createTopic=True)

    def write_actively() -> None:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        write()

    assert "DATA_SOURCE_NOT_FOUND" in str(raised_in_a_thread(write))
    assert raised_in_a_thread(write_actively) is None
    assert queries.read(topic).count() == 3


def test_update_mode_is_refused_before_the_sink_is_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TellingSource)
    told = tmp_path / "told"
    counts = spark.readStream.format("telling").option("told", str(told)).load().groupBy("n")
    query = (
        counts.count()
        .writeStream.format("telling")
        .option("told", str(told))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("update")
        .start()
    )
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        query.awaitTermination(240)
    assert not told.exists() or '"made"' not in told.read_text()


def test_python_workers_have_a_variable_and_a_jvm_among_their_parents(
    spark: SparkSession, shared_path: Path, log: isolog.Log
) -> None:
    """A relative path refers to the working directory of that JVM."""
    path = os.path.relpath(shared_path, psutil.Process().cwd())
    reader = spark.read.format("isolog").option("path", path).option("subscribe", "no-such-topic")
    with pytest.raises(AnalysisException, match="there is no topic 'no-such-topic'"):
        reader.load()
