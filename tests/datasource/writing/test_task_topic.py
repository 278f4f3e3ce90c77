"""A task's view of its topic: the cached one, if the driver found the same version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import isolog
from spark_stream.client.topics import TopicsClient
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.spark.session import session
from spark_stream.datasource.writing.task import TaskWriter
from tests.conftest import stop_broker

pytestmark = pytest.mark.timeout(120)

NUMBERS = pa.schema([("n", pa.int64())])
SCHEMA = StructType([StructField("n", LongType())])


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A log with a topic ``t``."""
    with isolog.connect(path=tmp_path / "log") as log:
        log.create_topic("t", schema=NUMBERS)
    yield tmp_path / "log"
    stop_broker(tmp_path / "log")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that the task looks up at brokers."""
    found: list[str] = []
    describe = TopicsClient.describe

    def noted(self: TopicsClient, topic: str) -> isolog.TopicDescription:
        found.append(topic)
        return describe(self, topic)

    monkeypatch.setattr(TopicsClient, "describe", noted)
    return found


def writer(path: Path) -> TaskWriter:
    given = {"path": str(path), "topic": "t", "transactional": "false"}
    return TaskWriter(sink_options(given), SCHEMA).prepare()


def numbers(*found: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"n": pa.array(found, pa.int64())})])


def test_task_does_not_look_up_a_cached_topic_of_the_planned_version(
    path: Path, asked: list[str]
) -> None:
    made = writer(path)
    asked.clear()
    made.write(numbers(1))
    assert asked == []
    with isolog.connect(path=path) as log:
        assert log.read("t").column("n").to_pylist() == [1]


def test_task_looks_up_a_topic_whose_cached_version_differs(path: Path, asked: list[str]) -> None:
    before = writer(path)
    topics = session(before.options.place).topics
    old = topics.known("t")
    with isolog.connect(path=path) as log:
        log.delete_topic("t")
        log.create_topic("t", 2, schema=NUMBERS)
    made = writer(path)
    topics._known["t"] = old  # another process than the driver's
    asked.clear()
    made.write(numbers(2))
    assert asked == ["t"]
    with isolog.connect(path=path) as log:
        assert log.read("t").column("n").to_pylist() == [2]
