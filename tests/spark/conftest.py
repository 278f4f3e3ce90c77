"""One Spark session and one embedded broker for all. Each test creates new topics."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

import isolog
from spark_stream.client.connecting.embedded import known_address
from spark_stream.datasource.spark.types import to_spark
from tests.conftest import ROOT, stop_broker
from tests.kafka.clients import started
from tests.kafka_jars import jars_of, real_kafka
from tests.spark.releases import HAS_KAFKA, PASSES_LIMITS
from tests.sql.rows import SPARKS_TYPES

__all__ = ["real_kafka"]

_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("spark")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport() -> None:
    """After each part of a test, before the fixtures end."""
    drop_unread_answer()


def drop_unread_answer() -> None:
    """Close a connection to the JVM whose answer a timeout of the test left unread.

    Otherwise each later call of this thread would get the answer of the call before it.
    """
    if SparkContext._gateway is not None:
        client = SparkContext._gateway._gateway_client
        connection = client.get_thread_connection()
        # A connection is in the deque between its calls.
        if connection is not None and connection not in client.deque:
            connection.close()


@functools.cache
def checkpoint_file_manager() -> str:
    """Return the manager that starts no process for a file. Its package depends on the release."""
    [jar] = Path(pyspark.__file__).parent.glob("jars/spark-sql_*.jar")
    with ZipFile(jar) as classes:
        [found] = [
            name
            for name in classes.namelist()
            if name.endswith("/FileSystemBasedCheckpointFileManager.class")
        ]
    return found.removesuffix(".class").replace("/", ".")


def session_builder(master: str) -> SparkSession.Builder:
    """Build a session as all tests need it."""
    return (
        SparkSession.builder.master(master)
        .appName("isolog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.stopTimeout", "30s")
        .config("spark.sql.streaming.checkpointFileManagerClass", checkpoint_file_manager())
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
    )


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    builder = session_builder("local[2]")
    if HAS_KAFKA:
        builder = builder.config("spark.jars", ",".join(map(str, jars_of("connector"))))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


def end_jvm() -> None:
    """End the JVM, which outlives `stop`: with its workers it uses a gigabyte of memory."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends with its input
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def utc_rows(spark: SparkSession) -> Iterator[DataFrame]:
    """The rows that filters are compared over. Spark's time zone is UTC, as a filter's is."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        # With a schema, because Spark infers a zone for a timestamp without one.
        table = pa.Table.from_batches([SPARKS_TYPES])
        yield spark.createDataFrame(table, to_spark(SPARKS_TYPES.schema)).coalesce(1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture(scope="package")
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("shared") / "log"
    yield directory
    stop_broker(directory)


@pytest.fixture(scope="package")
def log(shared_path: Path) -> Iterator[isolog.Log]:
    with isolog.connect(path=shared_path) as found:
        yield found


@pytest.fixture(scope="package")
def kafka(log: isolog.Log, shared_path: Path) -> Iterator[str]:
    """The address of a Kafka gateway over the shared log."""
    with started(str(known_address(shared_path))) as address:
        yield address


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="package")
def isolog_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """isolog alone, made by the line of docs/spark/cluster.md."""
    target = tmp_path_factory.mktemp("zip") / "isolog.zip"
    line = "python -m zipfile -c isolog.zip isolog spark_stream pyspark_isolog.py"
    assert line in (ROOT / "docs/spark/cluster.md").read_text()
    words = line.replace("isolog.zip", str(target)).split()
    subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=True)
    return target


class Queries:
    """Short forms of frequent steps, for one directory."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = str(path)

    def read(self, topic: str | None, schema: str | None = None, **options: object) -> DataFrame:
        """Read a topic. Without one the options select it."""
        reader = self.spark.read.format("isolog").option("path", self.path)
        reader = (reader.option("subscribe", topic) if topic else reader).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, topic: str | None, schema: str | None = None, **options: object) -> DataFrame:
        """Stream a topic. Without one the options select it."""
        reader = self.spark.readStream.format("isolog").option("path", self.path)
        reader = (reader.option("subscribe", topic) if topic else reader).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def write(self, frame: DataFrame, topic: str | None, **options: object) -> None:
        writer = frame.write.format("isolog").mode("append").option("path", self.path)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**options).save()

    def sink(self, frame: DataFrame, checkpoint: Path, **options: object) -> DataStreamWriter:
        """Stream the present records into the log."""
        writer = frame.writeStream.format("isolog").option("path", self.path)
        writer = writer.option("checkpointLocation", str(checkpoint)).options(**options)
        return writer.trigger(availableNow=True)

    def copy(self, frame: DataFrame, to: Path, checkpoint: Path) -> list[int]:
        """Run a stream to its end into Parquet files. Return its micro-batches' input rows.

        A run ends after one micro-batch if Spark passes no trigger. Then it is restarted.
        """
        progress = self._run(frame, to, checkpoint)
        again = not PASSES_LIMITS
        while again:
            more = [each for each in self._run(frame, to, checkpoint) if _has_moved(each)]
            again = bool(more)
            progress += more
        return [each["numInputRows"] for each in progress]

    def _run(self, frame: DataFrame, to: Path, checkpoint: Path) -> list[StreamingQueryProgress]:
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(to))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(240)
        failure = query.exception()
        query.stop()
        if failure is not None:
            raise failure
        return list(query.recentProgress)


def _has_moved(progress: StreamingQueryProgress) -> bool:
    """Return whether a micro-batch covered offsets, also if no row of them passed a filter."""
    return any(each["startOffset"] != each["endOffset"] for each in progress["sources"])


def ended(query: StreamingQuery) -> str | None:
    """Wait for the query's end. Return its error, or None."""
    try:
        assert query.awaitTermination(240), "the query goes on"
    except StreamingQueryException as error:
        return str(error)
    return None


@pytest.fixture
def queries(spark: SparkSession, shared_path: Path, log: isolog.Log) -> Queries:
    return Queries(spark, shared_path)
